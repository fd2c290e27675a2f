"""Samples and boots: what they do to an interval and to a p value."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from harness.analysis import (
    HALF_BIN,
    Estimate,
    Limit,
    Look,
    Reason,
    Samples,
    Sequential,
    Verdict,
    decided,
    estimate_added,
    estimate_mean,
    estimate_overhead,
    exceeds_p_value,
    judge,
    judge_look,
    log_ratios,
    make_estimate,
    mean_interval,
    spread_added,
)


def noise(n: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 0.05) for _ in range(n)]


def pairs(n: int, seed: int) -> tuple[list[float], list[float]]:
    return [100.0] * n, [90 * math.exp(log) for log in noise(n, seed)]


def half_width(estimate: Estimate) -> float:
    assert estimate.half_width is not None
    return estimate.half_width


# --- against the definitions, with matrices ---


# --- one boot ---


@pytest.mark.parametrize("value", [0.3, 1e-12, 1e6])
def test_equal_samples_have_an_interval_without_width(value: float) -> None:
    found = mean_interval([value] * 20)
    assert (found.low, found.high) == pytest.approx((value, value))


# --- intervals and p values agree ---


@pytest.mark.parametrize(
    "budget",
    [Limit(0.1), Limit(absolute=1e-5), Limit(0.1, 1e-5, "looser"), Limit(0.1, 1e-5, "stricter")],
    ids=["share", "absolute", "looser", "stricter"],
)
@pytest.mark.parametrize(
    ("boots", "resolution"), [(1, 0.0), (3, 0.0), (1, HALF_BIN)], ids=["one boot", "boots", "percentile"]
)
def test_interval_and_p_value_always_give_the_same_verdict(budget: Limit, boots: int, resolution: float) -> None:
    exceeding = 0
    for seed in range(150):
        chance = random.Random(seed)
        n = chance.randint(6, 16)
        host = [1e-4 * math.exp(log) for log in noise(n, seed)]
        worse = chance.uniform(0.05, 0.25)
        guest = [value * math.exp(worse + log) for value, log in zip(host, noise(n, seed + 999), strict=True)]
        samples = Samples(boots=tuple(at * boots // n for at in range(n)), resolution=resolution)
        look = Look(n, 0.02, 0.05)
        found = judge_look(host, guest, budget, look, higher_is_better=False, samples=samples)
        assert (found.verdict is Verdict.EXCEEDS) == (found.p_value is not None and found.p_value <= look.error_rate)
        level = budget.interval_confidence(0.98)
        overhead = estimate_overhead(host, guest, higher_is_better=False, confidence=level, samples=samples)
        added = make_estimate(spread_added(host, guest, samples), n, level)
        assert judge(overhead, budget, added) is found.verdict
        exceeding += found.verdict is Verdict.EXCEEDS
    assert 0 < exceeding < 150


def test_everything_that_makes_intervals_takes_the_same_samples() -> None:
    host, guest = pairs(30, 1)
    samples = Samples(boots=tuple(at // 10 for at in range(30)))
    added = estimate_added(host, guest, samples=samples)
    assert {added.boots, mean_interval(guest, samples=samples).boots} == {3}


# --- the resolution of percentiles ---


def test_half_a_bin_makes_an_interval_wider_at_each_end() -> None:
    host, guest = pairs(12, 4)
    plain, binned = (
        estimate_overhead(host, guest, higher_is_better=False, samples=Samples(resolution=resolution))
        for resolution in (0.0, HALF_BIN)
    )
    assert None not in (plain.low, plain.high, binned.low, binned.high)
    assert math.log1p(binned.low or 0) == pytest.approx(math.log1p(plain.low or 0) - HALF_BIN)
    assert math.log1p(binned.high or 0) == pytest.approx(math.log1p(plain.high or 0) + HALF_BIN)


def test_a_difference_within_half_a_bin_is_never_shown() -> None:
    host, guest = [1.0] * 40, [1.005] * 40
    budget = Limit(0.0)
    assert exceeds_p_value(host, guest, budget, higher_is_better=False) == 0
    assert exceeds_p_value(host, guest, budget, higher_is_better=False, samples=Samples(resolution=HALF_BIN)) == 1


def test_what_a_guest_adds_to_a_percentile_is_the_difference_of_the_percentiles() -> None:
    host, guest = pairs(12, 5)
    added = make_estimate(spread_added(host, guest, Samples(resolution=HALF_BIN)), 12, 0.95)
    assert added.point == pytest.approx(stats.gmean(guest) - stats.gmean(host))
    overhead = estimate_overhead(host, guest, higher_is_better=False)
    assert added.point == pytest.approx(overhead.point * stats.gmean(host))
    plain = make_estimate(spread_added(host, guest), 12, 0.95)
    assert plain == estimate_added(host, guest)


# --- the order in time ---


def test_samples_whose_neighbours_are_alike_are_recognised_and_others_are_not() -> None:
    values = noise(20, 6)
    shuffled, rising = Samples().find_change_in_time(values), Samples().find_change_in_time(sorted(values))
    assert shuffled is not None
    assert rising is not None
    assert rising < 0.01 < shuffled
    assert Samples().find_change_in_time(sorted(values)[:5]) is None


def test_boots_that_differ_are_no_change_in_time() -> None:
    boots = tuple(at // 4 for at in range(32))
    values = [boot + value for boot, value in zip((3, 1, 2, 5, 0, 4, 1, 3), noise(8, 7), strict=True) for _ in range(4)]
    by_boot, by_block = (samples.find_change_in_time(values) for samples in (Samples(boots), Samples()))
    assert by_boot is not None
    assert by_block is not None
    assert by_block < 0.01 < by_boot


def test_without_a_change_the_note_is_as_rare_as_its_p_value() -> None:
    p_values = [Samples().find_change_in_time(noise(12, seed)) for seed in range(400)]
    assert 0.02 < sum(p is not None and p < 0.05 for p in p_values) / 400 < 0.09


# --- boots ---


def means(values: Sequence[float], size: int) -> list[float]:
    return [float(np.mean(values[at : at + size])) for at in range(0, len(values), size)]


def test_of_several_boots_the_means_are_the_samples() -> None:
    host, guest = pairs(20, 4)
    found = estimate_overhead(
        host, guest, higher_is_better=False, samples=Samples(boots=tuple(at // 5 for at in range(20)))
    )
    interval = stats.ttest_1samp(means(log_ratios(host, guest), 5), 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.expm1(interval.low), math.expm1(interval.high)), rel=1e-9)
    assert (found.n, found.boots) == (20, 4)


def test_blocks_of_one_boot_are_samples_about_that_boot() -> None:
    host, guest = pairs(12, 4)
    one = Samples(boots=(7,) * 12)
    assert estimate_overhead(host, guest, higher_is_better=True, samples=one) == estimate_overhead(
        host, guest, higher_is_better=True
    )


def test_a_plan_may_count_rounds() -> None:
    samples = Samples(boots=(1, 1, 1, 2, 2, 2), rounds=2)
    host, guest = [100.0] * 6, [50.0, 51.0, 49.0, 50.0, 51.0, 49.5]
    assert samples.count(6) == 2
    assert Samples(boots=samples.boots).count(6) == 6
    plan = Sequential(2, 5)
    why = decided(host, guest, plan, higher_is_better=True, budget=Limit(0.1), target=None, cells=1, samples=samples)
    assert why is Reason.BUDGET
    with pytest.raises(ValueError, match="3 samples, not 2"):
        judge_look(host, guest, Limit(0.1), Look(3, 0.05, 0.05), higher_is_better=True, samples=samples)


# --- bad input ---


def test_boots_of_other_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples, 2 boots"):
        estimate_mean([1.0, 2.0, 3.0], samples=Samples(boots=(1, 2)))
