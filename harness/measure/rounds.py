"""Measures rounds, arm after arm, and repeats a round that fails in a simulated lab. For campaigns and calibrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from harness.errors import GuestError, HostError
from harness.events import Events, MeasurementFinished, MeasurementStarted
from harness.measure.measurer import LabFound, Measurer, Prepared, Turn
from harness.model.mode import Arm
from harness.results import Measurement
from harness.scenario.plan import Group, Plan


@dataclass(frozen=True, slots=True)
class Round:
    """A round to measure. `number` is its number in the journal, and `nth` its number among the rounds that count.

    `record` is called with each turn's measurements. `recorded` is entered before the first turn, and gets the error if
    a turn fails. `seconds_left` estimates the time until everything is measured.
    """

    number: int
    nth: int
    turns: Sequence[Turn]
    record: Callable[[Turn, Sequence[Measurement]], None]
    seconds_left: Callable[[], float]
    recorded: AbstractContextManager[None] = field(default_factory=nullcontext)


class Rounds:
    """Measures the rounds of a host's groups. `examined` gets the properties of the host before a group is prepared."""

    def __init__(
        self, measurer: Measurer, events: Events, examined: Callable[[LabFound], None] = lambda _found: None
    ) -> None:
        self._measurer = measurer
        self._events = events
        self._examined = examined

    def ready(self, plan: Plan, group: Group) -> Prepared:
        """Prepare the group. If a simulated lab fails meanwhile, it is prepared again."""
        while True:
            try:
                return self._measurer.ready(plan, group, self._examined)
            except (HostError, GuestError) as error:
                self._measurer.start_again(error, f"the lab failed before {group.id} was measured")

    def measure(self, plan: Plan, group: Group, at: Prepared, begin: Callable[[Prepared], Round]) -> Prepared:
        """Measure one round, which `begin` returns. If a simulated lab fails, measure another round instead.

        Returns the group as it is prepared at the end. Raises what the measurer raises.
        """
        while True:
            this = begin(at)
            try:
                with this.recorded:
                    self._measure(plan, group, this)
            except (HostError, GuestError) as error:
                what = f"the lab failed in round {this.number} of {group.id}, which does not count"
                self._measurer.start_again(error, what)
                at = self.ready(plan, group)
            else:
                self._measurer.round_measured()
                return at

    def _measure(self, plan: Plan, group: Group, this: Round) -> None:
        for turn in this.turns:
            jobs = group.jobs_of(turn.arm)
            left = this.seconds_left()
            self._events(MeasurementStarted(group.id, this.nth, plan.rounds, str(turn), len(jobs), left))
            measurements = self._measurer.measure(group, turn, this.number)
            this.record(turn, measurements)
            self._events(MeasurementFinished(group.id, this.nth, str(turn), fio_seconds(group, turn, measurements)))


def fio_seconds(group: Group, turn: Turn, measurements: Sequence[Measurement]) -> float:
    """Seconds in which fio ran in a turn, including ramps."""
    return sum(each.seconds for each in measurements) + sum(job.ramp for job in group.jobs_of(turn.arm))


def turns_of(arms: Iterable[Arm]) -> list[Turn]:
    """The turns of these arms, in their order."""
    runs: Counter[Arm] = Counter()
    turns = []
    for arm in arms:
        runs[arm] += 1
        turns.append(Turn(arm, runs[arm]))
    return turns
