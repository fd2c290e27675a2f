"""A comparison of runs for a terminal, and as GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.console import CleanConsole
from harness.features.compare.records import Finding, Outcome
from harness.features.compare.words import ComparisonView, JobRows, ScenarioRows
from harness.report.markdown import code, plain

_STYLES = {Finding.BETTER: "green", Finding.WORSE: "bold red", Finding.EQUAL: "cyan", Finding.UNDECIDED: "dim"}
_OUTCOMES = {
    Outcome.NOT_COMPARABLE: "bold yellow",
    Outcome.WORSE: "bold red",
    Outcome.MIXED: "bold red",
    Outcome.BETTER: "bold green",
    Outcome.EQUAL: "bold",
    Outcome.UNDECIDED: "bold",
}
_OVERALL = "throughput over all jobs (geometric mean)"


def print_comparison(view: ComparisonView, console: Console | None = None) -> None:
    """The figures over all jobs, one table for each job, and the lines around them. Colours only for a terminal."""
    console = console or CleanConsole()

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    for run in view.runs:
        line(run)
    line(f"\n{view.verdict}", _OUTCOMES[view.outcome])
    if view.ruled_out:
        line(view.ruled_out)
    for scenario in view.scenarios:
        line(f"\n{scenario.title}", "bold")
        if scenario.overall:
            line(_OVERALL)
            console.print(_overall_table(scenario))
        for job in scenario.jobs:
            line(job.job)
            console.print(_job_table(job))
    for title, sentences in _lists(view):
        line(f"\n{title}", "bold")
        for sentence in sentences:
            line(f"  {sentence}")


def comparison_markdown(view: ComparisonView) -> str:
    """The same as Markdown, for example for the summary of a CI job."""
    lines = [f"**{plain(view.verdict)}**", ""]
    if view.ruled_out:
        lines += [plain(view.ruled_out), ""]
    lines += [f"- {plain(run)}" for run in view.runs]
    for scenario in view.scenarios:
        lines += ["", f"### {plain(scenario.title)}", ""]
        if scenario.overall:
            lines += [f"**{_OVERALL}**", "", "| arm | after / before | n | jobs | |", "|:--|--:|--:|:--|:--|"]
            lines += [
                f"| `{code(row.arm)}` | {plain(row.change)} | {row.n} | {row.jobs} | {_emphasis(row.finding)} |"
                for row in scenario.overall
            ]
            lines.append("")
        for job in scenario.jobs:
            lines += [f"**{plain(job.job)}**", "", "| arm | before | after | after / before | n | |"]
            lines.append("|:--|--:|--:|--:|--:|:--|")
            lines += [
                f"| `{code(row.arm)}` | {row.before} | {row.after} | {plain(row.change)} | {row.n} "
                f"| {_emphasis(row.finding)} |"
                for row in job.rows
            ]
            lines.append("")
    for title, sentences in _lists(view):
        lines += [f"**{title}**", "", *(f"- {plain(sentence)}" for sentence in sentences), ""]
    return "\n".join(lines).rstrip() + "\n"


def _lists(view: ComparisonView) -> Iterator[tuple[str, Sequence[str]]]:
    for title, sentences in (
        ("What to know", view.notes),
        *view.differences,
        ("To be explained", view.doubtful),
        ("Left out", view.left_out),
    ):
        if sentences:
            yield title, sentences


def _overall_table(scenario: ScenarioRows) -> Table:
    table = _table(("", "left"), ("after / before", "right"), ("n", "right"), ("", "left"), ("", "left"))
    for row in scenario.overall:
        table.add_row(*map(Text, (row.arm, row.change, row.n, row.jobs)), Text(row.finding.value, _STYLES[row.finding]))
    return table


def _job_table(job: JobRows) -> Table:
    table = _table(
        ("", "left"),
        ("before", "right"),
        ("after", "right"),
        ("after / before", "right"),
        ("n", "right"),
        ("", "left"),
    )
    for row in job.rows:
        values = row.arm, row.before, row.after, row.change, row.n
        table.add_row(*map(Text, values), Text(row.finding.value, _STYLES[row.finding]))
    return table


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    for number, (name, justify) in enumerate(columns):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold", no_wrap=number > 0)
    return table


def _emphasis(finding: Finding) -> str:
    return f"**{finding}**" if finding in (Finding.BETTER, Finding.WORSE) else finding.value
