"""The limit of the bytes written: as a user sets it, what plans write, and what they leave out to stay below. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from harness.errors import ConfigError
from harness.feature import FILL
from harness.lab.inventory import HostSpec
from harness.model.base import Base, Device
from harness.model.job import Job
from harness.model.mode import Arm, Cell
from harness.report.numbers import count, percent
from harness.scenario.plan import LeftOut, Plan, count_written
from harness.scenario.setups import Group, Setup, regions
from harness.units import format_size, parse_share, parse_size

OPTION = "--max-writes"

KEPT_DEPTH = 32
"""The depth that a plan keeps longest: that of the profile `smoke`, and of most published figures."""
_LEFT_OUT = partial(LeftOut, option=OPTION)


@dataclass(frozen=True, slots=True)
class MaxWrites:
    """The most that a run may write to each disk: in bytes, or as a share of the disk's rated endurance."""

    size: int | None = None
    share: float | None = None
    text: str = ""
    """As the user wrote it."""

    @classmethod
    def parse(cls, text: str) -> MaxWrites:
        """The limit in `text`: "2TiB", "500 GiB" or "1%". Raises ValueError."""
        if text.strip().endswith("%"):
            share = parse_share(text)
            if not 0 < share <= 1:
                raise ValueError("not a share of an endurance; allowed: more than 0 %, at most 100 %")
            return cls(share=share, text=text.strip())
        size = parse_size(text)
        if size == 0:
            raise ValueError("allows no write at all; allowed: for example 500GiB, 2TiB or 1%")
        return cls(size=size, text=text.strip())

    def of_disk(self, name: str, endurance: int | None) -> int:
        """The bytes that may be written to this disk. Raises ConfigError for a share of an unknown endurance."""
        if self.size is not None:
            return self.size
        if endurance is None:
            raise ConfigError(
                f"{OPTION}={self.text}: the rated endurance of disk {name} is not known",
                hint=f"add it to the table of disk {name} in the lab file, from its data sheet, for example "
                f'endurance = "600 TBW", or give a size, for example {OPTION}=2TiB',
            )
        return int(endurance * (self.share or 0.0))

    def fit_plans(self, host: HostSpec, plans: Mapping[str, Plan]) -> tuple[dict[str, Plan], dict[str, int]]:
        """The plans of one host, fitted together into this limit, and the limit of each disk in bytes.

        Raises ConfigError for a share of an unknown endurance.
        """
        disks = {disk: None for plan in plans.values() for disk, size in planned_writes(plan).items() if size}
        limits = {disk: self.of_disk(disk, host.target(disk).endurance) for disk in disks}
        return fitted_together(plans, limits), limits

    def describe(self, scenario: str, plan: Plan, host: HostSpec) -> list[str]:
        """The limit of the bytes written to each disk, what the fewest rounds write, and what the plan leaves out."""
        planned = planned_writes(plan)
        lines = []
        for disk, limit in plan.limits.items():
            endurance = host.target(disk).endurance
            share = f", {percent(limit / endurance)} % of its endurance" if endurance else ""
            lines.append(
                f"{scenario}: {OPTION}={self.text}: at most {format_size(limit)} written to {disk}{share}; the layouts "
                f"and the fewest rounds write {format_size(planned[disk])} or less, further rounds follow as far as it "
                "allows"
            )
        for left_out in plan.left_out:
            cells = f" ({count(len(left_out.cells), 'cell')})" if left_out.cells else ""
            lines.append(f"{scenario}: {OPTION} leaves out {left_out.what}{cells}")
        return lines


def fitted(plan: Plan, limits: Mapping[str, int]) -> Plan:
    """The plan that leaves out as little as necessary to write at most `limits` to each disk in its fewest rounds.

    It leaves out, in this order: follow-ups that write; depths of jobs that write, KEPT_DEPTH last; the steady state;
    workloads that write, the last one first; everything. Jobs that only read stay as long as the disk can be filled.
    """
    own = {disk: limits[disk] for disk in plan.disks if disk in limits}
    if not own:
        return plan
    reduced = next(reduction for reduction in _reductions(plan) if _fits(reduction, own))
    return replace(reduced, limits=own)


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

    def of(self, plan: Plan, writing_cells: Sequence[Cell]) -> Plan:
        """The plan without it. `writing_cells` are those of its cells that write."""
        left_out = []
        if self.follow_ups:
            writing = [follow_up for follow_up in plan.follow_ups if follow_up.writes]
            names: dict[str, dict[str, None]] = {}
            for follow_up in writing:
                names.setdefault(follow_up.description, {})[follow_up.name] = None
            left_out += [_LEFT_OUT(f"{description} ({', '.join(own)})") for description, own in names.items()]
            plan = replace(plan, follow_ups=tuple(each for each in plan.follow_ups if not each.writes))
        if self.depths:
            gone = _left_out_by_depth(writing_cells, self.depths)
            cells = tuple(cell for cell in writing_cells if (cell.job.name, cell.job.iodepth) in gone)
            depths = ", ".join(map(str, sorted(self.depths)))
            left_out.append(_LEFT_OUT(f"iodepth {depths} of jobs that write", cells))
            plan = plan.without(cells)
        if self.steady:
            left_out.append(_LEFT_OUT("conditioning until steady: the disk is filled once instead"))
            plan = replace(plan, conditioning="fill")
        if self.workloads:
            cells = tuple(cell for cell in plan.cells if cell.job.name in self.workloads)
            left_out.append(_LEFT_OUT(f"the workloads {', '.join(self.workloads)}", cells))
            plan = plan.without(cells)
        if self.everything:
            left_out.append(
                _LEFT_OUT("everything, because even filling the disk once would write too much", plan.cells)
            )
            plan = plan.without(plan.cells)
        return replace(plan, left_out=tuple(left_out))


