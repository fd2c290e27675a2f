"""The answers of a run in at most ten lines, or as JSON for programs that need no figures of single cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.console import CleanConsole
from harness.feature import ReportPlace, features
from harness.report.banners import find_banners
from harness.report.blocks import On
from harness.report.contents import blocks_at, headline_of, lead_sentences
from harness.report.lines import lines
from harness.report.section import find_sections, outcome_counts
from harness.report.terminal import difference_lines, efficiency_line, finding_lists, overhead_table, summary_lines
from harness.report.verdicts import find_verdicts
from harness.results import Run

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
        yield from lines(blocks_at(ReportPlace.DIFFERENCES, section), On.BRIEF)
    headlines = [headline_of(section) for section in sections]
    yield from (headline.sentence for headline in headlines)
    for title, sentences in finding_lists(find_verdicts(run.cells)):
        yield f"{title}: {sentences[0].partition(', for example ')[0]}"
    for place in (ReportPlace.ANSWERS, ReportPlace.FINDINGS):
        for section in sections:
            yield from lines(blocks_at(place, section), On.BRIEF)
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
