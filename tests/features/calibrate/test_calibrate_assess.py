"""The conclusions of a calibration: false alarms, noise, the length of a slice, boots, the delay, and doubts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from scipy.stats import binom

from harness.features.calibrate.calibration import Delay, SliceNoise, choose_common_slice
from harness.features.calibrate.command import (
    count_most_by_chance,
    list_doubts,
    measure_boot_noise,
    measure_delay,
    measure_noise,
    measure_slice_noise,
)
from harness.features.calibrate.measuring import (
    CalibrationSpec,
    Measured,
    Trial,
    plan_boots,
    plan_delays,
    plan_host_delay,
    plan_same_device,
    plan_slices,
)

MS = 1e-3
GAP = 0.07
"""Seconds between two slices."""


def same_device(order: CalibrationSpec, value: Callable[[Trial, str, int], float]) -> list[Measured]:
    """Trials of a device against itself whose IOPS are `value(trial, turn, round)`."""
    return [
        Measured(
            trial,
            tuple(
                {turn.name: {"iops": value(trial, turn.name, n)} for turn in trial.turns} for n in range(trial.rounds)
            ),
            GAP,
        )
        for trial in plan_same_device(order, "optane")
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
            GAP,
        )

    guest = [measured(trial, 400e-6, guest_adds) for trial in plan_delays(order)]
    return measure_delay(guest, measured(plan_host_delay(order), 120e-6, MS), MS)


def test_noise_alone_raises_as_many_alarms_as_an_interval_promises() -> None:
    groups = 2000
    found = measure_noise(same_device(CalibrationSpec(groups=groups, rounds=3), noisy(0.04)))
    assert 0.035 < found.false_alarms / groups < 0.065
    assert found.sd == pytest.approx(0.04, rel=0.05)


def test_an_arm_that_is_worse_each_time_is_an_alarm_in_every_group() -> None:
    wobble = noisy(0.001)
    worse = same_device(CalibrationSpec(groups=10), lambda *at: wobble(*at) * (0.9 if at[1] == "b" else 1.0))
    assert measure_noise(worse).false_alarms == 10


def test_noise_is_reported_by_job_because_a_deep_queue_varies_less() -> None:
    calm, wild = noisy(0.01), noisy(0.1)
    found = measure_noise(
        same_device(CalibrationSpec(groups=400), lambda *at: (calm if at[0].job.iodepth == 32 else wild)(*at))
    )
    assert found.sd_by_job["randread-4k-qd32"] == pytest.approx(0.01, rel=0.1)
    assert found.sd_by_job["randread-4k-qd1"] == pytest.approx(0.1, rel=0.1)
    assert 0.01 < found.sd < 0.1


def test_more_rounds_show_smaller_overheads() -> None:
    shares = measure_noise(same_device(CalibrationSpec(), noisy(0.05))).smallest_detectable
    assert list(shares) == [3, 5, 8, 12, 20]
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def series(noise_of: Callable[[int], float], *, slices: int = 2000) -> Measured:
    """A series of short slices whose logarithms differ by `noise_of(n)` from those of 1000 IOPS."""
    trial = plan_slices(CalibrationSpec(slices=slices), "optane")[0]
    return Measured(trial, tuple({"host": {"iops": 1000 * math.exp(noise_of(n))}} for n in range(trial.rounds)), GAP)


def test_noise_of_single_ios_asks_for_long_slices_and_noise_of_neighbours_for_short_ones() -> None:
    generator = random.Random(2)
    white = measure_slice_noise(series(lambda _: generator.gauss(0, 0.1)))
    assert (white.place, white.job, white.seconds, white.slices, white.gap_s) == (
        "host",
        "randread-4k-qd32",
        0.2,
        2000,
        GAP,
    )
    assert white.within == pytest.approx(0.2 * 0.1**2, rel=0.15)
    assert white.best_s > 1.0
    # The level changes at random and is kept: the difference of neighbours grows with their length.
    level = 0.0

    def walk(_: int) -> float:
        nonlocal level
        level += generator.gauss(0, 0.02)
        return level

    assert measure_slice_noise(series(walk)).best_s == 0.2


def test_a_series_without_enough_slices_shows_nothing() -> None:
    with pytest.raises(ValueError, match="at least 16 slices"):
        measure_slice_noise(series(lambda _: 0.0, slices=15))


def test_the_length_for_all_arms_is_decided_by_the_noisy_ones() -> None:
    short = SliceNoise("host", "randread-4k-qd32", 0.2, 120, 0.06, within=1e-6, between=1e-4, best_s=0.2)
    long = SliceNoise("guest", "randread-4k-qd32", 0.2, 120, 0.08, within=4e-2, between=9e-4, best_s=1.89)
    both = choose_common_slice([short, long])
    assert both.seconds == pytest.approx(math.sqrt(0.07 * 0.040001 / 1e-3), rel=0.02)
    assert 0 < both.gain < 0.05
    alone = choose_common_slice([short])
    assert alone.seconds == 0.2
    # Of slices of 1.06 s and 0.26 s: four times as many, of almost the same variance.
    assert alone.gain == pytest.approx(1 - math.sqrt(0.26 * 1.05e-4 / (1.06 * 1.01e-4)))
    assert alone.blocks(2, 1.0) == 8
    assert choose_common_slice([short], against=0.2).gain == 0.0


def booted(sd_of_boots: float, *, boots: int = 200) -> list[Measured]:
    """Trials whose guest has half of the host's IOPS, with a noise of 3 % between blocks."""
    generator = random.Random(3)
    found = []
    for trial in plan_boots(CalibrationSpec(boots=boots), "optane"):
        own = generator.gauss(0, sd_of_boots)
        blocks = tuple(
            {"host": {"iops": 1000.0}, "guest": {"iops": 500 * math.exp(own + generator.gauss(0, 0.03))}}
            for _ in range(trial.rounds)
        )
        found.append(Measured(trial, blocks, GAP))
    return found


def test_boots_that_differ_are_told_from_the_noise_of_blocks() -> None:
    found = measure_boot_noise(booted(0.04))
    assert (found.job, found.boots, found.blocks) == ("randread-4k-qd32", 200, 5)
    assert found.sd == pytest.approx(0.04, rel=0.1)
    assert found.sd_of_blocks == pytest.approx(0.03, rel=0.1)
    low, share, high = found.share
    assert low < share < high
    assert share == pytest.approx(16 / 25, abs=0.1)


def test_boots_that_do_not_differ_add_nothing() -> None:
    found = measure_boot_noise(booted(0.0))
    assert found.sd < 0.01
    assert found.share[0] == 0.0


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
    assert count_most_by_chance(trials) == int(binom.ppf(0.999, trials, 0.05))


def test_good_figures_give_no_doubts() -> None:
    assert list_doubts(2, 40, _delay(detected=8, recovered=7)) == []
    assert list_doubts(2, 40, None) == []


def test_results_that_chance_does_not_explain_are_named() -> None:
    assert list_doubts(12, 40, _delay(detected=8, recovered=2)) == [
        "12 false alarms in 40 groups, but chance explains at most 7",
        "the delay was recovered in 2 of 8 repetitions, but 5 are necessary",
    ]
    assert list_doubts(0, 40, _delay(detected=1, recovered=8)) == [
        "the delay was detected in 1 of 8 repetitions, but 5 are necessary"
    ]


def _delay(*, detected: int, recovered: int) -> Delay:
    about = (0.9e-3, MS, 1.1e-3)
    return Delay(MS, about, about, detected, recovered, of=8, rounds=3, job="randread-4k-qd1")
