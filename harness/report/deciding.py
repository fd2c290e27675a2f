"""What would decide an inconclusive budget: the number of rounds, if further rounds scatter like those so far."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.analysis import Limit, log_ratios, t_quantile
from harness.results import BudgetRecord, CellRecord, MetricRecord

MOST_ROUNDS = 200
"""More rounds than this are not practical: the overhead is too close to the budget."""
_CONFIDENCE = 0.95
_ERROR_RATE = (1 - _CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class _Side:
    """One limit of a budget: how far the rounds' mean is beyond it (below 0 if it is kept), and their spread."""

    beyond: float
    spread: float

    def rounds(self, confidence: float) -> float:
        """The smallest number of rounds for which the interval, with this spread, does not contain the limit.

        Infinite beyond `MOST_ROUNDS`.
        """

        def decides(n: int) -> bool:
            return t_quantile((1 + confidence) / 2, n - 1) * self.spread / math.sqrt(n) < abs(self.beyond)

        numbers = range(2, MOST_ROUNDS + 1)
        place = bisect_left(numbers, True, key=decides)
        return numbers[place] if place < len(numbers) else math.inf


def what_decides(record: CellRecord, budget: BudgetRecord, *, judged: int) -> str:
    """What would decide an inconclusive budget of a cell, in words. `judged` is how many budgets the run judges."""
    metric = record.metrics.get(budget.metric)
    if metric is None or metric.overhead is None:
        return "a round lacks the metric: use longer jobs, which complete enough I/Os for a percentile"
    n = len(metric.host)
    if n < 2:
        return "one round has no interval: measure at least three"
    if budget.p_value is not None and budget.p_value <= _ERROR_RATE:
        # The budget alone is exceeded, but the correction revokes that. So it needs the confidence of one among all.
        needed = rounds_to_decide(metric, budget, 1 - (1 - _CONFIDENCE) / judged)
        return f"beyond its budget alone, not as one of {judged} judged: {_rounds(needed, n)}"
    return _rounds(rounds_to_decide(metric, budget, record.confidence), n)


def rounds_to_decide(metric: MetricRecord, budget: BudgetRecord, confidence: float) -> int | None:
    """How many rounds would give an interval without the budget in it; None for more than `MOST_ROUNDS`.

    This is an expectation and not a promise: it treats mean and spread of the rounds so far as the true values.
    ValueError for fewer than two rounds.
    """
    confidence = Limit(budget.share, budget.absolute, budget.both).interval_confidence(confidence)
    sides = _sides(metric, budget)
    broken = [side.rounds(confidence) for side in sides if side.beyond > 0]
    kept = [side.rounds(confidence) for side in sides if side.beyond <= 0]
    suffices, needs_all = (kept, broken) if budget.both == "looser" else (broken, kept)
    needed = min(suffices) if suffices else max(needs_all)
    return None if math.isinf(needed) else max(int(needed), len(metric.host) + 1)


def _sides(metric: MetricRecord, budget: BudgetRecord) -> list[_Side]:
    """As in a verdict: a share on the logarithms of the rounds' ratios, an amount on their differences."""
    sides = []
    if budget.share is not None:
        ratios = log_ratios(metric.host, metric.guest)
        if metric.better == "lower":
            sides.append(_side(ratios, math.log1p(budget.share)))
        else:
            most = -math.log1p(-budget.share) if budget.share < 1 else math.inf
            sides.append(_side([-ratio for ratio in ratios], most))
    if budget.absolute is not None:
        differences = [guest - host for host, guest in zip(metric.host, metric.guest, strict=True)]
        sides.append(_side(differences, budget.absolute))
    return sides


def _side(samples: Sequence[float], most: float) -> _Side:
    return _Side(fmean(samples) - most, stdev(samples))


def _rounds(needed: int | None, n: int) -> str:
    if needed is None:
        return f"more than {MOST_ROUNDS} rounds: the overhead is too close to the budget"
    return f"about {needed} rounds, if they scatter like these {n}"
