"""Many campaigns at once: the arithmetic of `harness.analysis` on arrays, which tests compare with it on samples.

Log ratios are arrays of shape (campaigns, samples): log(guest/host) of throughputs, so higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from harness.analysis import Look, Sequential, t_quantile

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


def overheads(log_ratios: Floats, confidence: float) -> Overheads:
    """`estimate_overhead` of every campaign."""
    n = log_ratios.shape[1]
    mean = log_ratios.mean(axis=1)
    half = t_quantile((1 + confidence) / 2, n - 1) * log_ratios.std(axis=1, ddof=1) / math.sqrt(n)
    return Overheads(-np.expm1(np.minimum(mean + half, 700)), -np.expm1(mean - half))


def p_values(log_ratios: Floats, share: float) -> Floats:
    """`exceeds_p_value` of every campaign."""
    n = log_ratios.shape[1]
    distance = math.log1p(-share) - log_ratios.mean(axis=1)
    p_values_: Floats = stdtr(n - 1, -distance * math.sqrt(n) / log_ratios.std(axis=1, ddof=1))
    return p_values_


def adjust(look: Look, p_values: Floats) -> Floats:
    """`Look.adjusted` of many p values, by interpolation."""
    grid, adjusted = _adjust_grid(look)
    found: Floats = np.exp(np.interp(np.log(np.maximum(p_values, 1e-40)), grid, adjusted))
    return found


@cache
def _adjust_grid(look: Look) -> tuple[Floats, Floats]:
    """Logarithms of p values, and of the adjusted ones."""
    grid = np.concatenate([np.logspace(-40, -6, 200), np.logspace(-6, 0, 2000)[1:]])
    return np.log(grid), np.log([look.adjusted(p) for p in grid.tolist()])


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
        adjusted = adjust(look, p_values(so_far, share))
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
