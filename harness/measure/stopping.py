"""Decides when a group has enough rounds. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import METRICS, Limit, Reason, Samples, Sequential, Verdict, decided
from harness.model.budget import Budget
from harness.model.cell import Cell
from harness.results import DRIFT, CellRecord
from harness.results.dependence import correlation_of, of_difference, samples_of
from harness.results.percentiles import FEWEST_SAMPLES, rounds_needed
from harness.scenario.plan import Plan


@dataclass(frozen=True, slots=True)
class Looking:
    """What decides whether a cell needs another round.

    `budgets` (by their keys) are by cell id. `family` is the number of budgets that the run judges. No round follows if
    the time or the bytes are `spent`. `reachable` is the number of rounds that the two allow, if they are limited.
    """

    plan: Plan
    sequential: Sequential
    budgets: Mapping[str, Mapping[str, Budget]]
    family: int
    spent: Reason | None
    reachable: int | None


def reasons_to_stop(
    cells: Sequence[Cell], records: Mapping[str, CellRecord], looking: Looking
) -> dict[str, list[Reason]]:
    """Why each cell needs no further round, by cell id. Cells that need one are not in it. `records` is by cell id, and
    has all cells of the group, whether they need a further round or not.

    A cell with budgets is decided when all its budgets are decided. A cell without a budget is decided when the
    interval of its headline metric is as narrow as the plan's target. Void cells and cells without a guest need no
    further round, because more rounds cannot change them.
    """
    correlations = {
        job: correlation_of(record for record in records.values() if record.job == job)
        for job in {cell.job for cell in cells}
    }
    found: dict[str, list[Reason]] = {}
    for cell in cells:
        record = records[cell.id]
        if record.verdict is Verdict.VOID or record.skipped is not None or cell.mode.attach is None:
            found[cell.id] = []
            continue
        samples = samples_of(record.rounds, record.boots, correlations[cell.job])
        reasons = [
            _reason(question, cell, record, samples, looking)
            for question in _questions(cell, looking.budgets[cell.id])
            if question.metric in record.metrics or METRICS[question.metric].quantile is not None
        ]
        if all(reasons):
            found[cell.id] = [reason for reason in reasons if reason]
    return found


@dataclass(frozen=True, slots=True)
class _Question:
    """What a cell is measured for: a metric, its limit, and whether the guest is compared with the reference."""

    metric: str
    limit: Limit
    difference: bool


def _reason(question: _Question, cell: Cell, record: CellRecord, samples: Samples, looking: Looking) -> Reason | None:
    """Why one metric of a cell needs no further round."""
    name = question.metric
    metric = record.metrics.get(name)
    if metric is None or len(metric.host) < FEWEST_SAMPLES:
        needed = rounds_needed(record, name, reboot=looking.plan.reboot or cell.mode.alternating)
        most = looking.sequential.most if looking.reachable is None else looking.reachable
        if METRICS[name].quantile is not None and (needed is None or needed > min(most, looking.sequential.most)):
            return Reason.FEW_IOS
    if metric is None:
        return Reason.FEW_IOS if looking.spent else None
    reason = decided(
        metric.against if question.difference else metric.host,
        metric.guest,
        looking.sequential,
        higher_is_better=METRICS[name].higher_is_better,
        budget=question.limit,
        target=looking.plan.target,
        cells=max(looking.family, 1),
        time_spent=looking.spent is not None,
        samples=(of_difference(samples) if question.difference else samples).in_batches(metric.batches),
        reachable=looking.reachable,
    )
    return looking.spent if reason is Reason.TIME else reason


def reason_to_stop(cells: Sequence[Cell], records: Mapping[str, CellRecord], looking: Looking) -> str | None:
    """Why no further round is necessary for any of these cells, in words. None to continue."""
    found = reasons_to_stop(cells, records, looking)
    if len(found) < len(cells):
        return None
    if reasons := dict.fromkeys(reason for each in found.values() for reason in each):
        return ", ".join(reasons)
    return _without_questions(looking.sequential, records, cells, looking.spent)


def settled_cells(cells: Sequence[Cell], records: Mapping[str, CellRecord], decided: Collection[str]) -> list[str]:
    """The ids of the cells that no further round measures: those with the ids `decided`, and void ones.

    A drift may end, so it alone does not settle a cell. Every cell measures the host, so the cells of the mode `host`
    follow the others.
    """
    settled = {cell.id for cell in cells if cell.id in decided or _stays_void(records[cell.id])}
    needed = {cell.job for cell in cells if cell.mode.attach is not None and cell.id not in settled}
    return [
        cell.id
        for cell in cells
        if (cell.id in settled if cell.mode.attach is not None else bool(needed) and cell.job not in needed)
    ]


def _stays_void(record: CellRecord) -> bool:
    return any(not check.ok and check.check != DRIFT for check in record.validity)


def _questions(cell: Cell, rules: Mapping[str, Budget]) -> list[_Question]:
    """The budgets; without any, how narrow the interval of the overhead is, or of the difference between variants."""
    if not rules:
        return [_Question(cell.job.headline, Limit(), difference=cell.mode.against is not None)]
    return [_Question(rule.metric, rule.limit, rule.difference is not None) for rule in rules.values()]


def _without_questions(
    sequential: Sequential, records: Mapping[str, CellRecord], cells: Sequence[Cell], spent: Reason | None
) -> str | None:
    """A group with nothing to decide (only the host, or only void cells) gets the minimum number of rounds.

    Cells that the host does not support get no rounds.
    """
    measured = [len(set(records[cell.id].rounds)) for cell in cells if records[cell.id].skipped is None]
    if max(measured, default=sequential.first) >= sequential.first:
        return "nothing to decide"
    return spent
