"""Overhead with its interval from paired rounds: Student's t on the log ratios, one round being one sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.analysis.exponential import finite_exp, finite_expm1
from harness.analysis.student import t_quantile


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval; one round gives no interval."""

    point: float
    """The estimate."""
    low: float | None
    """The interval's lower end; none where n is 1."""
    high: float | None
    """The interval's upper end; none where n is 1."""
    n: int
    """Rounds that the estimate rests on."""

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width, in the unit of the point; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2


def estimate_overhead(
    host: Sequence[float], guest: Sequence[float], *, higher_is_better: bool, confidence: float = 0.95
) -> Estimate:
    """What the guest is worse by, as a share of the host: 0.1 is 10 % fewer IOPS, or 10 % more latency.

    `host[i]` and `guest[i]` are one round's pair, in any unit, all greater than 0. The overhead is `1 - guest/host`
    where higher is better, else `guest/host - 1`; below 0 the guest is better. The ratio is the geometric mean of the
    rounds' ratios; its interval is Student's t on their logarithms, transformed. ValueError for lists of
    different length, empty lists, or values that are not positive and finite.
    """
    logs = _t_interval(log_ratios(host, guest), confidence)
    if not higher_is_better:
        return _transformed(logs, finite_expm1)
    # More of the ratio is less of the overhead, so the interval's ends change places.
    flipped = _transformed(logs, lambda log_ratio: 0.0 - finite_expm1(log_ratio))
    return Estimate(flipped.point, flipped.high, flipped.low, flipped.n)


def log_ratios(host: Sequence[float], guest: Sequence[float]) -> list[float]:
    """log(guest/host) of each round: the samples that `estimate_overhead` rests on. ValueError as there."""
    _check_pairs(host, guest)
    _check_positive(host, "host")
    _check_positive(guest, "guest")
    return [math.log(g) - math.log(h) for h, g in zip(host, guest, strict=True)]


def differences(host: Sequence[float], guest: Sequence[float]) -> list[float]:
    """guest - host of each round, in their unit: the samples that `estimate_added` rests on. ValueError as there."""
    _check_pairs(host, guest)
    _check_finite(host, "host")
    _check_finite(guest, "guest")
    return [g - h for h, g in zip(host, guest, strict=True)]


def estimate_added(host: Sequence[float], guest: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """What the guest adds: the mean of `guest[i] - host[i]` with its paired t interval, in the unit of the values.

    Meant for latency (seconds). ValueError for lists of different length, empty lists, or values that are not finite.
    """
    return _t_interval(differences(host, guest), confidence)


def estimate_mean(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The arithmetic mean of one arm's rounds with Student's t interval, in the values' unit.

    Meant for parts that add up, and may be 0. ValueError for an empty list or values that are not finite.
    """
    if not values:
        raise ValueError("an estimate needs at least one round")
    _check_finite(values, "arm")
    return _t_interval(values, confidence)


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The geometric mean of one arm's rounds, with Student's t interval on the logarithms, in the values' unit.

    ValueError for an empty list or values that are not positive and finite.
    """
    if not values:
        raise ValueError("an estimate needs at least one round")
    _check_positive(values, "arm")
    return _transformed(_t_interval([math.log(value) for value in values], confidence), finite_exp)


def proven_below(overhead: Estimate) -> float | None:
    """The smallest share that the interval proves the overhead to be below: 0.1 is "proven below 10 %".

    It is the interval's upper end, and 0 where that is below 0: that the guest is no worse is all that is claimed.
    None without an interval. With an interval at 95 % the claim errs at most once in 40 times. Being inside of a
    margin is shown by an interval inside of it, not by a test that found no difference (Schuirmann 1987).
    """
    return None if overhead.high is None else max(0.0, overhead.high)


def _t_interval(samples: Sequence[float], confidence: float) -> Estimate:
    """Mean of the samples and mean +- t * s / sqrt(n), t with n - 1 degrees of freedom (Student 1908)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is a share between 0 and 1, for example 0.95, not {confidence}")
    n = len(samples)
    mean = fmean(samples)
    if n == 1:
        return Estimate(mean, None, None, n)
    half = t_quantile((1 + confidence) / 2, n - 1) * stdev(samples) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def _transformed(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    low = None if estimate.low is None else function(estimate.low)
    high = None if estimate.high is None else function(estimate.high)
    return Estimate(function(estimate.point), low, high, estimate.n)


def _check_pairs(host: Sequence[float], guest: Sequence[float]) -> None:
    if len(host) != len(guest):
        raise ValueError(f"rounds come in pairs: {len(host)} values of the host, {len(guest)} of the guest")
    if not host:
        raise ValueError("an estimate needs at least one round")


def _check_finite(values: Sequence[float], whose: str) -> None:
    for number, value in enumerate(values):
        if not math.isfinite(value):
            raise ValueError(f"{whose} value {number} is {value}: a measured value is a finite number")


def _check_positive(values: Sequence[float], whose: str) -> None:
    _check_finite(values, whose)
    for number, value in enumerate(values):
        if value <= 0:
            raise ValueError(f"{whose} value {number} is {value}: a ratio needs values greater than 0")
