"""md arrays over regions of ours, one on each disk; with two legs, a stripe over two arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from harness.errors import HostError
from harness.events import Events, StepAdvanced
from harness.lab.transport.base import Runner
from harness.layout.regions import ALIGNMENT, TABLE_BYTES, Need, together
from harness.layout.undo import Undo
from harness.scenario.layouts import Md, RaidLevel
from harness.units import format_duration, format_size

KIB = 1024
MIB = 1024**2
SHARE_OVERHEAD = 1 / 512
"""Of a member: what mdadm leaves free before the data, twice over (validate_geometry1 in its super1.c)."""
PATIENCE = 60.0
"""Seconds for a resync, whatever its size, on top of what its size takes."""
SLOWEST_SYNC = 5 * MIB
"""Bytes per second and member; an initial resync that is slower is broken rather than slow."""
_PARITY: tuple[RaidLevel, ...] = (5, 6)
_SYNC_LIMIT_KIB = 100_000_000
"""Per second: none. The usual limit is there to spare other work, and there is none yet."""

MODULES: Mapping[RaidLevel, str] = {0: "raid0", 1: "raid1", 5: "raid456", 6: "raid456", 10: "raid10"}
"""The kernel module of each level."""

# $1: the array. Waits for its node, lifts the limit of its resync, and prints the kernel's path of it.
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
# $1: the kernel's name of the array. Waits some seconds for it to be in sync; prints "synced", or how far it is.
_SYNC = r"""
cd "/sys/block/$1/md" || exit
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # Between creation and the start of the resync there is a moment in which nothing seems to be going on.
    if [ "$(cat sync_action) $(cat degraded) $(cat resync_start)" = "idle 0 none" ]; then echo synced; exit; fi
    sleep 0.1
done
cat sync_completed
"""
# The members. udev may hold an array for a moment, or put it together again from members that still say what they were.
_DISMANTLE = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
arrays() {
    for member; do
        device=$(readlink -e "$member") && ls "/sys/class/block/${device##*/}/holders"
    done 2>/dev/null | sort -u
}
settle() { ! command -v udevadm >/dev/null || udevadm settle --timeout=20; }
for _ in $(seq 20); do
    found=$(arrays "$@")
    [ -n "$found" ] || break
    for array in $found; do said=$(mdadm --quiet --stop "/dev/$array" 2>&1) || sleep 0.2; done
done
[ -z "$(arrays "$@")" ] || { echo "$said" >&2; exit 1; }
for member; do
    [ ! -b "$member" ] || ! mdadm --quiet --examine "$member" >/dev/null 2>&1 ||
        mdadm --quiet --zero-superblock "$member" || exit
done
settle
[ -z "$(arrays "$@")" ] || { echo "udev put it together again: $(arrays "$@")" >&2; exit 1; }
"""


def data_disks(level: RaidLevel, disks: int) -> float:
    """How many disks' worth of data an array over so many disks holds."""
    return {0: disks, 1: 1, 5: disks - 1, 6: disks - 2, 10: disks / 2}[level]


def alignment(md: Md) -> int:
    """Bytes at whose multiples a region of the array begins, so that its stripes are the array's: one of MiB."""
    per_leg = md.disks // md.legs
    # Of mirrors in pairs an odd number of disks repeats its pattern after twice as many chunks.
    chunks = 1 if md.level == 1 else per_leg if md.level == 10 else int(data_disks(md.level, per_leg))
    return math.lcm(ALIGNMENT, md.chunk * chunks * md.legs)


def member_need(md: Md, regions: Iterable[Need]) -> Need:
    """What the array takes of each of its disks where it is to have room for these regions and their table."""
    need = together(regions, alignment=alignment(md))
    need = Need(need.fixed + TABLE_BYTES, need.shares)
    if md.legs == 2:
        need = _of_each_member(need, 2, md.chunk)
    return _of_each_member(need, data_disks(md.level, md.disks // md.legs), md.chunk)


def _of_each_member(need: Need, data: float, chunk: int) -> Need:
    # Superblock, bitmap, the room that mdadm leaves before the data, and what is no whole chunk at the end.
    fixed = math.ceil(need.fixed / data) + 4 * MIB + 8 * chunk
    return Need(fixed, need.shares / data * (1 + SHARE_OVERHEAD))


@contextmanager
def array(runner: Runner, md: Md, name: str, members: Sequence[str], events: Events) -> Iterator[str]:
    """The kernel's path of a fresh array over these partitions, in sync; gone at the end, superblocks included.

    RAID 5 and 6 are synchronised first: until then the kernel reconstructs each stripe that is written, instead of
    reading, modifying and writing what changes, and parity is none. RAID 1 and 10 are taken for in sync
    (`--assume-clean`): whatever is read of them was written before, to all mirrors. All but RAID 0 have the internal
    bitmap that mdadm gives to members above 100 GB, as real arrays have it. Raises HostError.
    """
    per_leg = md.disks // md.legs
    with ExitStack() as stack:
        suffixes = ("",) if md.legs == 1 else ("a", "b")
        legs = [
            stack.enter_context(_array(runner, md.level, md.chunk, name + suffix, members[at : at + per_leg]))
            for suffix, at in zip(suffixes, range(0, md.disks, per_leg), strict=True)
        ]
        if md.level in _PARITY:
            for leg in legs:
                _wait_until_synced(runner, leg, name, per_leg, events)
        yield legs[0] if md.legs == 1 else stack.enter_context(_array(runner, 0, md.chunk, name, legs))


@contextmanager
def _array(runner: Runner, level: RaidLevel, chunk: int, name: str, members: Sequence[str]) -> Iterator[str]:
    path = f"/dev/md/{name}"
    # A name without the host's in front, which would be cut off; and no question is asked.
    create = ["mdadm", "--create", path, "--quiet", "--run", "--metadata=1.2", "--homehost=any"]
    create += [f"--level={level}", f"--raid-devices={len(members)}"]
    if level != 1:
        create.append(f"--chunk={chunk // KIB}")
    if level != 0:
        create.append("--bitmap=internal")
    if level in (1, 10):
        create.append("--assume-clean")
    with Undo(runner) as undo:
        undo.by(f"the array {name}", ["sh", "-s", "--", *members], stdin=_DISMANTLE, deadline=120)
        runner.run([*create, *members], deadline=120)
        made = runner.run(["sh", "-s", "--", path, str(_SYNC_LIMIT_KIB)], stdin=_READY, deadline=60)
        yield made.stdout.strip()


def _wait_until_synced(runner: Runner, device: str, name: str, members: int, events: Events) -> None:
    size = int(runner.run(["blockdev", "--getsize64", device], deadline=20).stdout)
    # Bytes per member are at most those of the array.
    patience = PATIENCE + size / SLOWEST_SYNC
    end = time.monotonic() + patience
    while True:
        said = runner.run(["sh", "-s", "--", device.rpartition("/")[2]], stdin=_SYNC, deadline=30).stdout.strip()
        if said == "synced":
            return
        left = end - time.monotonic()
        if left <= 0:
            raise HostError(
                f"{runner.name}: array {name} of {members} disks and {format_size(size)} is not in sync after "
                f"{format_duration(patience)}: {said}",
                hint="see /proc/mdstat and dmesg there: a failing disk, or one that is far slower than the others",
            )
        events(StepAdvanced(f"synchronise array {name}", f"{said} sectors", left))
