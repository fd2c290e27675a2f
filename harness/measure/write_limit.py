"""Keeps the limit of the bytes written to each disk: before each setup, round and timetable, by the disk's counter."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from harness.errors import HostError, Unsupported
from harness.events import Events, Note
from harness.measure.recorder import Recorder
from harness.measure.reruns import written
from harness.measure.resume import Earlier
from harness.measure.series import Measurer
from harness.measure.spec import CampaignSpec
from harness.model.cell import Arm
from harness.model.job import Job
from harness.model.wear import OPTION
from harness.results import Measurement
from harness.results.records import DiskWrites
from harness.scenario.plan import Group, Plan, Setup
from harness.scenario.timetable import ScheduledArm, Slice, Timetable
from harness.scenario.wear import MARGIN, fio_rate, group_bytes, is_paced, planned_writes, setup_bytes, slice_rate
from harness.units import format_size

MOST_SCALED = 8.0
"""The largest limit of fio's rate, as a multiple of what is expected with its margin. Faster slices are void."""
LEAST_RATE = 64 * 1024
"""Bytes per second: the smallest limit that fio gets."""


class WritesSpent(Unsupported):
    """The next step would write more to `disk` than the limit allows: it is not measured."""

    def __init__(self, disk: str, message: str) -> None:
        super().__init__(
            message,
            hint=f"{OPTION} with a larger limit and --resume continue the run; a disk that is faster than the "
            "scenario's write_rate needs more than was planned",
        )
        self.disk = disk


@dataclass(frozen=True, slots=True)
class _Cost:
    """What slices write to each disk, in bytes, with a margin, and how fast fio writes in each of them, in bytes per
    second, by arm and job."""

    by_disk: Mapping[str, float]
    rates: Mapping[tuple[Arm, Job], float]


