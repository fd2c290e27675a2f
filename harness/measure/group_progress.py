"""The progress of measuring a group, and whether its time is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.analysis import Sequential
from harness.model.mode import Cell
from harness.results import CONFIDENCE
from harness.scenario.plan import Group, Plan


@dataclass(slots=True)
class GroupProgress:
    """The progress of measuring a group. `started` is on the monotonic clock.

    `earlier` is the time in seconds for which an earlier part of the run measured the group. `last_look` is true if the
    time was spent at the last look at the rounds.
    """

    group: Group
    plan: Plan
    started: float
    earlier: float = 0.0
    rounds: int = 0
    stopped: str | None = None
    last_look: bool = False
    _settled: set[str] = field(default_factory=set)

    @property
    def open_cells(self) -> list[Cell]:
        """The cells that a further round measures."""
        return [cell for cell in self.group.cells if cell.id not in self._settled]

    def is_open(self, cell: Cell) -> bool:
        """Whether further rounds measure the cell. The rounds of other cells are no look at it."""
        return cell.id not in self._settled

    def settle(self, cells: Iterable[str]) -> None:
        """No further round measures the cells with these ids, unless that would leave no cell."""
        settled = self._settled | set(cells)
        if any(cell.id not in settled for cell in self.group.cells):
            self._settled = settled

    @property
    def sequential(self) -> Sequential:
        return Sequential(self.plan.rounds, self.plan.most_rounds_of(self.group), CONFIDENCE)

    @property
    def time_spent(self) -> bool:
        """Whether another round of average length would end after the plan's time limit."""
        if self.rounds == 0:
            return False
        elapsed = self.earlier + time.monotonic() - self.started
        return elapsed * (self.rounds + 1) / self.rounds > self.plan.limit_of(self.group)

    @property
    def reachable(self) -> int | None:
        """The number of rounds for which there is time; None if the time is not limited."""
        limit = self.plan.limit_of(self.group)
        elapsed = self.earlier + time.monotonic() - self.started
        if math.isinf(limit) or self.rounds == 0 or elapsed <= 0:
            return None
        return max(int(limit * self.rounds / elapsed), self.rounds)
