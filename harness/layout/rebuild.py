"""A missing member of an md array, and its recovery on a spare while something is measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from harness.errors import HarnessError, HostError
from harness.lab.guard import Writable, run_all
from harness.shipped import read_script

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