@dataclass(slots=True)
class WriteLimit:
    """The limit of one run on one host. `done` are the ids of the groups that are not measured further.

    What the plans write in their fewest rounds is reserved for the groups that follow. Further rounds use the rest.
    """

    spec: CampaignSpec
    measurer: Measurer
    recorder: Recorder
    events: Events
    done: Collection[str]
    earlier: Earlier
    _spent: dict[str, dict[str, None]] = field(default_factory=dict)
    """Why measuring ended early, by disk."""
    _built: dict[str, int] = field(default_factory=dict)
    """The setup whose regions are filled, by scenario."""
    _of_groups: dict[tuple[str, int], float] = field(default_factory=dict, init=False)
    """What the fewest rounds of each group that are left write, in bytes, by group and place of the disk."""
    _of_setups: dict[tuple[str, int, int], float] = field(default_factory=dict, init=False)
    """What building and filling each setup writes, in bytes, by scenario, number and place of the disk."""
    _planned: dict[str, float] = field(default_factory=dict, init=False)
    """What the plans write to each disk, in bytes."""

    def __post_init__(self) -> None:
        for plan in self.spec.plans if self.spec.limits else ():
            for disk, size in planned_writes(plan).items():
                self._planned[disk] = self._planned.get(disk, 0.0) + size
            for place in range(len(plan.disks)):
                for group in plan.groups:
                    rounds = max(plan.rounds - len(self.earlier.rounds(group.id)), 0)
                    self._of_groups[group.id, place] = group_bytes(plan, group, place, rounds=rounds)
                for setup in plan.setups:
                    self._of_setups[*_key(setup), place] = setup_bytes(plan, setup, place)

    def require_setup(self, plan: Plan, group: Group) -> None:
        """Require that the setup of this group can be built and filled. Raises WritesSpent."""
        if not self.spec.limits:
            return
        setup = plan.setup_of(group)
        self._built.clear()
        self._built[group.scenario] = setup.number
        cost = {disk: setup_bytes(plan, setup, place) for place, disk in enumerate(plan.disks)}
        room = self._room(group, reserved_groups=True)
        step = f"building and filling the regions of setup {setup.number} of {group.scenario}"
        self._require(step, cost, room)
        self.measurer.may_write(step, cost)

    def require_round(self, plan: Plan, group: Group, tables: Sequence[Timetable]) -> None:
        """Require that a round with these timetables can be measured. Raises WritesSpent."""
        if self.spec.limits:
            slices = [(slice_.arm, slice_.job) for table in tables for slice_ in table.slices]
            self._require(f"the next round of {group.id}", self._cost(plan, group, slices).by_disk, self._room(group))

    def lacking(self, plan: Plan, group: Group, turns: Mapping[Job, Sequence[ScheduledArm]]) -> WritesSpent | None:
        """Why another round with these turns cannot be measured; None if it can, or if the counters cannot be read."""
        if not self.spec.limits:
            return None
        slices = [(turn.arm, job) for job, own in turns.items() for turn in own for _ in range(group.blocks)]
        with suppress(HostError):  # a host that is lost is noticed by the next step
            return self._lacking(
                f"another round of {group.id}", self._cost(plan, group, slices).by_disk, self._room(group)
            )
        return None

    def limited(self, plan: Plan, group: Group, table: Timetable) -> Timetable:
        """The timetable with a limit for fio in each slice that writes, so that it cannot exceed the limit of a disk.

        The limits are far above what the slices write, unless little is left. Raises WritesSpent.
        """
        if not self.spec.limits:
            return table
        cost = self._cost(plan, group, [(slice_.arm, slice_.job) for slice_ in table.slices])
        room = self._room(group)
        step = f"{len(table.slices)} slices of {group.id}"
        self._require(step, cost.by_disk, room)
        scale = min((room[disk] / size for disk, size in cost.by_disk.items() if size > 0), default=1.0)
        scale = min(scale, MOST_SCALED)
        self.measurer.may_write(step, {disk: scale * size for disk, size in cost.by_disk.items()})

        def limit(each: Slice) -> int | None:
            rate = cost.rates.get((each.arm, each.job))
            return None if rate is None else max(int(scale * rate), LEAST_RATE)

        return table.limited(limit)

    def record(self) -> None:
        """Read the counters, and record what was written."""
        limits = self.spec.limits
        now: Mapping[str, int] | None = None
        with suppress(HostError):
            now = self.measurer.written() if limits else None
        if now is None:
            return
        left_out: dict[str, list[str]] = {}
        for plan in self.spec.plans:
            words = left_out_words(plan)
            for disk in plan.disks:
                left_out.setdefault(disk, []).extend(words)
        self.recorder.writes(
            DiskWrites(
                disk=disk,
                limit=limit,
                planned=round(self._planned[disk]),
                written=now.get(disk, 0),
                endurance=self.spec.host.target(disk).endurance,
                left_out=(*left_out.get(disk, ()), *self._spent.get(disk, ())),
            )
            for disk, limit in limits.items()
            if disk in self._planned
        )

    def ended(self, error: WritesSpent) -> None:
        """Record that measuring ended early for this reason."""
        reasons = self._spent.setdefault(error.disk, {})
        if error.message not in reasons:
            reasons[error.message] = None
            self.events(Note(error.message))

    def _require(self, step: str, cost: Mapping[str, float], room: Mapping[str, float]) -> None:
        if (error := self._lacking(step, cost, room)) is not None:
            self.ended(error)
            raise error

    def _lacking(self, step: str, cost: Mapping[str, float], room: Mapping[str, float]) -> WritesSpent | None:
        for disk, size in cost.items():
            if disk in room and size > max(room[disk], 0.0):
                return WritesSpent(
                    disk,
                    f"{self._limit_words(disk)}: {step} may write {format_size(size)}, and "
                    f"{format_size(max(room[disk], 0.0))} are left for it",
                )
        return None

    def _limit_words(self, disk: str) -> str:
        return (
            f"host {self.spec.host.name}: {OPTION}={self.spec.max_writes} allows {format_size(self.spec.limits[disk])} "
            f"for disk {disk}"
        )

    def _room(self, group: Group, *, reserved_groups: bool = False) -> dict[str, float]:
        """The bytes that measuring this group may write to each disk: the rest of the limit without what is reserved.

        With `reserved_groups`, its own fewest rounds are reserved as well, as before its regions are filled.
        """
        now = self.measurer.written()
        room = {disk: float(limit - now.get(disk, 0)) for disk, limit in self.spec.limits.items()}
        for plan in self.spec.plans:
            groups = [each.id for each in plan.groups if each.id not in self.done]
            of = {follow_up.id: follow_up.group for follow_up in plan.follow_ups}.get(group.id, group.id)
            others = [other for other in groups if reserved_groups or other != of]
            setups = [_key(setup) for setup in plan.setups if not all(own.id in self.done for own in setup.groups)]
            for place, disk in enumerate(plan.disks):
                if disk in room:
                    room[disk] -= sum(self._of_groups[other, place] for other in others)
                    room[disk] -= sum(
                        self._of_setups[scenario, number, place]
                        for scenario, number in setups
                        if self._built.get(scenario) != number
                    )
        return room

    def _cost(self, plan: Plan, group: Group, slices: Iterable[tuple[Arm, Job]]) -> _Cost:
        by_disk: dict[str, float] = {}
        rates: dict[tuple[Arm, Job], float] = {}
        ran: dict[tuple[str, str], list[Measurement]] = {}
        for each in self.recorder.ran(group.id):
            ran.setdefault((each.arm, each.job), []).append(each)
        for arm, job in slices:
            writing = [part.job for part in arm.parts(job) if part.job.writes]
            if not writing:
                continue
            paced = all(map(is_paced, writing))
            own = [] if paced else ran.get((arm.id, job.id), [])
            rate = slice_rate(plan, arm, job)
            layout = arm.mode.layout if arm.mode else None
            fastest = min(fio_rate(plan.write_rate, layout, each) for each in writing)
            if own:
                rate = MARGIN * max(written([each], plan.span) / _seconds(each) for each in own) / len(arm.places)
                fastest = MARGIN * max(each.counters.fio.written / _seconds(each) for each in own)
            if not paced:
                rates[arm, job] = fastest
            for place in arm.places:
                disk = plan.disks[place]
                by_disk[disk] = by_disk.get(disk, 0.0) + rate * job.wall
        return _Cost(by_disk, rates)


def left_out_words(plan: Plan) -> list[str]:
    """What the plan leaves out to keep its limit, in words."""
    return [
        f"{plan_name(plan)}: {each.what}" + (f" ({len(each.cells)} cells)" if each.cells else "")
        for each in plan.left_out
    ]


def plan_name(plan: Plan) -> str:
    """The scenario of the plan."""
    cells = plan.cells or tuple(cell for each in plan.left_out for cell in each.cells)
    return cells[0].scenario if cells else plan.disk


def _key(setup: Setup) -> tuple[str, int]:
    return setup.groups[0].scenario, setup.number


def _seconds(each: Measurement) -> float:
    return max(each.wall, each.seconds)
