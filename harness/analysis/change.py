"""One series as a multiple of another: of two runs (Welch's t), or of two arms in the same blocks (paired t)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from harness.analysis.estimate import log_ratios, positive
from harness.analysis.exponential import finite_exp
from harness.analysis.many import benjamini_hochberg
from harness.analysis.samples import IN_ORDER, Caveat, Samples, Spread
from harness.analysis.student import t_mixture_quantile, t_mixture_survival

MARGIN = 0.05
"""The margin within which two values count as equal, if none is stated, as a share."""
PRACTICAL = 1 + MARGIN
"""Values that differ by less than this factor are equal for the choice between them."""

_NEGLIGIBLE = 1e-6
"""A pair of correlations that is less probable is left out."""


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
    """The interval's lower end; null if a series has one sample, or no stable mean (`caveats`)."""
    high: float | None
    """The interval's upper end; null as for `low`."""
    p_value: float | None
    """The two-sided p value of "nothing changed"; null without an interval."""
    n_before: int
    """The number of samples before: blocks, or boots if there are several."""
    n_after: int
    """The number of samples afterwards."""
    caveats: tuple[Caveat, ...] = ()
    """What to know about the interval, or why there is none."""
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
    Satterthwaite's (1946). `samples_before` and `samples_after` say of which boots the values are and how neighbours
    are correlated, as for `estimate_overhead`; where a correlation was estimated, the interval is averaged over its
    probable values. `equal_p_value` is that of the two one-sided tests (Schuirmann 1987) against changes by `margin`, a
    share: 0.05 is 1 / 1.05 to 1.05. ValueError for an empty series, values that are not positive and finite, a
    confidence that is not between 0 and 1, or a margin that is not above 0.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not 0 < margin < math.inf:
        raise ValueError(f"margin must be a share above 0, for example 0.05, not {margin}")
    first = samples_before.spread([math.log(value) for value in positive(before, "before")])
    second = samples_after.spread([math.log(value) for value in positive(after, "after")])
    log_ratio = second.mean - first.mean
    low = high = p_value = equal_p_value = None
    if first.has_interval and second.has_interval:
        error = _Error.of(first, second)
        half = error.half_width(confidence)
        low, high = finite_exp(log_ratio - half), finite_exp(log_ratio + half)
        p_value = error.p_value(log_ratio)
        equal_p_value = error.survival(math.log1p(margin) - abs(log_ratio))
    caveats = tuple(dict.fromkeys(spread.caveat for spread in (first, second) if spread.caveat is not None))
    samples = first.freedom + 1, second.freedom + 1
    return Change(finite_exp(log_ratio), low, high, p_value, *samples, caveats, equal_p_value)


def paired_change(
    before: Iterable[float], after: Iterable[float], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> Change:
    """As `estimate_change`, of pairs: `before[i]` and `after[i]` are of the same block, so its noise cancels.

    The interval is Student's (1908) on the logarithms of the ratios, as wide as `samples` makes it.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    spread = samples.spread(log_ratios(before, after))
    low = high = p_value = None
    if spread.has_interval:
        half = spread.half_width(confidence)
        low, high = finite_exp(spread.mean - half), finite_exp(spread.mean + half)
        p_value = min(1.0, 2 * spread.p_above(abs(spread.mean)))
    n = spread.freedom + 1
    caveats = (spread.caveat,) if spread.caveat is not None else ()
    return Change(finite_exp(spread.mean), low, high, p_value, n, n, caveats)


def changes_shown(changes: Sequence[Change], *, error_rate: float = 0.05) -> list[bool]:
    """Which changes are more than chance, in their order: the interval excludes 1, also as one of many.

    Of the changes that are shown, at most the share `error_rate` is expected to be chance (`benjamini_hochberg`). A
    change without an interval counts as one without evidence.
    """
    rejected = benjamini_hochberg([change.p_value for change in changes], error_rate)
    return [shown and each.excludes_one for shown, each in zip(rejected, changes, strict=True)]


def equal_shown(changes: Sequence[Change], margin: float, *, error_rate: float = 0.05) -> list[bool]:
    """Which values are equal within the margin, in their order: the interval lies within it, also as one of many.

    Of the values that are shown to be equal, at most the share `error_rate` is expected to have changed by the margin
    or more. `margin` must be that of `estimate_change`.
    """
    rejected = benjamini_hochberg([change.equal_p_value for change in changes], error_rate)
    return [shown and each.is_within(margin) for shown, each in zip(rejected, changes, strict=True)]


@dataclass(frozen=True, slots=True)
class _Error:
    """The distribution of the error of a difference of two means: Student's t with one of several scales.

    Scale i has the degrees of freedom i and the probability i. There are several if a correlation was estimated.
    """

    scales: tuple[float, ...]
    freedoms: tuple[float, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, one: Spread, other: Spread) -> _Error:
        pairs = product(zip(one.errors, one.weights, strict=True), zip(other.errors, other.weights, strict=True))
        likely = [(a, b, p * q) for (a, p), (b, q) in pairs if p * q > _NEGLIGIBLE]
        total = math.fsum(weight for _, _, weight in likely)
        return cls(
            tuple(math.hypot(a, b) for a, b, _ in likely),
            tuple(_freedom(a, one.freedom, b, other.freedom) for a, b, _ in likely),
            tuple(weight / total for _, _, weight in likely),
        )

    def p_value(self, distance: float) -> float:
        return min(1.0, 2 * self.survival(abs(distance))) if distance else 1.0

    def survival(self, distance: float) -> float:
        """P(error > distance)."""
        if max(self.scales) == 0:
            return 1.0 if distance <= 0 else 0.0
        if distance < 0:
            return 1.0 - self.survival(-distance)
        return t_mixture_survival(distance, self.freedoms, self.scales, self.weights)

    def half_width(self, confidence: float) -> float:
        if max(self.scales) == 0:
            return 0.0
        return t_mixture_quantile((1 - confidence) / 2, self.freedoms, self.scales, self.weights)


def _freedom(error: float, freedom: int, other_error: float, other_freedom: int) -> float:
    """Satterthwaite's degrees of freedom (1946), from the standard errors of two means."""
    most = max(error, other_error)
    if most == 0:
        return float(freedom + other_freedom)
    one, other = (error / most) ** 2, (other_error / most) ** 2
    return (one + other) ** 2 / (one * one / freedom + other * other / other_freedom)
