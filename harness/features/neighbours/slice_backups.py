"""The backups of guests' disks that run beside their slices: begun, watched, and begun again until a slice ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event

from harness.guest.protocol import Backup
from harness.measure.session import Session
from harness.results.journal import BackupCounts
from harness.scenario.timetable import Slice, Timetable, backed_up

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


def accompany(session: Session, table: Timetable, start: float) -> Backups | None:
    """The backups of a timetable that begins at the moment `start`; None if none are to run."""
    backups = {arm: session.backup(arm) for arm in dict.fromkeys(slice_.arm for slice_ in table.slices)}
    slices = [(slice_, backup) for slice_ in table.slices if (backup := backups[slice_.arm]) is not None]
    return Backups(slices, start) if slices else None


class Backups:
    """A `Companion`: backs the disk of each of these slices up while it runs."""

    def __init__(self, slices: Sequence[tuple[Slice, Backup]], start: float) -> None:
        self._slices = slices
        self._start = start
        self._stopped = Event()
        self.copies = Copies()

    def run(self, stopped: Event) -> None:
        """As a `Companion`. The event cancels the running backup. Raises HostError, GuestError."""
        self._stopped = stopped
        copies: list[Copy] = []
        for planned, backup in self._slices:
            if not self._wait_until(self._start + planned.start - planned.lead):
                break
            copies += self._back_up_during(planned, backup)
        self.copies = Copies(copies)

    def find_left_over(self, planned: Slice, first: float, ended: float) -> str:
        """`backup` if a backup for another slice still ran during this one; empty if none did."""
        return "backup" if not backed_up(planned.arm) and self.copies.disturb(first, ended) else ""

    def count(self, planned: Slice, begun: float, ended: float) -> BackupCounts | None:
        """What was copied beside a slice whose fio ran from `begun` to `ended`; None if no backup was to run."""
        if not backed_up(planned.arm):
            return None
        # fio waits for its last I/Os, which a backup may delay by seconds: it must run until fio issues no more.
        issued = begun + planned.job.seconds
        after = max(ended - issued, self.copies.after(begun, issued))
        share, rate = self.copies.share(begun, issued), self.copies.rate(begun, issued)
        return BackupCounts(round(share, 4), round(rate), round(after, 3))

    def _back_up_during(self, planned: Slice, backup: Backup) -> list[Copy]:
        end = self._start + planned.end
        copies: list[Copy] = []
        with ExitStack() as stack:
            stack.callback(backup.cancel)
            while not self._stopped.is_set() and time.monotonic() < end:
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
        return not self._stopped.wait(max(moment - time.monotonic(), 0.0))
