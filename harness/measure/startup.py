"""How long the machines of a timetable need from the command until fio's first job can start. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 0.8
"""The time without any jobs, before it was seen: login, and the start of fio."""
SECONDS_PER_SLICE = 0.012
"""fio needs longer for more jobs: 6 ms each in the embedded lab, and twice that while two of them start there."""
LEAST_SECONDS = 0.7
"""The host's counters must be read before the first slice, by a program that needs this time to start."""
_MARGIN = 1.6
"""A machine may be slower the next time."""
MOST_LATE_SECONDS = 10.0


@dataclass(slots=True)
class Startup:
    """What was seen in the timetables so far. Times in seconds."""

    late: float = 0.0
    """By how much slices started late, because fio was not ready."""
    share: float | None = None
    """The longest time until fio was ready, as a share of the usual one; None before it was seen."""

    def seconds(self, slices: int) -> float:
        """The time to plan for a timetable with so many slices."""
        share = 1.0 if self.share is None else min(_MARGIN * self.share, 1.0)
        return max(_usual(slices) * share, LEAST_SECONDS) + self.late

    def was_ready(self, seconds: float, slices: int) -> None:
        """Note that fio was ready after this time, for a timetable with so many slices."""
        self.share = max(seconds / _usual(slices), self.share or 0.0)

    def was_late(self, seconds: float) -> None:
        """Note that slices started so late."""
        self.late = min(self.late + seconds, MOST_LATE_SECONDS)
        self.share = None


def _usual(slices: int) -> float:
    return SECONDS + SECONDS_PER_SLICE * slices
