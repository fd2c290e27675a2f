"""How the samples of an estimate hang together: their order, their correlation and the boots of the guest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, stdev

from harness.analysis.batches import first_blocks
from harness.analysis.correlation import (
    NO_CORRELATION,
    SHORT,
    Correlation,
    Sums,
    correlations,
    inflation,
)
from harness.analysis.student import t_cdf, t_mixture_quantile, t_mixture_survival, t_quantile

LEAST_FREEDOM = 4
"""The fewest degrees of freedom for an estimate of the correlation: those of a series of 6 samples."""
NEGLIGIBLE = 1e-9
"""A correlation that is less probable is left out."""


class Caveat(StrEnum):
    """What the reader of an interval, or of a missing interval, should know."""

    NOT_ESTIMATED = "correlation not estimated"
    """Too few samples: they are treated as independent."""
    ROUGH = "correlation estimated from few samples"
    """The interval covers less than stated if neighbours are correlated by more than 0.7."""
    DRIFTING = "samples drift: no stable mean"
    """Neighbours are correlated so strongly that there is no interval."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What is known about the samples of one cell, which are in the order of time."""

    boots: tuple[int, ...] = ()
    """The number of the guest's boot for each sample. Empty: all are of one boot."""
    correlation: Correlation | None = None
    """Of the samples of the cell's job, see `pooled_correlation`. None: estimated from the samples themselves."""
    by_boot: bool = False
    """Whether the plan counts boots. Otherwise it counts samples."""
    rounds: int | None = None
    """How many rounds the samples are from, if the plan counts rounds."""

    def count(self, n: int) -> int:
        """How much the plan has after `n` samples: the number of rounds or boots, or `n`, whichever the plan counts.

        ValueError if `boots` is not for n.
        """
        labels = self._labels(n)
        if self.rounds is not None:
            return self.rounds
        return len(set(labels)) if self.by_boot else n

    def spread(self, samples: Sequence[float]) -> Spread:
        """How far the mean of `samples` may be from the truth. ValueError as for `count`."""
        labels = self._labels(len(samples))
        boots = sorted(set(labels))
        if len(boots) > 1:
            means = [fmean(each for each, boot in zip(samples, labels, strict=True) if boot == one) for one in boots]
            return _independent(means, boots=len(boots))
        return _in_one_boot(samples, self.correlation)

    def in_batches(self, sizes: Sequence[int]) -> Samples:
        """The same for batches of these numbers of successive samples; empty: every sample is by itself.

        The correlation of batches is not that of their samples, so it is estimated from the batches.
        """
        if not sizes:
            return self
        boots = tuple(self.boots[first] for first in first_blocks(sizes)) if self.boots else ()
        return replace(self, boots=boots, correlation=None)

    def _labels(self, n: int) -> tuple[int, ...]:
        if self.boots and len(self.boots) != n:
            raise ValueError(f"each sample needs the number of its boot: {n} samples, {len(self.boots)} boots")
        return self.boots or (0,) * n


IN_ORDER = Samples()
"""Samples of one boot in the order of time, whose correlation is estimated from them where there are enough."""
INDEPENDENT = Samples(correlation=NO_CORRELATION)
"""Samples of one boot that are independent of each other."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of samples, and the distribution of its error: Student's t, or a mixture with several scales."""

    mean: float
    freedom: int
    """Of Student's t; 0 for a single sample."""
    errors: tuple[float, ...] = ()
    """The standard error for each possible correlation, in the unit of the samples. Empty: there is no interval."""
    weights: tuple[float, ...] = (1.0,)
    """The probability of each of `errors`."""
    effective_n: float | None = None
    """How many independent samples would give a mean that is as precise; None if the correlation does not matter."""
    correlation: float | None = None
    """Of neighbours; None if it was not estimated."""
    boots: int | None = None
    """How many boots' means are the samples; None within one boot."""
    caveat: Caveat | None = None

    @property
    def has_interval(self) -> bool:
        return bool(self.errors)

    def half_width(self, confidence: float) -> float:
        """Half of the interval's width. Call it only if there is an interval."""
        tail = (1 - confidence) / 2
        if len(self.errors) == 1:
            return t_quantile(1 - tail, self.freedom) * self.errors[0]
        return t_mixture_quantile(tail, self.freedom, self.errors, self.weights)

    def p_above(self, distance: float) -> float:
        """The one-sided p value of a mean that is `distance` above the limit; below 0, it is below the limit.

        1 without an interval. Without any error, it is 0 above the limit and 1 at or below it.
        """
        if not self.errors:
            return 1.0
        if max(self.errors) == 0:
            return 0.0 if distance > 0 else 1.0
        if len(self.errors) == 1:
            return t_cdf(-distance / self.errors[0], self.freedom)
        return t_mixture_survival(distance, self.freedom, self.errors, self.weights)


def _independent(samples: Sequence[float], *, boots: int | None = None, caveat: Caveat | None = None) -> Spread:
    """Student's t (1908)."""
    n = len(samples)
    mean = fmean(samples)
    if n == 1:
        return Spread(mean, 0)
    return Spread(mean, n - 1, (stdev(samples) / math.sqrt(n),), boots=boots, caveat=caveat)


def _in_one_boot(samples: Sequence[float], job: Correlation | None) -> Spread:
    """Student's t of an AR(1), averaged over its correlation (Zellner & Tiao 1964)."""
    n = len(samples)
    known = job is not None and not job.log_likelihood
    if n == 1 or known:
        return _independent(samples)
    found, caveat = _correlation(samples, job)
    sums = Sums.of(samples)
    if found is None or sums.squares == 0:
        return _independent(samples, caveat=caveat)
    value = found.value
    mean, effective = fmean(samples), n / inflation(value, n)
    if found.drifts:
        return Spread(mean, n - 1, effective_n=effective, correlation=value, caveat=Caveat.DRIFTING)
    likely = [(rho, weight) for rho, weight in zip(correlations(), found.weights, strict=True) if weight > NEGLIGIBLE]
    errors = tuple(sums.error(rho) for rho, _ in likely)
    return Spread(mean, n - 1, errors, tuple(weight for _, weight in likely), effective, value, caveat=caveat)


def _correlation(samples: Sequence[float], job: Correlation | None) -> tuple[Correlation | None, Caveat | None]:
    """What the series and its job show. None if there are too few samples to show anything."""
    if job is None and len(samples) - 2 < LEAST_FREEDOM:
        return None, Caveat.NOT_ESTIMATED
    own = Correlation.of(samples)
    found = own if job is None else own.within(job)
    if found.freedom < LEAST_FREEDOM:
        return None, Caveat.NOT_ESTIMATED
    # The cells of a job share their host, so more of them do not replace longer series.
    return found, Caveat.ROUGH if found.longest < SHORT else None
