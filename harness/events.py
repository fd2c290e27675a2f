"""Typed progress events: one stream for all that follow a run.

`Progress` shows them live: one line that is rewritten on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from harness.terminal import clean, one_line, unfiltered
from harness.units import format_duration


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


QUIET_SECONDS = 20.0
"""Without a terminal, the shortest time between two progress lines."""

QUIET_IN_CI_SECONDS = 300.0
"""The same where the variable CI is set, and then for all but notes: a CI system that sees no output may give up."""


class Screen(Protocol):
    """Methods that pytest's terminal reporter also has."""

    def isatty(self) -> bool: ...

    def write_line(self, line: str) -> None:
        """Write a separate line after the previous output."""

    def rewrite(self, line: str, *, erase: bool) -> None:
        """Replace the last temporary line by this temporary line."""


class StandardOutput:
    """The screen of a command that runs without pytest. With `errors`, it is standard error."""

    def __init__(self, *, errors: bool = False) -> None:
        self._errors = errors
        self._pending = False

    @property
    def _stream(self) -> TextIO:
        return unfiltered(sys.stderr if self._errors else sys.stdout)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write_line(self, line: str) -> None:
        if self._pending:
            self.rewrite("", erase=True)
            self._stream.write("\r")
        self._stream.write(f"{clean(line)}\n")
        self._stream.flush()
        self._pending = False

    def rewrite(self, line: str, *, erase: bool) -> None:
        self._stream.write(f"\r{clean(one_line(line))}" + ("\x1b[K" if erase else ""))
        self._stream.flush()
        self._pending = True


class Progress:
    """A listener that shows events on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._last_temporary = -math.inf
        self._in_ci = bool(os.environ.get("CI"))

    def __call__(self, event: Event) -> None:
        match event:
            case StepStarted(what, expected):
                about = f" (about {format_duration(expected)})" if expected else ""
                self._write_temporary(f"{what} ...{about}", important=True)
            case StepAdvanced(what, how_far, left):
                still = f"; at most {format_duration(max(round(left, -1), 10))} left" if left is not None else ""
                self._write_temporary(f"{what}: {how_far}{still}")
            case StepFinished(what, seconds):
                self._write_lasting(f"{what}: {format_duration(seconds)}")
            case GroupMeasured(group, done, cells, verdicts):
                self._write_lasting(f"{group}: {verdicts}; {done} of {cells} cells done")
            case Note(text):
                self._write_permanent(text)
            case BlockStarted(group, number, rounds, block, left):
                # The estimate is good to tens of seconds; more digits would only flicker.
                about = f"{format_duration(max(round(left, -1), 10))} left"
                # Open cells have rounds beyond the fewest.
                of = f" of {rounds}" if number <= rounds else ""
                at_least = f"at least {about}" if left > 0 else "the number of further rounds is not known"
                still = f"about {about}" if of else at_least
                self._write_temporary(f"{group}, round {number}{of}, {block}; {still}")

    @property
    def _rewrites(self) -> bool:
        return self._screen.isatty() and not self._in_ci

    def _write_lasting(self, text: str) -> None:
        """What a CI system's log need not have."""
        self._write_temporary(text) if self._in_ci else self._write_permanent(text)

    def _write_permanent(self, text: str) -> None:
        if self._rewrites:
            self._screen.rewrite("", erase=True)
        self._screen.write_line(f"  {text}")

    def _write_temporary(self, text: str, *, important: bool = False) -> None:
        if self._rewrites:
            self._screen.rewrite(f"  {text}", erase=True)
            return
        now, quiet = time.monotonic(), QUIET_IN_CI_SECONDS if self._in_ci else QUIET_SECONDS
        if (important and not self._in_ci) or now - self._last_temporary >= quiet:
            self._last_temporary = now
            self._screen.write_line(f"  {text}")
