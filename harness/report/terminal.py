"""A run on a terminal: a row per cell with the lines around the table, the answers in short, and while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from harness.console import CleanConsole
from harness.feature import ReportPlace, features
from harness.report.blocks import Block, Code, Heading, Listing, On, Sentence, Table, first, plain_text
from harness.report.contents import blocks_at, find_banners, headline_of, lab_sentences, lead_sentences
from harness.report.numbers import confidence_words, count, microseconds, percent_with_interval, short
from harness.report.section import Section, find_sections, outcome_counts
from harness.report.verdicts import Verdicts, compact_verdict, find_verdicts
from harness.results import CellRecord, Journal, Outcome, Run
from harness.results.records import Planned
from harness.units import format_duration


def render_lines(blocks: Iterable[Block], on: On = On.TERMINAL) -> list[str]:
    """The lines of the blocks that are for the terminal, or for the ten lines at the end of a run."""
    return [line for block in blocks if on in getattr(block, "on", On.PAGE) for line in _block_lines(block)]


def _block_lines(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield plain_text(block.text)
        case Sentence():
            yield " " * block.indent + plain_text(block.text)
        case Listing():
            if block.title and block.items:
                yield block.title
            yield from (f"{' ' * block.indent}{line}" for line in first([*map(plain_text, block.items)], block.most))
        case Table():
            yield from first([row.sentence for row in block.rows if row.sentence], block.most)
        case Code():
            yield from block.text.splitlines()


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
        return Text("no cell with a guest was planned" if run.cells else "no cell was measured")
    overhead = overhead_head(cells)
    if width >= ID_WIDTH:
        return _table("cell", [(cell.id, cell) for cell in cells], width, overhead)
    return _by_workload(find_sections(run), width, overhead)


def overhead_text(run: Run, *, width: int) -> str:
    """The table as plain text, without colours."""
    console = CleanConsole(width=width, tables_only=True)
    with console.capture() as capture:
        console.print(overhead_table(run, width=width))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def difference_lines(run: Run) -> list[str]:
    """What comes before the overheads: the differences between variants, what neighbours cost, and how several guests
    share a storage; empty without any."""
    found: list[str] = []
    for section in find_sections(run):
        found += render_lines(blocks_at(ReportPlace.DIFFERENCES, section))
    return found


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
    found = [(f"{title} ({len(sentences)})", first(sentences)) for title, sentences in lists if sentences]
    if verdicts.void:
        found.append((f"void, left out of all comparisons ({len(verdicts.void)})", first(verdicts.void_reasons)))
    if verdicts.not_measured:
        found.append((f"not measured ({len(verdicts.not_measured)})", first(verdicts.skip_reasons)))
    return found


def efficiency_line(run: Run) -> str:
    """For example `fio ran 192 s of 214 s: 0.90`. Of imported results, only the time of fio is known."""
    spent = run.run.efficiency
    if run.lab.imported:
        return f"fio ran {_seconds(spent.fio_s)} for the imported results"
    return f"fio ran {_seconds(spent.fio_s)} of {_seconds(spent.wall_s)}: {spent.ratio:.2f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else format_duration(seconds)


def _by_workload(sections: Sequence[Section], width: int, overhead: str) -> Group:
    widest = max(len(_row_name(cell)) for section in sections for cell in section.cells)
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


SHORT_LINES = 10
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
    """Warnings, the differences between variants, what other guests cost, the answer for each disk, what
    is no result, and what to use."""
    sections = find_sections(run)
    for banner in find_banners(run):
        # What the lab is; the report says what that means.
        yield f"{banner.title}: {banner.text.partition('. ')[0] if banner.kind == 'lab' else banner.text}"
    for section in sections:
        yield from render_lines(blocks_at(ReportPlace.DIFFERENCES, section), On.BRIEF)
    headlines = [headline_of(section) for section in sections]
    yield from (headline.sentence for headline in headlines)
    for title, sentences in finding_lists(find_verdicts(run.cells)):
        yield f"{title}: {sentences[0].partition(', for example ')[0]}"
    for place in (ReportPlace.ANSWERS, ReportPlace.FINDINGS):
        for section in sections:
            yield from render_lines(blocks_at(place, section), On.BRIEF)
    # Those of the responsible layers have lines of their own.
    leads = {sentence for section in sections for sentence in lead_sentences(section)}
    yield from (detail for headline in headlines for detail in headline.details if detail not in leads)


def answers_json(run: Run, page: Path) -> dict[str, Any]:
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
                **{key: value for feature in features() for key, value in feature.section_json(section).items()},
            }
            for section in find_sections(run)
        ],
        "findings": dict(finding_lists(find_verdicts(run.cells))),
        "cells": {str(outcome): number for outcome, number in outcome_counts(run.cells).items()},
        "report": str(page),
    }


MOST_VERDICTS = 5
QUIET_SECONDS = 600.0
"""Without a new measurement for this time, the view says so: the process may have ended."""


@dataclass(frozen=True, slots=True)
class Watched:
    """The state of a run. Times in seconds; `left_s` is None if it is not known."""

    run: str
    status: str
    current: str
    """The round that is being measured, in words; empty between rounds."""
    rounds: int
    """Whole rounds of all groups."""
    groups: int
    """Groups that have a whole round."""
    planned_groups: int | None
    left_s: float | None
    silent_s: float | None
    """Since the newest measurement began."""
    cells: dict[str, int]
    """The number of cells with a guest by their outcome so far."""
    verdicts: tuple[str, ...]
    """The newest cells that have a result, a sentence each."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will follow."""
        return self.status != "running"


