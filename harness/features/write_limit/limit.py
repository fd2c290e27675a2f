"""Keeps the limit of the bytes written to each disk: before each setup, round and timetable, by the disk's counter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.errors import HostError
from harness.events import Note
from harness.features.write_limit.fitting import (
    MARGIN,
    OPTION,
    group_bytes,
    is_paced,
    left_out_words,
    planned_writes,
    setup_bytes,
    slice_rate,
)
from harness.files import read_script
from harness.lab.inventory import AnyDisk, DiskByFile, DiskById
from harness.lab.transport.base import Runner
from harness.measure.rounds import RunContext, written
from harness.measure.series import LimitReached, PreparedGroup, SpecialStep, StepLimit
from harness.model.job import Job
from harness.model.mode import Arm, Place
from harness.results import Measurement, RunStore
from harness.results.cells import ValidityCheck
from harness.results.journal import WritesEvent
from harness.results.records import DiskWrites
from harness.scenario.plan import Plan, fio_rate
from harness.scenario.setups import Group, Setup
from harness.scenario.timetable import ScheduledArm, Slice, Timetable
from harness.units import format_size
from harness.untrusted import reading

_SECTOR = 512  # the unit of /sys/block/*/stat
_DEADLINE = 30.0
_GONE = "-"

_READ = read_script("harness.features.write_limit", "read_written_sectors.sh")


LIMITED = 0.95
"""From this share of fio's limit, a slice is as fast as the limit."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counter of a block device. `device` is its identity, `written` its bytes written since it appeared."""

    device: str
    written: int


@dataclass(slots=True)
class _Count:
    """What is known of one disk. The current step writes at most `may_write` bytes."""

    written: int = 0
    last: Reading | None = None
    may_write: int = 0

    def read(self, now: Reading) -> None:
        """Count what was written since the last reading, whoever wrote it.

        If there is no last reading of the same device, nothing shows what the step wrote, so its maximum counts.
        """
        last, self.last = self.last, now
        same = last is not None and last.device == now.device and now.written >= last.written
        self.written += now.written - last.written if same and last is not None else self.may_write
        self.may_write = 0


class Meter:
    """The bytes written to these disks of a run, by name in the lab. Continues the count of an earlier part of the run.

    Every step is noted in the journal before it begins. So the count also holds for a run that was killed: by the
    counter if the host still runs, else with the most that the step may have written.
    """

    def __init__(self, store: RunStore, disks: Mapping[str, AnyDisk]) -> None:
        self._store = store
        self._disks = disks
        self._names: dict[str, str] = {}
        self._counts = {name: _Count() for name in disks}
        for write in store.read_journal().writes if disks else ():
            if write.disk in self._counts:
                self._counts[write.disk] = _count_of(write)

    @property
    def written(self) -> dict[str, int]:
        """The bytes written so far, by the last reading."""
        return {name: count.written for name, count in self._counts.items()}

    def read(self, runner: Runner) -> None:
        """Read the counters. A disk that the host does not have at the moment keeps its count. Raises HostError."""
        if not self._disks:
            return
        paths = [self._path(name, disk) for name, disk in self._disks.items()]
        printed = runner.run(["sh", "-s", "--", *paths], stdin=_READ, deadline=_DEADLINE).stdout
        for (name, count), line in zip(self._counts.items(), _lines(printed, len(paths), runner.name), strict=True):
            if line != _GONE:
                with reading(f"{runner.name}: the counter of bytes written of disk {name}"):
                    device, sectors = line.split()
                    count.read(Reading(device, int(sectors) * _SECTOR))

    def found(self, names: Mapping[str, str]) -> None:
        """Note the kernel names of disks that no link names, by name in the lab: those below a storage."""
        self._names |= names

    def add(self, disk: str, written: int) -> None:
        """Count bytes that the host's counter does not show, because a guest had the disk for itself."""
        if disk in self._counts:
            self._counts[disk].written += written
            self._counts[disk].may_write = 0

    def may_write(self, step: str, at_most: Mapping[str, float]) -> None:
        """Note in the journal what the next step writes to each disk at most, in bytes.

        What earlier steps may have written is added until the counter shows it. A disk that is a file is not there
        while its run is resumed.
        """
        for name, count in self._counts.items():
            count.may_write += round(at_most.get(name, 0.0))
            self._note(name, count, step, count.last)

    def end(self) -> None:
        """Note that the run has ended. What is written to the disks from now on does not count."""
        for name, count in self._counts.items():
            count.written += count.may_write
            count.may_write = 0
            self._note(name, count, "the end of the run", None)

    def _note(self, name: str, count: _Count, step: str, last: Reading | None) -> None:
        self._store.append(
            WritesEvent(
                "writes",
                name,
                step,
                count.written,
                count.may_write,
                last.device if last else None,
                last.written if last else None,
            )
        )

    def _path(self, name: str, disk: AnyDisk) -> str:
        if isinstance(disk, DiskById):
            return disk.id
        if isinstance(disk, DiskByFile):
            return f"file:{disk.file}"
        return f"/dev/{self._names[name]}" if name in self._names else _GONE


