"""Estimates with intervals from samples: overhead, what is added, means, and changes between two series."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean

from harness.analysis.samples import IN_ORDER, Samples, Spread

# Above this value, exp() overflows. Only an extremely wide interval (n = 2, rounds far apart) reaches it.
_LARGEST_LOG = 690.0  # 1e299, which is finite in percent, too
_LARGEST_VALUE = 1e150


def finite_exp(value: float) -> float:
    """e ** `value`, finite and above 0 for any finite value."""
    return math.exp(max(min(value, _LARGEST_LOG), -_LARGEST_LOG))


def finite_expm1(value: float) -> float:
    """e ** `value` - 1, precise near 0, finite for any finite value: from a log ratio to a relative change."""
    return math.expm1(min(value, _LARGEST_LOG))


def holm(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, in their order. The probability of any wrong rejection is at most `alpha`.

    Holm's step-down method (1979), valid for any dependence between the tests. None stands for a cell without a p value
    yet. It is never rejected but it counts, because the size of the family must not depend on the measurements.
    ValueError for a p value or alpha outside of 0 to 1.
    """
    known = select_known(p_values, alpha)
    rejected = [False] * len(p_values)
    for step, (p, index) in enumerate(sorted(known)):
        if p * (len(p_values) - step) > alpha:
            break
        rejected[index] = True
    return rejected


def benjamini_hochberg(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Which hypotheses are rejected, in their order. Of these, at most the share `alpha` is expected to be wrong.

    The step-up method of Benjamini & Hochberg (1995), valid for tests that are independent or positively dependent.
    None and ValueError as for `holm`.
    """
    known = sorted(select_known(p_values, alpha))
    passed = [rank for rank, (p, _) in enumerate(known, start=1) if p * len(p_values) <= alpha * rank]
    rejected = {index for _, index in known[: max(passed, default=0)]}
    return [index in rejected for index in range(len(p_values))]


def select_known(p_values: Sequence[float | None], alpha: float) -> list[tuple[float, int]]:
    """The p values that there are, with their positions."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be a probability, for example 0.025, not {alpha}")
    known = [(p, index) for index, p in enumerate(p_values) if p is not None]
    for p, _ in known:
        if not 0 <= p <= 1:
            raise ValueError(f"a p value must be a probability between 0 and 1, not {p}")
    return known


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval; one sample gives no interval."""

    point: float
    """The estimate."""
    low: float | None
    """The interval's lower end; none for a single sample."""
    high: float | None
    """The interval's upper end; none as for `low`."""
    n: int
    """The number of samples behind the estimate."""
    boots: int | None = None
    """The number of boots, if the interval is from the means of boots; None within one boot."""

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
    logarithms, transformed; one pair gives no interval. `samples` says of which boots the pairs are; without it, they
    are of one boot. With several boots, the samples are the means of the boots. ValueError for different lengths, no
    pair, values that are not positive and finite, or a confidence that is not between 0 and 1; TypeError for a value
    that is not a number.
    """
    logs = _estimate_by_t(log_ratios(host, guest), confidence, samples)
    return _transform(logs, (lambda log_ratio: 0.0 - finite_expm1(log_ratio)) if higher_is_better else finite_expm1)


def log_ratios(host: Iterable[float], guest: Iterable[float]) -> list[float]:
    """log(guest/host) of each pair: the samples of `estimate_overhead`. ValueError as there."""
    return [math.log(g) - math.log(h) for h, g in _pair(host, guest, require_positive)]


def differences(host: Iterable[float], guest: Iterable[float]) -> list[float]:
    """guest - host of each pair, in their unit: the samples of `estimate_added`. ValueError as there."""
    return [g - h for h, g in _pair(host, guest, require_finite)]


def estimate_added(
    host: Iterable[float], guest: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> Estimate:
    """What the guest adds: the mean of `guest[i] - host[i]` with its paired t interval, in the unit of the values.

    Use it for costs, which may be 0. `samples` as for `estimate_overhead`. ValueError for lists of different length,
    empty lists, or values that are not finite.
    """
    return _estimate_by_t(differences(host, guest), confidence, samples)


def spread_added(host: Iterable[float], guest: Iterable[float], samples: Samples = IN_ORDER) -> Spread:
    """The mean of `guest[i] - host[i]` and its error, in the unit of the values.

    Values with a resolution are contributions to the logarithm of a percentile, and mean nothing one by one. So the
    percentiles themselves are subtracted, and the error is that of a linear function of the logarithms (delta method).
    ValueError for lists of different length, empty lists, or values that are not positive and finite.
    """
    hosts, guests = zip(*_pair(host, guest, require_positive), strict=True)
    if samples.resolution:
        hosts, guests = _linearise(hosts), _linearise(guests)
    return samples.spread([g - h for h, g in zip(hosts, guests, strict=True)], max(fmean(hosts), fmean(guests)))


def _linearise(values: Sequence[float]) -> tuple[float, ...]:
    """The logarithms on a line in the unit of the values, which touches the exponential at the geometric mean."""
    logs = [math.log(value) for value in values]
    mean = fmean(logs)
    return tuple(math.exp(mean) * (1 + log - mean) for log in logs)


def estimate_mean(values: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER) -> Estimate:
    """The arithmetic mean of one arm's values with Student's t interval, in the values' unit.

    Use it for parts that add up and may be 0. `samples` as for `estimate_overhead`. ValueError for an empty list or
    values that are not finite.
    """
    return _estimate_by_t(require_finite(values, "arm"), confidence, samples)


def mean_interval(values: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER) -> Estimate:
    """The geometric mean of one arm's values, with Student's t interval on the logarithms, in the values' unit.

    `samples` as for `estimate_overhead`. ValueError for an empty list or values that are not positive and finite.
    """
    logs = [math.log(value) for value in require_positive(values, "arm")]
    return _transform(_estimate_by_t(logs, confidence, samples), finite_exp)


def proven_below(overhead: Estimate) -> float | None:
    """The smallest share for which the interval proves a smaller overhead: 0.1 is "proven below 10 %".

    It is the interval's upper end, or 0 if that is below 0, because the claim is only that the guest is not worse.
    None without an interval. With an interval at 95 %, the claim is wrong at most once in 40 times. An interval that
    lies inside a margin proves equivalence; a test that found no difference does not (Schuirmann 1987).
    """
    return None if overhead.high is None else max(0.0, overhead.high)


def _estimate_by_t(values: Sequence[float], confidence: float, samples: Samples) -> Estimate:
    """The mean of the values and Student's t interval (1908) around it, as wide as `samples` makes it."""
    return make_estimate(samples.spread(values), len(values), confidence)


