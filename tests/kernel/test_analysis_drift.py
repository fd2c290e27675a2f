"""Drift of the host over a group, against another computation of it, and when it voids the group."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from harness.analysis import Estimate, estimate_drift, has_drifted


@pytest.mark.parametrize("seed", range(6))
def test_drift_agrees_with_generalised_least_squares_by_matrices(seed: int) -> None:
    chance = random.Random(seed)
    n = chance.randint(3, 20)
    times = sorted(1.7e9 + chance.uniform(0, 3600) for _ in range(n))
    values = [5e4 * math.exp(1e-4 * (time - times[0]) + chance.gauss(0, 0.05)) for time in times]
    design = np.array([[1, (time - times[0]) / (times[-1] - times[0])] for time in times])
    logs, slopes, scales, weights = np.log(values), [], [], []
    for rho in np.sin(np.linspace(-math.pi / 6, math.asin(0.995), 24)):
        covariance = rho ** abs(np.subtract.outer(range(n), range(n)))
        information = design.T @ np.linalg.solve(covariance, design)
        fit = np.linalg.solve(information, design.T @ np.linalg.solve(covariance, logs))
        off = logs - design @ fit
        squares = float(off @ np.linalg.solve(covariance, off))
        slopes.append(fit[1])
        scales.append(math.sqrt(squares / (n - 2) * np.linalg.inv(information)[1, 1]))
        determinants = np.linalg.det(covariance) * np.linalg.det(information)
        weights.append(determinants**-0.5 * squares ** (-(n - 2) / 2))
    shares = np.array(weights) / sum(weights)
    drift = estimate_drift(times, values, confidence=0.98)
    assert drift.low is not None
    assert drift.high is not None
    assert drift.point == pytest.approx(math.expm1(shares @ slopes), rel=1e-6)
    for end, tail in ((drift.low, 0.01), (drift.high, 0.99)):
        below = stats.t.cdf((math.log1p(end) - np.array(slopes)) / scales, n - 2)
        assert shares @ below == pytest.approx(tail, rel=1e-6)
    assert drift.n == n


def test_a_disk_that_loses_a_tenth_between_first_and_last_has_drifted_by_a_tenth() -> None:
    drift = estimate_drift([0, 60, 120], [1000, 1000 * math.sqrt(0.9), 900])
    assert drift.point == pytest.approx(-0.1)
    assert drift.low == pytest.approx(-0.1)
    assert drift.high == pytest.approx(-0.1)


def test_drift_does_not_depend_on_order_or_units() -> None:
    there = estimate_drift([0, 60, 120, 180], [10, 11, 10.5, 12])
    back = estimate_drift([3, 2, 1, 0], [12e6, 10.5e6, 11e6, 10e6])
    assert back.point == pytest.approx(there.point)
    assert back.high == pytest.approx(there.high)


def test_fewer_than_three_points_give_no_interval() -> None:
    two = estimate_drift([0, 60], [100, 150])
    assert two.point == pytest.approx(0.5)
    assert (two.low, two.high, two.n) == (None, None, 2)
    assert estimate_drift([7], [100]) == Estimate(0.0, None, None, 1)


@pytest.mark.parametrize(
    ("point", "low", "high", "void"),
    [
        (0.15, 0.05, 0.26, True),
        (-0.15, -0.24, -0.05, True),
        (0.15, -0.02, 0.35, False),
        (0.05, 0.04, 0.06, False),
        (0.10, 0.05, 0.15, False),
    ],
)
def test_a_group_is_void_when_its_drift_is_both_large_and_proven(
    point: float, low: float, high: float, void: bool
) -> None:
    assert has_drifted(Estimate(point, low, high, 8), 0.10) is void


def test_without_an_interval_no_group_is_void() -> None:
    assert not has_drifted(Estimate(5.0, None, None, 2), 0.10)


def test_three_points_on_a_line_are_proof() -> None:
    assert has_drifted(estimate_drift([0, 1, 2], [100, 120, 144]), 0.10)


@pytest.mark.parametrize(
    ("times", "values", "says"),
    [
        ([0.0], [1.0, 2.0], "1 times, 2 values"),
        ([], [], "at least one value"),
        ([0.0, 1.0], [1.0, 0.0], "greater than 0"),
        ([0.0, 1.0], [1.0, math.inf], "finite"),
        ([5.0, 5.0], [1.0, 2.0], "the same time"),
        ([5.0, math.nan], [1.0, 2.0], "time must be a finite number, not nan"),
    ],
)
def test_values_without_a_drift_are_refused(times: list[float], values: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        estimate_drift(times, values)


def test_impossible_confidence_and_bound_are_refused() -> None:
    with pytest.raises(ValueError, match="confidence must be a share"):
        estimate_drift([0, 1, 2], [1, 2, 3], confidence=95)
    with pytest.raises(ValueError, match="bound of a drift"):
        has_drifted(Estimate(0.1, 0.0, 0.2, 3), -0.1)
