"""Waiting with a deadline: the time left, polling a condition, and trying again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

from harness.signals import interruptible

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock. Pass it on if several steps share the time."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until the deadline; negative when it has passed."""
        return self.at - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0


def wait_until(condition: Callable[[], T], *, deadline: Deadline | float, every: float | Iterable[float]) -> T:
    """Call `condition` until its result is true or the deadline (a moment, or seconds from now) has passed.

    Returns the last result. If it is false, the time is up, and the caller raises the error. `every` is the pause
    between two calls in seconds, or a series of pauses. An exception of `condition` ends the waiting.
    """
    end = deadline if isinstance(deadline, Deadline) else Deadline.after(deadline)
    pauses = repeat(every) if isinstance(every, int | float) else iter(every)
    while not (result := condition()) and not end.passed:
        with interruptible():
            time.sleep(min(next(pauses), max(end.left, 0.0)))
    return result


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of several tries. After it comes a pause of `pause` seconds."""

    number: int
    pause: float
    deadline: Deadline

    @property
    def is_last(self) -> bool:
        """Whether there is not enough time for another try."""
        return self.deadline.left < self.pause


def attempts(deadline: Deadline, pauses: Iterable[float]) -> Iterator[Attempt]:
    """Tries with `pauses` between them. The loop must end when a try succeeds, and raise when `is_last`."""
    for number, pause in enumerate(pauses, 1):
        yield Attempt(number, pause, deadline)
        with interruptible():
            time.sleep(pause)


def growing(first: float, longest: float, *, factor: float = 2.0) -> Iterator[float]:
    """An infinite series of pauses in seconds that grow by `factor` up to `longest`."""
    pause = first
    while True:
        yield pause
        pause = min(pause * factor, longest)
