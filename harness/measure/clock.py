"""The clocks of host and guest, compared by a clock that both can be compared with: that of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass

from harness.lab.transport.base import Runner
from harness.untrusted import finite, reading

_READINGS = 3
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


def read_clock(runner: Runner) -> Clock:
    """Compare the clocks, by the quickest of some readings of /proc/uptime. Raises HostError.

    The machine reads its clock between the request and the answer. So the error is at most half of that time (Cristian
    1989, "Probabilistic clock synchronization").
    """
    return min((_reading(runner) for _ in range(_READINGS)), key=lambda clock: clock.error)


def _reading(runner: Runner) -> Clock:
    asked = time.monotonic()
    printed = runner.run(["cat", "/proc/uptime"], deadline=_DEADLINE).stdout
    answered = time.monotonic()
    with reading(f"{runner.name}: /proc/uptime"):
        uptime = finite(printed.split()[0]) + _STEP / 2
    return Clock(uptime - (asked + answered) / 2, (answered - asked + _STEP) / 2)
