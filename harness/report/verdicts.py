"""Verdicts over all cells: what exceeds its budget, what is void, what is inconclusive and what would decide it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.analysis import METRICS, Estimate, Verdict
from harness.report.blocks import Aside, Block, Cell, Column, Fold, Heading, Listing, Mark, Row, Table
from harness.report.budgets import finding, limit, p_value, sentence
from harness.report.cells import link_cell
from harness.report.deciding import what_decides
from harness.report.intervals import Scale
from harness.report.numbers import count, percent_with_interval
from harness.results import BudgetRecord, CellRecord, Outcome
from harness.results.judging import explain_faster

_MOST_OPEN = 12
"""Budgets whose list is open when the page is."""
_LINE = 160
"""Characters of a reason in a list. The page has all of it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One budget of one cell with its finding. `decides` is empty unless the verdict is inconclusive."""

    cell: CellRecord
    budget: BudgetRecord
    decides: str

    @property
    def overhead(self) -> Estimate | None:
        metric = self.cell.metrics.get(self.budget.metric)
        return self.budget.estimate(metric) if metric else None

    @property
    def limit(self) -> str:
        return limit(self.budget)

    @property
    def finding(self) -> str:
        return finding(self.cell, self.budget)

    @property
    def p_value(self) -> str:
        return p_value(self.budget.p_value)

    @property
    def sentence(self) -> str:
        """For lists: "CELL: iops overhead 79.4 % [77.5, 81.2], budget 60 %, p < 0.0001"."""
        return f"{self.cell.id}: {sentence(self.cell, self.budget)}"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """All verdicts of a run, by kind."""

    exceeds: tuple[Judged, ...]
    """The smallest p value first."""
    inconclusive: tuple[Judged, ...]
    within: tuple[Judged, ...]
    void: tuple[CellRecord, ...]
    faster: tuple[CellRecord, ...]
    """Cells that are not void and whose guest is shown to be faster than its host."""
    not_measured: tuple[CellRecord, ...]

    @property
    def judged(self) -> int:
        """The number of budgets that got a verdict."""
        return len(self.exceeds) + len(self.inconclusive) + len(self.within)

    @property
    def faster_sentences(self) -> tuple[str, ...]:
        """For lists: "CELL: bw overhead -33.5 [-53.2, -16.4] %; no check explains it: find out why"."""
        return tuple(f"{cell.id}: {cell.headline_name} {_gained(cell)}; {explain_faster(cell)}" for cell in self.faster)

    @property
    def void_reasons(self) -> tuple[str, ...]:
        """A line for each mode and kind of failed checks, with the first cell's reason."""
        alike: dict[tuple[str, str], list[CellRecord]] = {}
        for cell in self.void:
            alike.setdefault((cell.mode, " and ".join(_failed(cell))), []).append(cell)
        return tuple(
            f"`{mode}`, {count(len(cells), 'cell')}: {checks} failed, {_example(cells[0])}"
            for (mode, checks), cells in alike.items()
        )

    @property
    def skip_reasons(self) -> tuple[str, ...]:
        """A line for each mode and reason why nothing was measured."""
        alike: dict[tuple[str, str], list[CellRecord]] = {}
        for cell in self.not_measured:
            alike.setdefault((cell.mode, "; ".join(cell.remarks)), []).append(cell)
        return tuple(f"`{mode}`, {count(len(cells), 'cell')}: {reason}" for (mode, reason), cells in alike.items())


def _failed(cell: CellRecord) -> list[str]:
    """The kinds of the checks that failed: the first word of their names."""
    return list(dict.fromkeys(check.check.partition(" ")[0] for check in cell.validity if not check.ok))


def _example(cell: CellRecord) -> str:
    detail = next((check.detail for check in cell.validity if not check.ok), "no reason was stored")
    return f"for example {cell.job.id}: {textwrap.shorten(detail, _LINE, placeholder=' ...')}"


def _gained(cell: CellRecord) -> str:
    mode = cell.mode_detail
    loss = cell.headline.on_same_disks(mode) if cell.headline is not None else None
    basis = " against the array on the host" if mode.on_array else ""
    return f"overhead{basis} {percent_with_interval(loss)} %"


