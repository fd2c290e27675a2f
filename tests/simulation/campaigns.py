"""Many campaigns at once: the arithmetic of `harness.analysis` on arrays, which tests compare with it on samples.

Log ratios are arrays of shape (campaigns, samples): log(guest/host) of throughputs, so higher is better. `cells` is the
number of successive campaigns that are one job, whose correlation is pooled: 1 for cells that are alone, 0 for samples
that count as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from harness.analysis import Look, Sequential, t_quantile
from harness.analysis.samples import (
    DRIFTING_ABOVE,
    LEAST_FREEDOM,
    MOST_OF_JOB,
    ODDS_IF_SHORT,
    ODDS_OF_POSITIVE,
    SHORT,
    correlations,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Overheads:
    """The overhead's interval of every campaign."""

    low: Floats
    high: Floats

    def covers(self, truth: float) -> Flags:
        return (self.low <= truth) & (truth <= self.high)


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where every campaign stopped, and what it says there."""

    rounds: npt.NDArray[np.int_]
    overheads: Overheads
    p_values: Floats
    exceeds: Flags


def fixed(plan: Sequential) -> list[Look]:
    """The plan's looks, as it makes them."""
    return [look for rounds in plan.looks if (look := plan.look(rounds))]


def naive(plan: Sequential) -> list[Look]:
    """The same looks by someone who makes each one's interval as if it were the only one."""
    alpha = 1 - plan.confidence
    return [Look(rounds, alpha, alpha) for rounds in plan.looks]


def until(plan: Sequential, stop: int) -> list[Look]:
    """The plan's looks when the time is spent after `stop` rounds."""
    last = plan.look(stop, final=True)
    assert last is not None
    return [*(look for look in fixed(plan) if look.rounds < stop), last]


@dataclass(frozen=True, slots=True)
class Spreads:
    """`Samples.spread` of every campaign. Errors and weights have the shape (campaigns, correlations)."""

    mean: Floats
    freedom: int
    errors: Floats
    weights: Floats

    def tails(self, distance: Floats) -> Floats:
        """P(error of the mean > distance)."""
        found: Floats = (self.weights * stdtr(self.freedom, -distance[:, None] / self.errors)).sum(axis=1)
        return found

    @property
    def given(self) -> Flags:
        """Whether there is an interval: the samples do not drift."""
        if self.weights.shape[1] == 1:
            return np.ones(len(self.mean), dtype=bool)
        found: Flags = self.weights[:, np.array(correlations()) > DRIFTING_ABOVE].sum(axis=1) <= 0.5
        return found

    def covers(self, log_truth: float, confidence: float) -> Flags:
        """Whether the interval holds the truth: without looking for its ends."""
        found: Flags = self.tails(np.abs(self.mean - log_truth)) >= (1 - confidence) / 2
        return found

    def half_widths(self, confidence: float) -> Floats:
        """Half of the interval of the mean, by bisection."""
        tail = (1 - confidence) / 2
        low, high = (t_quantile(1 - tail, self.freedom) * end(self.errors, axis=1) for end in (np.min, np.max))
        if self.errors.shape[1] == 1:
            found: Floats = high
            return found
        for _ in range(50):
            middle = np.sqrt(low * high)
            is_short = self.tails(middle) > tail
            low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
        middle_of_all: Floats = np.sqrt(low * high)
        return middle_of_all


