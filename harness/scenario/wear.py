"""What a plan writes to each disk, and what it leaves out to stay below a limit of the bytes written. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.model.base import Base, Device
from harness.model.cell import Arm
from harness.model.job import Job
from harness.model.layout import Layout, amplification
from harness.scenario.plan import STEADY_FILLS, STEADY_ROUNDS, STEADY_SECONDS, Group, LeftOut, Plan, Setup
from harness.scenario.setups import regions

BUILD_SHARE = 0.05
"""What a layout writes beside its data, as a share of the region: metadata of a file system, an image or a volume."""
BUILD_BYTES = 64 * 1024**2
"""The same of a small region: partition tables, journals, the zeros at the end of a run."""
MARGIN = 1.25
"""How much faster than measured before an arm may be in the next slices."""
KEPT_DEPTH = 32
"""The depth that a plan keeps longest: that of the profile `smoke`, and of most published figures."""


def planned_writes(plan: Plan) -> dict[str, float]:
    """The bytes that the plan writes to each disk at most, by the disk's name, in the fewest rounds that it measures.

    Further rounds follow as far as a limit allows.
    """
    return {
        disk: sum(setup_bytes(plan, setup, place) for setup in plan.setups)
        + sum(group_bytes(plan, group, place) for group in plan.groups)
        for place, disk in enumerate(plan.disks)
    }


def setup_bytes(plan: Plan, setup: Setup, place: int) -> float:
    """The bytes that building and conditioning the setup writes to this disk at most."""
    bases: list[Base] = [Device() for bare in setup.bare_places if bare == place]
    bases += [base for base in regions(setup.modes) if place in base.places]
    filled = sum(base.bytes_written / len(base.places) for base in bases) * plan.span
    steady = plan.conditioning == "steady"
    fills = filled * (STEADY_FILLS if steady else 1)
    work = STEADY_ROUNDS[1] * STEADY_SECONDS * plan.write_rate * len(bases) if steady else 0.0
    return fills + filled * BUILD_SHARE + BUILD_BYTES * len(bases) + work


def group_bytes(plan: Plan, group: Group, place: int, *, rounds: int | None = None) -> float:
    """The bytes that so many rounds of the group and its follow-ups write to this disk at most; None: the fewest."""
    round_bytes = sum(
        slice_rate(plan, arm, job) * job.wall for arm in group.arms if place in arm.places for job in group.jobs_of(arm)
    )
    following = (each.bytes_written(plan.write_rate, place) for each in plan.follow_ups if each.group == group.id)
    return (plan.rounds if rounds is None else rounds) * group.blocks * round_bytes + sum(following)


def slice_rate(plan: Plan, arm: Arm, job: Job) -> float:
    """The bytes per second that the jobs of a slice of this arm write at most to each of its disks."""
    writing = [part.job for part in arm.parts(job) if part.job.writes]
    if not all(map(is_paced, writing)):
        return plan.write_rate
    requested = sum(
        (each.rate or 0) * each.bs * (1 - (each.share_of_reads or 0.0)) * _amplified(_layout(arm), each)
        for each in writing
    )
    return min(plan.write_rate, MARGIN * requested / len(arm.places))


def fio_rate(write_rate: int, layout: Layout | None, job: Job) -> float:
    """The bytes per second that fio may write to this layout, so that none of its disks gets more than `write_rate`.

    None is the bare disk.
    """
    return write_rate * (len(layout.base.places) if layout else 1) / max(_amplified(layout, job), 1.0)


def is_paced(job: Job) -> bool:
    """Whether the job has a rate of its own, which bounds its bytes. fio cannot have a second limit then."""
    return job.rate is not None and job.from_file is None


def fitted(plan: Plan, limits: Mapping[str, int]) -> Plan:
    """The plan that leaves out as little as necessary to write at most `limits` to each disk in its fewest rounds.

    It leaves out, in this order: follow-ups that write; depths of jobs that write, KEPT_DEPTH last; the steady state;
    workloads that write, the last one first; everything. Jobs that only read stay as long as the disk can be filled.
    """
    own = {disk: limits[disk] for disk in plan.disks if disk in limits}
    if not own:
        return plan
    found = next(reduction for reduction in _reductions(plan) if _fits(reduction, own))
    return replace(found, limits=own)


def fitted_together(plans: Mapping[str, Plan], limits: Mapping[str, int]) -> dict[str, Plan]:
    """The plans of one run, `fitted`. Plans on the same disk share its limit by what each of them writes."""
    writes = {name: planned_writes(plan) for name, plan in plans.items()}
    total = {disk: sum(write.get(disk, 0.0) for write in writes.values()) for disk in limits}

    def part(name: str, disk: str) -> int:
        return int(limits[disk] * writes[name][disk] / total[disk])

    return {
        name: fitted(plan, {disk: part(name, disk) for disk in plan.disks if total.get(disk)})
        for name, plan in plans.items()
    }


def _fits(plan: Plan, limits: Mapping[str, int]) -> bool:
    writes = planned_writes(plan)
    return all(writes[disk] <= limit for disk, limit in limits.items())


@dataclass(frozen=True, slots=True)
class _Reduction:
    """What is left out of a plan."""

    follow_ups: bool = False
    depths: tuple[int, ...] = ()
    steady: bool = False
    workloads: tuple[str, ...] = ()
    everything: bool = False

    def of(self, plan: Plan) -> Plan:
        """The plan without it."""
        left_out = []
        if self.follow_ups:
            writing = [follow_up for follow_up in plan.follow_ups if follow_up.writes]
            names: dict[str, dict[str, None]] = {}
            for follow_up in writing:
                names.setdefault(follow_up.description, {})[follow_up.name] = None
            left_out += [LeftOut(f"{description} ({', '.join(own)})") for description, own in names.items()]
            plan = replace(plan, follow_ups=tuple(each for each in plan.follow_ups if not each.writes))
        if self.depths:
            gone = _left_out_by_depth(plan, self.depths)
            cells = tuple(cell for cell in plan.cells if cell.writes and (cell.job.name, cell.job.iodepth) in gone)
            depths = ", ".join(map(str, sorted(self.depths)))
            left_out.append(LeftOut(f"iodepth {depths} of jobs that write", cells))
            plan = plan.without(cells)
        if self.steady:
            left_out.append(LeftOut("conditioning until steady: the disk is filled once instead"))
            plan = replace(plan, conditioning="fill")
        if self.workloads:
            cells = tuple(cell for cell in plan.cells if cell.job.name in self.workloads)
            left_out.append(LeftOut(f"the workloads {', '.join(self.workloads)}", cells))
            plan = plan.without(cells)
        if self.everything:
            left_out.append(LeftOut("everything, because even filling the disk once would write too much", plan.cells))
            plan = plan.without(plan.cells)
        return replace(plan, left_out=tuple(left_out))


def _reductions(plan: Plan) -> Iterator[Plan]:
    """The plan, then plans that leave out more and more of it."""
    reduction = _Reduction()
    yield plan
    if any(follow_up.writes for follow_up in plan.follow_ups):
        reduction = replace(reduction, follow_ups=True)
        yield reduction.of(plan)
    writing = [cell for cell in plan.cells if cell.writes]
    for depth in _least_wanted(cell.job.iodepth for cell in writing):
        reduction = replace(reduction, depths=(*reduction.depths, depth))
        yield reduction.of(plan)
    if plan.conditioning == "steady":
        reduction = replace(reduction, steady=True)
        yield reduction.of(plan)
    for name in reversed(list(dict.fromkeys(cell.job.name for cell in writing))):
        reduction = replace(reduction, workloads=(*reduction.workloads, name))
        yield reduction.of(plan)
    yield _Reduction(everything=True).of(plan)


def _least_wanted(depths: Iterable[int]) -> Sequence[int]:
    """The depths without the one that is kept longest, the first to leave out first.

    A plan keeps the depth nearest to KEPT_DEPTH, then the smallest, the largest, and small ones before large ones.
    """
    known = sorted(set(depths))
    if not known:
        return ()
    middle = min(known, key=lambda depth: (abs(depth - KEPT_DEPTH), depth))
    wanted = list(dict.fromkeys((middle, known[0], known[-1], *known)))
    return wanted[:0:-1]


def _left_out_by_depth(plan: Plan, depths: Sequence[int]) -> set[tuple[str, int]]:
    """The workloads that write, with the depths that are left out of each. One of its depths always stays."""
    own: dict[str, set[int]] = {}
    for cell in plan.cells:
        if cell.writes:
            own.setdefault(cell.job.name, set()).add(cell.job.iodepth)
    found = set()
    for name, has in own.items():
        gone = [depth for depth in depths if depth in has]
        found |= {(name, depth) for depth in (gone if len(gone) < len(has) else gone[:-1])}
    return found


def _layout(arm: Arm) -> Layout | None:
    return arm.mode.layout if arm.mode else None


def _amplified(layout: Layout | None, job: Job) -> float:
    """The bytes that all disks of the layout together write at most for each byte of the job."""
    return amplification(layout, job).most_written if layout is not None else 1.0
