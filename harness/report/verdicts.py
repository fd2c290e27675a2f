"""Verdicts over all cells: what exceeds its budget, what is void, what is inconclusive and what would decide it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import Estimate, Verdict
from harness.report.budgets import finding, limit, p_value, sentence
from harness.report.cells import CellView, Outcome
from harness.report.deciding import what_decides
from harness.report.numbers import count, percent_with_interval
from harness.results import BudgetRecord, CellRecord
from harness.results.disk_requests import why_faster

_LINE = 160
"""Characters of a reason in a list. The page has all of it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One budget of one cell with its finding. `decides` is empty unless the verdict is inconclusive."""

    cell: CellView
    budget: BudgetRecord
    decides: str

    @property
    def overhead(self) -> Estimate | None:
        metric = self.cell.record.metrics.get(self.budget.metric)
        return self.budget.estimate(metric) if metric else None

    @property
    def limit(self) -> str:
        return limit(self.budget)

    @property
    def finding(self) -> str:
        return finding(self.cell.record, self.budget)

    @property
    def p_value(self) -> str:
        return p_value(self.budget.p_value)

    @property
    def sentence(self) -> str:
        """For lists: "CELL: iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001"."""
        return f"{self.cell.id}: {sentence(self.cell.record, self.budget)}"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All verdicts of a run, by kind."""

    exceeds: tuple[Judged, ...]
    """The smallest p value first."""
    inconclusive: tuple[Judged, ...]
    within: tuple[Judged, ...]
    void: tuple[CellView, ...]
    faster: tuple[CellView, ...]
    """Cells that are not void and whose guest is shown to be faster than its host."""
    not_measured: tuple[CellView, ...]

    @property
    def judged(self) -> int:
        """The number of budgets that got a verdict."""
        return len(self.exceeds) + len(self.inconclusive) + len(self.within)

    @property
    def faster_sentences(self) -> tuple[str, ...]:
        """For lists: "CELL: bw overhead -33.5 [-53.2, -16.4] %; no check explains it: find out why"."""
        return tuple(f"{cell.id}: {cell.headline_name} {_gained(cell)}; {_why(cell.record)}" for cell in self.faster)

    @property
    def void_reasons(self) -> tuple[str, ...]:
        """A line for each mode and kind of failed checks, with the first cell's reason."""
        alike: dict[tuple[str, str], list[CellView]] = {}
        for cell in self.void:
            alike.setdefault((cell.mode, " and ".join(_failed(cell))), []).append(cell)
        return tuple(
            f"`{mode}`, {count(len(cells), 'cell')}: {checks} failed, {_example(cells[0])}"
            for (mode, checks), cells in alike.items()
        )

    @property
    def skip_reasons(self) -> tuple[str, ...]:
        """A line for each mode and reason why nothing was measured."""
        alike: dict[tuple[str, str], list[CellView]] = {}
        for cell in self.not_measured:
            alike.setdefault((cell.mode, "; ".join(cell.remarks)), []).append(cell)
        return tuple(f"`{mode}`, {count(len(cells), 'cell')}: {reason}" for (mode, reason), cells in alike.items())


def _failed(cell: CellView) -> list[str]:
    """The kinds of the checks that failed: the first word of their names."""
    return list(dict.fromkeys(check.check.partition(" ")[0] for check in cell.record.validity if not check.ok))


def _example(cell: CellView) -> str:
    detail = next((check.detail for check in cell.record.validity if not check.ok), "no reason was stored")
    return f"for example {cell.record.job.id}: {textwrap.shorten(detail, _LINE, placeholder=' ...')}"


def _gained(cell: CellView) -> str:
    mode = cell.record.mode_detail
    loss = cell.headline.on_same_disks(mode) if cell.headline is not None else None
    basis = " against the array on the host" if mode.on_array else ""
    return f"overhead{basis} {percent_with_interval(loss)} %"


def _why(record: CellRecord) -> str:
    return why_faster(record.accounting, on_array=record.mode_detail.on_array)


def verdicts(cells: Sequence[CellView]) -> Verdicts:
    """The verdicts of these cells. The budgets of a void or skipped cell are not judged."""
    pairs = [(cell, budget) for cell in cells if cell.usable for budget in cell.record.budget]

    def those(verdict: Verdict) -> list[Judged]:
        return [
            Judged(
                cell,
                budget,
                what_decides(cell.record, budget, judged=len(pairs)) if verdict is Verdict.INCONCLUSIVE else "",
            )
            for cell, budget in pairs
            if budget.verdict is verdict
        ]

    exceeds = those(Verdict.EXCEEDS)
    exceeds.sort(key=lambda exceed: exceed.budget.p_value if exceed.budget.p_value is not None else 1.0)
    return Verdicts(
        exceeds=tuple(exceeds),
        inconclusive=tuple(those(Verdict.INCONCLUSIVE)),
        within=tuple(those(Verdict.WITHIN)),
        void=tuple(cell for cell in cells if cell.outcome is Outcome.VOID),
        faster=tuple(cell for cell in cells if cell.usable and cell.faster_than_host),
        not_measured=tuple(cell for cell in cells if cell.outcome in (Outcome.SKIPPED, Outcome.NOT_MEASURED)),
    )
