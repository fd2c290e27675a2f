"""Which jobs of a group are measured again after a series of rounds, and in which slices. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import Verdict
from harness.model.job import Job
from harness.results import CellRecord, Measurement
from harness.results.carried import longer_slices
from harness.results.records import CarryOverRecord
from harness.scenario.plan import Group, Plan

_ENOUGH = 2
"""Blocks with which a cell has an interval."""


@dataclass(frozen=True, slots=True)
class Again:
    """Jobs that are measured again, with the seconds at the beginning of each slice that do not count.

    `longer`: in longer slices because of carry-over, else because slices overlapped. Then only the `cells` with these
    ids are measured, which have too few blocks, for so many `rounds`.
    """

    discarded: Mapping[Job, float]
    longer: bool
    cells: frozenset[str] | None = None
    rounds: int | None = None

    def arms(self, group: Group, job: Job) -> frozenset[str]:
        """The ids of the arms that run the job again."""
        cells = (cell for cell in group.cells if cell.job == job and (self.cells is None or cell.id in self.cells))
        return frozenset(arm.id for cell in cells for arm in cell.arms)

    @property
    def cause(self) -> str:
        return "carry-over between the arms" if self.longer else "slices overlapped"

    @property
    def what(self) -> str:
        """A sentence for the user."""
        jobs = ", ".join(
            f"{job.id} ({seconds:g} s)" if self.longer else job.id for job, seconds in self.discarded.items()
        )
        if self.longer:
            return f"{self.cause}: measured again without the beginning of each slice: {jobs}"
        number = len(self.cells or ())
        return f"{self.cause}: {number} {'cell' if number == 1 else 'cells'} measured again: {jobs}"


def jobs_again(
    plan: Plan,
    group: Group,
    carry_over: Sequence[CarryOverRecord],
    records: Mapping[str, CellRecord],
    measured: Sequence[Measurement],
    *,
    without: Collection[Job] = (),
) -> Again | None:
    """The jobs of the next series: those with carry-over in longer slices, else those of which too few blocks count.

    `carry_over` and `measured` are those of the group. `records` is by cell id. The jobs `without` are left out.
    """
    jobs = [job for job in group.jobs if job not in without]
    if discarded := longer_slices(carry_over, measured, jobs):
        return Again(discarded, longer=True)
    longest = {job: max((each.discarded_s for each in measured if each.job == job.id), default=0.0) for job in jobs}
    few = {job: cells for job in jobs if (cells := _overlapped(plan, group, job, records, measured))}
    if not few:
        return None
    lost = max(lost for cells in few.values() for lost in cells.values())
    ids = frozenset(cell for cells in few.values() for cell in cells)
    return Again(
        {job: longest[job] for job in few},
        longer=False,
        cells=ids,
        rounds=min(math.ceil(lost / group.blocks), plan.rounds),
    )


def _overlapped(
    plan: Plan, group: Group, job: Job, records: Mapping[str, CellRecord], measured: Sequence[Measurement]
) -> dict[str, int]:
    """The cells of the job that have fewer than two blocks that count, although more were measured: slices overlapped.

    By the cell's id, how many of its blocks were lost. A cell that is void for another reason does not count: it would
    be void again. Once a job was measured for twice the plan's fewest rounds, it is not measured again.
    """
    own = {(each.round, each.block) for each in measured if each.job == job.id}
    void = {(each.round, each.block) for each in measured if each.job == job.id and each.overlap is not None}
    cells = [records[cell.id] for cell in group.cells if cell.job == job]
    usable = [record for record in cells if record.skipped is None and record.verdict is not Verdict.VOID]
    enough = min(_ENOUGH, len(own))
    if not void or len(own) >= 2 * plan.rounds * group.blocks:
        return {}
    return {record.id: len(own) - len(record.rounds) for record in usable if len(record.rounds) < enough}
