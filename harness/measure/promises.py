"""What a plan promised before the run, in bytes written and in time, and which jobs keep it if measured again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.measure.again import Again
from harness.model.job import Job
from harness.results import Measurement
from harness.results.carried import split_by_length
from harness.scenario.plan import FIO_SHARE, Group, Plan
from harness.units import format_duration, format_size


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
    for each in plan.groups:
        used = written(ran[each.id], plan.span)
        left += plan.bytes_of(each) - used if each == group or each.id in ended else min(plan.bytes_of(each) - used, 0)
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
        cost = _cost(again, plan, group, job, measured)
        if job.id not in begun and (why := _too_much(again, plan, job, cost, left)):
            left_out[job] = why
        else:
            kept[job] = discarded
            left = left.less(cost)
    return replace(again, discarded=kept), left_out


def _cost(again: Again, plan: Plan, group: Group, job: Job, measured: Iterable[Measurement]) -> Cost:
    """The cost of the rounds in which the job is measured again, on those of the arms that it was measured on."""
    by_arm: dict[str, list[Measurement]] = {}
    arms = again.arms(group, job)
    for each in split_by_length(each for each in measured if each.job == job.id)[0]:
        if each.arm in arms:
            by_arm.setdefault(each.arm, []).append(each)
    rounds = plan.rounds if again.rounds is None else again.rounds
    seconds = rounds * group.blocks * (job.wall + again.discarded[job])
    ran = ((written(own, plan.span), fio_seconds(group, own)) for own in by_arm.values())
    rate = sum(moved / took for moved, took in ran if took > 0)
    writes = any(cell.writes for cell in group.cells if cell.job.id == job.id)
    return Cost(rate * seconds if writes else 0.0, len(by_arm) * seconds / FIO_SHARE)


def _too_much(again: Again, plan: Plan, job: Job, cost: Cost, left: Cost) -> str | None:
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
