"""A missing member of an md array, and its recovery on a spare while something is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from harness.errors import HarnessError, HostError
from harness.lab.guard import Writable, run_all

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
# $1: the array, $2: the member. For a moment after it has failed, md still uses it. mdadm would add a device with a
# superblock again, and recover only what its bitmap lists. udev may have the device open for a moment.
_TAKE_OUT = (
    _COMMON
    + r"""
again() { # COMMAND
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        errors=$("$@" 2>&1) && return
        sleep 0.2
    done
    echo "$errors" >&2
    exit 1
}
again mdadm --manage --quiet "$1" --fail "$2"
again mdadm --manage --quiet "$1" --remove "$2"
again mdadm --quiet --zero-superblock "$2"
! command -v udevadm >/dev/null || udevadm settle --timeout=20
[ "$(cat "$md/degraded")" = 1 ] || { echo "$1 has $(cat "$md/degraded") missing members instead of 1" >&2; exit 1; }
"""
)
# $1: the array, $2: the spare, $3: seconds for which the recovery must last, $4 and $5: the kernel's defaults of the
# lower and the upper limit in KiB per second. component_size is in KiB (size_show in md.c).
_START = (
    _COMMON
    + r"""
size=$(cat "$md/component_size") && most=$((size / $3)) || exit
[ "$most" -le "$5" ] || most=$5
[ "$most" -ge 1 ] || most=1
least=$4
[ "$least" -le "$most" ] || least=$most
echo "$most" >"$md/sync_speed_max" && echo "$least" >"$md/sync_speed_min" || exit
read -r limit _ <"$md/sync_speed_max"
[ "$limit" = "$most" ] || { echo "sync_speed_max is $limit instead of $most" >&2; exit 1; }
mdadm --manage --quiet "$1" --add "$2" || exit
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    # The action is named before the recovery has begun, and sync_completed is none until then.
    read -r action <"$md/sync_action" && read -r completed <"$md/sync_completed" || exit
    case $action/$completed in recover/[0-9]*) exit 0;; esac
    sleep 0.1
done
echo "sync_action is $action, sync_completed is $completed" >&2
exit 1
"""
)


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
