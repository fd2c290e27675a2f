"""md arrays over one region of each disk; with two legs, a stripe over two arrays."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Literal

from harness.errors import HostError
from harness.events import Events, StepAdvanced
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on, run_all
from harness.layout.identity import FIND
from harness.layout.rebuild import take_out
from harness.layout.regions import ALIGNMENT, TABLE_BYTES, Need, Region, together
from harness.model.base import Md, RaidLevel
from harness.units import format_duration, format_size
from harness.waiting import Deadline, wait_until

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


# $1: the array, $2: KiB per second. Waits for its device node, sets the limits of its resync, and prints the kernel's
# path of it.
_READY = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
! command -v udevadm >/dev/null || udevadm settle --timeout=20
device=$(readlink -e "$1") || { echo "there is no $1" >&2; exit 1; }
md=/sys/block/${device##*/}/md
for limit in sync_speed_max sync_speed_min; do
    [ ! -e "$md/sync_action" ] || echo "$2" >"$md/$limit" || exit
done
echo "$device"
"""
# $1: the kernel's name of the array. Waits at most 2 s until it is in sync; prints "synced", or the progress.
_SYNC = r"""
cd "/sys/block/$1/md" || exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # For a moment between creation and the start of the resync, sync_action is idle.
    if [ "$(cat sync_action) $(cat degraded) $(cat resync_start)" = "idle 0 none" ]; then echo synced; exit; fi
    sleep 0.1
done
cat sync_completed
"""
# $1: the UUID of the array as mdadm writes it, $2: "legs" or "partitions"; then the paths of the legs or the UUIDs of
# the partitions. An array is stopped only if it has this UUID, and only members with this UUID lose their superblock.
# udev may hold an array for a moment, or assemble it again from members that still have their superblock.
_REMOVE = (
    FIND
    + r"""
uuid=$1 legs=$2; shift 2
settle() { ! command -v udevadm >/dev/null || udevadm settle --timeout=20; }
uuid_of() { mdadm --examine --export "$1" 2>/dev/null | sed -n 's/^MD_UUID=//p'; }
done=absent
arrays() {
    for at in /sys/block/md*/md; do
        [ -d "$at" ] || continue
        at=${at%/md}
        # An array is identified by any of its members.
        for member in "$at"/md/dev-*; do
            [ "$(uuid_of "/dev/${member##*/dev-}")" != "$uuid" ] || { echo "${at##*/}"; break; }
        done
    done
}
settle
for try in $(seq 20); do
    found=$(arrays)
    [ -n "$found" ] || break
    done=removed
    for array in $found; do errors=$(mdadm --quiet --stop "/dev/$array" 2>&1) || sleep 0.2; done
    settle
done
[ -z "$(arrays)" ] || { echo "$errors" >&2; exit 1; }
if [ "$legs" = legs ]; then members=$(for leg; do readlink -e "$leg"; done)
else members=$(for partition; do partition_of "$partition"; done); fi
for member in $members; do
    [ "$(uuid_of "$member")" = "$uuid" ] || continue
    require_free "$member" && mdadm --quiet --zero-superblock "$member" || exit
    done=removed
done
settle
[ -z "$(arrays)" ] || { echo "udev assembled it again: $(arrays)" >&2; exit 1; }
echo "$done"
"""
)


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


def data_disks(level: RaidLevel, disks: int) -> float:
    """The capacity for data of an array over this number of disks, in disks."""
    return {0: disks, 1: 1, 5: disks - 1, 6: disks - 2, 10: disks / 2}[level]


def alignment(md: Md) -> int:
    """Alignment of regions to the array's stripes: each region begins at a multiple of this, in bytes (whole MiB)."""
    per_leg = md.disks // md.legs
    # RAID 10 over an odd number of disks repeats its pattern only after twice as many chunks.
    chunks = 1 if md.level == 1 else per_leg if md.level == 10 else int(data_disks(md.level, per_leg))
    return math.lcm(ALIGNMENT, md.chunk * chunks * md.legs)


def member_need(md: Md, regions: Iterable[Need]) -> Need:
    """What an array with room for these regions and their partition table needs of each of its disks."""
    need = together(regions, alignment=alignment(md))
    need = Need(need.fixed + TABLE_BYTES, need.shares)
    if md.legs == 2:
        need = _of_each_member(need, 2, md.chunk)
    return _of_each_member(need, data_disks(md.level, md.disks // md.legs), md.chunk)


def _of_each_member(need: Need, data: float, chunk: int) -> Need:
    # Superblock, bitmap, the space that mdadm leaves before the data, and an incomplete chunk at the end.
    fixed = math.ceil(need.fixed / data) + 4 * MIB + 8 * chunk
    return Need(fixed, need.shares / data * (1 + SHARE_OVERHEAD))


@contextmanager
def array(log: CreationLog, md: Md, name: str, members: Sequence[Region], events: Events) -> Iterator[Writable]:
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
            described = _described(
                name + suffix, [each.device for each in on], partuuids=[each.partuuid for each in on]
            )
            legs.append(stack.enter_context(_array(log, described, md.level, md.chunk, [each.device for each in over])))
        if md.level in _PARITY:
            for leg in legs:
                _wait_until_synced(leg, name, per_leg, events)
        if not md.is_optimal:
            take_out(legs[0], members[md.disks - 1].device)
        if md.legs == 1:
            yield legs[0]
        else:
            # By mdadm's names: the kernel's names may differ after a reboot of the host.
            stripe = _described(name, legs, legs=[f"/dev/md/{name}{suffix}" for suffix in suffixes])
            yield stack.enter_context(_array(log, stripe, 0, md.chunk, legs))


def _described(name: str, on: Sequence[Writable], *, partuuids: Sequence[str] = (), legs: Sequence[str] = ()) -> Array:
    digits = uuid.uuid4().hex
    # In mdadm's format: four words of eight digits.
    md_uuid = ":".join(digits[at : at + 8] for at in range(0, 32, 8))
    disks = tuple(dict.fromkeys(disk for each in on for disk in each.disks))
    return Array(disks=disks, name=name, uuid=md_uuid, partuuids=tuple(partuuids), legs=tuple(legs))


@contextmanager
def _array(
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
