"""The report of a run: one offline page, a table for the terminal, Markdown for continuous integration."""

from __future__ import annotations

from pathlib import Path

from harness.report.markdown import markdown_table
from harness.report.terminal import overhead_table, overhead_text, print_run, summary_lines
from harness.results import Run, RunStore

__all__ = [
    "markdown_table",
    "overhead_table",
    "overhead_text",
    "print_run",
    "render_html",
    "summary_lines",
    "write_report",
]


def write_report(store: RunStore) -> Path:
    """Write index.html from results.json alone, and return its path. ResultsError if a file cannot be used."""
    return store.write_report(render_html(store.read_results()))


def render_html(run: Run) -> str:
    """The report as one page that loads no other file."""
    from harness.report import html  # noqa: PLC0415 - plotly takes a second to import; only the page needs it

    return html.render_html(run)
