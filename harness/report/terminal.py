"""A run on a terminal: a row per cell with the lines around the table, and the answers in short."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from harness.console import CleanConsole
from harness.feature import ReportPlace
from harness.report.blocks import Block, Code, Heading, Listing, On, Sentence, Table, first, plain_text
from harness.report.contents import blocks_at, find_banners, headline_of, lab_sentences, lead_sentences
from harness.report.numbers import confidence_words, microseconds, percent_with_interval, short
from harness.report.section import Section, find_sections, outcome_counts
from harness.report.verdicts import Verdicts, compact_verdict, find_verdicts
from harness.results import CellRecord, Outcome, Run
from harness.units import format_duration


def render_lines(blocks: Iterable[Block], on: On = On.TERMINAL) -> list[str]:
    """The lines of the blocks that are for the terminal, or for the last lines of a run."""
    return [line for block in blocks if on in getattr(block, "on", On.PAGE) for line in _block_lines(block)]


def _block_lines(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield plain_text(block.text)
        case Sentence():
            yield " " * block.indent + plain_text(block.text)
        case Listing():
            yield from (f"{' ' * block.indent}{line}" for line in first([*map(plain_text, block.items)], block.most))
        case Table() if block.on is On.BRIEF:
            yield from _align_table(block)
        case Table():
            yield from first([row.sentence for row in block.rows if row.sentence], block.most)
        case Code():
            yield from block.text.splitlines()


def _align_table(table: Table) -> Iterator[str]:
    """The names of the columns and the rows as lines of text, each column as wide as its longest text."""
    lines = [[plain_text(column.name) for column in table.columns]]
    lines += [[plain_text(cell if isinstance(cell, str) else cell.text) for cell in row.cells] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()


ID_WIDTH = 100
"""From this width, a row has the cell's id. Below it, rows are grouped by workload and have depth and mode."""

_STYLES = {
    Outcome.WITHIN: "green",
    Outcome.EXCEEDS: "bold red",
    Outcome.VOID: "bold magenta",
    Outcome.INCONCLUSIVE: "yellow",
}


def overhead_table(run: Run, *, width: int) -> RenderableType:
    """The cells with a guest, in the order of the plan, for a terminal of `width` columns.

    Host and guest are in IOPS for random jobs, MB/s for sequential jobs, and us for jobs at a fixed rate. Overhead is
    in percent with its interval; the column's head has the confidence. For a cell with several budgets, `exceeds 1/3`
    says how many have its verdict.
    """
    cells = [cell for section in find_sections(run) for cell in section.cells if not cell.is_baseline]
    if not cells:
        if any(cell.is_cached for cell in run.cells):
            return Text("every cell with a guest is served from memory: see below")
        return Text("no cell with a guest was planned" if run.cells else "no cell was measured")
    overhead = overhead_head(cells)
    if width >= ID_WIDTH:
        return _table("cell", [(cell.id, cell) for cell in cells], width, overhead)
    return _by_workload(find_sections(run), width, overhead)


def difference_lines(run: Run) -> list[str]:
    """What comes before the overheads: the differences between variants, what neighbours cost, and how several guests
    share a storage; empty without any."""
    lines: list[str] = []
    for section in find_sections(run):
        lines += render_lines(blocks_at(ReportPlace.DIFFERENCES, section))
    return lines


def summary_lines(run: Run, path: Path | None = None) -> list[str]:
    """The lines around the table: warnings, the answer for each disk, what exceeds and what is void, further findings,
    counts, efficiency, the smallest overhead that this lab can show, and the path of the report."""
    sections = find_sections(run)
    lines = [f"{banner.title}: {banner.text}" for banner in find_banners(run)]
    for section in sections:
        headline = headline_of(section)
        lines += [headline.sentence, *(f"  {detail}" for detail in headline.details)]
        lines += [f"  {line}" for line in render_lines(blocks_at(ReportPlace.ANSWERS, section))]
    for title, sentences in finding_lists(find_verdicts(run.cells)):
        lines += [f"{title}:", *(f"  {sentence}" for sentence in sentences)]
    for section in sections:
        lines += render_lines(blocks_at(ReportPlace.FACTS, section))
        lines += render_lines(blocks_at(ReportPlace.FINDINGS, section))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcome_counts(run.cells).items())
    if counts:
        lines.append(f"cells: {counts}")
    lines.append(efficiency_line(run))
    lines += lab_sentences(run)
    if path is not None:
        lines.append(f"report: {path}")
    return lines


