"""Samples and their spread: which boots they are of, how neighbours are correlated, and batches of blocks. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import accumulate, combinations, groupby, pairwise
from statistics import fmean, stdev
from typing import TypeVar

from harness.analysis.student import t_cdf, t_mixture_quantile, t_mixture_survival, t_quantile

Ios = Sequence[Sequence[int]]
"""The number of I/Os by arm, and by block in the order of time."""


def batches(ios: Ios, fewest: int, boots: Sequence[int] = ()) -> list[range]:
    """The numbers of the blocks of each batch, from 0 on. In each, every arm completed at least `fewest` I/Os.

    A batch has blocks that follow each other, and every block is in one batch. There are as many batches as possible
    whose numbers of blocks differ by at most one, so a slow block weighs as much as a fast one (batch means: Schmeiser,
    Batch size effects in the analysis of simulation output, 1982). `boots` has the boot of each block; empty: all are
    of one. A batch has blocks of one boot, unless a boot has too few I/Os for one batch. Then each batch has
    whole boots. Empty if all blocks together have too few I/Os. ValueError if the arms or the boots are not for the
    same blocks, without an arm, or for `fewest` below 1.
    """
    blocks = len(ios[0]) if ios else 0
    if not ios or any(len(io) != blocks for io in (*ios, *([boots] if boots else []))):
        raise ValueError(
            "batches need the I/Os of at least one arm, and as many numbers of each arm as there are boots"
        )
    if fewest < 1:
        raise ValueError(f"a percentile needs at least one I/O, not {fewest}")
    ends = [0, *accumulate(len(list(of_boot)) for _, of_boot in groupby(boots or (0,) * blocks))]
    in_boots = [_divide_evenly(ios, range(first, end), fewest) for first, end in pairwise(ends)]
    if all(in_boots):
        return [batch for ranges in in_boots for batch in ranges]
    of_boots = [[sum(arm[first:end]) for first, end in pairwise(ends)] for arm in ios]
    whole_boots = _divide_evenly(of_boots, range(len(ends) - 1), fewest)
    return [range(ends[batch.start], ends[batch.stop]) for batch in whole_boots]


def first_blocks(sizes: Sequence[int]) -> list[int]:
    """The number of the first block of each batch, from the numbers of blocks in the batches."""
    return [0, *accumulate(sizes[:-1])] if sizes else []


def fewest_rounds(ios_of_block: float, fewest: int, blocks: int, *, reboot: bool) -> int | None:
    """After how many rounds a percentile has two samples, the fewest that give an interval.

    `ios_of_block` is the mean number of I/Os in a block of the slowest arm, `fewest` how many a sample needs, and
    `blocks` the number of blocks in a round. With `reboot`, the samples are boots, and each round is a boot. None if
    the arm completes no I/O.
    """
    if ios_of_block <= 0:
        return None
    of_sample = math.ceil(fewest / ios_of_block)
    return 2 * math.ceil(of_sample / blocks) if reboot else math.ceil(2 * of_sample / blocks)


def _divide_evenly(ios: Ios, blocks: range, fewest: int) -> list[range]:
    """The most batches of these blocks that have enough I/Os, and numbers of blocks that differ by at most one."""
    reached = [[0, *accumulate(arm[blocks.start : blocks.stop])] for arm in ios]
    number = min(len(blocks), *(arm[-1] // fewest for arm in reached))
    while number:
        ends = [len(blocks) * index // number for index in range(number + 1)]
        if all(arm[end] - arm[first] >= fewest for arm in reached for first, end in pairwise(ends)):
            return [blocks[first:end] for first, end in pairwise(ends)]
        number -= 1
    return []


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
        return pool_correlations([dict(enumerate(samples))])

    @property
    def weights(self) -> tuple[float, ...]:
        """The probability of each value of `correlations()`; the sum is 1. Empty if the samples are independent.

        The prior is flat in arcsin(correlation), which is Jeffreys' (Berger & Yang 1994), times `ODDS_OF_POSITIVE`.
        """
        if not self.log_likelihood:
            return ()
        most = max(self.log_likelihood)
        odds = ODDS_IF_SHORT if self.longest < SHORT else ODDS_OF_POSITIVE
        likelihood = (math.exp(logarithm - most) for logarithm in self.log_likelihood)
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
            share * theirs + (1 - share) * ours
            for ours, theirs in zip(self.log_likelihood, job.log_likelihood, strict=True)
        )
        return Correlation(tuple(both), job.freedom, max(self.longest, job.longest))


NO_CORRELATION = Correlation(())
"""Independent samples."""


def pool_correlations(series: Iterable[Mapping[Block, float]]) -> Correlation:
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
    several = [of_cell for of_cell in series if _shows_something(list(of_cell.values()))]
    if not several:
        return Correlation((0.0,) * POINTS)
    sums = [Sums.of(list(of_cell.values())) for of_cell in several]
    total, longest = sum(sum_.n - 2 for sum_ in sums), max(sum_.n for sum_ in sums)
    repeated = math.fsum(2 * _count_repeated_freedom(one, other) for one, other in combinations(several, 2))
    freedom = max(total**2 / (total + repeated), longest - 2)
    likelihoods = (math.fsum(sum_.log_likelihood(rho) for sum_ in sums) for rho in correlations())
    return Correlation(tuple(freedom / total * likelihood for likelihood in likelihoods), freedom, longest)


def _shows_something(samples: Sequence[float]) -> bool:
    if not all(map(math.isfinite, samples)):
        raise ValueError("a correlation needs finite samples")
    return len(samples) >= 3 and Sums.of(samples).squares > 0


def _count_repeated_freedom(one: Mapping[Block, float], other: Mapping[Block, float]) -> float:
    """The degrees of freedom that a series only repeats of another: by the square of their correlation."""
    common = [block for block in one if block in other]
    if len(common) < 3:
        return 0.0
    deviations = [_compute_deviations([series[block] for block in common]) for series in (one, other)]
    squares = math.prod(math.fsum(deviation * deviation for deviation in off) for off in deviations)
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
        off = _compute_deviations(samples)
        return cls(
            n=len(off),
            squares=math.fsum(deviation * deviation for deviation in off),
            inner_squares=math.fsum(deviation * deviation for deviation in off[1:-1]),
            products=math.fsum(one * other for one, other in pairwise(off)),
            ends=off[0] + off[-1],
        )

    def residual(self, rho: float) -> float:
        """The squares of the innovations around the generalised least-squares mean, n - 1 degrees of freedom."""
        weight = (1 - rho) * (self.n - (self.n - 2) * rho)
        # The inner deviations sum to minus the ends, because all sum to 0.
        shift = (1 - rho) * rho * self.ends
        squares = self.squares + rho * rho * self.inner_squares - 2 * rho * self.products - shift * shift / weight
        return max(squares, 1e-12 * self.squares)

    def log_likelihood(self, rho: float) -> float:
        """The marginal likelihood's logarithm: of the series apart from its mean and its spread."""
        weight = (1 - rho) * (self.n - (self.n - 2) * rho)
        return math.log1p(-rho * rho) / 2 - math.log(weight) / 2 - (self.n - 1) / 2 * math.log(self.residual(rho))

    def error(self, rho: float) -> float:
        """The standard error of the mean if this is the correlation."""
        return math.sqrt(self.residual(rho) / ((self.n - 1) * (1 - rho * rho)) * inflation(rho, self.n) / self.n)


