"""One value for each arm and block: adjusted for the environment, or of a percentile of all blocks together. Pure.

The environment of a disk (other load, a clock, a cache of the host) changes slowly, so the slices of a block share a
part of it. Generalised least squares weigh the slices of a block by their times, and so tell what an arm does from what
its moment did. A percentile needs more I/Os than a block has, so it is one of all blocks together.

Both are estimates from all blocks. The value of a block says what this block contributes to the estimate, which is the
mean of these values. Student's t on them, or on the differences between the values of two arms, is an interval that
does not trust the model behind the estimate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from harness.analysis.histogram import FINEST, find_bin
from harness.analysis.samples import t_quantile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Numbers = npt.NDArray[np.int64]

Rows = Sequence[Sequence[float]]
"""A row for each block, with a figure for each arm."""

FEWEST_BLOCKS = 4
FEWEST_ARMS = 3
_TAUS = (0.0, 0.15, 0.3, 0.6, 1.2, 2.5)
"""Seconds in which the environment forgets most of what it was; 0: it is another one for each slice."""
_SHARES = (0.0, 0.5, 3.0, 30.0, 300.0, 3000.0)
"""The variance of what a block has in common, as a multiple of the variance within it."""
_NUGGET = 1e-9
"""It keeps a matrix invertible if two slices follow each other at once."""
_ROUNDING = 1e-12
_STEP = 4
"""A quantile function that is so many times steeper on one side of a percentile has a step there."""
_FARTHEST = 170.0  # from the mean, as a logarithm: the largest number is e^709, and values are divided and squared
HALF_BIN = math.log1p(1 / FINEST) / 2
"""Half a bin of fio's histograms, as a logarithm. The interval of a ratio of percentiles is wider by it."""


def adjust_values(values: Rows, times: Rows) -> list[list[float]]:
    """The arms' values in each block, adjusted by what the other slices of the block say about the environment.

    `values` are logarithms, a row for each block with a value for each arm; `times` are the starts of the slices in
    seconds, of the same shape, as is the result. The means of its columns are the estimates of the arms' means by
    generalised least squares: each arm has its own standard deviation, and two slices of a block are correlated by
    exp(-lag / tau), plus what the block has in common. The result is the mean over a grid of tau and of this part,
    weighted by the restricted likelihood (REML: Patterson & Thompson 1971; averaging: Hoeting et al. 1999). The value
    of a block is that of the jackknife: what the estimate changes without it (Tukey 1958). So Student's t on the
    differences of two columns is a sandwich estimate of their error, with blocks as clusters (Liang & Zeger 1986; CR3:
    Bell & McCaffrey 2002). A wrong model of the correlation costs precision, not coverage.

    NaN is a slice that a block lacks, which has no weight and stays NaN. The values are returned as they are for fewer
    than four blocks or three arms with any spread, and if two slices of a block began at the same time. An arm without
    any spread, or with fewer than four values, keeps its values. ValueError for rows of different length, or values and
    times that are not finite.
    """
    import numpy as np  # noqa: PLC0415

    arms = len(values[0]) if values else 0
    if len(values) != len(times) or any(len(row) != arms for row in (*values, *times)):
        raise ValueError("each block needs a value and a time of each arm")
    if len(values) < FEWEST_BLOCKS or arms < FEWEST_ARMS:
        return [list(row) for row in values]
    logs, starts = np.array(values, dtype=float), np.array(times, dtype=float)
    there = ~np.isnan(logs)
    if not np.isfinite([logs[there], starts[there]]).all():
        raise ValueError("an adjustment needs finite logarithms and times")
    several = [arm[measured] for arm, measured in zip(logs.T, there.T, strict=True)]
    spread = np.array([arm.std(ddof=1) if len(arm) >= FEWEST_BLOCKS else 0.0 for arm in several])
    loud = np.flatnonzero(spread > 1e-12 * np.abs(logs[there]).max(initial=1.0))
    there, starts = there[:, loud], np.where(there, starts, math.nan)[:, loud]
    if len(loud) < FEWEST_ARMS or (np.diff(np.sort(starts, axis=1), axis=1) <= 0).any():
        return [list(row) for row in values]
    logs[:, loud] = _adjust_scaled(logs[:, loud] / spread[loud], starts, there) * spread[loud]
    return [list(map(float, row)) for row in logs]