def overhead_head(cells: Sequence[CellRecord]) -> str:
    """The head of the overhead's column, with the confidence of its intervals."""
    return f"overhead % [{confidence_words(cells)}]"


def finding_lists(verdicts: Verdicts) -> list[tuple[str, list[str]]]:
    """What exceeds, what is faster than its host, and why cells are void or were not measured: each title with its
    first sentences."""
    lists = (
        ("exceeds", tuple(judged.sentence for judged in verdicts.exceeds)),
        ("faster than the host by more than 5 %, which needs an explanation", verdicts.faster_sentences),
    )
    findings = [(f"{title} ({len(sentences)})", first(sentences)) for title, sentences in lists if sentences]
    if verdicts.void:
        findings.append((f"void, left out of all comparisons ({len(verdicts.void)})", first(verdicts.void_reasons)))
    if verdicts.not_measured:
        findings.append((f"not measured ({len(verdicts.not_measured)})", first(verdicts.skip_reasons)))
    return findings


def efficiency_line(run: Run) -> str:
    """For example `fio ran 192 s of 214 s: 0.90`. Of imported results, only the time of fio is known."""
    spent = run.run.efficiency
    if run.lab.imported:
        return f"fio ran {_seconds(spent.fio_s)} for the imported results"
    return f"fio ran {_seconds(spent.fio_s)} of {_seconds(spent.wall_s)}: {spent.ratio:.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else format_duration(seconds)


def _by_workload(sections: Sequence[Section], width: int, overhead: str) -> Group:
    widest = max((len(_row_name(cell)) for section in sections for cell in section.cells), default=0)
    parts: list[RenderableType] = []
    for section in sections:
        for workload in section.workloads:
            rows = [(_row_name(cell), cell) for cell in workload.cells if not cell.is_baseline]
            if rows:
                parts += [
                    Text(f"{section.name} {workload.name}", style="bold"),
                    _table("", rows, width, overhead, unit=workload.unit, name_width=widest),
                ]
    return Group(*parts)


def _row_name(cell: CellRecord) -> str:
    return f"qd{cell.iodepth} {cell.mode}"


def _table(
    first: str,
    rows: Sequence[tuple[str, CellRecord]],
    width: int,
    overhead: str,
    *,
    unit: str = "",
    name_width: int | None = None,
) -> RichTable:
    table = RichTable(box=None, padding=(0, 2 if width >= ID_WIDTH else 1, 0, 0), pad_edge=False, header_style="dim")
    outcomes = [Text(outcome_words(cell), style=_STYLES.get(cell.outcome, "")) for _, cell in rows]
    widest = max(12, *(len(outcome) for outcome in outcomes))
    table.add_column(first, overflow="fold", min_width=min(name_width or 0, 36 - widest))
    for name in (f"host\n{unit}", f"guest\n{unit}") if unit else ("host", "guest"):
        table.add_column(name, justify="right", no_wrap=True, min_width=5)
    if not unit:
        table.add_column("unit", no_wrap=True)
    # A long confidence gets its own line, and the name gets less space: figures and verdicts need the width.
    table.add_column(
        overhead.replace(" [", "\n[").replace(" over", ",") if len(overhead) > 20 else overhead,
        justify="right",
        no_wrap=True,
    )
    table.add_column("n", justify="right", no_wrap=True, min_width=2)
    table.add_column("added\nus" if unit else "added us", justify="right", no_wrap=True, min_width=5)
    table.add_column("verdict", no_wrap=True, min_width=widest)
    for (name, cell), outcome in zip(rows, outcomes, strict=True):
        host, guest, *rest = map(Text, row_values(cell))
        units = () if unit else (Text(cell.headline_unit),)
        table.add_row(Text(name), host, guest, *units, *rest, outcome)
    return table


def outcome_words(cell: CellRecord) -> str:
    """The verdict, or why there is none. A guest faster than its host has a question mark."""
    words = compact_verdict(cell) if cell.usable and not cell.is_baseline else cell.outcome.value
    return f"{words}?" if cell.usable and cell.better_than_host else words


