"""Switches something for the slices of a timetable that want it, in the pauses between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Generic, TypeVar

from harness.scenario.timetable import Slice, Timetable

State = TypeVar("State")

_AFTER_SLICE = 0.3
"""When a pause is used, as a share of it: slices may end later than planned, and the next one needs a quiet machine."""
_BEFORE_FIRST = 0.5
"""Seconds before the first slice in which it may be switched."""


@dataclass(slots=True)
class Switching(Generic[State]):
    """`switch` returns when the state is set. It is `off` before the timetable, and `end` sets that again."""

    switch: Callable[[State], None]
    wanted: Callable[[Slice], State]
    off: State
    switched: list[tuple[float, float]] = field(default_factory=list)
    """When each switch began and when it was done, in moments of this process's monotonic clock."""
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.off

    def run(self, table: Timetable, start: float, stopped: Event) -> None:
        """Switch beside a timetable, which begins at the moment `start`. Raises what `switch` raises."""
        ended = -_BEFORE_FIRST
        for slice_ in table.slices:
            moment = start + ended + _AFTER_SLICE * (slice_.start - ended)
            if stopped.wait(max(moment - time.monotonic(), 0.0)):
                break
            self._set(self.wanted(slice_))
            ended = slice_.end

    def end(self) -> None:
        self._set(self.off)

    def disturbed(self, begun: float, ended: float) -> bool:
        """Whether it was switched in this time."""
        return any(first <= ended and last >= begun for first, last in self.switched)

    def _set(self, state: State) -> None:
        if state != self.state:
            begun = time.monotonic()
            self.switch(state)
            self.switched.append((begun, time.monotonic()))
            self.state = state
