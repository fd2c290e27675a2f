"""Samples, which are blocks or the means of boots, and the error of their mean: Student's t distribution. Pure.

scipy computes it. The first call imports it, because it takes longer to load than the rest of this package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = `p` for `df` degrees of freedom. ValueError unless 0 < p < 1 and df >= 1."""
    from scipy.special import stdtrit  # noqa: PLC0415

    if not 0 < p < 1:
        raise ValueError(f"a quantile needs a probability between 0 and 1, not {p}")
    return float(stdtrit(_check_freedom(df), p))


def t_cdf(t: float, df: float) -> float:
    """P(T <= `t`) for `df` degrees of freedom. ValueError if `t` is not a number, or df < 1."""
    from scipy.special import stdtr  # noqa: PLC0415

    if math.isnan(t):
        raise ValueError("a tail of Student's t needs a number, not nan")
    return float(stdtr(_check_freedom(df), t))


def _check_freedom(df: float) -> float:
    if not 1 <= df < math.inf:
        raise ValueError(f"Student's t needs at least one degree of freedom, not {df}")
    return df


FEWEST_IN_TIME = 6
"""The fewest samples whose order can show anything."""
_ORDERS = 999


@dataclass(frozen=True, slots=True)
class Samples:
    """What is known about the samples of one cell, which are in the order of time."""

    boots: tuple[int, ...] = ()
    """The number of the guest's boot for each sample. Empty: all are of one boot."""
    rounds: int | None = None
    """How many rounds the samples are from, if the plan counts rounds."""
    resolution: float = 0.0
    """How far a value may be off because of the instrument, as a share of it: half a bin of a histogram. It does not
    become smaller with more samples, so an interval is wider by it at each end."""

    def count(self, n: int) -> int:
        """How much the plan has after `n` samples: the number of rounds, or `n`, whichever the plan counts.

        ValueError if `boots` is not for n.
        """
        self._labels(n)
        return n if self.rounds is None else self.rounds

    def spread(self, samples: Sequence[float], scale: float = 1.0) -> Spread:
        """How far the mean of `samples` may be from the truth. ValueError as for `count`.

        `scale` is the value of which `resolution` is a share; 1 for logarithms.
        """
        boots = len(set(self._labels(len(samples))))
        resolution = self.resolution * scale
        return _spread_independent(self.average_boots(samples), resolution, boots=boots if boots > 1 else None)

    def average_boots(self, samples: Sequence[float]) -> list[float]:
        """The means of the boots, or the samples themselves within one boot. ValueError as for `count`."""
        labels = self._labels(len(samples))
        boots = sorted(set(labels))
        if len(boots) == 1:
            return list(samples)
        return [fmean(sample for sample, boot in zip(samples, labels, strict=True) if boot == one) for one in boots]

    def find_change_in_time(self, samples: Sequence[float]) -> float | None:
        """The p value of "the order of the samples does not matter", which is small if neighbours are alike.

        One-sided, from the squared differences of neighbours (von Neumann 1941) in random orders of the same samples:
        no distribution is assumed. Blocks are compared, or the means of boots if there are several. None for fewer than
        six, of which there are too few orders. ValueError as for `count`.
        """
        import numpy as np  # noqa: PLC0415

        values = np.array(self.average_boots(samples))
        if len(values) < FEWEST_IN_TIME:
            return None
        orders = np.random.default_rng(1).permuted(np.tile(values, (_ORDERS, 1)), axis=1)
        observed = float((np.diff(values) ** 2).sum())
        alike = int(((np.diff(orders, axis=1) ** 2).sum(axis=1) <= observed * (1 + 1e-12)).sum())
        return (1 + alike) / (1 + _ORDERS)

    def _labels(self, n: int) -> tuple[int, ...]:
        if self.boots and len(self.boots) != n:
            raise ValueError(f"each sample needs the number of its boot: {n} samples, {len(self.boots)} boots")
        return self.boots or (0,) * n


IN_ORDER = Samples()
"""Samples of one boot in the order of time."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of samples, and its error: Student's t (1908), and the resolution of the instrument."""

    mean: float
    n: int
    """The number of samples: blocks or boots."""
    freedom: float
    """The degrees of freedom; 0 for a single sample."""
    error: float | None
    """The standard error, in the unit of the samples; None if there is no interval."""
    resolution: float = 0.0
    """In the unit of the samples."""
    boots: int | None = None
    """How many boots' means are the samples; None within one boot."""

    @property
    def has_interval(self) -> bool:
        return self.error is not None

    def half_width(self, confidence: float) -> float:
        """Half of the interval's width. Call it only if there is an interval."""
        assert self.error is not None
        if self.error == 0:
            return self.resolution
        return t_quantile((1 + confidence) / 2, self.freedom) * self.error + self.resolution

    def p_above(self, distance: float) -> float:
        """The one-sided p value of a mean that is `distance` above the limit; below 0, it is below the limit.

        1 without an interval. Without any error, it is 0 above the limit and 1 at or below it.
        """
        return self.survival(distance - self.resolution)

    def survival(self, distance: float) -> float:
        """The probability that chance alone puts the mean further than `distance` above the truth."""
        if self.error is None:
            return 1.0
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        return t_cdf(-distance / self.error, self.freedom)

    @property
    def p_of_zero(self) -> float | None:
        """The two-sided p value of "the true mean is 0"; None without an interval."""
        return min(1.0, 2 * self.p_above(abs(self.mean))) if self.has_interval else None


def _spread_independent(samples: Sequence[float], resolution: float, *, boots: int | None) -> Spread:
    n, mean = len(samples), fmean(samples)
    if n == 1:
        return Spread(mean, 1, 0, None, resolution, boots)
    # Samples that differ only by rounding have no spread.
    rounding = 1e-14 * max(map(abs, samples))
    same = all(abs(sample - mean) <= rounding for sample in samples)
    return Spread(mean, n, n - 1, 0.0 if same else stdev(samples) / math.sqrt(n), resolution, boots)
