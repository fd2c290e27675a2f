"""The clocks of host and guest, compared by a clock that both can be compared with: that of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from harness.lab.transport.base import Runner
from harness.measure.startup import Startup
from harness.untrusted import finite, reading

GOOD_SECONDS = 0.06
"""Readings end when the error is not larger than this. In the embedded lab, a good reading has half of it."""
MOST_READINGS = 4
MOST_LATE_SECONDS = 0.2
"""The longest time to wake a job up. If jobs start later than that, their fio was not ready."""
DRIFT = 200e-6
"""The most by which two clocks drift apart, as a share of the time. Quartz and NTP's corrections stay below it."""
_DEADLINE = 20.0
_STEP = 0.01
"""The resolution of /proc/uptime in seconds."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's uptime minus this process's monotonic clock, in seconds. `error` is the largest possible error."""

    offset: float
    error: float

    def uptime(self, moment: float) -> float:
        """The machine's uptime at this moment of the monotonic clock."""
        return moment + self.offset

    def moment(self, uptime: float) -> float:
        """The moment of the monotonic clock at this uptime of the machine."""
        return uptime - self.offset

    @property
    def needs_apart(self) -> float:
        """Seconds by which the pauses between slices must be longer because of a large error: twice what exceeds a good
        one. In the middle of such a pause, no slice runs, and a slice neither begins nor ends in that of another."""
        return 2 * max(self.error - GOOD_SECONDS, 0.0)

    def older(self, seconds: float) -> Clock:
        """What this shows so many seconds later."""
        return replace(self, error=self.error + DRIFT * seconds)

    def narrowed(self, newer: Clock) -> Clock:
        """What both show together. `newer` alone if they contradict each other: then a clock was changed."""
        low = max(self.offset - self.error, newer.offset - newer.error)
        high = min(self.offset + self.error, newer.offset + newer.error)
        return Clock((low + high) / 2, (high - low) / 2) if low <= high else newer


class Clocks:
    """The clocks of the machines of a session, and how late their jobs start. Each timetable makes them more exact.

    A guest that was booted again has another clock, but its jobs start as late as before, and a boot may have only one
    timetable. So a machine that is new here begins with what was last seen of a machine of its name.
    """

    def __init__(self) -> None:
        self._known: dict[Runner, tuple[Clock, float]] = {}
        self._late: dict[Runner, float] = {}
        self._late_by_name: dict[str, float] = {}
        self.startup = Startup()

    def late(self, runner: Runner) -> float:
        """How late a job of this machine starts after its planned time, in seconds: the median of its last timetable.

        It is the time in which the machine wakes programs up. Jobs are released so much earlier.
        """
        return self._late.setdefault(runner, self._late_by_name.get(runner.name, 0.0))

    def started(self, runner: Runner, late: Sequence[float]) -> None:
        """Note how late the jobs of a timetable started, in seconds, although they were released earlier.

        If it is more than waking up can take, fio itself was late, and the next timetable gives it more time.
        """
        if not late:
            return
        found = self.late(runner) + median(late)
        if found > MOST_LATE_SECONDS:
            self.startup.was_late(found)
        else:
            self._late[runner] = self._late_by_name[runner.name] = max(found, 0.0)

    def read(self, runner: Runner, asking: AbstractContextManager[Callable[[], Clock]] | None = None) -> Clock:
        """Compare the machine's clock with that of this process, with a few readings. Raises HostError.

        `asking` makes one reading; by default, it reads /proc/uptime.

        The machine reads its clock between the request and the answer. So the error of one reading is at most half of
        that time (Cristian 1989, "Probabilistic clock synchronization"), and the offset lies where the intervals of all
        readings overlap (Marzullo & Owicki 1983), also those of earlier timetables.
        """
        clock: Clock | None = None
        if runner in self._known:
            clock, at = self._known[runner]
            clock = clock.older(time.monotonic() - at)
        with asking or nullcontext(partial(read_uptime, runner)) as ask:
            for _ in range(MOST_READINGS):
                new = ask()
                clock = new if clock is None else clock.narrowed(new)
                if clock.error <= GOOD_SECONDS:
                    break
        assert clock is not None
        self._known[runner] = clock, time.monotonic()
        return clock


def read_uptime(runner: Runner) -> Clock:
    """One reading of /proc/uptime. Raises HostError."""
    asked = time.monotonic()
    printed = runner.run(["cat", "/proc/uptime"], deadline=_DEADLINE).stdout
    answered = time.monotonic()
    with reading(f"{runner.name}: /proc/uptime"):
        uptime = finite(printed.split()[0]) + _STEP / 2
    return Clock(uptime - (asked + answered) / 2, (answered - asked + _STEP) / 2)
