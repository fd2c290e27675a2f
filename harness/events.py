"""Typed progress events: one stream, for the terminal, the journal and logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepStarted:
    """Work that takes some time began. `what` names it, for example "build guest image"."""

    what: str
    expected_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepAdvanced:
    """The work named `what` progressed: `how_far` in words, and the longest time it may still take, if known."""

    what: str
    how_far: str
    most_left_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepFinished:
    """The work named `what` ended well after `seconds`."""

    what: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the user: a choice and its reason, or a mode that is left out and the reason."""

    text: str


@dataclass(frozen=True, slots=True)
class BlockStarted:
    """A block of a round begins. `what` names it. `left_s` estimates the time until every group has its fewest
    rounds and everything is taken down, in seconds. `rounds` are those that are known: more than the fewest, if some of
    them are measured again."""

    group: str
    round: int
    rounds: int
    what: str
    left_s: float


@dataclass(frozen=True, slots=True)
class GroupMeasured:
    """A group is done. So far `done` of `cells` cells of the campaign are. `verdicts`: of the group's, in words."""

    group: str
    done: int
    cells: int
    verdicts: str


Event = StepStarted | StepAdvanced | StepFinished | Note | BlockStarted | GroupMeasured
Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Step:
    """Work in progress; `started` is on the monotonic clock."""

    started: float

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started


class Events:
    """Passes each event to all listeners, in their order."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    @contextmanager
    def step(self, what: str, expected_s: float | None = None) -> Iterator[Step]:
        """Report the start of the block's work, and its end if it did not fail."""
        step = Step(time.monotonic())
        self(StepStarted(what, expected_s))
        yield step
        self(StepFinished(what, step.seconds))
