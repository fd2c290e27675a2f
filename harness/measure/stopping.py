"""Decides when a group has enough rounds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis import METRICS, Limit, Reason, Sequential, Verdict, decided
from harness.model.budget import Budget
from harness.model.mode import Cell
from harness.results import CellRecord
from harness.results.dependence import correlation_of, samples_of
from harness.scenario.plan import Plan


def reason_to_stop(
    cells: Sequence[Cell],
    records: Mapping[str, CellRecord],
    budgets: Mapping[str, Mapping[str, Budget]],
    plan: Plan,
    sequential: Sequential,
    *,
    family: int,
    time_spent: bool,
    reachable: int | None,
) -> str | None:
    """Why no further round is necessary, in words. None to continue.

    `records` and `budgets` (by metric) are by cell id. `family` is the number of budgets that the run judges. A cell
    with budgets is decided when all its budgets are decided. A cell without a budget is decided when the interval of
    its headline metric is as narrow as the plan's target. Void cells and cells without a guest need no further round,
    because more rounds cannot change them. `reachable` is the number of rounds that the time allows, if it is limited.
    """
    reasons: dict[Reason, None] = {}
    correlation = correlation_of(records[cell.id] for cell in cells)
    for cell in cells:
        record = records[cell.id]
        if record.verdict is Verdict.VOID or record.skipped is not None or cell.mode.attach is None:
            continue
        for name, budget in _questions(cell, budgets[cell.id]).items():
            metric = record.metrics.get(name)
            if metric is None:
                continue
            reason = decided(
                metric.host,
                metric.guest,
                sequential,
                higher_is_better=METRICS[name].higher_is_better,
                budget=budget,
                target=plan.target,
                cells=max(family, 1),
                time_spent=time_spent,
                samples=samples_of(record.rounds, record.boots, correlation),
                reachable=reachable,
            )
            if reason is None:
                return None
            reasons[reason] = None
    if reasons:
        return ", ".join(reasons)
    return _without_questions(sequential, records, cells, time_spent=time_spent)


def void_cells(cells: Sequence[Cell], records: Mapping[str, CellRecord]) -> list[str]:
    """The ids of the cells that no further round needs: void cells stay void.

    Cells of the mode `host` have no guest, and every other cell measures the host, so these follow the others.
    """
    void = [cell.id for cell in cells if records[cell.id].verdict is Verdict.VOID]
    needed = {cell.job for cell in cells if cell.mode.attach is not None and cell.id not in void}
    if not needed:
        return []
    return [*void, *(cell.id for cell in cells if cell.mode.attach is None and cell.job not in needed)]


def _questions(cell: Cell, rules: Mapping[str, Budget]) -> dict[str, Limit]:
    if not rules:
        return {cell.job.headline: Limit()}
    return {name: rule.limit for name, rule in rules.items()}


def _without_questions(
    sequential: Sequential, records: Mapping[str, CellRecord], cells: Sequence[Cell], *, time_spent: bool
) -> str | None:
    """A group with nothing to decide (only the host, or only void cells) gets the minimum number of rounds.

    Cells that the host does not support get no rounds.
    """
    measured = [len(set(records[cell.id].rounds)) for cell in cells if records[cell.id].skipped is None]
    if max(measured, default=sequential.first) >= sequential.first:
        return "nothing to decide"
    return Reason.TIME if time_spent else None
