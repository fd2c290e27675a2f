"""What the noise of a device says: the smallest overhead that can be shown, the variance of boots, the best slice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from harness.analysis import CONFIDENCE
from harness.analysis.estimate import finite_expm1
from harness.analysis.samples import t_quantile


def noncentrality(t: float, df: float, power: float) -> float:
    """The noncentrality at which the noncentral t (Owen 1968) exceeds `t` with probability `power`.

    It has `df` degrees of freedom; `power` is above P(T > `t`) of the central t and below 1.
    """
    from scipy.special import nctdtrinc  # noqa: PLC0415

    return float(nctdtrinc(df, 1 - power, t))


def pool_sd(groups: Iterable[Iterable[float]]) -> float:
    """The pooled standard deviation of log ratios within groups: each group has its own mean, all share the spread.

    `groups` are the log ratios of each group's samples; in an A/A calibration, those of a device against itself. The
    result is the root of the summed squares over the summed degrees of freedom. ValueError if no group has two rounds.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        ratios = list(group)
        if ratios:
            mean = fmean(ratios)
            squares += math.fsum((ratio - mean) ** 2 for ratio in ratios)
            freedom += len(ratios) - 1
    if freedom == 0:
        raise ValueError("a standard deviation needs a group of at least two rounds")
    return math.sqrt(squares / freedom)


def smallest_detectable(
    sd_log_ratio: float,
    n: int,
    *,
    confidence: float = 0.95,
    power: float = 0.8,
    higher_is_better: bool = True,
    boots: int = 1,
    sd_of_boots: float = 0.0,
) -> float:
    """The smallest overhead, as a share of the host, that `n` samples in each of `boots` show with probability `power`.

    `sd_log_ratio` is the standard deviation of log(guest/host) between the samples of a boot, see `pool_sd`;
    `sd_of_boots` that of the true means of boots, see `estimate_boot_variance`. With several boots, the samples are
    their means. With one, the result is about this boot, and `sd_of_boots` does not matter. Samples show an overhead if
    the interval of `confidence` lies above 0, that is, if Student's t is beyond its critical value. Under a true
    overhead, t has the noncentral t distribution (Owen 1968). An overhead is 1 - guest/host if higher is better, else
    guest/host - 1. ValueError unless n >= 2 or boots >= 2, n >= 1, sd >= 0, 0 < confidence < 1 and (1 - confidence) / 2
    < power < 1.
    """
    if n < 1 or boots < 1 or (n < 2 and boots < 2):
        raise ValueError(f"one sample has no interval: use two samples or more, not {n} in {boots} boots")
    for sd in (sd_log_ratio, sd_of_boots):
        if not 0 <= sd < math.inf:
            raise ValueError(f"a standard deviation must be a finite number of at least 0, not {sd}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a share between 0 and 1, for example 0.95, not {confidence}")
    if not (1 - confidence) / 2 < power < 1:
        raise ValueError(
            f"power must be a share above {(1 - confidence) / 2:g} and below 1, for example 0.8, not {power}"
        )
    variance = sd_log_ratio**2 / n
    freedom = n - 1
    if boots > 1:
        variance, freedom = (variance + sd_of_boots**2) / boots, boots - 1
    critical = t_quantile((1 + confidence) / 2, freedom)
    change = noncentrality(critical, freedom, power) * math.sqrt(variance)
    return -finite_expm1(-change) if higher_is_better else finite_expm1(change)


@dataclass(frozen=True, slots=True)
class BootVariance:
    """The variance of log ratios, divided into that of boots and that of blocks within a boot."""

    between: float
    """The variance of the boots' true means. 0 if they differ no more than their blocks explain."""
    within: float
    """The variance of blocks within a boot."""
    low: float
    """The lower end of the interval of `share`."""
    high: float
    """Its upper end."""
    boots: int

    @property
    def share(self) -> float:
        """The boots' share of the total variance, the intraclass correlation: 0 to 1."""
        total = self.between + self.within
        return self.between / total if total > 0 else 0.0


def estimate_boot_variance(ratios: Iterable[Sequence[float]]) -> BootVariance:
    """How much boots differ, from the log ratios of each boot's blocks.

    The components are those of the analysis of variance with random effects (Searle, Casella & McCulloch, Variance
    Components, 1992), also for boots with different numbers of blocks. The interval of the share is the exact one
    of the F distribution (the same book), with the mean size for boots of different sizes. It is for blocks
    that are independent within a boot; correlated blocks look like a variance of boots. ValueError for fewer than two
    boots with blocks, no boot with two blocks, or values that are not finite.
    """
    from scipy.special import fdtri  # noqa: PLC0415

    groups = [list(group) for group in ratios if len(group)]
    if not all(math.isfinite(ratio) for group in groups for ratio in group):
        raise ValueError("log ratios must be finite")
    count, boots = sum(map(len, groups)), len(groups)
    if boots < 2:
        raise ValueError(f"the variance of boots needs at least two boots, not {boots}")
    if count == boots:
        raise ValueError("the variance of boots needs a boot with at least two blocks")
    mean = fmean(ratio for group in groups for ratio in group)
    means = [fmean(group) for group in groups]
    between_squares = math.fsum(len(group) * (of - mean) ** 2 for group, of in zip(groups, means, strict=True))
    within_squares = math.fsum((ratio - of) ** 2 for group, of in zip(groups, means, strict=True) for ratio in group)
    among, inside = between_squares / (boots - 1), within_squares / (count - boots)
    size = (count - sum(len(group) ** 2 for group in groups) / count) / (boots - 1)
    if inside == 0:
        share = 1.0 if among > 0 else 0.0
        return BootVariance(among / size, 0.0, share, share, boots)

    def share_at(quantile: float) -> float:
        ratio = among / inside / float(fdtri(boots - 1, count - boots, quantile))
        return min(max((ratio - 1) / (size + ratio - 1), 0.0), 1.0)

    tail = (1 - CONFIDENCE) / 2
    return BootVariance(max((among - inside) / size, 0.0), inside, share_at(1 - tail), share_at(tail), boots)


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


def choose_slice(gap: float, within: float, between: float) -> float:
    """The length of a slice, in seconds, that gives the narrowest interval in a given time.

    A slice of S seconds costs S + `gap` seconds and has the variance `between` + `within` / S, see
    `estimate_variance_components`. In a given time, the variance of the mean is proportional to the product, which is
    smallest at S = sqrt(gap * within / between) (Kalibera & Jones, Rigorous benchmarking in reasonable time, ISMM 2013:
    the number of repetitions of a level from its cost and variances). The result is kept between SHORTEST_S and
    LONGEST_S, which it is if nothing is gained by more slices (`between` is 0). ValueError for values that are negative
    or not finite.
    """
    for value in (gap, within, between):
        if not 0 <= value < math.inf:
            raise ValueError(f"a gap and variances must be finite numbers of at least 0, not {value}")
    if between == 0:
        return LONGEST_S if within > 0 else SHORTEST_S
    return min(max(math.sqrt(gap * within / between), SHORTEST_S), LONGEST_S)


def estimate_variance_components(log_values: Sequence[float], seconds: float) -> SliceVariance:
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
    return _fit_variances(points)


def _fit_variances(points: Sequence[tuple[float, float, int]]) -> SliceVariance:
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
            squares = math.fsum(w * x * x for w, (x, _, _) in zip(weights, points, strict=True))
            slice_variance = SliceVariance(proportional / squares, 0.0)
        else:
            slice_variance = SliceVariance(within, y_mean - within * x_mean)
        fitted = [slice_variance.between + slice_variance.within * x for x, _, _ in points]
    return slice_variance