def verdict_blocks(verdicts: Verdicts) -> Iterator[Block]:
    """What exceeds, what is undecided, what is void and what is faster than its host."""
    yield Heading("Verdicts", level=2)
    if verdicts.judged == 0 and not verdicts.void and not verdicts.faster:
        yield Aside("No budget applies to a cell of this run in this lab, so nothing is judged.")
    for title, kind, rows in (
        ("Exceeds its budget", "exceeds", verdicts.exceeds),
        ("Inconclusive, and what would decide it", "inconclusive", verdicts.inconclusive),
    ):
        if rows:
            yield Heading(f"{title}: {len(rows)} of {verdicts.judged} judged")
            tables = tuple(_judged_table(quantity, judged, kind) for quantity, judged in _by_quantity(rows).items())
            summary = Mark(count(len(rows), "budget"), "tone", kind)
            yield Fold((summary,), tables, open=len(rows) <= _MOST_OPEN, key=f"verdicts-{kind}")
    if verdicts.void:
        yield Heading(f"Void: {count(len(verdicts.void), 'cell')}")
        yield Aside("A check failed, so these are left out of all means and comparisons.")
        yield Listing(verdicts.void_reasons)
        void = tuple(Row((Cell(cell.id, link=link_cell(cell)), "; ".join(cell.remarks))) for cell in verdicts.void)
        table = Table((Column("cell", "head"), Column("why", "text")), void, "Void cells and why", style="facts")
        yield Fold((Mark("every void cell and why", "tone", "void"),), (table,), key="verdicts-void")
    if verdicts.faster:
        yield Heading(f"Faster than the host: {count(len(verdicts.faster), 'cell')}")
        yield Aside(
            "A virtual machine cannot be faster than its host by itself, so these figures need an explanation. Each is "
            "shown also as one of all cells of the run."
        )
        yield Listing(verdicts.faster_sentences)
    if verdicts.judged:
        yield Aside(
            f"{len(verdicts.within)} of {verdicts.judged} judged budgets are kept with the whole interval. In the "
            "drawings, the dot is the overhead in percent, the bar its interval, and the vertical line its budget."
        )


def _judged_table(quantity: str, judged: Sequence[Judged], kind: str) -> Table:
    """The budgets with one scale for all rows, which has room for the budgets."""
    limits = [share for one in judged if (share := one.budget.limit.share) is not None]
    scale = Scale.around([one.overhead for one in judged if one.overhead is not None], limits)
    return Table(
        (
            Column("cell", "head"),
            Column("metric"),
            Column("found"),
            Column("budget", "strong"),
            Column("drawing", "drawing", scale=scale, hidden=True),
            Column("p" if kind == "exceeds" else "what would decide it", "why"),
        ),
        tuple(_judged_row(one, kind) for one in judged),
        quantity,
        style="glance judged",
        caption_shown=True,
    )


def _judged_row(judged: Judged, kind: str) -> Row:
    share = judged.budget.limit.share
    return Row(
        (
            Cell(judged.cell.id, link=link_cell(judged.cell)),
            judged.budget.metric,
            judged.finding,
            judged.limit,
            Cell("", drawn=judged.overhead if share is not None else None, limit=share),
            judged.p_value if kind == "exceeds" else judged.decides,
        )
    )


def _by_quantity(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Throughput and latency separately: on the scale of a latency that is 400 % worse, a loss of 20 % is invisible."""
    tables: dict[str, list[Judged]] = {}
    for one in sorted(judged, key=lambda one: METRICS[one.budget.metric].is_latency):
        tables.setdefault("Latency" if METRICS[one.budget.metric].is_latency else "Throughput", []).append(one)
    return tables


def find_verdicts(cells: Sequence[CellRecord]) -> Verdicts:
    """The verdicts of these cells. The budgets of a void or skipped cell are not judged."""
    pairs = [(cell, budget) for cell in cells if cell.usable for budget in cell.budget]

    def those(verdict: Verdict) -> list[Judged]:
        return [
            Judged(
                cell,
                budget,
                what_decides(cell, budget, judged=len(pairs)) if verdict is Verdict.INCONCLUSIVE else "",
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
        faster=tuple(cell for cell in cells if cell.usable and cell.better_than_host),
        not_measured=tuple(cell for cell in cells if cell.outcome in (Outcome.SKIPPED, Outcome.NOT_MEASURED)),
    )
