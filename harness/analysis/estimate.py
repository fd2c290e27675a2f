"""Overhead with its interval from paired samples: Student's t on the log ratios. A block of slices is one sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from harness.analysis.exponential import finite_exp, finite_expm1
from harness.analysis.samples import IN_ORDER, Caveat, Samples


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval; one sample gives no interval."""

    point: float
    """The estimate."""
    low: float | None
    """The interval's lower end; none if n is 1 or if `caveat` says why."""
    high: float | None
    """The interval's upper end; none as for `low`."""
    n: int
    """The number of samples behind the estimate."""
    effective_n: float | None = None
    """How many independent samples would give a mean that is as precise; None if no correlation was estimated."""
    correlation: float | None = None
    """The correlation of neighbouring samples that the interval allows for; None if none was estimated."""
    boots: int | None = None
    """The number of boots, if the interval is from the means of boots; None within one boot."""
    caveat: Caveat | None = None
    """What to know about the interval, or why there is none."""

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval must have two ends or none, not {self.low} and {self.high}")
        # A comparison with nan is always false, so it would lead to a verdict.
        low, high = (self.point if end is None else end for end in (self.low, self.high))
        if not low <= self.point <= high:
            raise ValueError(f"an estimate must lie in its interval: {self.point} is not in {low} to {high}")

    @property
    def half_width(self) -> float | None:
        """Half of the interval's width, in the unit of the point; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2

    def divided_by(self, number: float) -> Estimate:
        """The estimate in units of `number`."""
        low, high = (None if end is None else end / number for end in (self.low, self.high))
        return replace(self, point=self.point / number, low=low, high=high)


def estimate_overhead(
    host: Iterable[float],
    guest: Iterable[float],
    *,
    higher_is_better: bool,
    confidence: float = 0.95,
    samples: Samples = IN_ORDER,
) -> Estimate:
    """How much worse the guest is, as a share of the host: 0.1 is 10 % fewer IOPS, or 10 % more latency.

    `host[i]` and `guest[i]` are one block's pair, in any unit, all greater than 0, in the order of time: lists, tuples
    or arrays of one dimension. The overhead is `1 - guest/host` if higher is better, else `guest/host - 1`. Below 0,
    the guest is better. The ratio is the geometric mean of the pairs' ratios. Its interval is Student's t on their
    logarithms, transformed; one pair gives no interval. `samples` says of which boots the pairs are and how neighbours
    are correlated; without it, they are of one boot, and six or more pairs show their correlation themselves. With
    several boots, the samples are the means of the boots. ValueError for different lengths, no pair, values that are
    not positive and finite, or a confidence that is not between 0 and 1; TypeError for a value that is not a number.
    """
    logs = _t_interval(log_ratios(host, guest), confidence, samples)
    return _transformed(logs, (lambda log_ratio: 0.0 - finite_expm1(log_ratio)) if higher_is_better else finite_expm1)


def log_ratios(host: Iterable[float], guest: Iterable[float]) -> list[float]:
    """log(guest/host) of each pair: the samples of `estimate_overhead`. ValueError as there."""
    return [math.log(g) - math.log(h) for h, g in _pairs(host, guest, positive)]


def differences(host: Iterable[float], guest: Iterable[float]) -> list[float]:
    """guest - host of each pair, in their unit: the samples of `estimate_added`. ValueError as there."""
    return [g - h for h, g in _pairs(host, guest, finite)]


def estimate_added(
    host: Iterable[float], guest: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> Estimate:
    """What the guest adds: the mean of `guest[i] - host[i]` with its paired t interval, in the unit of the values.

    Use it for latency (seconds). `samples` as for `estimate_overhead`. ValueError for lists of different length, empty
    lists, or values that are not finite.
    """
    return _t_interval(differences(host, guest), confidence, samples)


def estimate_mean(values: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER) -> Estimate:
    """The arithmetic mean of one arm's values with Student's t interval, in the values' unit.

    Use it for parts that add up and may be 0. `samples` as for `estimate_overhead`. ValueError for an empty list or
    values that are not finite.
    """
    return _t_interval(finite(values, "arm"), confidence, samples)


def mean_interval(values: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER) -> Estimate:
    """The geometric mean of one arm's values, with Student's t interval on the logarithms, in the values' unit.

    `samples` as for `estimate_overhead`. ValueError for an empty list or values that are not positive and finite.
    """
    logs = [math.log(value) for value in positive(values, "arm")]
    return _transformed(_t_interval(logs, confidence, samples), finite_exp)


def proven_below(overhead: Estimate) -> float | None:
    """The smallest share for which the interval proves a smaller overhead: 0.1 is "proven below 10 %".

    It is the interval's upper end, or 0 if that is below 0, because the claim is only that the guest is not worse.
    None without an interval. With an interval at 95 %, the claim is wrong at most once in 40 times. An interval that
    lies inside a margin proves equivalence; a test that found no difference does not (Schuirmann 1987).
    """
    return None if overhead.high is None else max(0.0, overhead.high)


def _t_interval(values: Sequence[float], confidence: float, samples: Samples) -> Estimate:
    """The mean of the values and Student's t interval (1908) around it, as wide as `samples` makes it."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    spread = samples.spread(values)
    low = high = None
    if spread.has_interval:
        half = spread.half_width(confidence)
        low, high = spread.mean - half, spread.mean + half
    return Estimate(
        spread.mean, low, high, len(values), spread.effective_n, spread.correlation, spread.boots, spread.caveat
    )


def _transformed(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    point = function(estimate.point)
    if estimate.low is None or estimate.high is None:
        return replace(estimate, point=point)
    # A falling function, such as the loss as a function of the ratio, exchanges the ends.
    low, high = sorted((function(estimate.low), function(estimate.high)))
    return replace(estimate, point=point, low=low, high=high)


def finite(values: Iterable[float], whose: str) -> list[float]:
    """The values of any sequence or array as floats. ValueError for no value, or one that is not finite."""
    numbers = [_number(value, number, whose) for number, value in enumerate(values)]
    if not numbers:
        raise ValueError("an estimate needs at least one sample")
    return numbers


def positive(values: Iterable[float], whose: str) -> list[float]:
    """As `finite`. ValueError also for a value that is not greater than 0."""
    numbers = finite(values, whose)
    for number, value in enumerate(numbers):
        if value <= 0:
            raise ValueError(f"{whose} value {number} is {value:g}: a ratio needs values greater than 0")
    return numbers


def _number(value: float, number: int, whose: str) -> float:
    try:
        is_finite = math.isfinite(value)  # A TypeError for text, which float() would convert to a number.
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise ValueError(f"{whose} value {number} is {value}: a measured value must be a finite number")
    return float(value)


def _pairs(
    host: Iterable[float], guest: Iterable[float], checked: Callable[[Iterable[float], str], list[float]]
) -> list[tuple[float, float]]:
    hosts, guests = list(host), list(guest)
    if len(hosts) != len(guests):
        raise ValueError(
            f"each sample needs a pair of values: there are {len(hosts)} values of the host, {len(guests)} of the guest"
        )
    return list(zip(checked(hosts, "host"), checked(guests, "guest"), strict=True))
