"""Whether the host itself changed while a group was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import linear_regression

from harness.analysis.estimate import Estimate
from harness.analysis.exponential import finite_expm1
from harness.analysis.student import t_quantile


def estimate_drift(times: Iterable[float], values: Iterable[float], *, confidence: float = 0.95) -> Estimate:
    """The relative change of the host's value from its first moment to its last: 0.1 is 10 % more, -0.1 10 % less.

    `times[i]` is when `values[i]` was measured, in any unit and order; the values are positive, in any unit. Least
    squares of log(value) on time, with Student's t interval on n - 2 degrees of freedom (Draper & Smith, Applied
    Regression Analysis, 1.4), transformed. Fewer than three points have no spread, so they give no interval. One point
    shows no drift. ValueError for lists of different length, no points, the same time for all, or impossible values.
    """
    times, values = list(times), list(values)
    if len(times) != len(values):
        raise ValueError(f"each value needs a time: {len(times)} times, {len(values)} values")
    if not values:
        raise ValueError("a drift needs at least one value")
    for time in times:
        if not math.isfinite(time):
            raise ValueError(f"a time must be a finite number, not {time}")
    for value in values:
        if not 0 < value < math.inf:
            raise ValueError(f"values for a drift must be finite and greater than 0, not {value}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    n = len(values)
    if n == 1:
        return Estimate(0.0, None, None, n)
    span = max(times) - min(times)
    if span == 0:
        raise ValueError(f"a drift needs different times: all {n} values have the same time")
    shares = [(time - min(times)) / span for time in times]
    logs = [math.log(value) for value in values]
    change, start = linear_regression(shares, logs)
    if n == 2:
        return Estimate(finite_expm1(change), None, None, n)
    half = t_quantile((1 + confidence) / 2, n - 2) * _standard_error(shares, logs, change, start)
    return Estimate(finite_expm1(change), finite_expm1(change - half), finite_expm1(change + half), n)


def drifted(drift: Estimate, bound: float) -> bool:
    """Whether the group is void: the drift in either direction is larger than `bound`, a share, and its interval
    excludes 0.

    Each condition alone gives false alarms: three noisy rounds can have a large point by chance, and thirty quiet
    rounds can prove a harmless drift. Without an interval (fewer than three points), nothing is proven. ValueError for
    a bound below 0.
    """
    if not bound >= 0:
        raise ValueError(f"the bound of a drift must be a share of at least 0, not {bound}")
    if drift.low is None or drift.high is None:
        return False
    return abs(drift.point) > bound and (drift.low > 0 or drift.high < 0)


def _standard_error(xs: Sequence[float], ys: Sequence[float], slope: float, intercept: float) -> float:
    centre = math.fsum(xs) / len(xs)
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    return math.sqrt(residual / (len(xs) - 2) / math.fsum((x - centre) ** 2 for x in xs))