def _adjust_scaled(values: Floats, starts: Floats, there: npt.NDArray[np.bool_]) -> Floats:
    """The adjusted values of arms whose standard deviations are 1."""
    import numpy as np  # noqa: PLC0415

    lags = np.abs(starts[:, :, None] - starts[:, None, :])
    pairs = there[:, :, None] & there[:, None, :]
    measured, identity = np.where(there, values, 0), np.eye(values.shape[1])
    freedom = int(there.sum()) - len(identity)
    models: list[tuple[float, Floats]] = []
    for tau, share in product(_TAUS, _SHARES):
        within = np.exp(-lags / tau) if tau else identity
        correlation = np.where(pairs, (within + share) / (1 + share) + _NUGGET * identity, identity)
        inverse = np.where(pairs, np.linalg.inv(correlation).astype(float, copy=False), 0)
        total = inverse.sum(axis=0)
        residuals = measured - np.linalg.solve(total, np.einsum("bij,bj->i", inverse, measured))
        squares = max(float(np.einsum("bi,bij,bj->", residuals, inverse, residuals)), _NUGGET)
        determinants = float(np.linalg.slogdet(correlation)[1].sum() + np.linalg.slogdet(total)[1])
        models.append((-(freedom * math.log(squares) + determinants) / 2, inverse))
    best = max(likelihood for likelihood, _ in models)
    likely = [(math.exp(likelihood - best), inverse) for likelihood, inverse in models if best - likelihood < 10]
    values_by_model = [weight * _apply_weights(measured, inverse) for weight, inverse in likely]
    return np.where(there, np.sum(values_by_model, axis=0) / math.fsum(weight for weight, _ in likely), values)


def _apply_weights(values: Floats, weights: Floats) -> Floats:
    """The jackknife's values of the means with these weights of each block."""
    import numpy as np  # noqa: PLC0415

    weighted, total = np.einsum("bij,bj->bi", weights, values), weights.sum(axis=0)
    means = np.linalg.solve(total, weighted.sum(axis=0))
    without = np.linalg.solve(total - weights, (weighted.sum(axis=0) - weighted)[:, :, None])[:, :, 0]
    adjusted: Floats = means + (len(values) - 1) * (without.mean(axis=0) - without)
    return adjusted


def pool_percentiles(histograms: Sequence[Mapping[int, int]], share: float) -> list[float]:
    """The logarithm of an arm's percentile for each block, whose mean is the estimate from all blocks together.

    `histograms` has the completions of each block by latency in ns, in fio's bins; 0 < `share` < 1. The estimate is the
    percentile of the merged histograms, as a logarithm of seconds; within a bin, completions are spread evenly by the
    logarithm. A block in which a larger share was slower than this percentile has a larger value, by the slope of the
    quantile function (linearisation of a ratio estimate: Woodruff 1952). The slope is that over the interval of the
    share, because a histogram has no density at a point. Beside a step, as of a cache that 1.2 % of the I/Os miss, it
    is the steeper of the slopes below and above: the percentile is off by the whole step if chance puts it on the other
    side. A single block has the percentile itself, and one without completions says nothing about it. ValueError
    without completions, or for an impossible share.
    """
    import numpy as np  # noqa: PLC0415

    if not 0 < share < 1:
        raise ValueError(f"a percentile must be a share between 0 and 1, for example 0.99, not {share}")
    if not any(sum(histogram.values()) for histogram in histograms):
        raise ValueError("a percentile needs blocks with completions")
    latencies = sorted({latency for histogram in histograms for latency, number in histogram.items() if number})
    reached = np.array([[histogram.get(latency, 0) for latency in latencies] for histogram in histograms]).cumsum(1)
    scale = _QuantileScale.of(latencies, reached.sum(axis=0))
    whole, blocks = scale.find(share), len(histograms)
    below = np.array([scale.count_below(whole, of_block) for of_block in reached])
    contributions = (below - share * reached[:, -1]) * blocks / float(reached[:, -1].sum())
    error = float(contributions.std(ddof=1)) / math.sqrt(blocks) if blocks > 1 else 0.0
    if error <= _ROUNDING:  # All blocks are alike, but for rounding.
        return [whole] * blocks
    half = t_quantile(0.975, blocks - 1) * error
    low, high = max(share - half, 0.0), min(share + half, 1.0)
    flat, steep = sorted(((whole - scale.find(low)) / (share - low), (scale.find(high) - whole) / (high - share)))
    slope = steep if steep > _STEP * flat else (scale.find(high) - scale.find(low)) / (high - low)
    return _place_around(whole, [-float(contribution) * slope for contribution in contributions - contributions.mean()])


