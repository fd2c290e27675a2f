"""How many bytes a plan promised to write at most, and which jobs keep it if they are measured again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.measure.again import Again
from harness.measure.rounds import fio_seconds
from harness.model.job import Job
from harness.results import Measurement
from harness.results.carried import split_by_length
from harness.scenario.plan import Group, Plan
from harness.units import format_size


def written(measurements: Iterable[Measurement], span: int) -> float:
    """The bytes that these slices wrote to the disks: by the host's counters, else by fio.

    What is in the host's cache when a slice ends is written later. It counts, and is at most `span`, the size of a
    region.
    """
    total = 0
    for each in measurements:
        fio, disk = each.counters.fio.written, each.counters.disk
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
    again: Again, plan: Plan, group: Group, measured: Sequence[Measurement], *, left: float, begun: Collection[str]
) -> tuple[Again, dict[Job, str]]:
    """The jobs of `again`, in order, whose fewest rounds write at most the bytes `left`. For each other job, the reason.

    `measured` are the measurements of the group that count. The jobs are expected to write as much per second of fio
    as in their last series. `begun` are the ids of the jobs that an earlier part of the run has begun to measure again.
    """
    kept, left_out = {}, {}
    for job, discarded in again.discarded.items():
        cost = _cost(plan, group, replace(job, ramp=job.ramp + discarded), measured)
        if job.id not in begun and (why := _too_much(again, plan, job, cost, left)):
            left_out[job] = why
        else:
            kept[job] = discarded
            left -= cost
    return replace(again, discarded=kept), left_out


def _cost(plan: Plan, group: Group, job: Job, measured: Iterable[Measurement]) -> float:
    """The bytes that the fewest rounds of the job write, on the arms that it was measured on."""
    if not job.writes:
        return 0.0
    by_arm: dict[str, list[Measurement]] = {}
    for each in split_by_length(each for each in measured if each.job == job.id)[0]:
        by_arm.setdefault(each.arm, []).append(each)
    seconds = plan.rounds * group.blocks * job.wall
    ran = ((written(own, plan.span), fio_seconds(group, own)) for own in by_arm.values())
    return sum(moved / took for moved, took in ran if took > 0) * seconds


def _too_much(again: Again, plan: Plan, job: Job, cost: float, left: float) -> str | None:
    """Why the job is not measured again, with the remedy; None if its bytes are within what is left."""
    if cost > max(left, 0):
        remedy = (
            f'set ramp = "{job.ramp + again.discarded[job]:g} s" in the profile' if again.longer else "use --rounds"
        )
        return (
            f"{again.cause}: not measured again, because this would write {format_size(cost)} or more: of the "
            f"{format_size(plan.write_bytes)} that the plan promised to write at most, "
            f"{format_size(max(left, 0))} are left; {remedy}, which the plan then counts"
        )
    return None
