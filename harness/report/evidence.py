"""The evidence of a cell: its budgets, every metric, percentiles, the checks of its measurement, and fio's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from harness.analysis import METRICS, Estimate, Unit
from harness.analysis.metrics import SHOWN
from harness.report import budgets
from harness.report.blocks import Block, Cell, Column, Inline, Link, Listing, Row, Sentence, Table
from harness.report.cells import confidence_words, sample_words
from harness.report.numbers import (
    NONE,
    batch_count,
    format_pooled,
    microseconds,
    microseconds_interval,
    percent_with_interval,
    significant,
)
from harness.results import CellRecord, MetricRecord

_DOUBTS = {
    "void": "Void: the figures below are evidence and not a result.",
    "faster": "The guest is faster than its host by more than 5 %, also as one of all cells. This needs an explanation "
    "and is not a gain. The notes say what explains it, if that is known.",
}


def evidence_blocks(cell: CellRecord) -> Iterator[Block]:
    """Everything that is stored of a cell."""
    record = cell
    if cell.doubt:
        yield Sentence(_DOUBTS[cell.doubt], style="doubt")
    if record.budget:
        yield _budget_table(cell)
    if record.metrics:
        yield _metric_table(cell)
    if percentiles := {name: metric for name, metric in record.metrics.items() if metric.pooled or metric.batches}:
        yield _percentile_table(cell, percentiles)
    if record.validity:
        rows = (
            Row((check.check, Cell("ok", tone="within") if check.ok else Cell("failed", tone="void"), check.detail))
            for check in record.validity
        )
        columns = (Column("check", "head"), Column("passed", "text"), Column("detail", "text"))
        yield Table(columns, tuple(rows), f"Checks of {cell.id}", style="facts")
    if record.notes:
        yield Listing(record.notes)
    if record.skipped:
        yield Sentence(f"Skipped: {record.skipped}")
    if record.raw:
        outputs: list[Inline] = [", "] * (2 * len(record.raw) - 1)
        outputs[::2] = [_output(raw) for raw in record.raw]
        yield Sentence(("fio's outputs: ", *outputs), style="raw")
    else:
        yield Sentence("No output of fio.")


def shown_value(estimate: Estimate | None, unit: Unit) -> str:
    """A stored value in the shown unit: IOPS, MB/s or us."""
    return NONE if estimate is None else significant(estimate.point / SHOWN[unit].scale)


def _budget_table(cell: CellRecord) -> Table:
    rows = (
        Row(
            (
                budget.metric,
                budgets.limit(budget),
                budgets.finding(cell, budget),
                budgets.p_value(budget.p_value),
                Cell(str(budget.verdict), tone=str(budget.verdict)),
            )
        )
        for budget in budgets.gravest_first(cell.budget)
    )
    columns = (
        Column("budget in", "head"),
        Column("at most", "sentence"),
        Column("found", "sentence"),
        Column("p", "text"),
        Column("verdict", "text"),
    )
    return Table(columns, tuple(rows), f"Budgets of {cell.id}", style="facts")


def _metric_table(cell: CellRecord) -> Table:
    names = ("unit", "host", "twin", "guest", f"overhead %, {confidence_words([cell])}", "added us")
    rows = (
        Row(
            (
                _metric_cell(name),
                SHOWN[metric.unit].unit,
                *(shown_value(cell.mean(metric, arm), metric.unit) for arm in ("host", "twin", "guest")),
                percent_with_interval(metric.overhead),
                f"{microseconds(metric.added.point)} {microseconds_interval(metric.added)}" if metric.added else NONE,
            )
        )
        for name, metric in cell.metrics.items()
    )
    columns = (Column("metric", "head"), *map(Column, names))
    return Table(columns, tuple(rows), f"Metrics of {cell.id}", style="facts numbers")


def _percentile_table(cell: CellRecord, percentiles: dict[str, MetricRecord]) -> Table:
    names = ("I/Os of the guest", "host", "twin", "guest", f"overhead %, {confidence_words([cell])}", "from")
    rows = (
        Row(
            (
                _metric_cell(name),
                f"{metric.pooled['guest'].ios:,}".replace(",", " ") if "guest" in metric.pooled else "",
                *(format_pooled(metric.pooled.get(arm)) for arm in ("host", "twin", "guest")),
                percent_with_interval(metric.overhead),
                batch_count(metric.batches, metric.overhead.boots) or sample_words(cell) if metric.overhead else "",
            )
        )
        for name, metric in percentiles.items()
    )
    return Table(
        (Column("percentile", "head"), *map(Column, names)),
        tuple(rows),
        "Percentiles, us: of all blocks' I/Os together, with the interval from the sampling of I/Os. The overhead is "
        "different: it comes from the percentiles of each sample, in pairs, with the interval between samples. A "
        "sample is a block, or some successive blocks if one block has too few I/Os.",
        style="facts numbers",
        caption_shown=True,
    )


def _metric_cell(name: str) -> Cell:
    return Cell(name, title=METRICS[name].label if name in METRICS else "")


def _output(raw: str) -> Inline:
    """A link to a raw output, relative to the page. A path that leads outside of the run is no link."""
    parts = raw.split("/")
    return Link(raw.removeprefix("raw/"), quote(raw)) if parts[0] == "raw" and ".." not in parts else raw
