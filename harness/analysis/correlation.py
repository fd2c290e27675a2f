"""The correlation of neighbouring samples: how likely each value of it makes the series of a group."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import fmean

STRONGEST = 0.995
"""Correlations from -0.995 to 0.995 are considered. Beyond that, a series of this length has no mean to estimate."""
POINTS = 61
"""How many values are considered: equally spaced in arcsin(correlation), so closer together near -1 and 1."""
ODDS_OF_POSITIVE = 0.4
"""The prior odds of a positive correlation to one that is not. Blocks of a job are spread over the run, so that they
are nearly independent. Both values are from simulation: with larger ones, the interval of a series alone would cover
independent samples in more than 97 % of cases, see docs/statistics.md."""
ODDS_IF_SHORT = 0.22
"""The same for series that are all shorter than `SHORT`."""
SHORT = 10
DRIFTING_ABOVE = 0.95
"""If the correlation is more probably above this than not, the series has no stable mean."""
MOST_OF_GROUP = 40
"""The most degrees of freedom that a group counts for one of its series."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """What series show about the lag-1 correlation of their samples, as a first-order autoregression, AR(1)."""

    log_likelihood: tuple[float, ...]
    """For each value of `correlations()`, up to a constant. Empty: the samples are known to be independent."""
    freedom: int = 0
    """The degrees of freedom of the series: the sum of n - 2, because the mean and the spread of each are not known."""
    longest: int = 0
    """The number of samples of the longest series."""

    @property
    def weights(self) -> tuple[float, ...]:
        """The probability of each value of `correlations()`; the sum is 1. Empty if the samples are independent.

        The prior is flat in arcsin(correlation), which is Jeffreys' (Berger & Yang 1994), times `ODDS_OF_POSITIVE`.
        """
        if not self.log_likelihood:
            return ()
        most = max(self.log_likelihood)
        odds = ODDS_IF_SHORT if self.longest < SHORT else ODDS_OF_POSITIVE
        likelihood = (math.exp(each - most) for each in self.log_likelihood)
        heavy = [w * (odds if rho > 0 else 1.0) for w, rho in zip(likelihood, correlations(), strict=True)]
        total = math.fsum(heavy)
        return tuple(w / total for w in heavy)

    @property
    def value(self) -> float:
        """The mean of the correlation over its probabilities: 0 if the samples are independent."""
        return math.fsum(w * rho for w, rho in zip(self.weights, correlations(), strict=False))

    @property
    def drifts(self) -> bool:
        """Whether the correlation is more probably above `DRIFTING_ABOVE` than not."""
        return math.fsum(w for w, rho in zip(self.weights, correlations(), strict=False) if rho > DRIFTING_ABOVE) > 0.5

    def within(self, group: Correlation) -> Correlation:
        """What this series and its group show together. The group includes this series.

        The group counts as at most `MOST_OF_GROUP` degrees of freedom, so a long series whose correlation differs from
        the group's is judged by its own.
        """
        if not self.log_likelihood or not group.log_likelihood:
            return group
        share = min(1.0, MOST_OF_GROUP / max(group.freedom, 1))
        both = (
            share * theirs + (1 - share) * own
            for own, theirs in zip(self.log_likelihood, group.log_likelihood, strict=True)
        )
        return Correlation(tuple(both), group.freedom, max(self.longest, group.longest))


NO_CORRELATION = Correlation(())
"""Independent samples."""


def pooled_correlation(series: Iterable[Sequence[float]]) -> Correlation:
    """The correlation that the series of a group have in common; each has its own mean and its own spread.

    Each of `series` has the samples of one cell in the order of time: log ratios, or differences in any unit. Series
    of fewer than three samples, and those without any spread, show nothing. The likelihood of each series is that of
    what does not depend on its mean and spread (marginal likelihood: Levenbach 1972; Tunnicliffe Wilson 1989), so
    many short series are as good as a long one, and a cell with much noise counts as much as a quiet one. ValueError
    for samples that are not finite.
    """
    total, freedom, longest = [0.0] * POINTS, 0, 0
    for samples in series:
        if not all(map(math.isfinite, samples)):
            raise ValueError("a correlation needs finite samples")
        sums = Sums.of(samples)
        if sums.n < 3 or sums.squares <= 0:
            continue
        freedom += sums.n - 2
        longest = max(longest, sums.n)
        for index, rho in enumerate(correlations()):
            total[index] += sums.log_likelihood(rho)
    return Correlation(tuple(total), freedom, longest)


@cache
def correlations() -> tuple[float, ...]:
    """The values of the correlation that are considered."""
    most = math.asin(STRONGEST)
    return tuple(math.sin(most * (2 * index / (POINTS - 1) - 1)) for index in range(POINTS))


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of a series' deviations from its mean that an AR(1) with any correlation needs."""

    n: int
    squares: float
    """Of all deviations."""
    inner_squares: float
    """Of all but the first and the last."""
    products: float
    """Of neighbours."""
    ends: float
    """The first and the last deviation."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Sums:
        mean = fmean(samples)
        # Samples that differ only by rounding have no spread.
        off = [each - mean for each in samples]
        scale = max(map(abs, samples), default=0.0)
        if all(abs(each) <= 1e-14 * scale for each in off):
            off = [0.0] * len(off)
        return cls(
            n=len(off),
            squares=math.fsum(each * each for each in off),
            inner_squares=math.fsum(each * each for each in off[1:-1]),
            products=math.fsum(one * other for one, other in pairwise(off)),
            ends=off[0] + off[-1],
        )

    def residual(self, rho: float) -> float:
        """The squares of the innovations around the generalised least-squares mean, n - 1 degrees of freedom."""
        weight = (1 - rho) * (self.n - (self.n - 2) * rho)
        # The inner deviations sum to minus the ends, because all sum to 0.
        shift = (1 - rho) * rho * self.ends
        found = self.squares + rho * rho * self.inner_squares - 2 * rho * self.products - shift * shift / weight
        return max(found, 1e-12 * self.squares)

    def log_likelihood(self, rho: float) -> float:
        """The marginal likelihood's logarithm: of the series apart from its mean and its spread."""
        weight = (1 - rho) * (self.n - (self.n - 2) * rho)
        return math.log1p(-rho * rho) / 2 - math.log(weight) / 2 - (self.n - 1) / 2 * math.log(self.residual(rho))

    def error(self, rho: float) -> float:
        """The standard error of the mean if this is the correlation."""
        return math.sqrt(self.residual(rho) / ((self.n - 1) * (1 - rho * rho)) * inflation(rho, self.n) / self.n)


def inflation(rho: float, n: int) -> float:
    """The variance of the mean of `n` samples of an AR(1), as a multiple of that of independent samples.

    It is 1 + 2 sum over k < n of (1 - k / n) rho^k. n divided by it is the effective number of samples (Bayley &
    Hammersley 1946).
    """
    return (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)
