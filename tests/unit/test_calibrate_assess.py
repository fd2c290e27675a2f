"""The conclusions of a calibration: false alarms, noise, the measured delay, and doubts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from scipy.stats import binom

from harness.calibrate.assess import Measured, delay, doubts, most_by_chance, noise
from harness.calibrate.trials import CalibrationSpec, Trial, delay_trials, host_delay_trial, same_device_trials
from harness.measure.calibration import Delay

MS = 1e-3


def same_device(order: CalibrationSpec, value: Callable[[Trial, str, int], float]) -> list[Measured]:
    """Trials of a device against itself whose IOPS are `value(trial, turn, round)`."""
    return [
        Measured(
            trial,
            tuple(
                {turn.name: {"iops": value(trial, turn.name, n)} for turn in trial.turns} for n in range(trial.rounds)
            ),
        )
        for trial in same_device_trials(order, "optane")
    ]


def noisy(sd: float, seed: int = 1) -> Callable[[Trial, str, int], float]:
    generator = random.Random(seed)
    return lambda *_: 1000 * generator.lognormvariate(0, sd / 2**0.5)


def delayed(order: CalibrationSpec, guest_adds: float, *, scatter: float = 5e-6, seed: int = 1) -> Delay:
    """What is found where the guest's latency grows by `guest_adds` seconds and the host's by the 1 ms that was set."""
    generator = random.Random(seed)

    def measured(trial: Trial, base: float, added: float) -> Measured:
        latency = {"plain": base, "late": base + added}
        return Measured(
            trial,
            tuple(
                {turn: {"lat_mean": seconds + generator.gauss(0, scatter)} for turn, seconds in latency.items()}
                for _ in range(trial.rounds)
            ),
        )

    guest = [measured(trial, 400e-6, guest_adds) for trial in delay_trials(order)]
    return delay(guest, measured(host_delay_trial(order), 120e-6, MS), MS)


def test_noise_alone_raises_as_many_alarms_as_an_interval_promises() -> None:
    groups = 2000
    found = noise(same_device(CalibrationSpec(groups=groups, rounds=3), noisy(0.04)))
    assert 0.035 < found.false_alarms / groups < 0.065
    assert found.sd == pytest.approx(0.04, rel=0.05)


def test_an_arm_that_is_worse_each_time_is_an_alarm_in_every_group() -> None:
    wobble = noisy(0.001)
    worse = same_device(CalibrationSpec(groups=10), lambda *at: wobble(*at) * (0.9 if at[1] == "b" else 1.0))
    assert noise(worse).false_alarms == 10


def test_noise_is_reported_by_job_because_a_deep_queue_varies_less() -> None:
    calm, wild = noisy(0.01), noisy(0.1)
    found = noise(
        same_device(CalibrationSpec(groups=400), lambda *at: (calm if at[0].job.iodepth == 32 else wild)(*at))
    )
    assert found.sd_by_job["randread-4k-qd32"] == pytest.approx(0.01, rel=0.1)
    assert found.sd_by_job["randread-4k-qd1"] == pytest.approx(0.1, rel=0.1)
    assert 0.01 < found.sd < 0.1


def test_more_rounds_show_smaller_overheads() -> None:
    shares = noise(same_device(CalibrationSpec(), noisy(0.05))).smallest_detectable
    assert list(shares) == [3, 5, 8, 12]
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_a_delay_that_arrives_in_the_guest_is_detected_and_recovered() -> None:
    found = delayed(CalibrationSpec(), MS)
    low, point, high = found.found_s
    assert low < MS < high
    assert point == pytest.approx(MS, rel=0.01)
    assert found.host_found_s[0] < MS < found.host_found_s[2]
    assert (found.detected, found.of, found.rounds, found.job) == (5, 5, 6, "randread-4k-qd1")
    assert found.recovered >= 4


def test_half_of_a_delay_is_detected_but_not_recovered() -> None:
    found = delayed(CalibrationSpec(), MS / 2)
    assert (found.detected, found.recovered) == (5, 0)
    assert found.found_s[2] < MS


def test_a_delay_below_the_noise_is_not_detected() -> None:
    assert delayed(CalibrationSpec(repetitions=20), MS, scatter=20e-3).detected < 10


@pytest.mark.parametrize("trials", [1, 8, 40, 200])
def test_what_chance_explains_is_the_binomial_bound(trials: int) -> None:
    assert most_by_chance(trials) == int(binom.ppf(0.999, trials, 0.05))


def test_good_figures_give_no_doubts() -> None:
    assert doubts(2, 40, _delay(detected=8, recovered=7)) == []
    assert doubts(2, 40, None) == []


def test_results_that_chance_does_not_explain_are_named() -> None:
    assert doubts(12, 40, _delay(detected=8, recovered=2)) == [
        "12 false alarms in 40 groups, but chance explains at most 7",
        "the delay was recovered in 2 of 8 repetitions, but 5 are necessary",
    ]
    assert doubts(0, 40, _delay(detected=1, recovered=8)) == [
        "the delay was detected in 1 of 8 repetitions, but 5 are necessary"
    ]


def _delay(*, detected: int, recovered: int) -> Delay:
    about = (0.9e-3, MS, 1.1e-3)
    return Delay(MS, about, about, detected, recovered, of=8, rounds=3, job="randread-4k-qd1")