def spreads(log_ratios: Floats, cells: int = 0) -> Spreads:
    campaigns, n = log_ratios.shape
    mean: Floats = log_ratios.mean(axis=1)
    plain: Floats = log_ratios.std(axis=1, ddof=1, keepdims=True) / math.sqrt(n)
    if not cells or n < 3:
        return Spreads(mean, n - 1, plain, np.ones((campaigns, 1)))
    rho = np.array(correlations())
    off = log_ratios - mean[:, None]
    weight = (1 - rho) * (n - (n - 2) * rho)
    squares, inner = (off**2).sum(axis=1), (off[:, 1:-1] ** 2).sum(axis=1)
    products, ends = (off[:, 1:] * off[:, :-1]).sum(axis=1), off[:, 0] + off[:, -1]
    residual = squares[:, None] + rho**2 * inner[:, None] - 2 * rho * products[:, None]
    residual = residual - ((1 - rho) * rho * ends[:, None]) ** 2 / weight
    own = np.log1p(-(rho**2)) / 2 - np.log(weight) / 2 - (n - 1) / 2 * np.log(residual)
    inflation = (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**n) / (n * (1 - rho) ** 2)
    errors = np.sqrt(residual / ((n - 1) * (1 - rho**2)) * inflation / n)
    job = np.repeat(own.reshape(-1, cells, len(rho)).mean(axis=1), cells, axis=0)
    series = np.repeat(_effective_series(off.reshape(-1, cells, n)), cells)[:, None]
    freedom = series * (n - 2)
    share = np.minimum(1.0, MOST_OF_JOB / freedom)
    weights = _weights(share * series * job + (1 - share) * own, n)
    shown = freedom >= LEAST_FREEDOM
    # Where the correlation is not estimated, each value of it has the error of independent samples.
    return Spreads(mean, n - 1, np.where(shown, errors, plain), np.where(shown, weights, rho == 0))


def _effective_series(deviations: Floats) -> Floats:
    """As how many independent series the cells of each job count, from arrays of shape (jobs, cells, samples)."""
    cells = deviations.shape[1]
    alike = deviations / np.sqrt((deviations**2).sum(axis=2, keepdims=True))
    squares: Floats = ((alike @ alike.transpose(0, 2, 1)) ** 2).sum(axis=(1, 2))
    found: Floats = np.maximum(cells**2 / squares, 1.0)
    return found


def overheads(log_ratios: Floats, confidence: float, cells: int = 0) -> Overheads:
    """`estimate_overhead` of every campaign."""
    found = spreads(log_ratios, cells)
    half = found.half_widths(confidence)
    return Overheads(-np.expm1(found.mean + half), -np.expm1(found.mean - half))


def p_values(log_ratios: Floats, share: float, cells: int = 0) -> Floats:
    """`exceeds_p_value` of every campaign."""
    found = spreads(log_ratios, cells)
    return found.tails(math.log1p(-share) - found.mean)


def stopped(
    log_ratios: Floats, looks: Sequence[Look], *, share: float, target: float | None, cells: int = 1
) -> Stopped:
    """`decided` and `judge_look` of every campaign at these looks; the last one stops whatever is left."""
    campaigns = len(log_ratios)
    rounds = np.zeros(campaigns, dtype=np.int_)
    low, high, p = np.zeros(campaigns), np.zeros(campaigns), np.ones(campaigns)
    going = np.arange(campaigns)
    for look in looks:
        so_far = log_ratios[going, : look.rounds]
        interval = overheads(so_far, look.confidence)
        adjusted = np.minimum(1, p_values(so_far, share) * look.alpha_of_all / look.alpha)
        enough = (interval.high <= share) | (adjusted * cells <= look.error_rate)
        if target is not None:
            enough |= (interval.high - interval.low) / 2 <= target
        if look is looks[-1]:
            enough[:] = True
        here = going[enough]
        rounds[here], p[here] = look.rounds, adjusted[enough]
        low[here], high[here] = interval.low[enough], interval.high[enough]
        going = going[~enough]
    return Stopped(rounds, Overheads(low, high), p, low > share)


def _weights(log_likelihood: Floats, n: int) -> Floats:
    rho = np.array(correlations())
    odds = ODDS_IF_SHORT if n < SHORT else ODDS_OF_POSITIVE
    heavy = np.exp(log_likelihood - log_likelihood.max(axis=1, keepdims=True)) * np.where(rho > 0, odds, 1.0)
    found: Floats = heavy / heavy.sum(axis=1, keepdims=True)
    return found