def pool_means(means: Sequence[float], numbers: Sequence[int]) -> list[float]:
    """The logarithm of an arm's mean for each block, whose mean is that of all completions of the blocks together.

    `means` are the means of the blocks, of so many completions as `numbers` says; a block without any says nothing. A
    block with a larger mean has a larger value, by its share of the completions (linearisation of a ratio estimate:
    Woodruff 1952). ValueError without completions, or if they took no time.
    """
    total = sum(mean * number for mean, number in zip(means, numbers, strict=True))
    if total <= 0:
        raise ValueError("a mean needs blocks with completions")
    whole, blocks = total / sum(numbers), len(numbers)
    pairs = zip(means, numbers, strict=True)
    return _place_around(math.log(whole), [number * (mean - whole) * blocks / total for mean, number in pairs])


def _place_around(whole: float, differences: Sequence[float]) -> list[float]:
    """The blocks' values around their mean, whose exponentials and their ratios are numbers.

    One of 100 blocks that stalls can differ by e^500. Then all share its variance, with signs that its place decides.
    """
    if (farthest := max(map(abs, differences))) > _FARTHEST:
        half, odd = divmod(len(differences), 2)
        share = math.sqrt(math.fsum(difference * difference for difference in differences) / (2 * half))
        block = [abs(difference) for difference in differences].index(farthest)
        differences = random.Random(block).sample([share, -share] * half + [0.0] * odd, len(differences))
    return [whole + difference for difference in differences]


@dataclass(frozen=True, slots=True)
class _QuantileScale:
    """The ends of the bins that have completions, as logarithms of seconds, and how many completions they reach."""

    lows: Floats
    highs: Floats
    reached: Numbers

    @classmethod
    def of(cls, latencies: Sequence[int], reached: Numbers) -> _QuantileScale:
        import numpy as np  # noqa: PLC0415

        ends = np.array([find_bin(max(latency, 1)) for latency in latencies], dtype=float)
        lows, highs = np.log(ends / 1e9).T
        return cls(lows, highs, reached)

    def find(self, share: float) -> float:
        """The logarithm of the latency that this share of the completions did not exceed."""
        rank = share * float(self.reached[-1])
        place = int((self.reached >= rank * (1 - _ROUNDING)).argmax())
        before = float(self.reached[place - 1]) if place else 0.0
        inside = min((rank - before) / (float(self.reached[place]) - before), 1.0)
        return float(self.lows[place] + inside * (self.highs[place] - self.lows[place]))

    def count_below(self, log_latency: float, reached: Numbers) -> float:
        """How many completions of a block are below this latency. `reached` is that of the block, in the same bins."""
        place = min(int((self.highs >= log_latency).argmax()), len(self.lows) - 1)
        before = float(reached[place - 1]) if place else 0.0
        inside = float((log_latency - self.lows[place]) / (self.highs[place] - self.lows[place]))
        return before + inside * (float(reached[place]) - before)
