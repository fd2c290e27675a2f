"""The correlation of neighbouring samples: how likely each value of it makes the series of a job."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from statistics import fmean
from typing import TypeVar

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
"""From this number of samples on, the interval covers at least 92 % for a correlation up to 0.9."""
DRIFTING_ABOVE = 0.95
"""If the correlation is more probably above this than not, the series has no stable mean."""
MOST_OF_JOB = 40
"""The most degrees of freedom that a job counts for one of its series."""

Block = TypeVar("Block", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Correlation:
    """What series show about the lag-1 correlation of their samples, as a first-order autoregression, AR(1)."""

    log_likelihood: tuple[float, ...]
    """For each value of `correlations()`, up to a constant. Empty: the samples are known to be independent."""
    freedom: float = 0
    """The degrees of freedom of the series. One series has n - 2, because its mean and its spread are not known."""
    longest: int = 0
    """The number of samples of the longest series."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Correlation:
        """What one series shows; as `pooled_correlation` for several."""
        return pooled_correlation([dict(enumerate(samples))])

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

    def within(self, job: Correlation) -> Correlation:
        """What this series and its job show together. The job includes this series.

        The job counts as at most `MOST_OF_JOB` degrees of freedom, so a long series whose correlation differs from
        that of the job's other series is judged by its own.
        """
        if not self.log_likelihood or not job.log_likelihood:
            return job
        share = min(1.0, MOST_OF_JOB / max(job.freedom, 1))
        both = (
            share * theirs + (1 - share) * own
            for own, theirs in zip(self.log_likelihood, job.log_likelihood, strict=True)
        )
        return Correlation(tuple(both), job.freedom, max(self.longest, job.longest))


NO_CORRELATION = Correlation(())
"""Independent samples."""


def pooled_correlation(series: Iterable[Mapping[Block, float]]) -> Correlation:
    """The correlation that the series of a job have in common; each has its own mean and its own spread.

    Each of `series` has the samples of one cell by their block, in the order of time: log ratios, or differences in
    any unit. Series of fewer than three samples, and those without any spread, show nothing. The likelihood of each
    series is that of what does not depend on its mean and spread (marginal likelihood: Levenbach 1972; Tunnicliffe
    Wilson 1989), so many short series are as good as a long one, and a cell with much noise counts as much as a quiet
    one. But series that are alike from block to block repeat each other: the cells of a job share their host's slices.
    So the sum of the log-likelihoods is scaled to what the series show together (composite likelihood: Pauli, Racugno
    & Ventura, Bayesian composite marginal likelihoods, 2011). The scores of two series are correlated by the square of
    the series' own correlation. ValueError for samples that are not finite.
    """
    several = [each for each in series if _shows_something(list(each.values()))]
    if not several:
        return Correlation((0.0,) * POINTS)
    sums = [Sums.of(list(each.values())) for each in several]
    total, longest = sum(each.n - 2 for each in sums), max(each.n for each in sums)
    repeated = math.fsum(2 * _repeated_freedom(one, other) for one, other in combinations(several, 2))
    freedom = max(total**2 / (total + repeated), longest - 2)
    likelihoods = (math.fsum(each.log_likelihood(rho) for each in sums) for rho in correlations())
    return Correlation(tuple(freedom / total * likelihood for likelihood in likelihoods), freedom, longest)


def _shows_something(samples: Sequence[float]) -> bool:
    if not all(map(math.isfinite, samples)):
        raise ValueError("a correlation needs finite samples")
    return len(samples) >= 3 and Sums.of(samples).squares > 0


def _repeated_freedom(one: Mapping[Block, float], other: Mapping[Block, float]) -> float:
    """The degrees of freedom that a series only repeats of another: by the square of their correlation."""
    common = [block for block in one if block in other]
    if len(common) < 3:
        return 0.0
    deviations = [_deviations([series[block] for block in common]) for series in (one, other)]
    squares = math.prod(math.fsum(each * each for each in off) for off in deviations)
    products = math.fsum(a * b for a, b in zip(*deviations, strict=True))
    return (len(common) - 2) * products * products / squares if squares > 0 else 0.0


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
        off = _deviations(samples)
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


def _deviations(samples: Sequence[float]) -> list[float]:
    """From the mean. Samples that differ only by rounding have no spread."""
    mean = fmean(samples)
    off = [sample - mean for sample in samples]
    scale = max(map(abs, samples), default=0.0)
    return [0.0] * len(off) if all(abs(each) <= 1e-14 * scale for each in off) else off


def inflation(rho: float, n: int) -> float:
    """The variance of the mean of `n` samples of an AR(1), as a multiple of that of independent samples.

    It is 1 + 2 sum over k < n of (1 - k / n) rho^k. n divided by it is the effective number of samples (Bayley &
    Hammersley 1946).
    """
    return (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)
