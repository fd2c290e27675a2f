"""How long a slice should be: from the cost of a gap and the noise within and between slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

SHORTEST_S = 0.2
LONGEST_S = 3.0
LEAST_MEANS = 8
"""A variance needs at least so many means of neighbours."""


@dataclass(frozen=True, slots=True)
class SliceVariance:
    """The variance of a slice's log value against its neighbour's: `between + within / seconds`."""

    within: float
    """The part that a longer slice reduces, in seconds: the variance of a slice of 1 s."""
    between: float
    """The part that stays, however long the slice is."""

    def of(self, seconds: float) -> float:
        """The variance of one slice of this length."""
        return self.between + self.within / seconds


def best_slice(
    gap: float, within: float, between: float, *, shortest: float = SHORTEST_S, longest: float = LONGEST_S
) -> float:
    """The length of a slice, in seconds, that gives the narrowest interval in a given time.

    A slice of S seconds costs S + `gap` seconds and has the variance `between` + `within` / S, see
    `variance_components`. In a given time, the variance of the mean is proportional to the product, which is smallest
    at S = sqrt(gap * within / between) (Kalibera & Jones, Rigorous benchmarking in reasonable time, ISMM 2013: the
    number of repetitions of a level from its cost and variances). The result is kept between `shortest` and
    `longest`; it is `longest` if nothing is gained by more slices (`between` is 0). ValueError for values that are
    negative or not finite, and for limits that are not 0 < shortest <= longest.
    """
    for value in (gap, within, between):
        if not 0 <= value < math.inf:
            raise ValueError(f"a gap and variances must be finite numbers of at least 0, not {value}")
    if not 0 < shortest <= longest < math.inf:
        raise ValueError(f"the limits of a slice must be 0 < shortest <= longest, not {shortest} and {longest}")
    if between == 0:
        return longest if within > 0 else shortest
    return min(max(math.sqrt(gap * within / between), shortest), longest)


def error_in_time(gap: float, variance: SliceVariance, seconds: float) -> float:
    """The standard error of the mean log value after 1 s of measuring, in slices of this length with these gaps.

    With slices of another length, an interval is wider in proportion to it. `gap` and `seconds` are in seconds.
    """
    return math.sqrt((seconds + gap) * variance.of(seconds))


def variance_components(log_values: Sequence[float], seconds: float) -> SliceVariance:
    """The variance of a slice, from a series of equally long slices of one job on one arm, in the order of time.

    `log_values` are their logarithms; each slice has `seconds`. The variance of the means of 1, 2, 4, 8 ... neighbours
    is that of longer slices. It is measured between successive means (Allan variance: Allan, Statistics of atomic
    frequency standards, 1966), because the arms of a block are compared with their neighbours in time, and slow changes
    cancel. `between + within / length` is fitted by least squares, weighted by the precision of each variance, with
    both parts at least 0. ValueError for fewer than 16 slices (8 pairs), values that are not finite, or a length that
    is not above 0.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"the length of a slice must be above 0 s, not {seconds}")
    if not all(map(math.isfinite, log_values)):
        raise ValueError("the variance of slices needs the finite logarithms of their values")
    if len(log_values) < 2 * LEAST_MEANS:
        raise ValueError(f"variances need at least {2 * LEAST_MEANS} slices, not {len(log_values)}")
    points = []
    count = 1
    while len(log_values) // count >= LEAST_MEANS:
        means = [fmean(log_values[at : at + count]) for at in range(0, len(log_values) - count + 1, count)]
        variance = fmean((one - other) ** 2 for one, other in pairwise(means)) / 2
        points.append((1 / (count * seconds), variance, len(means) - 1))
        count *= 2
    return _fitted(points)


def _fitted(points: Sequence[tuple[float, float, int]]) -> SliceVariance:
    """Least squares of variance on 1 / length; the weight of a variance is its freedom over its fitted square."""
    if max(variance for _, variance, _ in points) == 0:
        return SliceVariance(0.0, 0.0)
    fitted = [variance for _, variance, _ in points]
    slice_variance = SliceVariance(0.0, 0.0)
    for _ in range(5):
        floor = 1e-9 * max(fitted)
        weights = [freedom / max(value, floor) ** 2 for (_, _, freedom), value in zip(points, fitted, strict=True)]
        total = math.fsum(weights)
        x_mean = math.fsum(w * x for w, (x, _, _) in zip(weights, points, strict=True)) / total
        y_mean = math.fsum(w * y for w, (_, y, _) in zip(weights, points, strict=True)) / total
        x_squares = math.fsum(w * (x - x_mean) ** 2 for w, (x, _, _) in zip(weights, points, strict=True))
        products = math.fsum(w * (x - x_mean) * (y - y_mean) for w, (x, y, _) in zip(weights, points, strict=True))
        within = products / x_squares
        if within <= 0:
            slice_variance = SliceVariance(0.0, y_mean)
        elif y_mean - within * x_mean <= 0:
            proportional = math.fsum(w * x * y for w, (x, y, _) in zip(weights, points, strict=True))
            slice_variance = SliceVariance(
                proportional / math.fsum(w * x * x for w, (x, _, _) in zip(weights, points, strict=True)), 0.0
            )
        else:
            slice_variance = SliceVariance(within, y_mean - within * x_mean)
        fitted = [slice_variance.between + slice_variance.within * x for x, _, _ in points]
    return slice_variance
