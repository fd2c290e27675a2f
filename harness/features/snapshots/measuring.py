"""Takes and removes snapshots of volumes in slices of fio, and measures the slices with and without by pairs."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from itertools import groupby
from threading import Event
from typing import ClassVar, Literal, Protocol

from harness.errors import HostError, Unsupported
from harness.feature import storage_scripts
from harness.features.snapshots.request import PlannedSnapshots, SnapshotRecord
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.inventory import DiskByStorage
from harness.lab.pin import TAG
from harness.lab.storages import Allocation, read_space, shortages
from harness.layout import BlockSource
from harness.layout.layers import TRACELESS
from harness.measure.phases import Pauses
from harness.measure.ran_slices import RanSlice
from harness.measure.rounds import FollowingSeries, OneStepSeries, SeriesContext, follow_once
from harness.measure.series import OpenSession, PreparedGroup
from harness.measure.session import Session
from harness.measure.slices import run_timetable
from harness.model.layout import LvmThin, Rbd, Zvol
from harness.scenario.timetable import ScheduledArm, Timetable, in_order
from harness.units import format_duration
from harness.untrusted import parse_json, reading

_PAUSE = 1.0
"""The shortest pause between slices in seconds."""
_TAKEN_AT = 0.25
"""When the snapshot is taken, as a share of its slice."""
_REMOVED_AT = 0.6
"""The earliest time of its removal."""
_DEADLINE = 120.0
_NS = 1e-9
_RBD = storage_scripts("rbd")
"""The shell functions for a pool of Ceph."""
_TAKE_OF_IMAGE = f'{_RBD}use_pool "$1"; rbd snap create --no-progress "$2"'
_LIMITED = "what it writes is not in the plan of a run with a limit"


class Turn(IntEnum):
    """The slices of a pair."""

    ALONE = 1
    BESIDE = 2


_NAMES = {Turn.ALONE: "{}", Turn.BESIDE: "{}-snapshot"}


class VolumeSnapshot(HostThing):
    """A snapshot of the volume `of` (VG/LV, a dataset, or POOL/IMAGE) with a random name, under which it comes and
    goes."""

    kind: Literal["volume-snapshot"] = "volume-snapshot"
    system: Literal["lvm", "zfs", "rbd"]
    of: str
    name: str
    settings: str = ""
    """The settings of LVM for its commands; the pool of Ceph as in the lab file."""

    removal: ClassVar[str] = _RBD + read_script("harness.features.snapshots", "remove_snapshot.sh")

    @property
    def words(self) -> str:
        return f"the snapshot {self.name} of {self.of}"

    def arguments(self) -> Sequence[str]:
        return [self.system, self.of, self.name, self.settings]


class Taker(Protocol):
    """Takes a snapshot, and removes it. There is one at a time."""

    @property
    def kind(self) -> str:
        """What takes the snapshots, and of what."""

    def take(self) -> None:
        """Take it. Raises HarnessError."""

    def remove(self) -> None:
        """Remove it. Raises HarnessError."""


@dataclass(frozen=True, slots=True)
class VolumeTaker:
    """Snapshots of one volume by a command of the host."""

    kind: str
    source: BlockSource
    thing: VolumeSnapshot
    command: Sequence[str]

    def take(self) -> None:
        self.source.writable.run(self.command, deadline=_DEADLINE)

    def remove(self) -> None:
        removal = self.thing.remove(self.source.writable.runner)
        if removal.outcome != "removed":
            raise HostError(f"{self.thing.words} was not removed: {removal.outcome} {removal.why}".rstrip())


@contextmanager
def open_taker(planned: PlannedSnapshots, session: Session, log: CreationLog) -> Iterator[Taker]:
    """What takes the snapshots of the mode's volume. The last one is removed at the end, and by `reap`.

    Raises Unsupported, with the remedy, and HostError.
    """
    if session.host.spec.kind == "proxmox":
        from harness.features.snapshots.proxmox import open_vm_taker  # noqa: PLC0415 - it needs an HTTP client

        with open_vm_taker(planned, session, log) as taker:
            yield taker
        return
    source, layout = session.layouts.guest(planned.cell.mode), planned.cell.mode.layout
    runner, name = session.host.runner, f"{TAG}-{secrets.token_hex(16)}"
    settings = "" if session.layouts.shared else TRACELESS
    serials = source.writable.disks
    if isinstance(layout, LvmThin):
        listed = ["lvs", "--noheadings", "--separator", "|", "-o", "vg_name,lv_name,pool_lv", source.path]
        words = runner.run(listed, deadline=60).stdout.strip().split("|")
        if len(words) != len(("group", "volume", "pool")) or not all(words):
            raise HostError(f"{runner.name}: lvs shows no thin volume at {source.path}: {'|'.join(words)}")
        group, volume, pool = words
        thing = VolumeSnapshot(disks=serials, system="lvm", of=f"{group}/{volume}", name=name, settings=settings)
        options = ["--quiet", "--config", settings] if settings else ["--quiet"]
        command = ["lvcreate", *options, "--snapshot", "--setactivationskip", "y", "--name", name, thing.of]
        kind, place = "snapshot of a thin volume of LVM", ("lvmthin", f"{group}/{pool}")
    elif isinstance(layout, Zvol):
        dataset = source.path.removeprefix("/dev/zvol/")
        thing = VolumeSnapshot(disks=serials, system="zfs", of=dataset, name=name)
        command = ["zfs", "snapshot", f"{dataset}@{name}"]
        kind, place = "snapshot of a zvol", ("zfspool", dataset)
    elif isinstance(layout, Rbd):
        disk = session.host.spec.target(planned.cell.disk)
        assert isinstance(disk, DiskByStorage), "an image is always on a storage in use"
        pool, image = disk.at, _find_image(session, source.writable.path)
        thing = VolumeSnapshot(disks=serials, system="rbd", of=image, name=name, settings=pool)
        command = ["sh", "-c", _TAKE_OF_IMAGE, "sh", pool, f"{image}@{name}"]
        kind, place = "snapshot of an RBD image", ("rbd", pool)
    else:
        raise Unsupported(
            f"on a host with libvirt, snapshots of {layout.kind} are not taken while its guest runs",
            hint="measure lvm-thin, zvol or rbd, or qcow2 on a node of Proxmox VE",
        )
    if planned.writes:
        _require_room(session, place, planned)
    with log.making_here(thing) as entry:
        yield VolumeTaker(kind, source, thing, fenced(entry, command))


def _find_image(session: Session, device: str) -> str:
    """The image that the host's kernel has mapped as this device, as POOL/IMAGE. Raises HostError."""
    runner = session.host.runner
    printed = runner.run(["rbd", "device", "list", "--format", "json"], deadline=60).stdout
    with reading(f"{runner.name}: the images that its kernel has mapped"):
        listed = parse_json(printed, "rbd device list", HostError)
        for image in listed:
            if image["device"] == device:
                return f"{image['pool']}/{image['name']}"
    raise HostError(f"{runner.name}: {device} is not an image of Ceph that its kernel has mapped")


