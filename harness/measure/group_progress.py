"""The progress of measuring a group, and whether its time or its bytes are spent."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.analysis import Reason, Sequential
from harness.measure.pauses import Pauses
from harness.model.cell import Cell
from harness.model.job import Job
from harness.results import CONFIDENCE, Measurement
from harness.scenario.plan import Group, Plan


@dataclass(slots=True)
class GroupProgress:
    """The progress of one series of rounds of a group.

    A group has one series. Another one follows for jobs that need longer slices, or whose blocks were void.

    `started` is on the monotonic clock. `earlier` is the time in seconds for which an earlier part of the run measured
    the series, `before` that of the series before it. `discarded` has the seconds at the beginning of each slice that
    do not count, by job. Of the bytes that the series may write, `bytes_left`, it has `written` so many. `no_room` is
    true if another round would exceed the limit of a disk. `last_look` is true if the time or the bytes were spent at
    the last look at the rounds. `left_out` says of jobs why they are not measured again. `pauses` are those of all
    series of the group.
    """

    group: Group
    plan: Plan
    started: float
    before: float = 0.0
    discarded: Mapping[Job, float] = field(default_factory=dict)
    bytes_left: float = math.inf
    left_out: dict[Job, str] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    earlier: float = 0.0
    written: float = 0.0
    rounds: int = 0
    stopped: str | None = None
    last_look: bool = False
    no_room: bool = False
    needed: int | None = None
    """The number of rounds, if only blocks that were lost are measured again; None for the plan's."""
    _settled: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def followed_by(
        self,
        discarded: Mapping[Job, float],
        bytes_left: float,
        *,
        cells: Collection[str] | None = None,
        rounds: int | None = None,
    ) -> GroupProgress:
        """The next series: only these jobs, with this time at the beginning of each slice discarded.

        With `cells`, only these cells of them, for so many `rounds`.
        """
        others = {
            cell.id
            for cell in self.group.cells
            if cell.job not in discarded or (cells is not None and cell.id not in cells)
        }
        looked = {cell.id for cell in self.open_cells} if self.last_look else set()
        return GroupProgress(
            self.group,
            self.plan,
            time.monotonic(),
            self.elapsed + self.before,
            discarded,
            bytes_left if any(cell.writes for cell in self.group.cells if cell.job in discarded) else math.inf,
            self.left_out,
            self.pauses,
            needed=rounds,
            _settled=others,
            _ended=others & (self._ended | looked),
        )

    def as_run(self, job: Job) -> Job:
        """The job with the ramp of this series."""
        return replace(job, ramp=job.ramp + self.discarded.get(job, 0.0))

    def has(self, measurements: Sequence[Measurement]) -> bool:
        """Whether a stored round is one of this series: whether it discards the same time."""
        discarded = {job.id: seconds for job, seconds in self.discarded.items()}
        return all(measurement.discarded_s == discarded.get(measurement.job, 0.0) for measurement in measurements)

    @property
    def elapsed(self) -> float:
        """Seconds for which the series was measured."""
        return self.earlier + time.monotonic() - self.started

    @property
    def open_cells(self) -> list[Cell]:
        """The cells that a further round measures."""
        return [cell for cell in self.group.cells if cell.id not in self._settled]

    def is_open(self, cell: Cell) -> bool:
        """Whether further rounds measure the cell. The rounds of other cells are no look at it."""
        return cell.id not in self._settled

    def ended_before(self, cell: Cell) -> bool:
        """Whether the cell was measured until the time or the bytes were spent, and others are still measured."""
        return cell.id in self._ended

    def settle(self, cells: Iterable[str]) -> None:
        """No further round measures the cells with these ids, unless that would leave no cell."""
        settled = self._settled | set(cells)
        if any(cell.id not in settled for cell in self.group.cells):
            self._settled = settled

    def end(self, cells: Iterable[str]) -> None:
        """No further round measures the cells with these ids, for a reason that is not in the data."""
        ended = set(cells)
        self._ended = self._ended | ended
        self.settle(ended)

    @property
    def fewest(self) -> int:
        """The number of rounds before which the series does not end."""
        return self.plan.rounds if self.needed is None else self.needed

    @property
    def most(self) -> int:
        """The largest number of rounds of the series."""
        return self.plan.most_rounds_of(self.group) if self.needed is None else self.needed

    @property
    def further(self) -> int | None:
        """How many rounds surely follow the next one; None if that is not known."""
        return max(self.fewest - self.rounds - 1, 0) if self.rounds < self.fewest else None

    @property
    def sequential(self) -> Sequential:
        return Sequential(self.plan.rounds, self.plan.most_rounds_of(self.group), CONFIDENCE)

    @property
    def spent(self) -> Reason | None:
        """What another round would exceed: the limit of a disk, the plan's time limit, or the bytes of the series."""
        if self.rounds == 0:
            return None
        if self.no_room:
            return Reason.WRITES
        with_another = (self.rounds + 1) / self.rounds
        return next((what for what, used, limit in self._limits if used * with_another > limit), None)

    @property
    def reachable(self) -> int | None:
        """The number of rounds for which there are time and bytes; None if neither is limited."""
        fitting = [limit * self.rounds / used for _, used, limit in self._limits if used > 0 and not math.isinf(limit)]
        return max(int(min(fitting)), self.rounds) if fitting else None

    @property
    def seconds_left(self) -> float:
        """The time that is left of the plan's time limit for the group; infinite without a limit."""
        return self.plan.limit_of(self.group) - self.before - self.elapsed

    @property
    def _limits(self) -> tuple[tuple[Reason, float, float], ...]:
        """What this series has used of the time and of the bytes, and may use."""
        time_limit = self.plan.limit_of(self.group) - self.before
        return (Reason.TIME, self.elapsed, time_limit), (Reason.BYTES, self.written, self.bytes_left)
