"""What a budget allows and what was found, in words for terminal, page and failed assertions."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import METRICS, Verdict
from harness.report.numbers import (
    batch_count,
    count,
    microseconds,
    microseconds_interval,
    percent,
    percent_interval,
)
from harness.results import BudgetRecord, CellRecord

_GRAVEST_FIRST = (Verdict.VOID, Verdict.EXCEEDS, Verdict.INCONCLUSIVE, Verdict.WITHIN, Verdict.UNJUDGED)
_SMALLEST_P = 0.0001


def gravest_first(budgets: Sequence[BudgetRecord]) -> tuple[BudgetRecord, ...]:
    """The budgets with the exceeded ones first. Budgets of one verdict keep their order."""
    return tuple(sorted(budgets, key=lambda budget: _GRAVEST_FIRST.index(budget.verdict)))


def limit(budget: BudgetRecord) -> str:
    """ "30 %", "+50 us", "30 % or +50 us" if one of them must be kept, "30 % and +50 us" if both must be kept."""
    parts = []
    if budget.difference is not None:
        parts.append(f"{budget.difference * 100:.3g} %")
    if budget.share is not None:
        parts.append(f"{budget.share * 100:.3g} %")
    if budget.absolute is not None:
        parts.append(f"{budget.absolute * 1e6:+.6g} us")
    return (" or " if budget.both == "looser" else " and ").join(parts)


def finding(record: CellRecord, budget: BudgetRecord) -> str:
    """ "overhead 38.2 % [35.2, 41.0]"; for an absolute limit "adds 120 us [100, 140]"; or why there is no figure.

    A percentile from batches also has its samples: "overhead 38.2 % [35.2, 41.0] from 3 samples of 4 blocks each".
    """
    metric = record.metrics.get(budget.metric)
    estimate = budget.estimate(metric) if metric is not None else None
    if metric is None or estimate is None:
        too_few = METRICS[budget.metric].quantile is not None and record.rounds
        return f"no sample: too few I/Os in {count(len(record.rounds), 'block')}" if too_few else "not measured"
    parts = []
    if budget.absolute is None or budget.share is not None:
        what = "overhead" if budget.difference is None else "difference from the reference"
        parts.append(f"{what} {percent(estimate.point)} % {percent_interval(estimate)}".rstrip())
    if budget.absolute is not None and metric.added is not None:
        added = microseconds(metric.added.point, grouped="")
        parts.append(f"adds {added} us {microseconds_interval(metric.added)}".rstrip())
    samples = batch_count(metric.batches, estimate.boots)
    return " and ".join(parts) + (f" from {samples}" if samples else "")


def p_value(probability: float | None) -> str:
    """ "p = 0.0031", "p < 0.0001"; "no p value" with one block."""
    if probability is None:
        return "no p value"
    return f"p < {_SMALLEST_P}" if probability < _SMALLEST_P else f"p = {probability:.2g}"


def sentence(record: CellRecord, budget: BudgetRecord) -> str:
    """For example "iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001"."""
    return f"{budget.metric} {finding(record, budget)}, budget {limit(budget)}, {p_value(budget.p_value)}"


def compact_verdict(record: CellRecord) -> str:
    """The cell's verdict. With several budgets, it has the number of budgets with this verdict: "exceeds 1/3"."""
    if len(record.budget) < 2 or record.verdict in (Verdict.VOID, Verdict.UNJUDGED):
        return record.verdict.value
    same = sum(budget.verdict is record.verdict for budget in record.budget)
    return f"{record.verdict.value} {same}/{len(record.budget)}"


def allowed(host: float, budget: BudgetRecord) -> float:
    """The worst value of a guest that keeps the budget, for a host with this value, in the metric's unit."""
    if METRICS[budget.metric].higher_is_better:
        return host * (1 - (budget.share or 0.0))
    limits = []
    if budget.share is not None:
        limits.append(host * (1 + budget.share))
    if budget.absolute is not None:
        limits.append(host + budget.absolute)
    return max(limits) if budget.both == "looser" else min(limits)
