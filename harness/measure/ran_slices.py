"""What ran in a timetable: its slices, which of them overlapped, and the backups beside them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Event

from harness.guest.protocol import Backup
from harness.lab.counters import Sample
from harness.lab.cycles import Cycles
from harness.measure.fio_results import JobResult
from harness.model.cell import Part
from harness.results.journal_records import BackupCounts
from harness.scenario.timetable import Slice

TOLERANCE = 0.001
"""Seconds by which a reading of the counters may overlap a slice: fio reports starts and times in milliseconds."""


@dataclass(frozen=True, slots=True)
class Times:
    """From when to when a slice ran, with its ramp, or counters were read. Moments of one clock, in seconds."""

    first: float
    ended: float


def overlapping(slices: Sequence[Times], number: int) -> int | None:
    """The number of the first slice that ran at the same time as the one with this number; None if none did."""
    times = slices[number]
    return next(
        (
            other
            for other, other_times in enumerate(slices)
            if other != number and other_times.first < times.ended and times.first < other_times.ended
        ),
        None,
    )


def alone_between(slices: Sequence[Times], number: int, before: Times, after: Times) -> bool:
    """Whether between these readings, and during them, the slice with this number ran from start to end, and no other.

    Only then is what the counters show of this slice alone.
    """
    times = slices[number]
    inside = before.ended <= times.first + TOLERANCE and times.ended - TOLERANCE <= after.first
    return inside and all(
        other_times.ended <= before.first + TOLERANCE or after.ended - TOLERANCE <= other_times.first
        for other, other_times in enumerate(slices)
        if other != number
    )


@dataclass(frozen=True, slots=True)
class RanPart:
    """One of the jobs of a slice as it ran. The moments are as in RanSlice, of this job alone."""

    planned: Part
    result: JobResult
    first: float
    begun: float
    ended: float
    raw: str


@dataclass(frozen=True, slots=True)
class RanSlice:
    """One slice as it ran. `result` has all jobs that the arm's figures are about. `begun` and `ended` are moments of
    this process's monotonic clock, without the ramp. At `first`, its ramp began, if there is one. If several jobs ran
    at the same time, these are the first start and the last end, and `begun` is that of the first job.

    `before` and `after` are the host's counters around it; None if one of them was read while a slice ran. `raw` is the
    path of fio's output. `overlap` names a slice that ran at the same time, else it is empty.
    """

    planned: Slice
    result: JobResult
    first: float
    begun: float
    ended: float
    before: Sample | None
    after: Sample | None
    cycles: Cycles
    raw: str
    overlap: str = ""
    backup: BackupCounts | None = None
    """The backup that ran during it; None if none was to run."""
    parts: tuple[RanPart, ...] = ()
    """Each of its jobs, the arm's own guest first."""

    @property
    def together(self) -> float:
        """The share of the time of its first job in which all its jobs ran, 0 to 1."""
        first = self.parts[0]
        begun, ended = max(part.begun for part in self.parts), min(part.ended for part in self.parts)
        return max(ended - begun, 0.0) / max(first.ended - first.begun, 1e-9)


_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Copy:
    """One backup, from the first to the last moment at which it was seen running, and the bytes copied in between.

    The moments are those of this process's monotonic clock. `ended` is when it had certainly ended.
    """

    first: float
    last: float
    copied: int
    ended: float


@dataclass(frozen=True, slots=True)
class Copies:
    """All backups of a timetable, in the order of time."""

    copies: Sequence[Copy] = ()

    def share(self, begun: float, ended: float) -> float:
        """The share of this time in which one was seen running, 0 to 1."""
        covered = sum(max(min(copy.last, ended) - max(copy.first, begun), 0.0) for copy in self.copies)
        return covered / max(ended - begun, 1e-9)

    def rate(self, begun: float, ended: float) -> float:
        """Bytes per second of those that ran in this time, over their own time."""
        near = [copy for copy in self.copies if copy.first < ended and copy.last > begun]
        return sum(copy.copied for copy in near) / max(sum(copy.last - copy.first for copy in near), 1e-9)

    def after(self, begun: float, ended: float) -> float:
        """Seconds after this time until those had ended that ran in it."""
        return max([0.0, *(copy.ended - ended for copy in self.copies if copy.first < ended and copy.last > begun)])

    def disturb(self, begun: float, ended: float) -> bool:
        """Whether one may have run in this time."""
        return any(copy.first < ended and copy.ended > begun for copy in self.copies)


@dataclass
class Backups:
    """The backups of a timetable, which begins at the moment `start`."""

    start: float
    stopped: Event = field(default_factory=Event)
    """Set after a failure: the running backup is cancelled."""

    def run(self, slices: Iterable[tuple[Slice, Backup]]) -> Copies:
        """Back the disk of each slice up while it runs. Raises HostError, GuestError if libvirt does not do it."""
        copies: list[Copy] = []
        for planned, backup in slices:
            if not self._wait_until(self.start + planned.start - planned.lead):
                break
            copies += self._back_up_during(planned, backup)
        return Copies(copies)

    def _back_up_during(self, planned: Slice, backup: Backup) -> list[Copy]:
        end = self.start + planned.end
        copies: list[Copy] = []
        with ExitStack() as stack:
            stack.callback(backup.cancel)
            while not self.stopped.is_set() and time.monotonic() < end:
                backup.begin()
                copies.append(self._watch_copy(backup, end))
        if copies:
            last = copies.pop()
            copies.append(Copy(last.first, last.last, last.copied, time.monotonic()))
        return copies

    def _watch_copy(self, backup: Backup, end: float) -> Copy:
        """The copy that has just begun, until it ends or the slice does."""
        first = last = time.monotonic()
        copied = 0
        while (now := backup.copied()) is not None:
            copied, last = now, time.monotonic()
            if last >= end or not self._wait_until(last + _POLL_SECONDS):
                break
        return Copy(first, last, copied, time.monotonic())

    def _wait_until(self, moment: float) -> bool:
        """Wait until this moment. False if the timetable has failed meanwhile."""
        return not self.stopped.wait(max(moment - time.monotonic(), 0.0))
