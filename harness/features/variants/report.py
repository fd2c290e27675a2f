"""Variants: the difference between the guests of two variants, job by job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from harness.analysis import METRICS, Estimate
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.model.mode import ModeVariant
from harness.report.blocks import (
    MOST_DIFFERENCES,
    Aside,
    Block,
    Column,
    Heading,
    Mark,
    On,
    Row,
    Sentence,
    TableCell,
    make_table,
)
from harness.report.numbers import format_mean, percent, percent_with_interval
from harness.report.section import Section
from harness.report.verdicts import judge_difference, link_cell
from harness.results import CellRecord

_WAYS = "side by side", "one after the other, each booted anew for every round"
"""How the guests of variants run."""


def variant_blocks(section: Section) -> Iterator[Block]:
    """For each variant of a disk, its guests against those of the reference; nothing without variants."""
    of_memory = [cell for cell in section.all_cells if cell.is_cached]
    for cells in (*variants_of(section.cells), *variants_of(of_memory)):
        detail = _detail(cells[0])
        title, basis = _title(detail) + (", served from memory" if cells[0].is_cached else ""), _basis(cells)
        yield Heading(title)
        yield Aside(
            f"{basis} The difference is that of the two guests in the same blocks: above 0, {detail.name} is worse."
        )
        yield Sentence(f"{title}. {basis}", on=On.TERMINAL)
        yield Sentence((Mark(f"{section.name}: {title}.", "strong"), f" {basis}"), on=On.MARKDOWN)
        yield make_table(
            cells,
            f"{title} on {section.name}",
            (Column("job", "mode"), lambda cell: TableCell(_name(cell), link=link_cell(cell))),
            (Column(detail.reference or ""), lambda cell: format_mean(cell, "against")),
            (Column(detail.name), lambda cell: format_mean(cell, "guest")),
            (Column("unit"), lambda cell: cell.headline_unit),
            (Column("difference, %", "strong"), lambda cell: percent_with_interval(_difference(cell))),
            (Column("n"), lambda cell: str(cell.n) if _difference(cell) is not None else "-"),
            (Column("latency, +%"), _latency),
            (Column("verdict", "reason"), _verdict),
            row=lambda cell: Row((), sentence=f"  {_sentence(cell)}", doubtful=_difference(cell) is None),
            style="cells variants",
            most=MOST_DIFFERENCES,
        )
        yield Sentence(_brief(title, cells), on=On.BRIEF)


def variants_of(cells: Sequence[CellRecord]) -> tuple[tuple[CellRecord, ...], ...]:
    """The cells that are compared with a reference, for each variant, in the order of the plan."""
    compared = [cell for cell in cells if cell.against is not None and cell.mode_detail.variant]
    names = list(dict.fromkeys(_detail(cell).name for cell in compared))
    compared.sort(key=lambda cell: names.index(_detail(cell).name))
    return tuple(tuple(group) for _, group in groupby(compared, key=lambda cell: _detail(cell).name))


def _detail(cell: CellRecord) -> ModeVariant:
    detail = cell.mode_detail.variant
    assert detail is not None
    return detail


def _latency(cell: CellRecord) -> str:
    latency = cell.metrics.get("lat_mean")
    return percent_with_interval(latency.difference if latency is not None and _difference(cell) is not None else None)


def _name(cell: CellRecord) -> str:
    """The mode and the job, without the variant: `lvm-randread-4k-qd1`."""
    return f"{_detail(cell).mode}-{cell.job.id}"


def _difference(cell: CellRecord) -> Estimate | None:
    """How much worse the variant is in the headline metric; None if the cell is not a result."""
    metric = cell.metrics.get(cell.headline_name)
    return metric.difference if metric is not None and cell.usable else None


def _verdict(cell: CellRecord) -> str:
    """For example "exceeds 1 %"; without a budget of the difference, whether one is shown."""
    difference = _difference(cell)
    if difference is None:
        return cell.outcome.value
    return judge_difference(cell, difference, known=cell.headline_name)


def _sentence(cell: CellRecord) -> str:
    """For example "new loses 2.1 % [1.6, 2.6] more than old at lvm-randread-4k-qd1 (iops): exceeds 1 %"."""
    detail, difference = _detail(cell), _difference(cell)
    if difference is None:
        return f"{detail.name} against {detail.reference} at {_name(cell)}: {_verdict(cell)}"
    slower = METRICS[cell.headline_name].is_latency
    words = f"{'takes' if slower else 'loses'} {percent(abs(difference.point))} %"
    if difference.low is not None and difference.high is not None:
        ends = (difference.low, difference.high) if difference.point >= 0 else (-difference.high, -difference.low)
        words += f" [{percent(ends[0])}, {percent(ends[1])}]"
    more, less = ("longer", "shorter") if slower else ("more", "less")
    than = f"{more if difference.point >= 0 else less} than {detail.reference}"
    return f"{detail.name} {words} {than} at {_name(cell)} ({cell.headline_name}): {_verdict(cell)}"


def _title(detail: ModeVariant) -> str:
    """For example "new against old"."""
    return f"{detail.name} against {detail.reference}"


def _basis(cells: Sequence[CellRecord]) -> str:
    """How the guests ran, and what was read back differently from them."""
    ways = dict.fromkeys(_WAYS[_detail(cell).alternating] for cell in cells)
    differs = dict.fromkeys(text for cell in cells for text in cell.differs)
    words = "; ".join(differs) or "nothing that was read back"
    return f"The guests ran {' and '.join(ways)}. What differs: {words}."


def _brief(title: str, cells: Sequence[CellRecord]) -> str:
    """For one of the last lines: "new against old: 2 exceeds 1 %, 4 within 1 %; new loses 2.1 % [1.6, 2.6] ..."."""
    verdicts = list(map(_verdict, cells))
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    worst = max(cells, key=lambda cell: difference.point if (difference := _difference(cell)) else -math.inf)
    return f"{title}: {counts}; the worst: {_sentence(worst)}"


REPORT = FeatureReport(
    subject=Subject(in_record=lambda cell: cell.mode_detail.variant is not None),
    contents={ReportPlace.DIFFERENCES: variant_blocks},
)