def _count_of(event: WritesEvent) -> _Count:
    device, counter = event.device, event.counter
    last = Reading(device, counter) if device is not None and counter is not None else None
    return _Count(event.written, last, event.may_write)


def _lines(printed: str, expected: int, host: str) -> list[str]:
    lines = [line.strip() for line in printed.splitlines()]
    if len(lines) != expected:
        raise HostError(
            f"{host}: the counters of bytes written cannot be read: {len(lines)} of {expected} disks answered",
            hint="without them, a limit of bytes written cannot be kept; run it without --max-writes",
        )
    return lines


MOST_SCALED = 8.0
"""The largest limit of fio's rate, as a multiple of what is expected with its margin. Faster slices are void."""
LEAST_RATE = 64 * 1024
"""Bytes per second: the smallest limit that fio gets."""


class WritesSpent(LimitReached):
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


class WriteLimit(StepLimit):
    """The limit of one run on one host.

    What the plans write in their fewest rounds is reserved for the groups that follow. Further rounds use the rest.
    """

    def __init__(self, context: RunContext) -> None:
        spec = context.spec
        self._spec = spec
        self._context = context
        self._meter = Meter(context.store, {name: spec.host.target(name) for name in spec.limits})
        self._uncounted: frozenset[str] = frozenset()
        """The ids of the arms of the prepared group whose writes the host's counters do not show."""
        self._spent: dict[str, dict[str, None]] = {}
        """Why measuring ended early, by disk."""
        self._built: dict[str, int] = {}
        """The setup whose regions are filled, by scenario."""
        self._of_groups: dict[tuple[str, int], float] = {}
        """What the fewest rounds of each group that are left write, in bytes, by group and place of the disk."""
        self._of_setups: dict[tuple[str, int, int], float] = {}
        """What building and filling each setup writes, in bytes, by scenario, number and place of the disk."""
        self._planned: dict[str, float] = {}
        """What the plans write to each disk, in bytes."""
        for plan in spec.plans:
            self._plan_bytes(plan)

    def examine(self) -> None:
        self._read_written()

    def note_prepared(self, prepared: PreparedGroup) -> None:
        self._meter.found(prepared.devices)
        self._uncounted = prepared.uncounted

    def require_setup(self, plan: Plan, group: Group) -> None:
        setup = plan.setup_of(group)
        self._built.clear()
        self._built[group.scenario] = setup.number
        cost = {disk: setup_bytes(plan, setup, place) for place, disk in enumerate(plan.disks)}
        room = self._room(group, reserved_groups=True)
        step = f"building and filling the regions of setup {setup.number} of {group.scenario}"
        self._require(step, cost, room)
        self._meter.may_write(step, cost)

    def require_round(self, plan: Plan, group: Group, tables: Sequence[Timetable]) -> None:
        """Require that a round with these timetables can be measured. Raises WritesSpent."""
        if self._spec.limits:
            slices = [(slice_.arm, slice_.job) for table in tables for slice_ in table.slices]
            self._require(f"the next round of {group.id}", self._cost(plan, group, slices).by_disk, self._room(group))

    def require_step(self, step: SpecialStep) -> None:
        """Require that a step may write what it says. Raises WritesSpent."""
        if self._spec.limits:
            self._require(step.title, step.writes, self._room(step.group))
            self._meter.may_write(step.title, step.writes)

    def find_refusal(self, plan: Plan, group: Group, arms: Mapping[Job, Sequence[ScheduledArm]]) -> WritesSpent | None:
        """Why another round cannot be measured; None if it can, or if the counters cannot be read."""
        slices = [
            (scheduled.arm, job) for job, of_job in arms.items() for scheduled in of_job for _ in range(group.blocks)
        ]
        with suppress(HostError):  # a host that is lost is noticed by the next step
            cost, room = self._cost(plan, group, slices).by_disk, self._room(group)
            return self._find_excess(f"another round of {group.id}", cost, room)
        return None

    def require_table(self, plan: Plan, group: Group, table: Timetable) -> Timetable:
        """The timetable with a limit for fio in each slice that writes, so that it cannot exceed the limit of a disk.

        The limits are far above what the slices write, unless little is left. Raises WritesSpent.
        """
        cost = self._cost(plan, group, [(slice_.arm, slice_.job) for slice_ in table.slices])
        room = self._room(group)
        step = f"{len(table.slices)} slices of {group.id}"
        self._require(step, cost.by_disk, room)
        scale = min((room[disk] / size for disk, size in cost.by_disk.items() if size > 0), default=1.0)
        scale = min(scale, MOST_SCALED)
        self._meter.may_write(step, {disk: scale * size for disk, size in cost.by_disk.items()})

        def limit(slice_: Slice) -> int | None:
            rate = cost.rates.get((slice_.arm, slice_.job))
            return None if rate is None else max(int(scale * rate), LEAST_RATE)

        return table.limited(limit)

    def count_measurements(self, group: Group, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            if measurement.arm in self._uncounted and measurement.counters.fio.written:
                reference = next((cell.reference for cell in group.cells if measurement.arm == Place.REFERENCE), None)
                self._meter.add(reference or group.disk, measurement.counters.fio.written)

    def end(self) -> None:
        # Of a host that is lost, the last step was noted with the most that it may have written.
        with suppress(HostError):
            if self._context.measurer.runner is not None:
                self._read_written()
                self._meter.end()

    def record(self) -> None:
        """Read the counters, and record what was written."""
        with suppress(HostError):
            self._record(self._read_written())

    def _record(self, now: Mapping[str, int]) -> None:
        limits = self._spec.limits
        left_out: dict[str, list[str]] = {}
        for plan in self._spec.plans:
            words = left_out_words(plan)
            for disk in plan.disks:
                left_out.setdefault(disk, []).extend(words)
        self._context.recorder.writes(
            DiskWrites(
                disk=disk,
                limit=limit,
                planned=round(self._planned[disk]),
                written=now.get(disk, 0),
                endurance=self._spec.host.target(disk).endurance,
                left_out=(*left_out.get(disk, ()), *self._spent.get(disk, ())),
            )
            for disk, limit in limits.items()
            if disk in self._planned
        )

    def note_refusal(self, refusal: LimitReached) -> None:
        assert isinstance(refusal, WritesSpent)
        reasons = self._spent.setdefault(refusal.disk, {})
        if refusal.message not in reasons:
            reasons[refusal.message] = None
            self._context.phases.events(Note(refusal.message))

    def _read_written(self) -> Mapping[str, int]:
        """The bytes written to each disk so far, by its counter if the host is open. Raises HostError."""
        if (runner := self._context.measurer.runner) is not None:
            self._meter.read(runner)
        return self._meter.written

    def _plan_bytes(self, plan: Plan) -> None:
        """Compute what the plan writes in its fewest rounds that are left."""
        for disk, size in planned_writes(plan).items():
            self._planned[disk] = self._planned.get(disk, 0.0) + size
        for place in range(len(plan.disks)):
            for group in plan.groups:
                rounds = max(plan.rounds - len(self._context.earlier.rounds(group.id)), 0)
                self._of_groups[group.id, place] = group_bytes(plan, group, place, rounds=rounds)
            for setup in plan.setups:
                self._of_setups[*_key(setup), place] = setup_bytes(plan, setup, place)

    def _require(self, step: str, cost: Mapping[str, float], room: Mapping[str, float]) -> None:
        if (error := self._find_excess(step, cost, room)) is not None:
            self.note_refusal(error)
            raise error

    def _find_excess(self, step: str, cost: Mapping[str, float], room: Mapping[str, float]) -> WritesSpent | None:
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
            f"host {self._spec.host.name}: {OPTION}={self._spec.max_writes} allows "
            f"{format_size(self._spec.limits[disk])} for disk {disk}"
        )

    def _room(self, group: Group, *, reserved_groups: bool = False) -> dict[str, float]:
        """The bytes that measuring this group may write to each disk: the rest of the limit without what is reserved.

        With `reserved_groups`, its own fewest rounds are reserved as well, as before its regions are filled.
        """
        now = self._read_written()
        room = {disk: float(limit - now.get(disk, 0)) for disk, limit in self._spec.limits.items()}
        for plan in self._spec.plans:
            groups = [each.id for each in plan.groups if each.id not in self._context.measured]
            of = {follow_up.id: follow_up.group for follow_up in plan.follow_ups}.get(group.id, group.id)
            others = [other for other in groups if reserved_groups or other != of]
            setups = [
                _key(setup)
                for setup in plan.setups
                if not all(own.id in self._context.measured for own in setup.groups)
            ]
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
        for measurement in self._context.recorder.ran(group.id):
            ran.setdefault((measurement.arm, measurement.job), []).append(measurement)
        for arm, job in slices:
            writing = [part.job for part in arm.parts(job) if part.job.writes]
            if not writing:
                continue
            paced = all(map(is_paced, writing))
            measurements = [] if paced else ran.get((arm.id, job.id), [])
            rate = slice_rate(plan, arm, job)
            layout = arm.mode.layout if arm.mode else None
            fastest = min(fio_rate(plan.write_rate, layout, each) for each in writing)
            if measurements:
                rate = (
                    MARGIN * max(written([each], plan.span) / _seconds(each) for each in measurements) / len(arm.places)
                )
                fastest = MARGIN * max(each.counters.fio.written / _seconds(each) for each in measurements)
            if not paced:
                rates[arm, job] = fastest
            for place in arm.places:
                disk = plan.disks[place]
                by_disk[disk] = by_disk.get(disk, 0.0) + rate * job.wall
        return _Cost(by_disk, rates)


def _key(setup: Setup) -> tuple[str, int]:
    return setup.groups[0].scenario, setup.number


def _seconds(measurement: Measurement) -> float:
    return max(measurement.wall, measurement.seconds)


def check_write_limits(measurements: Iterable[Measurement]) -> tuple[ValidityCheck, ...]:
    """One check per arm whose writes fio limited, so that the run keeps its limit of bytes written.

    A slice that reached fio's limit shows the limit and not the arm.
    """
    by_arm: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.write_limit:
            share = (
                measurement.counters.fio.written / max(measurement.wall, measurement.seconds) / measurement.write_limit
            )
            by_arm.setdefault(measurement.arm, []).append(share)
    return tuple(
        ValidityCheck(
            f"write limit {arm}",
            ok=max(shares) < LIMITED,
            detail=f"the fastest slice wrote at {max(shares) * 100:.0f} % of the rate that the limit of the bytes "
            f"written allowed; at {LIMITED * 100:.0f} % or more, it shows this rate. A larger write_rate in the "
            "scenario, or a larger limit, allows more",
        )
        for arm, shares in by_arm.items()
    )
