"""Counts what other programs read from the disks while nothing is measured: a status daemon that polls its storages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from harness.lab.counters import CounterFiles
from harness.lab.sampling import Sample, parse_samples, sample
from harness.lab.transport.base import Runner
from harness.measure.clock import Clock

MOST_AT_ONCE = 4 * 1024**2
"""The most bytes that are allowed for a poll. What reads more is another user of the disk, and not a poll."""
LEAST_AT_ONCE = 512 * 1024
"""The bytes that are allowed for a poll if polls were seen: successive ones differ, and the count may see a small one.

On a node of Proxmox VE 9.2 they read 128 to 512 KiB: LVM reads blocks of 128 KiB, and some of them several times.
"""
_POLLS = 1.2
"""The time of the count, as a multiple of the time from one poll to the next: it has at least one poll."""
_EVERY_SECONDS = 0.5
_START_SECONDS = 1.0
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class IdleReads:
    """What other programs read from one disk while nothing was measured: bytes per second, and at most at once."""

    rate: float = 0.0
    burst: int = 0


@dataclass(frozen=True, slots=True)
class Idle:
    """What other programs read from each disk, by its kernel name. Nothing is known of a disk that is not here."""

    disks: Mapping[str, IdleReads] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, disks: Sequence[str]) -> IdleReads:
        """What they read from these disks together."""
        found = [self.disks[disk] for disk in disks if disk in self.disks]
        return IdleReads(sum(each.rate for each in found), sum(each.burst for each in found))


def count_idle(runner: Runner, clock: Clock, disks: Sequence[str], poll_seconds: float) -> Idle:
    """Count what is read from the disks for a little longer than `poll_seconds`, the time between two polls.

    The caller must leave the disks alone meanwhile. Raises HostError.
    """
    seconds = poll_seconds * _POLLS
    begin = clock.uptime(time.monotonic()) + _START_SECONDS
    times = [begin + number * _EVERY_SECONDS for number in range(round(seconds / _EVERY_SECONDS) + 1)]
    files = CounterFiles(tuple(disks))
    printed = sample(runner, files, times, deadline=_START_SECONDS + seconds + _GRACE_SECONDS)
    samples = parse_samples(printed, files, runner.name, expected=len(times))
    return Idle({disk: idle_reads(samples, disk, poll_seconds) for disk in disks})


def idle_reads(samples: Sequence[Sample], disk: str, poll_seconds: float) -> IdleReads:
    """What the disk's counter shows. If there were polls, both figures are bounded to what a poll can be. Pure."""
    seconds = samples[-1].begun - samples[0].begun
    bursts = list(_bursts([each.counters.disks[disk].read for each in samples]))
    if not bursts or seconds <= 0:
        return IdleReads()
    rate = min(max(sum(bursts) / seconds, LEAST_AT_ONCE / poll_seconds), MOST_AT_ONCE / poll_seconds)
    return IdleReads(rate, min(max(*bursts, LEAST_AT_ONCE), MOST_AT_ONCE))


def _bursts(counts: Sequence[int]) -> Iterator[int]:
    """The bytes of each uninterrupted series of changes."""
    so_far = 0
    for earlier, now in pairwise(counts):
        if now > earlier:
            so_far += now - earlier
        elif so_far:
            yield so_far
            so_far = 0
    if so_far:
        yield so_far
