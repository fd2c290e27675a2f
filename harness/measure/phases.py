"""Where a run's time goes: seconds by phase, told as events while they pass."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from harness.events import Events, StepFinished, StepStarted

MEASURE = "measure"
"""The phase that the efficiency of a run is a share of."""


class Phases:
    """Adds up the seconds of each named phase."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count what happens in here to `phase`, also when it fails."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - started

    @contextmanager
    def step(self, phase: str, what: str) -> Iterator[None]:
        """As `timed`, and told to the listeners as the step `what`."""
        self.events(StepStarted(what))
        started = time.monotonic()
        with self.timed(phase):
            yield
        self.events(StepFinished(what, time.monotonic() - started))