def _reductions(plan: Plan) -> Iterator[Plan]:
    """The plan, then plans that leave out more and more of it."""
    reduction = _Reduction()
    yield plan
    writing = [cell for cell in plan.cells if cell.writes]
    if any(follow_up.writes for follow_up in plan.follow_ups):
        reduction = replace(reduction, follow_ups=True)
        yield reduction.of(plan, writing)
    for depth in _least_wanted(cell.job.iodepth for cell in writing):
        reduction = replace(reduction, depths=(*reduction.depths, depth))
        yield reduction.of(plan, writing)
    if plan.conditioner is not FILL:
        reduction = replace(reduction, steady=True)
        yield reduction.of(plan, writing)
    for name in reversed(list(dict.fromkeys(cell.job.name for cell in writing))):
        reduction = replace(reduction, workloads=(*reduction.workloads, name))
        yield reduction.of(plan, writing)
    yield _Reduction(everything=True).of(plan, writing)


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


def _left_out_by_depth(writing_cells: Iterable[Cell], depths: Sequence[int]) -> set[tuple[str, int]]:
    """The workloads that write, with the depths that are left out of each. One of its depths always stays."""
    own: dict[str, set[int]] = {}
    for cell in writing_cells:
        own.setdefault(cell.job.name, set()).add(cell.job.iodepth)
    found = set()
    for name, has in own.items():
        gone = [depth for depth in depths if depth in has]
        found |= {(name, depth) for depth in (gone if len(gone) < len(has) else gone[:-1])}
    return found


def left_out_words(plan: Plan) -> list[str]:
    """What the plan leaves out to keep its limit, in words."""
    return [
        f"{plan_name(plan)}: {left_out.what}" + (f" ({len(left_out.cells)} cells)" if left_out.cells else "")
        for left_out in plan.left_out
    ]


def plan_name(plan: Plan) -> str:
    """The scenario of the plan."""
    cells = plan.cells or tuple(cell for left_out in plan.left_out for cell in left_out.cells)
    return cells[0].scenario if cells else plan.disk


BUILD_SHARE = 0.05
"""What a layout writes beside its data, as a share of the region: metadata of a file system, an image or a volume."""
BUILD_BYTES = 64 * 1024**2
"""The same of a small region: partition tables, journals, the zeros at the end of a run."""
MARGIN = 1.25
"""How much faster than measured before an arm may be in the next slices."""


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
    conditioner = plan.conditioner
    work = conditioner.rounds[1] * conditioner.seconds * plan.write_rate * len(bases)
    return filled * conditioner.fills + filled * BUILD_SHARE + BUILD_BYTES * len(bases) + work


def group_bytes(plan: Plan, group: Group, place: int, *, rounds: int | None = None) -> float:
    """The bytes that so many rounds of the group and its follow-ups write to this disk at most; None: the fewest."""
    round_bytes = sum(
        slice_rate(plan, arm, job) * job.wall for arm in group.arms if place in arm.places for job in group.jobs_of(arm)
    )
    following = (
        follow_up.bytes_written(plan.write_rate, place) for follow_up in plan.follow_ups if follow_up.group == group.id
    )
    return (plan.rounds if rounds is None else rounds) * group.blocks * round_bytes + sum(following)


def slice_rate(plan: Plan, arm: Arm, job: Job) -> float:
    """The bytes per second that the jobs of a slice of this arm write at most to each of its disks."""
    writing = [part.job for part in arm.parts(job) if part.job.writes]
    if not all(map(is_paced, writing)):
        return plan.write_rate
    layout = arm.mode.layout if arm.mode else None
    requested = sum(
        (job.rate or 0) * job.bs * (1 - (job.share_of_reads or 0.0)) * count_written(layout, job) for job in writing
    )
    return min(plan.write_rate, MARGIN * requested / len(arm.places))


def is_paced(job: Job) -> bool:
    """Whether the job has a rate of its own, which bounds its bytes. fio cannot have a second limit then."""
    return job.rate is not None and job.from_file is None
