"""md arrays over one region of each disk; with two legs, a stripe over two. Missing members, and their recovery."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.errors import HarnessError, HostError
from harness.events import Events, StepAdvanced
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on, run_all
from harness.layout.regions import ALIGNMENT, FIND, TABLE_BYTES, Need, Region, add_needs
from harness.model.base import Md, RaidLevel
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
_TAKE_OUT = _COMMON + read_script("harness.features.arrays", "take_out_member.sh")
_START = _COMMON + read_script("harness.features.arrays", "start_rebuild.sh")


def take_out(array: Writable, member: Writable) -> None:
    """Let the member fail, remove it from the array, and zero its superblock. Raises SafetyError, HostError."""
    devices = [array, member]
    run_all(devices, ["sh", "-c", _TAKE_OUT, "sh", array.path, member.path], deadline=120)


@dataclass(frozen=True, slots=True)
class ArrayRebuild:
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


_READY = read_script("harness.features.arrays", "prepare_md.sh")
_SYNC = read_script("harness.features.arrays", "wait_for_sync.sh")
_REMOVE = FIND + read_script("harness.features.arrays", "remove_md.sh")


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
                    _create_array(log, described, md.level, md.chunk, [member.device for member in over])
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
            yield stack.enter_context(_create_array(log, stripe, 0, md.chunk, legs))


def _describe_array(
    name: str, on: Sequence[Writable], *, partuuids: Sequence[str] = (), legs: Sequence[str] = ()
) -> Array:
    digits = uuid.uuid4().hex
    # In mdadm's format: four words of eight digits.
    md_uuid = ":".join(digits[at : at + 8] for at in range(0, 32, 8))
    disks = tuple(dict.fromkeys(disk for member in on for disk in member.disks))
    return Array(disks=disks, name=name, uuid=md_uuid, partuuids=tuple(partuuids), legs=tuple(legs))


@contextmanager
def _create_array(
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
