"""Which jobs of a group are measured again after a series of rounds, and in which slices. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.group_progress import GroupProgress
from harness.model.job import Job
from harness.results import CellRecord, Measurement
from harness.results.carried import longer_slices
from harness.results.records import CarryOverRecord
from harness.scenario.plan import Group, Plan


@dataclass(frozen=True, slots=True)
class Again:
    """Jobs that are measured again, with the seconds at the beginning of each slice that do not count.

    `why` is a sentence for the user.
    """

    discarded: Mapping[Job, float]
    why: str


def jobs_again(
    progress: GroupProgress,
    carry_over: Sequence[CarryOverRecord],
    records: Mapping[str, CellRecord],
    measured: Sequence[Measurement],
) -> Again | None:
    """The jobs of the next series: those with carry-over in longer slices, else those of which too few blocks count.

    `carry_over` and `measured` are those of the group. `records` is by cell id.
    """
    group = progress.group
    if discarded := longer_slices(carry_over, measured, group.jobs):
        of_jobs = ", ".join(f"{job.id} ({seconds:g} s)" for job, seconds in discarded.items())
        why = f"carry-over between the arms: measured again without the beginning of each slice: {of_jobs}"
        return Again(discarded, why)
    jobs = _overlapped(progress.plan, group, records, measured)
    if not jobs:
        return None
    why = f"slices of {', '.join(job.id for job in jobs)} overlapped: measured again"
    longest = {job: max(each.discarded_s for each in measured if each.job == job.id) for job in jobs}
    return Again(longest, why)


def _overlapped(
    plan: Plan, group: Group, records: Mapping[str, CellRecord], measured: Sequence[Measurement]
) -> tuple[Job, ...]:
    """The jobs of which a cell has fewer than two blocks that count, although more were measured: slices overlapped.

    Once a job was measured for twice the plan's fewest rounds, it is not in it.
    """
    found = []
    enough = 2 * plan.rounds * group.blocks
    for job in group.jobs:
        own = {(each.round, each.block) for each in measured if each.job == job.id}
        void = {(each.round, each.block) for each in measured if each.job == job.id and each.overlap is not None}
        cells = [records[cell.id] for cell in group.cells if cell.job == job]
        few = any(record.skipped is None and len(record.rounds) < min(2, len(own)) for record in cells)
        if void and few and len(own) < enough:
            found.append(job)
    return tuple(found)
