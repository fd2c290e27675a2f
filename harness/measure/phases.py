"""Where a run's time goes: seconds by phase, reported as events while they pass."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from harness.events import Events, StepFinished, StepStarted

MEASURE = "measure"
"""The phase that the efficiency of a run is a share of."""


class Phases:
    """Adds up the seconds of each named phase."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self._ended: dict[str, float] = {}
        self._began: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """By name of the phase, those that have not ended up to now."""
        now = time.monotonic()
        names = [*self._ended, *(name for name in self._began if name not in self._ended)]
        return {name: self._ended.get(name, 0.0) + now - self._began.get(name, now) for name in names}

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count what an earlier part of the run spent, by name of the phase."""
        for phase, spent in seconds.items():
            self._ended[phase] = self._ended.get(phase, 0.0) + spent

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count what happens in here to `phase`, also when it fails."""
        self._began[phase] = time.monotonic()
        try:
            yield
        finally:
            self.add({phase: time.monotonic() - self._began.pop(phase)})

    @contextmanager
    def step(self, phase: str, what: str) -> Iterator[None]:
        """As `timed`, and reported to the listeners as the step `what`."""
        self.events(StepStarted(what))
        started = time.monotonic()
        with self.timed(phase):
            yield
        self.events(StepFinished(what, time.monotonic() - started))
