"""Which jobs of a group are measured again after its rounds, in which slices, and which keep the promises. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis import Verdict
from harness.model.job import Job
from harness.results import CellRecord, Measurement
from harness.results.carried import longer_slices, split_by_length
from harness.results.records import CarryOverRecord
from harness.scenario.plan import FIO_SHARE, Group, Plan
from harness.units import format_duration, format_size

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
    longest = {
        job: max((measurement.discarded_s for measurement in measured if measurement.job == job.id), default=0.0)
        for job in jobs
    }
    few = {job: cells for job in jobs if (cells := _find_overlapped(plan, group, job, records, measured))}
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


def _find_overlapped(
    plan: Plan, group: Group, job: Job, records: Mapping[str, CellRecord], measured: Sequence[Measurement]
) -> dict[str, int]:
    """The cells of the job that have fewer than two blocks that count, although more were measured: slices overlapped.

    By the cell's id, how many of its blocks were lost. A cell that is void for another reason does not count: it would
    be void again. Once a job was measured for twice the plan's fewest rounds, it is not measured again.
    """
    blocks = {(measurement.round, measurement.block) for measurement in measured if measurement.job == job.id}
    void = {
        (measurement.round, measurement.block)
        for measurement in measured
        if measurement.job == job.id and measurement.overlap is not None
    }
    cells = [records[cell.id] for cell in group.cells if cell.job == job]
    usable = [record for record in cells if record.skipped is None and record.verdict is not Verdict.VOID]
    enough = min(_ENOUGH, len(blocks))
    if not void or len(blocks) >= 2 * plan.rounds * group.blocks:
        return {}
    return {record.id: len(blocks) - len(record.rounds) for record in usable if len(record.rounds) < enough}


@dataclass(frozen=True, slots=True)
class Cost:
    """The bytes that measuring writes to the disks, and its time in seconds. Also what is left of the two."""

    bytes: float
    seconds: float

    def less(self, other: Cost) -> Cost:
        return Cost(self.bytes - other.bytes, self.seconds - other.seconds)


def written(measurements: Iterable[Measurement], span: int) -> float:
    """The bytes that these slices wrote to the disks: by the host's counters, else by fio.

    What is in the host's cache when a slice ends is written later. It counts, and is at most `span`, the size of a
    region.
    """
    total = 0
    for measurement in measurements:
        fio, disk = measurement.counters.fio.written, measurement.counters.disk
        total += fio if disk is None else max(disk.written, min(fio, disk.written + span))
    return total


def bytes_left(plan: Plan, group: Group, ran: Mapping[str, Iterable[Measurement]], ended: Collection[str]) -> float:
    """The bytes that further series of `group` may write, so that the run writes at most `plan.write_bytes`.

    `ran` has everything that ran of each group of the plan, by the group's id, also in rounds that do not count.
    `ended` are the ids of the groups that are not measured further. For all others, their part of the promise is
    reserved. The part for conditioning is spent.
    """
    left = 0.0
    for other in plan.groups:
        used = written(ran[other.id], plan.span)
        left += (
            plan.bytes_of(other) - used if other == group or other.id in ended else min(plan.bytes_of(other) - used, 0)
        )
    return left


def within_promises(
    again: Again, plan: Plan, group: Group, measured: Sequence[Measurement], *, left: Cost, begun: Collection[str]
) -> tuple[Again, dict[Job, str]]:
    """The jobs of `again`, in order, whose fewest rounds fit into what is `left`. For each other job, the reason.

    `measured` are the measurements of the group that count. The jobs are expected to write as much per second of fio
    as in their last series. `begun` are the ids of the jobs that an earlier part of the run has begun to measure again.
    """
    kept, left_out = {}, {}
    for job, discarded in again.discarded.items():
        cost = _estimate_cost(again, plan, group, job, measured)
        if job.id not in begun and (why := _explain_excess(again, plan, job, cost, left)):
            left_out[job] = why
        else:
            kept[job] = discarded
            left = left.less(cost)
    return replace(again, discarded=kept), left_out


def _estimate_cost(again: Again, plan: Plan, group: Group, job: Job, measured: Iterable[Measurement]) -> Cost:
    """The cost of the rounds in which the job is measured again, on those of the arms that it was measured on."""
    by_arm: dict[str, list[Measurement]] = {}
    arms = again.arms(group, job)
    for measurement in split_by_length(of_job for of_job in measured if of_job.job == job.id)[0]:
        if measurement.arm in arms:
            by_arm.setdefault(measurement.arm, []).append(measurement)
    rounds = plan.rounds if again.rounds is None else again.rounds
    seconds = rounds * group.blocks * (job.wall + again.discarded[job])
    ran = ((written(of_arm, plan.span), fio_seconds(group, of_arm)) for of_arm in by_arm.values())
    rate = sum(moved / took for moved, took in ran if took > 0)
    writes = any(cell.writes for cell in group.cells if cell.job.id == job.id)
    return Cost(rate * seconds if writes else 0.0, len(by_arm) * seconds / FIO_SHARE)


def _explain_excess(again: Again, plan: Plan, job: Job, cost: Cost, left: Cost) -> str | None:
    """Why the job is not measured again, with the remedy; None if its cost is within what is left."""
    what = f"{again.cause}: not measured again"
    if cost.bytes > max(left.bytes, 0):
        remedy = (
            f'set ramp = "{job.ramp + again.discarded[job]:g} s" in the profile' if again.longer else "use --rounds"
        )
        return (
            f"{what}, because this would write {format_size(cost.bytes)} or more: of the "
            f"{format_size(plan.write_bytes)} that the plan promised to write at most, "
            f"{format_size(max(left.bytes, 0))} are left; {remedy}, which the plan then counts"
        )
    if cost.seconds > left.seconds:
        return (
            f"{what}, because this would take {format_duration(cost.seconds)} or more: of the time limit of its group, "
            f"{format_duration(max(left.seconds, 0))} are left; use a longer --time, or time_limit in the profile"
        )
    return None


def fio_seconds(group: Group, measurements: Sequence[Measurement]) -> float:
    """Seconds in which fio ran, including ramps."""
    ramps = {job.id: job.ramp for job in group.jobs}
    return sum(ramps[measurement.job] + measurement.discarded_s + measurement.seconds for measurement in measurements)
