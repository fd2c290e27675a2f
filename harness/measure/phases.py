"""Adds up the time of a run by phase, and reports steps as events."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from harness.events import Events

MEASURE = "measure"
"""The efficiency of a run is the share of fio in this phase."""


class Phases:
    """Adds up the seconds of each named phase."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._ended: dict[str, float] = {}
        self._began: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name of the phase. A phase that has not ended counts up to now."""
        now = time.monotonic()
        names = [*self._ended, *(name for name in self._began if name not in self._ended)]
        return {name: self._ended.get(name, 0.0) + now - self._began.get(name, now) for name in names}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of an earlier part of the run, by name of the phase."""
        for phase, spent in seconds.items():
            self._ended[phase] = self._ended.get(phase, 0.0) + spent

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time of the block to `phase`, also if the block fails."""
        self._began[phase] = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - self._began.pop(phase)})

    @contextmanager
    def step(self, phase: str, what: str) -> Iterator[None]:
        """The same as `timed`, and reports the step `what` to the listeners."""
        with self.events.step(what), self.timed(phase):
            yield
