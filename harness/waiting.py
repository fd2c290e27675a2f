"""Waiting with a deadline: how much time is left, asking again until something is so, trying again after a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock. Pass it down where several steps share the time."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        """Seconds until it; negative when it has passed."""
        return self.at - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left <= 0


def wait_until(condition: Callable[[], T], *, deadline: Deadline | float, every: float | Iterable[float]) -> T:
    """Ask `condition` until its answer is true or the deadline (a moment, or seconds from now) has passed.

    Returns the last answer. A false one says that time is up: the caller raises what it waited for. `every` is the
    pause between two questions, in seconds, or one pause after the other. What `condition` raises ends the waiting.
    """
    end = deadline if isinstance(deadline, Deadline) else Deadline.after(deadline)
    pauses = repeat(every) if isinstance(every, int | float) else iter(every)
    while not (answer := condition()) and not end.passed:
        time.sleep(min(next(pauses), max(end.left, 0.0)))
    return answer


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of several tries, which `pause` seconds follow."""

    number: int
    pause: float
    deadline: Deadline

    @property
    def is_last(self) -> bool:
        """Whether the time does not suffice for another try."""
        return self.deadline.left < self.pause


def attempts(deadline: Deadline, pauses: Iterable[float]) -> Iterator[Attempt]:
    """Tries with `pauses` between them, for a loop that ends when one succeeds, or raises when `is_last`."""
    for number, pause in enumerate(pauses, 1):
        yield Attempt(number, pause, deadline)
        time.sleep(pause)


def growing(first: float, longest: float, *, factor: float = 2.0) -> Iterator[float]:
    """Pauses in seconds that grow by `factor` up to `longest`, without end."""
    pause = first
    while True:
        yield pause
        pause = min(pause * factor, longest)
