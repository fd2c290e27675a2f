"""The verdicts of cells: each budget alone by the rounds of its cell, then all budgets of a run together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from harness.analysis import IN_ORDER, METRICS, Look, Samples, Verdict, judge_look, survivors
from harness.model.budget import Budget
from harness.results.cells import BudgetRecord, CellRecord, MetricRecord

_GRAVEST_FIRST = (Verdict.EXCEEDS, Verdict.INCONCLUSIVE, Verdict.WITHIN)


def judged(
    rules: Mapping[str, Budget], metrics: Mapping[str, MetricRecord], look: Look | None, samples: Samples = IN_ORDER
) -> tuple[BudgetRecord, ...]:
    """The verdict of each budget of the cell alone. Without a look, or without the metric, it is inconclusive.

    `samples` are the blocks of the cell. A percentile may have batches of them.
    """
    return tuple(_judged(rule, metrics.get(name), look, samples) for name, rule in rules.items())


def gravest(budgets: Iterable[BudgetRecord]) -> Verdict:
    """The verdict of a cell with these budgets: the worst of their verdicts, or unjudged without a budget."""
    found = {budget.verdict for budget in budgets}
    return next((verdict for verdict in _GRAVEST_FIRST if verdict in found), Verdict.UNJUDGED)


def corrected(
    records: Iterable[CellRecord], *, family: int, error_rate: float, only: Collection[str] | None = None
) -> list[CellRecord]:
    """The records after Holm's correction over the run: an `exceeds` that does not survive it becomes `inconclusive`.

    Every budget of every cell counts, see `survivors`. The budgets of a void cell count as without evidence. `family`
    and `error_rate` as in `survivors`. With `only`, ids of cells, the other cells count but are not returned.
    """
    records = tuple(records)
    tested = [
        replace(budget, p_value=None) if record.verdict is Verdict.VOID else budget
        for record in records
        for budget in record.budget
    ]
    verdicts = iter(survivors(tested, family=family, error_rate=error_rate))
    found = ((record, [next(verdicts) for _ in record.budget]) for record in records)
    return [_corrected(record, own) for record, own in found if only is None or record.id in only]


def _judged(rule: Budget, metric: MetricRecord | None, look: Look | None, samples: Samples) -> BudgetRecord:
    record = BudgetRecord(rule.metric, rule.share, rule.absolute, rule.both, Verdict.INCONCLUSIVE, None)
    if metric is None or look is None or not metric.guest:
        return record
    budget = rule.limit
    better = METRICS[rule.metric].higher_is_better
    own = samples.in_batches(metric.batches)
    found = judge_look(metric.host, metric.guest, budget, look, higher_is_better=better, samples=own)
    return replace(record, verdict=found.verdict, p_value=found.p_value)


def _corrected(record: CellRecord, verdicts: Sequence[Verdict]) -> CellRecord:
    budgets = tuple(replace(budget, verdict=verdict) for budget, verdict in zip(record.budget, verdicts, strict=True))
    verdict = record.verdict if record.verdict in (Verdict.VOID, Verdict.UNJUDGED) else gravest(budgets)
    return replace(record, budget=budgets, verdict=verdict)
