"""What would decide an inconclusive budget: the number of samples, if further ones scatter like those so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from harness.analysis import MOST_SAMPLES, count_samples_to_show, first_blocks, log_ratios
from harness.results import BudgetRecord, CellRecord, MetricRecord
from harness.results.metric_records import count_rounds_needed

_CONFIDENCE = 0.95
_ERROR_RATE = (1 - _CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class _Side:
    """One limit of a budget: how far the samples' mean is beyond it (below 0 if it is kept), and their spread."""

    beyond: float
    spread: float

    def samples(self, confidence: float) -> float:
        """The smallest number of samples for which the interval, with this spread, does not contain the limit.

        Infinite beyond `MOST_SAMPLES`.
        """
        return count_samples_to_show(self.beyond, self.spread, confidence) or math.inf


def what_decides(record: CellRecord, budget: BudgetRecord, *, judged: int) -> str:
    """What would decide an inconclusive budget of a cell, in words. `judged` is how many budgets the run judges."""
    metric = record.metrics.get(budget.metric)
    if metric is None or budget.estimate(metric) is None:
        return _what_gives_samples(record, budget.metric)
    boots: Sequence[int] = record.boots if len(set(record.boots)) > 1 else ()
    if boots and metric.batches:
        boots = [boots[first] for first in first_blocks(metric.batches)]
    n = len(set(boots)) or len(metric.host)
    if n < 2 and metric.batches:
        return _what_gives_samples(record, budget.metric)
    if n < 2:
        return "one block has no interval: measure at least six"
    if budget.p_value is not None and budget.p_value <= _ERROR_RATE:
        # The budget alone is exceeded, but the correction revokes that. So it needs the confidence of one among all.
        needed = samples_to_decide(metric, budget, 1 - (1 - _CONFIDENCE) / judged, boots)
        return f"beyond its budget alone, not as one of {judged} judged: {_words(needed, n, _noun(metric, boots))}"
    return _words(samples_to_decide(metric, budget, record.confidence, boots), n, _noun(metric, boots))


def _what_gives_samples(record: CellRecord, name: str) -> str:
    """For a percentile with fewer than two samples."""
    rounds = count_rounds_needed(record, name, reboot=len(set(record.boots)) > 1)
    if rounds is None:
        return "use longer slices, which complete enough I/Os for a percentile"
    done = len(set(record.rounds))
    return f"two samples have an interval, and take about {rounds} rounds like these {done}; or use longer slices"


def samples_to_decide(
    metric: MetricRecord, budget: BudgetRecord, confidence: float, boots: Sequence[int] = ()
) -> int | None:
    """How many samples would give an interval without the budget in it; None for more than `MOST_SAMPLES`.

    A sample is a block. With `boots`, the boot of each block, it is the mean of a boot. This is an expectation and not
    a promise: it treats mean and spread of the samples so far as the true values, and blocks as independent.
    ValueError for fewer than two samples.
    """
    confidence = budget.limit.interval_confidence(confidence)
    sides = _sides(metric, budget, boots)
    broken = [side.samples(confidence) for side in sides if side.beyond > 0]
    kept = [side.samples(confidence) for side in sides if side.beyond <= 0]
    suffices, needs_all = (kept, broken) if budget.both == "looser" else (broken, kept)
    needed = min(suffices) if suffices else max(needs_all)
    return None if math.isinf(needed) else max(int(needed), (len(set(boots)) or len(metric.host)) + 1)


def _sides(metric: MetricRecord, budget: BudgetRecord, boots: Sequence[int]) -> list[_Side]:
    """As in a verdict: a share on the logarithms of the blocks' ratios, an amount on their differences."""
    sides = []
    if (share := budget.limit.share) is not None:
        ratios = _by_boot(log_ratios(budget.baseline(metric), metric.guest), boots)
        if metric.better == "lower":
            sides.append(_side(ratios, math.log1p(share)))
        else:
            most = -math.log1p(-share) if share < 1 else math.inf
            sides.append(_side([-ratio for ratio in ratios], most))
    if budget.absolute is not None:
        differences = [guest - host for host, guest in zip(metric.host, metric.guest, strict=True)]
        sides.append(_side(_by_boot(differences, boots), budget.absolute))
    return sides


def _by_boot(values: Sequence[float], boots: Sequence[int]) -> Sequence[float]:
    """The mean of each boot; the values themselves if there are no boots."""
    if not boots:
        return values
    labelled = list(zip(values, boots, strict=True))
    return [fmean(value for value, boot in labelled if boot == one) for one in dict.fromkeys(boots)]


def _side(samples: Sequence[float], most: float) -> _Side:
    return _Side(fmean(samples) - most, stdev(samples))


def _noun(metric: MetricRecord, boots: Sequence[int]) -> str:
    if boots:
        return "boots"
    return f"samples of {round(fmean(metric.batches))} blocks" if metric.batches else "blocks"


def _words(needed: int | None, n: int, noun: str) -> str:
    if needed is None:
        return f"more than {MOST_SAMPLES} {noun}: the overhead is too close to the budget"
    return f"about {needed} {noun}, if they scatter like these {n}"