def _require_room(session: Session, place: tuple[str, str], planned: PlannedSnapshots) -> None:
    """Raise Unsupported if the pool could become full: what is overwritten under a snapshot stays in it."""
    label, span = f"of mode {planned.cell.mode.name}", session.layouts.guest(planned.cell.mode).size
    places = read_space(session.host.runner, [label, *place])
    if why := "; ".join(shortages(places, [Allocation(label, span)])):
        raise Unsupported(
            f"what is overwritten under a snapshot takes up to the size of the volume of its pool: {why}",
            hint="name a pool of LVM, ZFS or Ceph with free space as a storage in the lab file, or measure reads",
        )


def follow(context: SeriesContext, prepared: PreparedGroup) -> Iterator[FollowingSeries]:
    """The snapshots of a group that was measured, if the run has none of them yet."""
    planned = context.plan.follow_ups_of(PlannedSnapshots, context.group)
    limited = bool(context.spec.limits)
    series = (
        (
            _make_series(context, snapshots, rotational=prepared.rotational),
            prepared.why_skipped(snapshots.cell) or (_LIMITED if limited and snapshots.writes else None),
        )
        for snapshots in planned
    )
    return follow_once(context.recorder, SnapshotRecord, series)


def _make_series(context: SeriesContext, planned: PlannedSnapshots, *, rotational: bool) -> OneStepSeries:
    """The series of one request on one mode: its only step has all pairs."""
    host = context.spec.host.name
    pause = max(Pauses().after(planned.job, in_guest=True, rotational=rotational), _PAUSE)
    return OneStepSeries(
        context=context,
        id=planned.id,
        title=(
            f"snapshots of {planned.cell.mode.name} during {planned.job.id}, at most "
            f"{format_duration(round(planned.most_seconds))}"
        ),
        measure=partial(measure_pairs, planned, host, pause),
        skip=lambda why: make_record(planned, host, problem=why),
    )


@dataclass(frozen=True, slots=True)
class SnapshotTimes:
    """When a snapshot was taken and removed, in moments of this process's monotonic clock."""

    begun: float
    taken: float
    removing: float
    removed: float

    def is_within(self, ran: RanSlice) -> bool:
        """Whether all of it was in this slice."""
        return ran.begun <= self.begun and self.removed <= ran.ended

    def disturbs(self, ran: RanSlice) -> bool:
        return self.begun <= ran.ended and ran.first <= self.removed


