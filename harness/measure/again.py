"""Which jobs of a group are measured again after a series of rounds, and in which slices. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import Verdict
from harness.model.job import Job
from harness.results import CellRecord, Measurement
from harness.results.carried import longer_slices
from harness.results.records import CarryOverRecord
from harness.scenario.plan import Group, Plan


@dataclass(frozen=True, slots=True)
class Again:
    """Jobs that are measured again, with the seconds at the beginning of each slice that do not count.

    `longer`: in longer slices because of carry-over, else because slices overlapped.
    """

    discarded: Mapping[Job, float]
    longer: bool

    @property
    def cause(self) -> str:
        return "carry-over between the arms" if self.longer else "slices overlapped"

    @property
    def what(self) -> str:
        """A sentence for the user."""
        jobs = ", ".join(
            f"{job.id} ({seconds:g} s)" if self.longer else job.id for job, seconds in self.discarded.items()
        )
        how = "measured again without the beginning of each slice" if self.longer else "measured again"
        return f"{self.cause}: {how}: {jobs}"


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
    again = {job: longest[job] for job in jobs if _overlapped(plan, group, job, records, measured)}
    return Again(again, longer=False) if again else None


def _overlapped(
    plan: Plan, group: Group, job: Job, records: Mapping[str, CellRecord], measured: Sequence[Measurement]
) -> bool:
    """Whether a cell of the job has fewer than two blocks that count, although more were measured: slices overlapped.

    A cell that is void for another reason does not count: it would be void again. Once a job was measured for twice the
    plan's fewest rounds, it is not measured again.
    """
    own = {(each.round, each.block) for each in measured if each.job == job.id}
    void = {(each.round, each.block) for each in measured if each.job == job.id and each.overlap is not None}
    cells = [records[cell.id] for cell in group.cells if cell.job == job]
    usable = [record for record in cells if record.skipped is None and record.verdict is not Verdict.VOID]
    few = any(len(record.rounds) < min(2, len(own)) for record in usable)
    return bool(void) and few and len(own) < 2 * plan.rounds * group.blocks
