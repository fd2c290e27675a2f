"""The trials of a calibration: where the arms run, with which job, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.calibrate.measuring import measure_trials
from harness.calibrate.trials import CalibrationSpec, delay_trials, host_delay_trial, same_device_trials
from harness.errors import GuestError, HostError
from harness.events import Event, Events, MeasurementStarted
from harness.measure.measurer import LabFound, Prepared, Turn
from harness.model.mode import Place
from harness.results import ConditioningRecord, Measurement
from harness.scenario.plan import Group, Plan


def test_the_two_arms_of_a_device_against_itself_differ_only_in_their_names() -> None:
    for trial in same_device_trials(CalibrationSpec(), "optane"):
        a, b = trial.turns
        assert (a.name, b.name) == ("a", "b")
        assert a.arm == b.arm
        assert a.arm.place is Place.GUEST
        assert trial.group.jobs_of(a.arm) == (trial.job,)


def test_groups_alternate_between_a_deep_queue_and_a_single_request() -> None:
    trials = same_device_trials(CalibrationSpec(groups=5, seconds=2), "optane")
    assert [trial.job.id for trial in trials] == [
        "randread-4k-qd32",
        "randread-4k-qd1",
        "randread-4k-qd32",
        "randread-4k-qd1",
        "randread-4k-qd32",
    ]
    assert len({trial.group.id for trial in trials}) == 5
    assert {trial.job.wall for trial in trials} == {2}


def test_the_delay_is_measured_with_one_request_at_a_time_on_two_disks_of_the_guest_and_of_the_host() -> None:
    trials = delay_trials(CalibrationSpec(repetitions=3))
    assert len({trial.group.id for trial in trials}) == 3
    arms = [[turn.arm.id for turn in trial.turns] for trial in (*trials, host_delay_trial(CalibrationSpec()))]
    assert arms == [["guest:plain", "guest:late"]] * 3 + [["host", "host"]]
    for trial in (*trials, host_delay_trial(CalibrationSpec())):
        assert [turn.name for turn in trial.turns] == ["plain", "late"]
        assert trial.job.iodepth == 1
        for turn in trial.turns:
            assert trial.group.jobs_of(turn.arm) == (trial.job,)


def test_the_order_of_each_round_is_random_and_follows_from_the_seed() -> None:
    trials = same_device_trials(CalibrationSpec(), "optane")
    drawn = [[turn.name for turn in trial.order(7, number)] for trial in trials for number in (1, 2, 3)]
    assert drawn == [[turn.name for turn in trial.order(7, number)] for trial in trials for number in (1, 2, 3)]
    assert drawn != [[turn.name for turn in trial.order(8, number)] for trial in trials for number in (1, 2, 3)]
    a_first = sum(names == ["a", "b"] for names in drawn)
    assert 40 < a_first < 80


# --- the rounds ---


@dataclass
class Plays:
    """A measurer whose n-th turn takes n seconds; some of them fail. It notes what it is asked for."""

    fails: frozenset[int] = frozenset()
    simulated: bool = True
    restarts: list[str] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)

    def ready(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> Prepared:  # noqa: ARG002
        return Prepared(plan.span, ConditioningRecord("fill", None, (), None))

    def measure(self, group: Group, turn: Turn, number: int) -> list[Measurement]:
        self.turns.append(f"{group.id} round {number}: {turn}")
        taken = float(len(self.turns))
        if len(self.turns) in self.fails:
            raise GuestError("the guest was lost")
        metrics = {"lat_mean": taken}
        return [Measurement(group.id, number, turn.arm.id, turn.again, "job", 0.0, 1.0, 1.0, metrics, 0, "raw")]

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        if not self.simulated:
            raise error
        self.restarts.append(what)

    def round_measured(self) -> None:
        pass

    def close(self) -> None:
        pass


TRIALS = same_device_trials(CalibrationSpec(groups=2, rounds=2), "optane")


def test_each_turn_of_each_round_is_measured_once() -> None:
    plays = Plays()
    heard: list[Event] = []
    measured = measure_trials(TRIALS, plays, Events(heard.append), seed=7)
    assert [len(each.rounds) for each in measured] == [2, 2]
    assert all(set(values) == {"a", "b"} for each in measured for values in each.rounds)
    found = sorted(values[turn]["lat_mean"] for each in measured for values in each.rounds for turn in ("a", "b"))
    assert found == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [event.arm for event in heard if isinstance(event, MeasurementStarted)] == [
        turn.name for trial in TRIALS for number in (1, 2) for turn in trial.order(7, number)
    ]


def test_a_round_in_which_a_simulated_lab_fails_is_measured_again_as_a_whole() -> None:
    plays = Plays(fails=frozenset({4}))
    measured = measure_trials(TRIALS, plays, Events(), seed=7)
    # The third turn was of the round that failed with the fourth.
    found = sorted(values[turn]["lat_mean"] for each in measured for values in each.rounds for turn in ("a", "b"))
    assert found == [1, 2, 5, 6, 7, 8, 9, 10]
    assert plays.restarts == ["the lab failed in round 2 of same01-randread-4k-qd32, which does not count"]


def test_a_guest_that_is_lost_on_a_real_host_ends_the_calibration() -> None:
    with pytest.raises(GuestError, match="the guest was lost"):
        measure_trials(TRIALS, Plays(fails=frozenset({1}), simulated=False), Events(), seed=7)