def make_estimate(spread: Spread, n: int, confidence: float) -> Estimate:
    """The mean of `n` samples with its interval. ValueError for an impossible confidence."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    low = high = None
    if spread.has_interval:
        half = spread.half_width(confidence)
        low, high = spread.mean - half, spread.mean + half
    return Estimate(spread.mean, low, high, n, spread.boots)


def _transform(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    point = function(estimate.point)
    if estimate.low is None or estimate.high is None:
        return replace(estimate, point=point)
    # A falling function, such as the loss as a function of the ratio, exchanges the ends.
    low, high = sorted((function(estimate.low), function(estimate.high)))
    return replace(estimate, point=point, low=low, high=high)


def require_finite(values: Iterable[float], whose: str) -> list[float]:
    """The values of any sequence or array as floats. ValueError for no value, or one that is not finite."""
    numbers = [_read_number(value, number, whose) for number, value in enumerate(values)]
    if not numbers:
        raise ValueError("an estimate needs at least one sample")
    return numbers


def require_positive(values: Iterable[float], whose: str) -> list[float]:
    """As `finite`. ValueError also for a value that is not greater than 0."""
    numbers = require_finite(values, whose)
    for number, value in enumerate(numbers):
        if value <= 0:
            raise ValueError(f"{whose} value {number} is {value:g}: a ratio needs values greater than 0")
    return numbers


def _read_number(value: float, number: int, whose: str) -> float:
    # A TypeError for text, which float() would convert to a number. Larger values would overflow in sums and squares.
    if not abs(value) <= _LARGEST_VALUE:
        raise ValueError(
            f"{whose} value {number} is {value}: a measured value must be a finite number of at most 1e150"
        )
    return float(value)


def _pair(
    host: Iterable[float], guest: Iterable[float], checked: Callable[[Iterable[float], str], list[float]]
) -> list[tuple[float, float]]:
    hosts, guests = list(host), list(guest)
    if len(hosts) != len(guests):
        raise ValueError(
            f"each sample needs a pair of values: there are {len(hosts)} values of the host, {len(guests)} of the guest"
        )
    return list(zip(checked(hosts, "host"), checked(guests, "guest"), strict=True))


CONFIDENCE = 0.95
"""The confidence of all intervals of a cell together, for any number of looks at its rounds."""
MARGIN = 0.05
"""The margin within which two values count as equal, if none is stated, as a share."""
PRACTICAL = 1 + MARGIN
"""Values that differ by less than this factor are equal for the choice between them."""


class Relation(StrEnum):
    """What an interval says about a change."""

    SHOWN = "shown"
    """It excludes 1."""
    EQUAL = "equal"
    """It proves that the values differ by less than `PRACTICAL`."""
    UNDECIDED = "undecided"
    UNKNOWN = "no interval"


@dataclass(frozen=True, slots=True)
class Change:
    """A value of one series as a multiple of that of another: 4.1 is 4.1 times as much afterwards."""

    ratio: float
    """The geometric mean afterwards, divided by the one before."""
    low: float | None
    """The interval's lower end; null if a series has one sample."""
    high: float | None
    """The interval's upper end; null as for `low`."""
    p_value: float | None
    """The two-sided p value of "nothing changed"; null without an interval."""
    n_before: int
    """The number of samples before: blocks, or boots if there are several."""
    n_after: int
    """The number of samples afterwards."""
    equal_p_value: float | None = None
    """The p value of "the change is the margin or more", in the direction that is closer; null without an interval."""

    @property
    def excludes_one(self) -> bool:
        """Whether the whole interval lies above or below 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def relation(self) -> Relation:
        """Whether the change is shown, proven to be negligible, or undecided."""
        if self.low is None or self.high is None:
            return Relation.UNKNOWN
        if self.excludes_one:
            return Relation.SHOWN
        return Relation.EQUAL if self.is_within(MARGIN) else Relation.UNDECIDED

    @property
    def share(self) -> Estimate:
        """The change as a share: 0.1 is 10 % more."""
        low, high = (None if end is None else end - 1 for end in (self.low, self.high))
        return Estimate(self.ratio - 1, low, high, min(self.n_before, self.n_after))

    @property
    def inverse(self) -> Change:
        """The first series as a multiple of the second."""
        low, high = (None if end is None else finite_exp(-math.log(end)) for end in (self.high, self.low))
        return replace(self, ratio=1 / self.ratio, low=low, high=high, n_before=self.n_after, n_after=self.n_before)

    def is_within(self, margin: float) -> bool:
        """Whether the whole interval lies within the margin, which is as wide in both directions: 1 / 1.05 to 1.05."""
        return self.low is not None and self.high is not None and 1 / (1 + margin) < self.low <= self.high < 1 + margin


def estimate_change(
    before: Iterable[float],
    after: Iterable[float],
    *,
    confidence: float = 0.95,
    margin: float = MARGIN,
    samples_before: Samples = IN_ORDER,
    samples_after: Samples = IN_ORDER,
) -> Change:
    """The geometric mean of `after`, divided by that of `before`, with its interval.

    The values are of two different runs, so they are not pairs, and there may be more of one than of the other. All are
    in one unit and greater than 0, each series in the order of time. The interval is Welch's (1947) for the difference
    of the means of the logarithms, transformed: the variances may differ, and the degrees of freedom are
    Satterthwaite's (1946). `samples_before` and `samples_after` say of which boots the values are, as for
    `estimate_overhead`. `equal_p_value` is that of the two one-sided tests (Schuirmann 1987) against changes by
    `margin`, a share: 0.05 is 1 / 1.05 to 1.05. ValueError for an empty series, values that are not positive and
    finite, a confidence that is not between 0 and 1, or a margin that is not above 0.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not 0 < margin < math.inf:
        raise ValueError(f"margin must be a share above 0, for example 0.05, not {margin}")
    first = samples_before.spread([math.log(value) for value in require_positive(before, "before")])
    second = samples_after.spread([math.log(value) for value in require_positive(after, "after")])
    log_ratio = second.mean - first.mean
    low = high = p_value = equal_p_value = None
    if first.error is not None and second.error is not None:
        error = Spread(
            log_ratio,
            first.n + second.n,
            _combine_freedom(first, second),
            math.hypot(first.error, second.error),
            max(first.resolution, second.resolution),
        )
        half = error.half_width(confidence)
        low, high = finite_exp(log_ratio - half), finite_exp(log_ratio + half)
        p_value, equal_p_value = error.p_of_zero, error.p_above(math.log1p(margin) - abs(log_ratio))
    return Change(finite_exp(log_ratio), low, high, p_value, first.n, second.n, equal_p_value)


