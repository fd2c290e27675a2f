"""With pytest-xdist, gives all cells of one host to one worker, because concurrent measurements disturb each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController


class _Collection(list[str]):
    """The ids of a worker's tests. It finds each at once: xdist looks every test up, and a lab may have 100,000."""

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(ids)
        self._places = {nodeid: place for place, nodeid in enumerate(ids)}

    def index(self, nodeid: str, *_: Any) -> int:
        return self._places[nodeid]


class HostScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives tests for which `host_of` returns the same name to one worker.

    All other tests are distributed as `--dist` says: by file, by module or class, else one by one. This replaces
    `--dist loadgroup`: with pytest 9.2, xdist 3.8 no longer finds the group of an item.
    """

    def __init__(self, config: pytest.Config, log: Producer, host_of: Callable[[str], str | None]) -> None:
        super().__init__(config, log)
        self._host_of = cache(host_of)

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        super().add_node_collection(node, collection)
        if node in self.registered_collections:
            self.registered_collections[node] = _Collection(collection)

    def _split_scope(self, nodeid: str) -> str:
        if host := self._host_of(nodeid):
            return host
        match self.config.getoption("dist"):
            case "loadfile":
                return nodeid.partition("::")[0]
            case "loadscope":
                return str(super()._split_scope(nodeid))
        return nodeid


def scheduler(config: pytest.Config, log: Any, host_of: Callable[[str], str | None]) -> HostScheduling:
    return HostScheduling(config, log, host_of)
