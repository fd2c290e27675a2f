"""Live progress: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Protocol

from harness.events import (
    BlockStarted,
    Event,
    Note,
    StepAdvanced,
    StepFinished,
    StepStarted,
)
from harness.units import format_duration

QUIET_SECONDS = 20.0
"""Without a terminal, the shortest time between two progress lines."""


class Screen(Protocol):
    """Methods that pytest's terminal reporter also has."""

    def isatty(self) -> bool: ...

    def write_line(self, line: str) -> None:
        """Write a separate line after the previous output."""
        ...

    def rewrite(self, line: str, *, erase: bool) -> None:
        """Replace the last temporary line by this temporary line."""
        ...


class StandardOutput:
    """The screen of a command that runs without pytest."""

    def __init__(self) -> None:
        self._pending = False

    def isatty(self) -> bool:
        return sys.stdout.isatty()

    def write_line(self, line: str) -> None:
        if self._pending:
            self.rewrite("", erase=True)
            sys.stdout.write("\r")
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self._pending = False

    def rewrite(self, line: str, *, erase: bool) -> None:
        sys.stdout.write(f"\r{line}" + ("\x1b[K" if erase else ""))
        sys.stdout.flush()
        self._pending = True


class Progress:
    """A listener that shows events on a screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._last_temporary = -math.inf

    def __call__(self, event: Event) -> None:
        match event:
            case StepStarted(what, expected):
                about = f" (about {format_duration(expected)})" if expected else ""
                self._write_temporary(f"{what} ...{about}", important=True)
            case StepAdvanced(what, how_far, left):
                still = f"; at most {format_duration(max(round(left, -1), 10))} left" if left is not None else ""
                self._write_temporary(f"{what}: {how_far}{still}")
            case StepFinished(what, seconds):
                self._write_permanent(f"{what}: {format_duration(seconds)}")
            case Note(text):
                self._write_permanent(text)
            case BlockStarted(group, number, rounds, block, left):
                # The estimate is good to tens of seconds; more digits would only flicker.
                about = format_duration(max(round(left, -1), 10))
                # Jobs that are measured again have rounds beyond those of the plan.
                of = f" of {rounds}" if number <= rounds else ""
                self._write_temporary(f"{group}, round {number}{of}, {block}; about {about} left")

    def _write_permanent(self, text: str) -> None:
        if self._screen.isatty():
            self._screen.rewrite("", erase=True)
        self._screen.write_line(f"  {text}")

    def _write_temporary(self, text: str, *, important: bool = False) -> None:
        if self._screen.isatty():
            self._screen.rewrite(f"  {text}", erase=True)
            return
        now = time.monotonic()
        if important or now - self._last_temporary >= QUIET_SECONDS:
            self._last_temporary = now
            self._screen.write_line(f"  {text}")
