"""What users and other plugins may add to a run: pytest hooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

from harness.model.mode import Cell

if TYPE_CHECKING:
    from harness.results import Measurement, ValidityCheck


@pytest.hookspec
def pytest_virt_overhead_checks(
    cell: Cell,  # noqa: ARG001 - a specification
    measurements: Sequence[Measurement],  # noqa: ARG001
) -> Iterable[ValidityCheck]:
    """Checks of the measurements of one cell. One that is not ok makes the cell void, like a check of the harness.

    `measurements` are those of all arms and rounds so far, in the order of time. The hook is called again after later
    rounds. It must not change anything, and needs no lab: it works on what is stored.
    """
    return ()
