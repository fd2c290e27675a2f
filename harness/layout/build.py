"""Builds all layouts of a scenario's disks side by side, each on its region or on an md array, and removes them."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Protocol

from harness.errors import HarnessError, HostError, Unsupported
from harness.events import Events, StepAdvanced
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.facts import HostFacts
from harness.lab.guard import Writable, built_on, run_all
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.layout.disks import inhibit_udev, partitioned_disks
from harness.layout.free_space import FileReserve
from harness.layout.layers import BARE, BasePlan, plan_bases
from harness.layout.regions import (
    ALIGNMENT,
    FIND,
    TABLE_BYTES,
    Need,
    PartitionedDisk,
    Region,
    add_needs,
    partition_array,
)
from harness.layout.source import BlockSource, Sources
from harness.model.base import Md, RaidLevel
from harness.model.mode import Mode
from harness.scenario.setups import places_needed
from harness.signals import Deadline, wait_until
from harness.units import format_duration, format_size

FASTEST_KIB = 200_000
"""KiB per second and member: the kernel's default for sync_speed_max (md(4), speed_limit_max)."""
SLOWEST_KIB = 1000
"""KiB per second and member: the kernel's default for sync_speed_min (md(4), speed_limit_min)."""
BESIDE_SECONDS = 6.0
"""The time of a recovery beside the slices: login, the start of fio, and the commands that start and end it."""
RESERVE = 1.2
"""A recovery could take this much longer than the slices: md exceeds its limit in the first seconds."""