@dataclass(slots=True)
class SnapshotsBeside:
    """Takes snapshots beside a timetable. `taken` has them by the number of their pair."""

    taker: Taker
    taken: dict[int, SnapshotTimes] = field(default_factory=dict)

    def run(self, table: Timetable, start: float, stopped: Event) -> None:
        """Take and remove a snapshot in each slice that is to have one. Raises what the taker raises."""
        for slice_ in table.slices:
            if slice_.turn.again != Turn.BESIDE:
                continue
            measured = slice_.end - slice_.measured_from
            if _wait_until(start + slice_.measured_from + _TAKEN_AT * measured, stopped):
                return
            begun = time.monotonic()
            self.taker.take()
            taken = time.monotonic()
            _wait_until(start + slice_.measured_from + _REMOVED_AT * measured, stopped)
            removing = time.monotonic()
            self.taker.remove()
            self.taken[slice_.block] = SnapshotTimes(begun, taken, removing, time.monotonic())


def _wait_until(moment: float, stopped: Event) -> bool:
    """Wait. True if the timetable was stopped."""
    return stopped.wait(max(moment - time.monotonic(), 0.0))


def measure_pairs(planned: PlannedSnapshots, host: str, pause: float, opened: OpenSession) -> SnapshotRecord:
    """Measure the pairs. Raises Unsupported, with the remedy, and what `run_timetable` raises."""
    session = opened.session
    chance = random.Random(f"snapshots {opened.seed} {planned.id}")
    with session.holding(planned.guest), open_taker(planned, session, opened.log) as taker:
        pairs = [
            [
                ScheduledArm(planned.guest, turn, _NAMES[turn].format(planned.guest.id))
                for turn in chance.sample(list(Turn), len(Turn))
            ]
            for _ in range(planned.snapshots.pairs)
        ]
        beside = SnapshotsBeside(taker)
        ran = run_timetable(
            opened.session_for,
            session,
            opened.store,
            in_order(planned.job, pairs, pause=pause),
            name=planned.id,
            seed=chance.getrandbits(31),
            beside=beside.run,
        )
        return make_record(planned, host, kind=taker.kind, pairs=list(choose_pairs(ran, beside.taken)))


@dataclass(frozen=True, slots=True)
class Pair:
    """A slice without a snapshot, one with it, and when that was taken."""

    alone: RanSlice
    beside: RanSlice
    taken: SnapshotTimes


def choose_pairs(ran: Sequence[RanSlice], taken: Mapping[int, SnapshotTimes]) -> Iterator[Pair]:
    """The pairs that count: the whole snapshot was within its slice, and nothing else ran at the same time."""
    for block, slices in groupby(ran, key=lambda slice_: slice_.planned.block):
        of_turn = {slice_.planned.turn.again: slice_ for slice_ in slices}
        if block not in taken or len(of_turn) != len(Turn) or any(slice_.overlap for slice_ in of_turn.values()):
            continue
        alone, beside = of_turn[Turn.ALONE], of_turn[Turn.BESIDE]
        quiet = not any(snapshot.disturbs(alone) for snapshot in taken.values())
        if quiet and taken[block].is_within(beside):
            yield Pair(alone, beside, taken[block])


def make_record(
    planned: PlannedSnapshots, host: str, *, kind: str = "", pairs: Sequence[Pair] = (), problem: str | None = None
) -> SnapshotRecord:
    """The record of these pairs. Too few of them are a problem."""
    cell = planned.cell
    lost = planned.snapshots.pairs - len(pairs)
    if problem is None and lost:
        problem = f"{lost} of {planned.snapshots.pairs} pairs do not count, because the snapshot did not end within "
        problem += f"its slice: set seconds above {planned.snapshots.seconds:g}"
    return SnapshotRecord(
        id=planned.id,
        name=planned.name,
        scenario=cell.scenario,
        host=host,
        disk=cell.disk,
        mode=cell.mode.name,
        job=planned.cell.job.id,
        kind=kind,
        alone=tuple(pair.alone.result.metrics["iops"] for pair in pairs),
        beside=tuple(pair.beside.result.metrics["iops"] for pair in pairs),
        slowest_alone=tuple(find_slowest(pair.alone) for pair in pairs),
        slowest_beside=tuple(find_slowest(pair.beside) for pair in pairs),
        taking=tuple(pair.taken.taken - pair.taken.begun for pair in pairs),
        removing=tuple(pair.taken.removed - pair.taken.removing for pair in pairs),
        raw=tuple(dict.fromkeys(pair.beside.raw for pair in pairs)),
        problem=problem,
    )


def find_slowest(ran: RanSlice) -> float:
    """The longest completion latency of a slice in seconds, by the bins of fio's histogram (at most 1.6 % wide)."""
    return max(ran.result.histogram, default=0) * _NS
