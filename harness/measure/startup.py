"""How long the machines of a timetable need from the command until fio's first job can start. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 0.8
"""The time without any jobs, before it was seen: login, and the start of fio."""
SECONDS_PER_SLICE = 0.012
"""The most that fio needs longer for each job, as seen on a slow machine, twice: two of them start there."""
LEAST_SECONDS = 0.7
"""The host's counters must be read before the first slice, by a program that needs this time to start."""
MARGIN = 1.6
"""A machine may be slower the next time. In the embedded lab, fio was ready after 0.3 to 0.65 s."""
_GROWTH = 0.004
"""Seconds for each slice more than were seen."""
MOST_LATE_SECONDS = 10.0


@dataclass(slots=True)
class Startup:
    """What was seen in the timetables so far. Times in seconds."""

    late: float = 0.0
    """By how much slices started late, because fio was not ready."""
    seen: float | None = None
    """The longest time until fio was ready."""
    slices: int = 0
    """The most slices of a timetable for which that was seen."""

    def seconds(self, slices: int) -> float:
        """The time to plan for a timetable with so many slices."""
        usual = SECONDS + SECONDS_PER_SLICE * slices
        if self.seen is not None:
            usual = min(MARGIN * self.seen + _GROWTH * max(slices - self.slices, 0), usual)
        return max(usual, LEAST_SECONDS) + self.late

    def was_ready(self, seconds: float, slices: int) -> None:
        """Note that fio was ready after this time, for a timetable with so many slices."""
        self.seen = max(seconds, self.seen or 0.0)
        self.slices = max(slices, self.slices)

    def was_late(self, seconds: float) -> None:
        """Note that slices started so late."""
        self.late = min(self.late + seconds, MOST_LATE_SECONDS)
        self.seen = None
