"""Measures rounds, arm after arm; what a simulated lab loses is measured anew. Campaigns and calibrations share it."""

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
    """A round to measure: its number in the journal, and the `nth` that counts.

    `keep` is called with each turn's measurements. `recorded` is entered before the first turn, and is left with the
    error where a turn fails. `seconds_left` is the estimate until everything is measured.
    """

    number: int
    nth: int
    turns: Sequence[Turn]
    keep: Callable[[Turn, Sequence[Measurement]], None]
    seconds_left: Callable[[], float]
    recorded: AbstractContextManager[None] = field(default_factory=nullcontext)


class Rounds:
    """The rounds of a host's groups. `examined` is called with what the host is whenever a group is made ready."""

    def __init__(
        self, measurer: Measurer, events: Events, examined: Callable[[LabFound], None] = lambda _found: None
    ) -> None:
        self._measurer = measurer
        self._events = events
        self._examined = examined

    def ready(self, plan: Plan, group: Group) -> Prepared:
        """The group made ready; a simulated lab that fails meanwhile is made ready again."""
        while True:
            try:
                return self._measurer.ready(plan, group, self._examined)
            except (HostError, GuestError) as error:
                self._measurer.start_again(error, f"the lab failed before {group.id} was measured")

    def measure(self, plan: Plan, group: Group, at: Prepared, begin: Callable[[Prepared], Round]) -> Prepared:
        """Measure one round, with another one that `begin` gives where a simulated lab fails; the group as it is then.

        Raises what the measurer raises.
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
                self._measurer.went_well()
                return at

    def _measure(self, plan: Plan, group: Group, this: Round) -> None:
        for turn in this.turns:
            jobs = group.jobs_of(turn.arm)
            left = this.seconds_left()
            self._events(MeasurementStarted(group.id, this.nth, plan.rounds, str(turn), len(jobs), left))
            measurements = self._measurer.measure(group, turn, this.number)
            this.keep(turn, measurements)
            self._events(MeasurementFinished(group.id, this.nth, str(turn), fio_seconds(group, turn, measurements)))


def fio_seconds(group: Group, turn: Turn, measurements: Sequence[Measurement]) -> float:
    """How long fio ran in a turn, ramps included."""
    return sum(each.seconds for each in measurements) + sum(job.ramp for job in group.jobs_of(turn.arm))


def turns_of(arms: Iterable[Arm]) -> list[Turn]:
    """The turns of these arms, in their order."""
    met: Counter[Arm] = Counter()
    turns = []
    for arm in arms:
        met[arm] += 1
        turns.append(Turn(arm, met[arm]))
    return turns
