"""The trials of a calibration: where the arms run, with which job, and in which order of their slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from harness.errors import GuestError, HostError, MeasurementError
from harness.events import BlockStarted, Event, Events
from harness.features.calibrate.measuring import (
    MOST_TRIES,
    CalibrationSpec,
    Trial,
    measure_trials,
    plan_boots,
    plan_delays,
    plan_host_delay,
    plan_same_device,
    plan_slices,
)
from harness.measure.phases import UNKNOWN_JITTER
from harness.measure.series import RoundSegment
from harness.model.mode import Place
from harness.results import Measurement
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import StandIn, as_planned


def test_the_two_arms_of_a_device_against_itself_differ_only_in_their_names() -> None:
    for trial in plan_same_device(CalibrationSpec(), "optane"):
        a, b = trial.turns
        assert (a.name, b.name) == ("a", "b")
        assert a.arm == b.arm
        assert a.arm.place is Place.GUEST
        assert trial.group.jobs_of(a.arm) == (trial.job,)


def test_groups_alternate_between_a_deep_queue_and_a_single_request() -> None:
    trials = plan_same_device(CalibrationSpec(groups=5, seconds=2), "optane")
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
    trials = plan_delays(CalibrationSpec(repetitions=3))
    assert len({trial.group.id for trial in trials}) == 3
    arms = [[turn.arm.id for turn in trial.turns] for trial in (*trials, plan_host_delay(CalibrationSpec()))]
    assert arms == [["guest:plain", "guest:late"]] * 3 + [["host", "host"]]
    for trial in (*trials, plan_host_delay(CalibrationSpec())):
        assert [turn.name for turn in trial.turns] == ["plain", "late"]
        assert trial.job.iodepth == 1
        for turn in trial.turns:
            assert trial.group.jobs_of(turn.arm) == (trial.job,)


def test_each_series_of_short_slices_is_one_arm_in_one_timetable() -> None:
    trials = plan_slices(CalibrationSpec(), "optane")
    arms = [(turn.arm.id, trial.job.iodepth) for trial in trials for turn in trial.turns]
    assert arms == [("host", 32), ("host", 1), ("guest:passthrough", 32), ("guest:passthrough", 1)]
    for trial in trials:
        (table,) = trial.tables(7, 1)
        assert [each.job.seconds for each in table.slices] == [0.2] * 120


def test_each_boot_compares_the_guest_with_the_host() -> None:
    trials = plan_boots(CalibrationSpec(boots=3), "optane")
    assert len({trial.group.id for trial in trials}) == 3
    for trial in trials:
        assert trial.plan.reboot
        assert [turn.arm.id for turn in trial.turns] == ["host", "guest:passthrough"]
    assert not any(trial.plan.reboot for trial in plan_same_device(CalibrationSpec(), "optane"))


def order(trial: Trial, seed: int, number: int = 1) -> list[str]:
    """The turns in the order of their slices."""
    return [str(each.turn) for table in trial.tables(seed, number) for each in table.slices]


def test_the_order_of_each_block_is_random_and_follows_from_the_seed() -> None:
    trials = plan_same_device(CalibrationSpec(), "optane")
    drawn = [order(trial, 7, number) for trial in trials for number in (1, 2)]
    assert drawn == [order(trial, 7, number) for trial in trials for number in (1, 2)]
    assert drawn != [order(trial, 8, number) for trial in trials for number in (1, 2)]
    assert order(trials[0], 7, 1) != order(trials[0], 7, 2) or order(trials[1], 7, 1) != order(trials[1], 7, 2)
    blocks = [names[at : at + 2] for names in drawn for at in (0, 2, 4)]
    assert all(sorted(names) == ["a", "b"] for names in blocks)
    assert 90 < sum(names == ["a", "b"] for names in blocks) < 150  # of 240


def test_both_turns_of_a_trial_alternate_in_one_timetable_also_on_the_host() -> None:
    spec = CalibrationSpec(rounds=3, delay_rounds=6)
    for trial in (*plan_same_device(spec, "optane"), *plan_delays(spec), plan_host_delay(spec)):
        (table,) = trial.tables(7, 1)
        assert len(table.slices) == 2 * trial.rounds
        assert table.blocks == trial.rounds


# --- the rounds ---


@dataclass
class Plays(StandIn):
    """A measurer whose n-th slice has a latency of n seconds; some fail, overlap or stall. It notes each slice."""

    fails: frozenset[int] = frozenset()
    overlaps: frozenset[int] = frozenset()
    stalls: frozenset[int] = frozenset()
    simulated: bool = True
    restarts: list[str] = field(default_factory=list)
    slices: list[str] = field(default_factory=list)
    boots: int = 0

    def boot_again(self) -> None:
        self.boots += 1

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        found = []
        block = 0
        for each in segment.table.slices:
            if each.block != block:
                began(each)
                block = each.block
            self.slices.append(f"{group.id} round {segment.number} block {block}: {each.turn}")
            taken = len(self.slices)
            if taken in self.fails:
                raise GuestError("the guest was lost")
            values = {"lat_mean": float(taken), "iops": 0.0 if taken in self.stalls else float(taken)}
            overlap = "b" if taken in self.overlaps else None
            found.append(replace(as_planned(group, segment, each, values), overlap=overlap))
        return found

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        if not self.simulated:
            raise error
        self.restarts.append(what)


TRIALS = plan_same_device(CalibrationSpec(groups=2, rounds=2), "optane")


def latencies(plays: Plays) -> list[list[float]]:
    """The latencies of each trial, sorted."""
    measured = measure_trials(TRIALS, plays, Events(), seed=7)
    assert all(set(values) == {"a", "b"} for each in measured for values in each.rounds)
    return [sorted(values[turn]["lat_mean"] for values in each.rounds for turn in ("a", "b")) for each in measured]


def test_each_turn_of_each_block_is_measured_once() -> None:
    plays = Plays()
    assert latencies(plays) == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert plays.slices == [
        f"{trial.group.id} round 1 block {number // 2 + 1}: {name}"
        for trial in TRIALS
        for number, name in enumerate(order(trial, 7))
    ]


def test_the_guest_is_booted_before_each_trial_that_compares_boots() -> None:
    plays = Plays()
    measured = measure_trials([*TRIALS, *plan_boots(CalibrationSpec(boots=3), "optane")], plays, Events(), seed=7)
    assert plays.boots == 3
    assert [set(values) for each in measured[2:] for values in each.rounds] == [{"host", "guest"}] * 15


def test_what_a_slice_takes_besides_its_own_time_is_measured() -> None:
    trials = plan_slices(CalibrationSpec(slices=16), "optane")
    deep, single = (each.gap for each in measure_trials(trials[:2], Plays(), Events(), seed=7))
    # The timetable waits for the I/Os in flight, of which a deep queue has more.
    assert single == pytest.approx(UNKNOWN_JITTER + 1 / 2500)
    assert deep == pytest.approx(UNKNOWN_JITTER + 32 / 2500)


def test_the_beginning_of_each_block_is_reported() -> None:
    heard: list[Event] = []
    measure_trials(TRIALS, Plays(), Events(heard.append), seed=7)
    assert [(event.group, event.what) for event in heard if isinstance(event, BlockStarted)] == [
        (trial.group.id, f"block {number} of 2: {trial.job.id}") for trial in TRIALS for number in (1, 2)
    ]


def test_a_round_in_which_a_simulated_lab_fails_is_measured_again_as_a_whole() -> None:
    plays = Plays(fails=frozenset({3}))
    assert latencies(plays) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert plays.restarts == ["the lab failed in round 1 of same01-randread-4k-qd32, which does not count"]


def test_a_guest_that_is_lost_on_a_real_host_ends_the_calibration() -> None:
    with pytest.raises(GuestError, match="the guest was lost"):
        measure_trials(TRIALS, Plays(fails=frozenset({1}), simulated=False), Events(), seed=7)


def test_a_trial_with_too_few_blocks_without_an_overlap_is_measured_in_another_round() -> None:
    plays = Plays(overlaps=frozenset({3}))
    assert latencies(plays) == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert [line.partition(":")[0] for line in plays.slices[:6:2]] == [
        "same01-randread-4k-qd32 round 1 block 1",
        "same01-randread-4k-qd32 round 1 block 2",
        "same01-randread-4k-qd32 round 2 block 1",
    ]


def test_a_block_with_an_overlap_does_not_count() -> None:
    trials = plan_same_device(CalibrationSpec(groups=1, rounds=3), "optane")
    (measured,) = measure_trials(trials, Plays(overlaps=frozenset({2})), Events(), seed=7)
    assert sorted(value["lat_mean"] for values in measured.rounds for value in values.values()) == [3, 4, 5, 6]


def test_a_slice_that_completed_no_io_does_not_count() -> None:
    trials = plan_same_device(CalibrationSpec(groups=1, rounds=3), "optane")
    (measured,) = measure_trials(trials, Plays(stalls=frozenset({5})), Events(), seed=7)
    assert sorted(value["lat_mean"] for values in measured.rounds for value in values.values()) == [1, 2, 3, 4]


def test_a_series_with_too_few_slices_that_count_is_measured_again() -> None:
    trials = plan_slices(CalibrationSpec(slices=17), "optane")[:1]
    plays = Plays(overlaps=frozenset({3, 9}))
    (measured,) = measure_trials(trials, plays, Events(), seed=7)
    assert (len(measured.rounds), len(plays.slices)) == (17, 34)


def test_a_host_on_which_slices_always_overlap_ends_the_calibration() -> None:
    with pytest.raises(
        MeasurementError, match=f"same01-randread-4k-qd32: slices overlapped, .* in {MOST_TRIES} rounds"
    ):
        measure_trials(TRIALS, Plays(overlaps=frozenset(range(100))), Events(), seed=7)
