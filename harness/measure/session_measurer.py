"""What the measurers on a host have in common: they measure in the current session of an environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.errors import GuestError, HostError
from harness.measure.blocks import measure_timetable
from harness.measure.environment import Environment
from harness.measure.series import RoundSegment
from harness.measure.session import Session
from harness.measure.traced_slices import TracingRequest, traced_blocks
from harness.results import Measurement, RunStore, TracedBlock
from harness.scenario.plan import Group
from harness.scenario.timetable import ScheduledArm, Slice


class SessionMeasurer:
    """A `Measurer` without `ready`: a subclass decides which session is opened."""

    def __init__(self, environment: Environment, store: RunStore, *, seed: int) -> None:
        self._environment = environment
        self._store = store
        self._seed = seed

    @property
    def restarts(self) -> Sequence[str]:
        return self._environment.restarts

    def boot_again(self) -> None:
        self._environment.current.boot_again()

    def written(self) -> Mapping[str, int]:
        return {}

    def may_write(self, step: str, at_most: Mapping[str, float]) -> None:
        """Nothing is noted: the run has no limit."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        session = self._environment.current
        try:
            return measure_timetable(self._at, session, self._store, group, segment, seed=self._seed, began=began)
        finally:
            if session.guests is not None:
                session.guests.measured()

    def trace(self, group: Group, request: TracingRequest) -> Sequence[TracedBlock]:  # noqa: ARG002
        environment, session = self._environment, self._environment.current
        log = environment.log
        with session.holding(request.guest):
            return traced_blocks(self._at, session, self._store, log, request, seed=self._seed)

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        self._environment.start_again(error, what)

    def round_measured(self) -> None:
        self._environment.round_measured()

    def close(self) -> None:
        self._environment.close()

    def _at(self, turn: ScheduledArm) -> Session:
        """The session with the disks of this turn."""
        return self._environment.current.of(turn.arm)