def estimate_paired_change(
    before: Iterable[float], after: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> Change:
    """As `estimate_change`, of pairs: `before[i]` and `after[i]` are of the same block, so its noise cancels.

    The interval is Student's (1908) on the logarithms of the ratios, as wide as `samples` makes it.
    """
    spread = samples.spread(log_ratios(before, after))
    ratio = _transform(make_estimate(spread, spread.n, confidence), finite_exp)
    return Change(ratio.point, ratio.low, ratio.high, spread.p_of_zero, spread.n, spread.n)


def find_shown_changes(changes: Sequence[Change], *, error_rate: float = 0.05) -> list[bool]:
    """Which changes are more than chance, in their order: the interval excludes 1, also as one of many.

    Of the changes that are shown, at most the share `error_rate` is expected to be chance (`benjamini_hochberg`). A
    change without an interval counts as one without evidence.
    """
    rejected = benjamini_hochberg([change.p_value for change in changes], error_rate)
    return [shown and change.excludes_one for shown, change in zip(rejected, changes, strict=True)]


def _combine_freedom(one: Spread, other: Spread) -> float:
    """Satterthwaite's degrees of freedom (1946), from the standard errors of two means."""
    assert one.error is not None
    assert other.error is not None
    most = max(one.error, other.error)
    if most == 0:
        return float(one.freedom + other.freedom)
    first, second = (one.error / most) ** 2, (other.error / most) ** 2
    return (first + second) ** 2 / (first * first / one.freedom + second * second / other.freedom)
