"""What a calibration measures: where its arms run, with which job, in which order."""

from __future__ import annotations

from harness.calibrate.trials import Order, delay_trials, host_delay_trial, same_device_trials
from harness.model.mode import Place


def test_the_two_arms_of_a_device_against_itself_differ_in_name_alone() -> None:
    for trial in same_device_trials(Order(), "optane"):
        a, b = trial.spots
        assert (a.name, b.name) == ("a", "b")
        assert a.arm == b.arm
        assert a.arm.place is Place.GUEST
        assert trial.group.jobs_of(a.arm) == (trial.job,)


def test_groups_take_a_deep_queue_and_a_single_request_in_turn() -> None:
    trials = same_device_trials(Order(groups=5, seconds=2), "optane")
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
    trials = delay_trials(Order(repetitions=3))
    assert len({trial.group.id for trial in trials}) == 3
    arms = [[spot.arm.id for spot in trial.spots] for trial in (*trials, host_delay_trial(Order()))]
    assert arms == [["guest:plain", "guest:late"]] * 3 + [["host", "host"]]
    for trial in (*trials, host_delay_trial(Order())):
        assert [(spot.name, spot.mode.name) for spot in trial.spots] == [("plain", "plain"), ("late", "late")]
        assert trial.job.iodepth == 1
        for spot in trial.spots:
            assert trial.group.jobs_of(spot.arm) == (trial.job,)


def test_the_order_of_each_round_is_random_and_follows_from_the_seed() -> None:
    trials = same_device_trials(Order(), "optane")
    drawn = [[spot.name for spot in trial.order(7, number)] for trial in trials for number in (1, 2, 3)]
    assert drawn == [[spot.name for spot in trial.order(7, number)] for trial in trials for number in (1, 2, 3)]
    assert drawn != [[spot.name for spot in trial.order(8, number)] for trial in trials for number in (1, 2, 3)]
    a_first = sum(names == ["a", "b"] for names in drawn)
    assert 40 < a_first < 80