def watched(run: Run, journal: Journal, now: float) -> Watched:
    """The state of `run` at the time `now`, in seconds since 1970-01-01 UTC."""
    plan = Planned.of(run)
    whole = {group: journal.whole(group) for group in dict.fromkeys(each.group for each in journal.rounds)}
    guests = [cell for cell in run.cells if not cell.is_baseline]
    outcomes = [cell.outcome for cell in guests]
    last = max((measurement.started + measurement.wall for measurement in journal.measurements), default=None)
    return Watched(
        run=run.run.id,
        status=run.run.status,
        current=_current(journal, plan, whole) if run.run.status == "running" else "",
        rounds=sum(map(len, whole.values())),
        groups=sum(map(bool, whole.values())),
        planned_groups=len(plan.groups) if plan else None,
        left_s=_left(run, journal, plan) if run.run.status == "running" else 0.0,
        silent_s=None if last is None else max(now - last, 0.0),
        cells={str(each): outcomes.count(each) for each in Outcome if each in outcomes},
        verdicts=tuple(map(_verdict, _newest(guests, journal))),
    )


def watch_lines(state: Watched) -> Iterator[str]:
    """The state as lines of text."""
    yield f"run {state.run}: {state.status}"
    if not state.ended:
        yield f"now: {state.current or 'preparing, or between two rounds'}"
    planned = state.planned_groups
    groups = count(state.groups, "group") if planned is None else f"{state.groups} of {planned} groups"
    yield f"done: {count(state.rounds, 'round')} in {groups}"
    if not state.ended and state.left_s is not None:
        yield f"remaining: {_remaining(state.left_s)}"
    if not state.ended and state.silent_s is not None and state.silent_s > QUIET_SECONDS:
        yield (
            f"no new measurement for {format_duration(round(state.silent_s))}: the disk is being filled or an array "
            "rebuilt, or the process ended; `virt-overhead run --resume` continues a run that ended"
        )
    if state.cells:
        yield "cells: " + ", ".join(f"{number} {outcome}" for outcome, number in state.cells.items())
    yield from (f"  {verdict}" for verdict in state.verdicts)


def _remaining(seconds: float) -> str:
    if seconds <= 0:
        return "further rounds, until they decide or the time is spent"
    return f"about {format_duration(max(round(seconds, -1), 10))} of measuring"


def _current(journal: Journal, plan: Planned | None, whole: dict[str, set[int]]) -> str:
    """The round without an end: "lvm-batch1, round 2 of 2 to 6: 12 of 40 slices, now randread-4k-qd1 in guest:lvm"."""
    if not journal.unfinished:
        return ""
    begun = journal.unfinished[-1]
    slices = [each for each in journal.of_group(begun.group) if each.round == begun.round]
    planned = next((group for group in plan.groups if group.id == begun.group), None) if plan else None
    number = len(whole[begun.group]) + 1
    of = ""
    if planned is not None and number <= planned.most_rounds:
        of = f" of {planned.rounds}" + (f" to {planned.most_rounds}" if planned.most_rounds > planned.rounds else "")
    newest = f", newest {slices[-1].job} in {slices[-1].arm}" if slices else ""
    return f"{begun.group}, round {number}{of}: {len(slices)} of {begun.measurements} slices{newest}"


def _left(run: Run, journal: Journal, plan: Planned | None) -> float | None:
    """The time until every group has its fewest rounds."""
    if plan is None or plan.fio_s <= 0:
        return None
    spent: dict[str, float] = {}
    for measurement in journal.measurements:
        spent[measurement.group] = spent.get(measurement.group, 0.0) + measurement.wall
    return plan.seconds_left(spent, [group.id for group in run.groups if group.stopped is not None])


def _newest(cells: list[CellRecord], journal: Journal) -> list[CellRecord]:
    """The cells with a result whose jobs were measured last, the newest at the end."""
    order = {(each.job, each.arm): number for number, each in enumerate(journal.measurements)}
    found = [cell for cell in cells if cell.measured]
    return sorted(found, key=lambda each: order.get((each.job.id, f"guest:{each.mode}"), -1))[-MOST_VERDICTS:]


def _verdict(cell: CellRecord) -> str:
    figure = f", overhead {percent_with_interval(cell.overhead)} %" if cell.usable and cell.overhead else ""
    return f"{cell.id}: {outcome_words(cell)}{figure}"
