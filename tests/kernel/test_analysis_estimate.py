"""Estimates: hand-calculated cases, agreement with scipy, and intervals that cover as often as stated."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from harness.analysis import (
    Estimate,
    Limit,
    estimate_added,
    estimate_change,
    estimate_drift,
    estimate_mean,
    estimate_overhead,
    exceeds_p_value,
    log_ratios,
    mean_interval,
    proven_below,
    t_quantile,
)
from harness.features.calibrate.noise import pool_sd
from harness.features.steady import judge_steadiness


def ends(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def pairs(seed: int, n: int) -> tuple[list[float], list[float]]:
    chance = random.Random(seed)
    host = [math.exp(chance.gauss(chance.uniform(-12, 12), 0.2)) for _ in range(n)]
    return host, [value * math.exp(chance.gauss(-0.1, 0.1)) for value in host]


# --- Student's t ---


def test_quantiles_of_the_printed_table() -> None:
    assert round(t_quantile(0.975, 1), 3) == 12.706
    assert round(t_quantile(0.975, 2), 3) == 4.303
    assert round(t_quantile(0.975, 4), 3) == 2.776
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (-1.0, 3), (math.nan, 3), (0.975, 0)])
def test_a_quantile_that_does_not_exist_is_refused(p: float, df: int) -> None:
    with pytest.raises(ValueError, match=r"quantile|degree of freedom"):
        t_quantile(p, df)


# --- overhead ---


def test_ten_percent_fewer_iops_are_ten_percent_overhead() -> None:
    estimate = estimate_overhead([1000, 2000, 500], [900, 1800, 450], higher_is_better=True)
    assert estimate.point == pytest.approx(0.1)
    assert ends(estimate) == pytest.approx((0.1, 0.1))
    assert estimate.n == 3


def test_ten_percent_more_latency_is_ten_percent_overhead() -> None:
    assert estimate_overhead([1e-4, 2e-4], [1.1e-4, 2.2e-4], higher_is_better=False).point == pytest.approx(0.1)


def test_two_rounds_by_hand() -> None:
    # Ratios 0.8 and 0.9: log mean -0.164252, s = 0.083286, half = 12.7062 * s / sqrt(2) = 0.748294
    estimate = estimate_overhead([100, 100], [80, 90], higher_is_better=True)
    assert estimate.point == pytest.approx(1 - math.sqrt(0.72))
    assert ends(estimate) == pytest.approx((1 - math.exp(0.584042), 1 - math.exp(-0.912546)), rel=1e-4)


def test_a_faster_guest_has_overhead_below_zero() -> None:
    assert estimate_overhead([100, 100], [110, 111], higher_is_better=True).point < 0
    assert estimate_overhead([110, 111], [100, 100], higher_is_better=False).point < 0


def test_equal_arms_have_no_overhead_and_no_minus_sign() -> None:
    assert str(estimate_overhead([5], [5], higher_is_better=True).point) == "0.0"


def test_one_round_gives_no_interval() -> None:
    overhead = estimate_overhead([100], [75], higher_is_better=True)
    assert overhead == Estimate(overhead.point, None, None, 1)
    assert overhead.point == pytest.approx(0.25)
    assert estimate_added([1.0], [1.5]) == Estimate(0.5, None, None, 1)
    assert mean_interval([7.0]).half_width is None


@pytest.mark.parametrize(("seed", "n"), [*itertools.product(range(20), [2, 3, 5, 12])])
def test_overhead_agrees_with_scipy(seed: int, n: int) -> None:
    host, guest = pairs(seed, n)
    logs = np.log(np.array(guest) / np.array(host))
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.99)
    lower = estimate_overhead(host, guest, higher_is_better=False, confidence=0.99)
    higher = estimate_overhead(host, guest, higher_is_better=True, confidence=0.99)
    assert lower.point == pytest.approx(math.expm1(logs.mean()))
    assert ends(lower) == pytest.approx((math.expm1(interval.low), math.expm1(interval.high)), rel=1e-6)
    assert higher.point == pytest.approx(1 - math.exp(logs.mean()))
    assert ends(higher) == pytest.approx((1 - math.exp(interval.high), 1 - math.exp(interval.low)), rel=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_overhead_does_not_depend_on_the_unit_and_the_interval_holds_the_point(seed: int) -> None:
    host, guest = pairs(seed, 4)
    seconds = estimate_overhead(host, guest, higher_is_better=False)
    microseconds = estimate_overhead([v * 1e6 for v in host], [v * 1e6 for v in guest], higher_is_better=False)
    assert microseconds.point == pytest.approx(seconds.point)
    assert ends(microseconds) == pytest.approx(ends(seconds))
    low, high = ends(seconds)
    assert low <= seconds.point <= high
    assert seconds.half_width == pytest.approx((high - low) / 2)


def test_rounds_that_differ_by_hundreds_of_decades_still_give_finite_ends() -> None:
    assert all(map(math.isfinite, ends(estimate_overhead([1e-150, 1], [1e150, 1], higher_is_better=False))))
    assert all(map(math.isfinite, ends(estimate_overhead([1e-150, 1], [1e150, 1], higher_is_better=True))))


@pytest.mark.parametrize("value", [1e308, -1e200, 10**400])
def test_values_whose_sums_would_overflow_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="must be a finite number of at most 1e150"):
        estimate_mean([value] * 3)


def test_a_change_from_almost_nothing_has_an_inverse() -> None:
    change = estimate_change([1e150] * 3, [1e-150, 1e-149, 1e-150])
    assert change.inverse.inverse.ratio == pytest.approx(change.ratio)
    assert estimate_change([1e150] * 3, [5e-324] * 3).inverse.ratio < math.inf


# --- added, mean of an arm ---


@pytest.mark.parametrize("seed", range(10))
def test_added_is_the_paired_t_interval_of_the_differences(seed: int) -> None:
    host, guest = pairs(seed, 5)
    interval = stats.ttest_rel(guest, host).confidence_interval(0.95)
    added = estimate_added(host, guest)
    assert added.point == pytest.approx(np.mean(guest) - np.mean(host))
    assert ends(added) == pytest.approx((interval.low, interval.high), rel=1e-6)


def test_pairing_takes_out_what_both_arms_share() -> None:
    # The disk doubles its speed between rounds; the guest always adds 20 us.
    added = estimate_added([100e-6, 50e-6, 25e-6], [120e-6, 70e-6, 45e-6])
    assert ends(added) == pytest.approx((20e-6, 20e-6))


def test_mean_of_an_arm_is_geometric() -> None:
    estimate = mean_interval([10.0, 1000.0])
    low, high = ends(estimate)
    assert estimate.point == pytest.approx(100)
    assert low * high == pytest.approx(100**2)


# --- any sequence of rounds ---

HOST, GUEST = [100.0, 110.0, 105.0, 99.0, 101.0], [80.0, 90.0, 88.0, 70.0, 81.0]
ON_ROUNDS: dict[str, Callable[[Iterable[float], Iterable[float]], object]] = {
    "overhead": lambda host, guest: estimate_overhead(host, guest, higher_is_better=True),
    "log ratios": log_ratios,
    "added": estimate_added,
    "mean": lambda host, _: estimate_mean(host),
    "geometric mean": lambda host, _: mean_interval(host),
    "p value": lambda host, guest: exceeds_p_value(host, guest, Limit(share=0.1), higher_is_better=True),
    "steady": lambda host, _: judge_steadiness(host),
    "drift": estimate_drift,
    "pooled": lambda host, guest: pool_sd((host, guest)),
}


@pytest.mark.parametrize("name", ON_ROUNDS)
@pytest.mark.parametrize("of", [tuple, iter, deque, np.array, lambda values: [Fraction(value) for value in values]])
def test_rounds_may_be_a_list_an_array_or_any_iterable(name: str, of: Callable[[list[float]], Iterable[float]]) -> None:
    evaluate = ON_ROUNDS[name]
    found = evaluate(of(HOST), of(GUEST))
    assert found == evaluate(HOST, GUEST)
    assert "np." not in repr(found)


@pytest.mark.parametrize("count", [0, 1])
def test_arrays_of_no_round_or_one_are_treated_like_lists(count: int) -> None:
    host, guest = np.array(HOST[:count]), np.array(GUEST[:count])
    if count:
        assert estimate_overhead(host, guest, higher_is_better=True).low is None
    else:
        with pytest.raises(ValueError, match="at least one sample"):
            estimate_overhead(host, guest, higher_is_better=True)


# --- bad input ---


@pytest.mark.parametrize(
    ("host", "guest", "says"),
    [
        ([1.0], [1.0, 2.0], "1 values of the host, 2 of the guest"),
        ([], [], "at least one sample"),
        ([1.0, 0.0], [1.0, 1.0], "host value 1 is 0"),
        ([1.0], [-2.0], "guest value 0 is -2"),
        ([math.nan], [1.0], "host value 0 is nan"),
        ([1.0], [math.inf], "guest value 0 is inf"),
        ([10**400], [1.0], "host value 0 is 1000.*finite"),
    ],
)
def test_values_that_are_not_measured_pairs_are_refused(host: list[float], guest: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        estimate_overhead(host, guest, higher_is_better=True)


@pytest.mark.parametrize("host", ["12", ["1", "2"], [None, 1.0], [1j, 1.0], 12.0, None])
def test_values_that_are_not_numbers_are_refused(host: Iterable[float]) -> None:
    with pytest.raises(TypeError):
        estimate_overhead(host, [1.0, 2.0], higher_is_better=True)


@pytest.mark.parametrize(
    ("point", "low", "high", "says"),
    [
        (math.nan, math.nan, math.nan, "must lie in its interval"),
        (math.nan, None, None, "must lie in its interval"),
        (0.1, math.nan, 0.2, "must lie in its interval"),
        (0.1, 0.2, 0.05, "must lie in its interval"),
        (0.3, 0.1, 0.2, "must lie in its interval"),
        (0.1, 0.05, None, "must have two ends or none"),
    ],
)
def test_an_impossible_estimate_is_refused(point: float, low: float | None, high: float | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Estimate(point, low, high, 3)


def test_other_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        mean_interval([])
    with pytest.raises(ValueError, match="greater than 0"):
        mean_interval([0.0])
    with pytest.raises(ValueError, match="finite"):
        estimate_added([1.0], [math.nan])
    with pytest.raises(ValueError, match="confidence must be a share"):
        estimate_added([1.0, 2.0], [1.0, 2.0], confidence=95)


# --- what else is read from an estimate ---


def test_log_ratios_are_the_samples_of_the_overhead() -> None:
    host, guest = pairs(3, 6)
    overhead = estimate_overhead(host, guest, higher_is_better=False)
    assert math.expm1(np.mean(log_ratios(host, guest))) == pytest.approx(overhead.point)


@pytest.mark.parametrize(
    ("estimate", "below"),
    [
        (Estimate(0.04, 0.01, 0.08, 5), 0.08),
        (Estimate(-0.04, -0.08, -0.01, 5), 0.0),
        (Estimate(0.04, None, None, 1), None),
    ],
)
def test_an_overhead_is_proven_below_its_intervals_upper_end(estimate: Estimate, below: float | None) -> None:
    assert proven_below(estimate) == below