_COMMON = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
md=/sys/class/block/${1##*/}/md
"""
_TAKE_OUT = _COMMON + read_script("harness.layout", "take_out_member.sh")
_START = _COMMON + read_script("harness.layout", "start_rebuild.sh")


def take_out(array: Writable, member: Writable) -> None:
    """Let the member fail, remove it from the array, and zero its superblock. Raises SafetyError, HostError."""
    devices = [array, member]
    run_all(devices, ["sh", "-c", _TAKE_OUT, "sh", array.path, member.path], deadline=120)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """An array with a missing member, and its spare, which is not part of the array until a recovery begins."""

    array: Writable
    spare: Writable

    @contextmanager
    def running(self, seconds: float) -> Iterator[None]:
        """A recovery runs in the block, from the beginning of a member, and lasts for at least `seconds`.

        Its limit is the kernel's default, or what lets it last that long if that is less. At the end, the spare is
        taken out again. Raises SafetyError, HostError.
        """
        lasting = math.ceil((seconds + BESIDE_SECONDS) * RESERVE)
        limits = [str(SLOWEST_KIB), str(FASTEST_KIB)]
        words = [self.array.path, self.spare.path, str(lasting), *limits]
        devices = [self.array, self.spare]
        started = run_all(devices, ["sh", "-c", _START, "sh", *words], deadline=120, check=False)
        if started.status != 0:
            raise HostError(
                f"{self.array.runner.name}: {self.array.path} does not rebuild its spare {self.spare.path}: "
                f"{started.stderr.strip() or 'no reason given'}",
                hint="see /proc/mdstat and dmesg there",
            )
        try:
            yield
        except BaseException:
            with suppress(HarnessError):  # the first error is more useful, and the array is removed with its spare
                take_out(self.array, self.spare)
            raise
        take_out(self.array, self.spare)


KIB = 1024
MIB = 1024**2
SHARE_OVERHEAD = 1 / 512
"""Share of a member: twice what mdadm leaves free before the data (validate_geometry1 in its super1.c)."""
PATIENCE = 60.0
"""Seconds for a resync of any size, in addition to the time that its size takes."""
SLOWEST_SYNC = 5 * MIB
"""Bytes per second and member. If an initial resync is slower, something is broken."""
_PARITY: tuple[RaidLevel, ...] = (5, 6)
_SYNC_LIMIT_KIB = 100_000_000
"""KiB per second: in effect no limit. The usual limit protects other work, and there is none yet."""


_READY = read_script("harness.layout", "prepare_md.sh")
_SYNC = read_script("harness.layout", "wait_for_sync.sh")
_REMOVE = FIND + read_script("harness.layout", "remove_md.sh")


class Array(HostThing):
    """An md array, identified by its UUID, over the partitions with the UUIDs `partuuids` or over the arrays `legs`."""

    kind: Literal["array"] = "array"
    name: str
    uuid: str
    partuuids: tuple[str, ...] = ()
    legs: tuple[str, ...] = ()

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the array {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.uuid, "legs", *self.legs] if self.legs else [self.uuid, "partitions", *self.partuuids]


def count_data_disks(level: RaidLevel, disks: int) -> float:
    """The capacity for data of an array over this number of disks, in disks."""
    return {0: disks, 1: 1, 5: disks - 1, 6: disks - 2, 10: disks / 2}[level]


def compute_alignment(md: Md) -> int:
    """Alignment of regions to the array's stripes: each region begins at a multiple of this, in bytes (whole MiB)."""
    per_leg = md.disks // md.legs
    # RAID 10 over an odd number of disks repeats its pattern only after twice as many chunks.
    chunks = 1 if md.level == 1 else per_leg if md.level == 10 else int(count_data_disks(md.level, per_leg))
    return math.lcm(ALIGNMENT, md.chunk * chunks * md.legs)


def compute_member_need(md: Md, regions: Iterable[Need]) -> Need:
    """What an array with room for these regions and their partition table needs of each of its disks."""
    need = add_needs(regions, alignment=compute_alignment(md))
    need = Need(need.fixed + TABLE_BYTES, need.shares)
    if md.legs == 2:
        need = _of_each_member(need, 2, md.chunk)
    return _of_each_member(need, count_data_disks(md.level, md.disks // md.legs), md.chunk)


def _of_each_member(need: Need, data: float, chunk: int) -> Need:
    # Superblock, bitmap, the space that mdadm leaves before the data, and an incomplete chunk at the end.
    fixed = math.ceil(need.fixed / data) + 4 * MIB + 8 * chunk
    return Need(fixed, need.shares / data * (1 + SHARE_OVERHEAD))


@contextmanager
def create_array(log: CreationLog, md: Md, name: str, members: Sequence[Region], events: Events) -> Iterator[Writable]:
    """A new array over these partitions, in sync. It is removed at the end, with its superblocks.

    RAID 5 and 6 are synchronised first. Before that, there is no parity, and the kernel reconstructs each stripe that
    is written instead of reading, modifying and writing what changes. RAID 1 and 10 are treated as in sync
    (`--assume-clean`), because everything that is read was written before, to all mirrors. All levels except RAID 0
    have an internal bitmap, because mdadm gives one to members above 100 GB. If the array is not optimal, its last
    member is then taken out. The spare comes last in `members`; it is not added. Raises SafetyError, HostError.
    """
    per_leg = md.disks // md.legs
    with ExitStack() as stack:
        suffixes = ("",) if md.legs == 1 else ("a", "b")
        legs = []
        for suffix, at in zip(suffixes, range(0, md.disks, per_leg), strict=True):
            over = members[at : at + per_leg]
            on = [*over, *members[md.disks :]]
            described = _describe_array(
                name + suffix, [member.device for member in on], partuuids=[member.partuuid for member in on]
            )
            legs.append(
                stack.enter_context(
                    _create_one_array(log, described, md.level, md.chunk, [member.device for member in over])
                )
            )
        if md.level in _PARITY:
            for leg in legs:
                _wait_until_synced(leg, name, per_leg, events)
        if not md.is_optimal:
            take_out(legs[0], members[md.disks - 1].device)
        if md.legs == 1:
            yield legs[0]
        else:
            # By mdadm's names: the kernel's names may differ after a reboot of the host.
            stripe = _describe_array(name, legs, legs=[f"/dev/md/{name}{suffix}" for suffix in suffixes])
            yield stack.enter_context(_create_one_array(log, stripe, 0, md.chunk, legs))


def _describe_array(
    name: str, on: Sequence[Writable], *, partuuids: Sequence[str] = (), legs: Sequence[str] = ()
) -> Array:
    digits = uuid.uuid4().hex
    # In mdadm's format: four words of eight digits.
    md_uuid = ":".join(digits[at : at + 8] for at in range(0, 32, 8))
    disks = tuple(dict.fromkeys(disk for member in on for disk in member.disks))
    return Array(disks=disks, name=name, uuid=md_uuid, partuuids=tuple(partuuids), legs=tuple(legs))


@contextmanager
def _create_one_array(
    log: CreationLog, described: Array, level: RaidLevel, chunk: int, members: Sequence[Writable]
) -> Iterator[Writable]:
    path = f"/dev/md/{described.name}"
    # A name without the host's name as prefix, which would be truncated; and no questions.
    create = ["mdadm", "--create", path, "--quiet", "--run", "--metadata=1.2", "--homehost=any"]
    create += [f"--uuid={described.uuid}", f"--level={level}", f"--raid-devices={len(members)}"]
    if level != 1:
        create.append(f"--chunk={chunk // KIB}")
    if level != 0:
        create.append("--bitmap=internal")
    if level in (1, 10):
        create.append("--assume-clean")
    with log.making_here(described):
        run_all(members, [*create, *(member.path for member in members)], deadline=120)
        made = log.runner.run(["sh", "-s", "--", path, str(_SYNC_LIMIT_KIB)], stdin=_READY, deadline=60)
        (device,) = built_on(members, [made.stdout.strip()])
        yield device


def _wait_until_synced(device: Writable, name: str, members: int, events: Events) -> None:
    runner, size = device.runner, device.size_bytes
    # A member is at most as large as the array.
    patience = PATIENCE + size / SLOWEST_SYNC
    deadline = Deadline.after(patience)
    progress = ""

    def is_synced() -> bool:
        nonlocal progress
        progress = runner.run(["sh", "-s", "--", device.name], stdin=_SYNC, deadline=30).stdout.strip()
        if progress != "synced":
            events(StepAdvanced(f"synchronise array {name}", f"{progress} sectors", deadline.left))
        return progress == "synced"

    # The script on the host waits a moment itself.
    if not wait_until(is_synced, deadline=deadline, every=0.0):
        raise HostError(
            f"{runner.name}: array {name} of {members} disks and {format_size(size)} is not in sync after "
            f"{format_duration(patience)}: {progress}",
            hint="see /proc/mdstat and dmesg there: a disk may fail or be much slower than the others",
        )


_COUNTED = ("dm-", "rbd")
"""Devices whose own counters show what reached the disks. ZFS serves reads of a zvol from its cache, so zd is none."""


class Reserve(Protocol):
    """Keeps the reserve of a storage in use free while a run fills its volumes there and measures them."""

    def require(self, size_bytes: int) -> None:
        """Raise SafetyError if `size_bytes` more would leave too little free now, or if the free space is unknown."""
        ...

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        """The same before `part_bytes` of the volume at `path` are written, which has `size_bytes`.

        What the volume has already been allocated is not needed again. Raises SafetyError, HostError.
        """
        ...


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """The storage in use that the layouts of a run are on.

    `disks` are the kernel's names of the disks below it, which others use, too. Empty if the host has none (NFS).
    """

    words: str
    """For example `thin pool pve/data`."""
    disks: tuple[str, ...]
    room: Reserve
    """Asked before each part of the volumes is filled, and before each group is measured."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the results say about it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How the volume of a mode differs from what the mode requests, by the mode's name."""

    def counted(self, source: BlockSource) -> tuple[str, ...]:
        """The device of the volume, if its counters show which bytes reached the disks. Only this run uses it."""
        name = source.grant.name if source.grant is not None else ""
        return (name,) if name.startswith(_COUNTED) else ()

    def how_counted(self, source: BlockSource) -> str:
        """How the bytes of this volume are checked, in words."""
        if self.counted(source):
            return "counted on the volume itself"
        if self.disks:
            return f"counted on the disks below ({', '.join(self.disks)}), together with those of others"
        return "not counted on a disk, because the host has none below it: fio is only compared with QEMU"


@dataclass(frozen=True, slots=True)
class Layouts:
    """The layouts of one scenario, as built: where the data of each mode is. All spans are equal. `span` in bytes.

    `device` is the bare region of the first disk, or the volume of the baseline on a storage in use. `by_mode` has the
    source that each mode's guest gets, `twins` the source for fio on the host, if it is another one, and `members` the
    kernel names of the disks of each mode on an array, with its spare.
    """

    device: BlockSource
    by_mode: Mapping[str, BlockSource]
    span: int
    disk: str
    """The kernel's name of the first disk."""
    twins: Mapping[str, BlockSource] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name in the lab of each disk by its kernel name."""
    arrays: Mapping[str, str] = field(default_factory=dict)
    """The kernel's name of the array of each mode on one."""
    rebuilds: Mapping[str, Rebuild] = field(default_factory=dict)
    """How the spare of each mode on an array that is to be rebuilding is rebuilt."""
    shared: SharedStorage | None = None
    """The storage in use that all of them are on; None on disks that only this run uses."""
    files: FileReserve | None = None
    """Of the file systems that the files behind the disks are on; None if all disks are real ones."""

    @property
    def reserve(self) -> Reserve | None:
        """What is asked before a part of them is filled, because others use the same space."""
        return self.shared.room if self.shared else self.files

    def narrowed(self, span: int) -> Layouts:
        """The same bare device, of which only the first `span` bytes are used. It must have no modes."""
        return replace(self, device=replace(self.device, size=span), span=span)

    def guest(self, mode: Mode) -> BlockSource:
        """The source that the guest of this mode gets as its disk."""
        return self.by_mode[mode.stored.name]

    def twin(self, mode: Mode | None) -> BlockSource:
        """The source for fio on the host: the twin of this mode, or with None the bare device.

        The twin of a qcow2 file is a RAW file of the same size on the same file system, because fio cannot read the
        format.
        """
        if mode is None:
            return self.device
        return self.twins.get(mode.stored.name, self.by_mode[mode.stored.name])

    def disks(self, mode: Mode | None) -> tuple[str, ...]:
        """Kernel names (`nvme0n1`) of the disks below all layers. The sum of their counters is what reached disks.

        On a storage in use, the device of the mode's own volume, because others use the disks. Empty for files there.
        """
        if self.shared is not None:
            return self.shared.counted(self.twin(mode))
        return (self.disk,) if mode is None else self.members.get(mode.stored.name, (self.disk,))

    @property
    def regions(self) -> dict[str, BlockSource]:
        """The sources that the host can write to, each once, by the first mode that uses it or `device` if bare."""
        regions = {self.device: BARE}
        for name, source in self.by_mode.items():
            regions.setdefault(self.twins.get(name, source), name)
        return {name: source for source, name in regions.items()}

    @property
    def images(self) -> list[Sources]:
        """The sources that only QEMU can write to (qcow2 files), with their twins."""
        return [Sources(self.by_mode[name], twin) for name, twin in self.twins.items()]


@contextmanager
def built(
    log: CreationLog,
    facts: HostFacts,
    disks: Sequence[DiskSpec],
    modes: Sequence[Mode],
    *,
    span: int,
    events: Events | None = None,
) -> Iterator[Layouts]:
    """The layouts of `modes` on `disks`, each `span` bytes or what fits. Removes everything at the end.

    Layouts on one disk use the first disk; an array uses the disks at its places. Other disks are not touched. The
    guard checks each disk immediately before the first write to it. Raises SafetyError, Unsupported or HostError.
    """
    runner = log.runner
    _require_tools(runner, facts)
    on_disk, *plans = plan_bases(modes)
    arrays = [(plan, plan.base) for plan in plans if isinstance(plan.base, Md)]
    places = places_needed(modes)
    if len(disks) <= places[-1]:
        raise Unsupported(
            f"{runner.name}: an array that uses {places[-1] + 1} disks is requested, but the scenario has {len(disks)}",
            hint="name more disks in the scenario, or select modes on smaller arrays with -k",
        )
    needs: dict[int, dict[str, Need]] = {place: {} for place in places}
    needs[0] |= on_disk.needs
    for plan, base in arrays:
        for place in base.places:
            needs[place][plan.label] = compute_member_need(base, plan.needs.values())
    with ExitStack() as stack:
        used = [disks[place] for place in places]
        partitioned, span = stack.enter_context(partitioned_disks(log, used, list(needs.values()), span=span))
        ready = dict(zip(places, partitioned, strict=True))
        builder = Builder(log, span, events or Events())
        first = ready[0]
        files = tuple((str(disk.file), disk.size) for disk in used if isinstance(disk, DiskByFile))
        stack.enter_context(inhibit_udev(log, first.device))
        bare = BlockSource(first.link, "block", first.regions[BARE].offset, span, grant=first.device)
        sources = {mode: Sources.same(bare) for mode in on_disk.bare}
        sources |= stack.enter_context(builder.layers(on_disk, first.regions))
        members: dict[str, tuple[str, ...]] = {}
        names: dict[str, str] = {}
        rebuilds: dict[str, Rebuild] = {}
        for plan, base in arrays:
            on = [ready[place] for place in base.places]
            device, on_array = stack.enter_context(builder.array(plan, base, on))
            sources |= on_array
            members |= dict.fromkeys(on_array, tuple(disk.device.name for disk in on))
            names |= dict.fromkeys(on_array, device.name)
            if base.spares:
                rebuilds |= dict.fromkeys(on_array, Rebuild(device, on[-1].regions[plan.label].device))
        yield Layouts(
            device=bare,
            by_mode={name: pair.guest for name, pair in sources.items()},
            span=span,
            disk=first.device.name,
            twins={name: pair.twin for name, pair in sources.items() if pair.twin != pair.guest},
            members=members,
            names={
                partitioned_disk.device.name: disk.name
                for disk, partitioned_disk in zip(used, partitioned, strict=True)
            },
            arrays=names,
            rebuilds=rebuilds,
            files=FileReserve(runner, files) if files else None,
        )


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds arrays and layers for one run on one host. `span` is the size of each mode in bytes."""

    log: CreationLog
    span: int
    events: Events

    @contextmanager
    def array(
        self, plan: BasePlan, base: Md, disks: Sequence[PartitionedDisk]
    ) -> Iterator[tuple[Writable, dict[str, Sources]]]:
        """The array over its regions of these disks, and everything that is built on it."""
        members = [disk.regions[plan.label] for disk in disks]
        sizes = [(what, need.bytes(self.span)) for what, need in plan.needs.items()]
        alignment = compute_alignment(base)
        name = f"{TAG}-{self.log.run_id}-{plan.label}"
        with (
            create_array(self.log, base, name, members, self.events) as device,
            partition_array(self.log, device, sizes, alignment=alignment) as regions,
            self.layers(plan, regions) as layered,
        ):
            bare = [
                BlockSource(device.path, "block", regions[BARE].offset, self.span, grant=device) for _ in plan.bare[:1]
            ]
            yield device, {mode: Sources.same(source) for source in bare for mode in plan.bare} | layered

    @contextmanager
    def layers(self, plan: BasePlan, regions: Mapping[str, Region]) -> Iterator[dict[str, Sources]]:
        """The layers on the regions of this base."""
        name = "-".join(filter(None, (TAG, self.log.run_id, plan.label)))
        sources: dict[str, Sources] = {}
        with ExitStack() as stack:
            for layer in plan.layers:
                sources |= stack.enter_context(layer.build(self.log, regions[layer.region], name, self.span))
            yield sources


def _require_tools(runner: Runner, facts: HostFacts) -> None:
    for tool in ("sfdisk", "wipefs"):
        if not facts.has_tool(tool):
            raise Unsupported(f"{runner.name}: {tool} is not installed", hint=facts.install("fdisk", "util-linux"))
