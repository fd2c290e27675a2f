"""Under pytest-xdist: all cells of one host go to one worker, or they would measure each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class HostScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps together what `host_of` gives one name; tests that are no cells are spread one by one.

    Own scopes rather than `--dist loadgroup`: with pytest 9.2, xdist 3.8 no longer sees the group of an item.
    """

    def __init__(self, config: pytest.Config, log: Producer, host_of: Callable[[str], str | None]) -> None:
        super().__init__(config, log)
        self._host_of = host_of

    def _split_scope(self, nodeid: str) -> str:
        return self._host_of(nodeid) or nodeid


def scheduler(config: pytest.Config, log: Any, host_of: Callable[[str], str | None]) -> HostScheduling:
    return HostScheduling(config, log, host_of)