def _compute_deviations(samples: Sequence[float]) -> list[float]:
    """From the mean. Samples that differ only by rounding have no spread."""
    mean = fmean(samples)
    off = [sample - mean for sample in samples]
    scale = max(map(abs, samples), default=0.0)
    return [0.0] * len(off) if all(abs(deviation) <= 1e-14 * scale for deviation in off) else off


def inflation(rho: float, n: int) -> float:
    """The variance of the mean of `n` samples of an AR(1), as a multiple of that of independent samples.

    It is 1 + 2 sum over k < n of (1 - k / n) rho^k. n divided by it is the effective number of samples (Bayley &
    Hammersley 1946).
    """
    return (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)


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
            means = [
                fmean(sample for sample, boot in zip(samples, labels, strict=True) if boot == one) for one in boots
            ]
            return _spread_independent(means, boots=len(boots))
        return _spread_in_one_boot(samples, self.correlation)

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


def _spread_independent(samples: Sequence[float], *, boots: int | None = None, caveat: Caveat | None = None) -> Spread:
    """Student's t (1908)."""
    n = len(samples)
    mean = fmean(samples)
    if n == 1:
        return Spread(mean, 0)
    return Spread(mean, n - 1, (stdev(samples) / math.sqrt(n),), boots=boots, caveat=caveat)


def _spread_in_one_boot(samples: Sequence[float], job: Correlation | None) -> Spread:
    """Student's t of an AR(1), averaged over its correlation (Zellner & Tiao 1964)."""
    n = len(samples)
    known = job is not None and not job.log_likelihood
    if n == 1 or known:
        return _spread_independent(samples)
    correlation, caveat = _estimate_correlation(samples, job)
    sums = Sums.of(samples)
    if correlation is None or sums.squares == 0:
        return _spread_independent(samples, caveat=caveat)
    value = correlation.value
    mean, effective = fmean(samples), n / inflation(value, n)
    if correlation.drifts:
        return Spread(mean, n - 1, effective_n=effective, correlation=value, caveat=Caveat.DRIFTING)
    likely = [
        (rho, weight) for rho, weight in zip(correlations(), correlation.weights, strict=True) if weight > NEGLIGIBLE
    ]
    errors = tuple(sums.error(rho) for rho, _ in likely)
    return Spread(mean, n - 1, errors, tuple(weight for _, weight in likely), effective, value, caveat=caveat)


def _estimate_correlation(
    samples: Sequence[float], job: Correlation | None
) -> tuple[Correlation | None, Caveat | None]:
    """What the series and its job show. None if there are too few samples to show anything."""
    if job is None and len(samples) - 2 < LEAST_FREEDOM:
        return None, Caveat.NOT_ESTIMATED
    of_series = Correlation.of(samples)
    correlation = of_series if job is None else of_series.within(job)
    if correlation.freedom < LEAST_FREEDOM:
        return None, Caveat.NOT_ESTIMATED
    # The cells of a job share their host, so more of them do not replace longer series.
    return correlation, Caveat.ROUGH if correlation.longest < SHORT else None