def row_values(cell: CellRecord) -> tuple[str, str, str, str, str]:
    """Host, guest, overhead with interval, n and added latency of a cell as narrow text; "-" for unknown values."""
    host, guest = cell.mean(cell.headline, "host"), cell.mean(cell.headline, "guest")
    overhead, added = (cell.overhead, cell.added) if cell.usable else (None, None)
    return (
        short(host.point / cell.headline_scale if host else None),
        short(guest.point / cell.headline_scale if guest else None),
        percent_with_interval(overhead) if overhead else "-",
        str(cell.n) if overhead else "-",
        microseconds(added.point, signed=True, grouped="") if added else "-",
    )


SHORT_LINES = 14
"""The lines at the end of a run, without -v."""


def print_run(run: Run, path: Path | None = None, *, verbose: bool, console: Console | None = None) -> None:
    """The run on standard output: its answers in short or, with `verbose`, the table and all lines around it.

    Colours only if it is a terminal.
    """
    console = console or CleanConsole()
    if verbose:
        for line in difference_lines(run):
            console.print(line, markup=False, soft_wrap=True)
        console.print(overhead_table(run, width=console.width))
    for line in summary_lines(run, path) if verbose else short_lines(run, path):
        console.print(line, markup=False, soft_wrap=True)


def short_lines(run: Run, path: Path | None = None) -> list[str]:
    """At most SHORT_LINES lines that answer, the most important first, then counts and the path of the report.

    What has no room is in the report, and in the lines of `summary_lines`.
    """
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcome_counts(run.cells).items())
    last = [f"cells: {counts}; {efficiency_line(run)}" if counts else efficiency_line(run)]
    last += [f"report: {path}"] if path is not None else []
    first = list(dict.fromkeys(_answers(run)))
    room = SHORT_LINES - len(last)
    if len(first) > room:
        first = [*first[: room - 1], f"and {len(first) - room + 1} more lines: -v, or the report"]
    return first + last


def _answers(run: Run) -> Iterator[str]:
    """Warnings, the differences between variants, what to use on each disk, what exceeds its budget or is no result,
    the cause of the loss, and what to measure next."""
    sections = find_sections(run)
    for banner in find_banners(run):
        if banner.kind == "judged" and not any(cell.budget for cell in run.cells):
            continue  # nobody asked for a verdict
        # What the lab is; the report says what that means.
        yield f"{banner.title}: {banner.text.partition('. ')[0] if banner.kind == 'lab' else banner.text}"
    for section in sections:
        yield from render_lines(blocks_at(ReportPlace.DIFFERENCES, section), On.BRIEF)
    headlines = [headline_of(section) for section in sections]
    answers = {section.key: render_lines(blocks_at(ReportPlace.ANSWERS, section), On.BRIEF) for section in sections}
    for section, headline in zip(sections, headlines, strict=True):
        yield from answers[section.key] or [headline.sentence]
    for title, sentences in finding_lists(find_verdicts(run.cells)):
        yield f"{title}: {sentences[0].partition(', for example ')[0]}"
    for section in sections:
        yield from render_lines(blocks_at(ReportPlace.FINDINGS, section), On.BRIEF)
    # Those of the responsible layers have lines of their own, and where there are answers, the rest is in the report.
    leads = {sentence for section in sections for sentence in lead_sentences(section)}
    for section, headline in zip(sections, headlines, strict=True):
        if not answers[section.key]:
            yield from (detail for detail in headline.details if detail not in leads)


def answers_json(run: Run, page: Path | None) -> dict[str, Any]:
    """Warnings, the answer for each disk and use, and what exceeds or is void. results.json has all figures."""
    return {
        "run": run.run.id,
        "status": run.run.status,
        "profile": run.run.profile,
        "host": run.lab.host,
        "representative": run.lab.representative,
        "warnings": [f"{banner.title}: {banner.text}" for banner in find_banners(run)],
        "sections": [
            {
                "name": section.name,
                "headline": headline_of(section).sentence,
                "details": list(headline_of(section).details),
                **{key: value for report in section.reports for key, value in report.section_json(section).items()},
            }
            for section in find_sections(run)
        ],
        "findings": dict(finding_lists(find_verdicts(run.cells))),
        "cells": {str(outcome): number for outcome, number in outcome_counts(run.cells).items()},
        "report": page and str(page),
    }
