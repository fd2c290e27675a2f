"""A comparison of runs in words, and these words in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.analysis import METRICS, Change
from harness.console import CleanConsole
from harness.features.compare.comparability import Effect, format_fact
from harness.features.compare.records import (
    ArmChange,
    ChangeFinding,
    ComparisonOutcome,
    OverallChange,
    RunComparison,
    RunDifference,
    ScenarioChange,
    Side,
    UncomparedCell,
)
from harness.model.mode import Place
from harness.report.background import moment
from harness.report.markdown import code, plain
from harness.report.numbers import count, percent, short, shorten, significant

_MOST_CELLS = 3
"""The largest number of cells named with a reason or a difference. The JSON document has all."""
_LONGEST = 160
"""Characters of a value or a reason in a list."""

_EFFECTS = {
    Effect.RULES_OUT: "What rules the comparison out",
    Effect.CAUSE: "What else differs, and may be the cause of a change",
    Effect.NONE: "What differs without an influence",
}


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One arm in one job and metric, or over its jobs, as text."""

    arm: str
    """For example `guest:lvm`; "guest:lvm -> guest:thick" if the names differ."""
    change: str
    """For example "x 4.10 [3.80, 4.42]"."""
    n: str
    """Samples before and afterwards, for example "12, 11"."""
    finding: ChangeFinding
    of: Change
    """The figures behind the text."""
    before: str = ""
    after: str = ""
    jobs: str = ""
    """Of an arm over its jobs: "4 jobs" or "3 of 4 jobs"."""


@dataclass(frozen=True, slots=True)
class JobRows:
    """The arms of one job."""

    job: str
    """With the metric and its better direction: "randread-4k-qd32: iops (IOPS), higher is better"."""
    rows: tuple[ChangeRow, ...]


@dataclass(frozen=True, slots=True)
class ScenarioRows:
    """A scenario, as text."""

    title: str
    """The scenarios and disks before and afterwards."""
    overall: tuple[ChangeRow, ...]
    jobs: tuple[JobRows, ...]


def describe_pair(comparison: RunComparison) -> str:
    """The ids of the two runs."""
    return f"{comparison.before.id} -> {comparison.after.id}"


def describe_runs(comparison: RunComparison) -> tuple[str, str]:
    """The two runs, with time, host and lab."""
    before, after = (
        f"{side}: run {run.id} of {moment(run.started)}, host {run.lab.host} ({run.lab.kind}, {run.lab.accel})"
        for side, run in (("before", comparison.before), ("after", comparison.after))
    )
    return before, after


def list_scenarios(comparison: RunComparison, metric: str | None = None) -> tuple[ScenarioRows, ...]:
    """The figures by `metric`, or by each job's headline metric."""
    return tuple(_make_scenario_rows(scenario, metric) for scenario in comparison.scenarios)


def describe_outcome(comparison: RunComparison, metric: str | None = None) -> str:
    """The outcome with the number of figures behind it, as a sentence."""
    scenarios = list_scenarios(comparison, metric)
    findings = [row.finding for scenario in scenarios for job in scenario.jobs for row in job.rows]
    counts = ", ".join(f"{findings.count(finding)} {finding}" for finding in ChangeFinding if finding in findings)
    margin = f"margin {percent(comparison.margin)} %"
    return f"{comparison.outcome}: of {count(len(findings), 'figure')}, {counts} ({margin})"


def explain_ruled_out(comparison: RunComparison) -> str | None:
    """Why the runs cannot be compared; None if they can be."""
    found = comparison.ruled_out_by
    if not found:
        return None
    named = "; ".join(map(_describe_difference, found[:_MOST_CELLS]))
    more = f"; and {count(len(found) - _MOST_CELLS, 'further difference')}" if len(found) > _MOST_CELLS else ""
    return f"The runs cannot be compared, because they were measured differently: {named}{more}."


def format_change(change: Change) -> str:
    """For example "x 4.10 [3.80, 4.42]", or "x 4.10" without an interval."""
    if change.low is None or change.high is None:
        return f"x {significant(change.ratio)}"
    return f"x {significant(change.ratio)} [{significant(change.low)}, {significant(change.high)}]"


def _make_scenario_rows(scenario: ScenarioChange, metric: str | None) -> ScenarioRows:
    by_job: dict[str, list[ArmChange]] = {}
    for arm in scenario.arms:
        if (metric or arm.headline) in arm.metrics:
            by_job.setdefault(arm.job, []).append(arm)
    return ScenarioRows(
        title=_join_names(
            f"{scenario.scenario_before} (disk {scenario.disk_before})",
            f"{scenario.scenario_after} (disk {scenario.disk_after})",
        ),
        overall=tuple(map(_make_overall_row, scenario.overall)),
        jobs=tuple(
            JobRows(_describe_job(arms[0], metric), tuple(_make_row(arm, metric) for arm in arms))
            for arms in by_job.values()
        ),
    )


def _describe_job(arm: ArmChange, metric: str | None) -> str:
    shown = METRICS[metric or arm.headline]
    return f"{arm.job}: {shown.name} ({shown.shown.unit}), {shown.better} is better"


def _make_row(arm: ArmChange, metric: str | None) -> ChangeRow:
    of_metric = arm.metrics[metric or arm.headline]
    before, after = (
        short(value / METRICS[metric or arm.headline].shown.scale) for value in (of_metric.before, of_metric.after)
    )
    return _change_row(arm, of_metric.change, of_metric.finding, before=before, after=after)


def _make_overall_row(overall: OverallChange) -> ChangeRow:
    of = len(overall.jobs) + len(overall.missing)
    jobs = count(of, "job") if not overall.missing else f"{len(overall.jobs)} of {count(of, 'job')}"
    return _change_row(overall, overall.change, overall.finding, jobs=jobs)


def _change_row(of: ArmChange | OverallChange, change: Change, finding: ChangeFinding, **words: str) -> ChangeRow:
    n = f"{change.n_before}, {change.n_after}"
    return ChangeRow(_join_names(of.arm_before, of.arm_after), format_change(change), n, finding, change, **words)


def _join_names(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def list_remarks(comparison: RunComparison) -> Iterator[tuple[str, Sequence[str]]]:
    """What to know besides the figures: a title, and the sentences below it."""
    yield "What to know", tuple(_list_notes(comparison))
    yield from _list_differences(comparison.differences)
    for title, cells in (("To be explained", comparison.doubtful), ("Left out", comparison.left_out)):
        if cells:
            yield title, tuple(_describe_left_out(cells))


def _list_notes(comparison: RunComparison) -> Iterator[str]:
    runs = comparison.before, comparison.after
    for side, run in zip(("before", "after"), runs, strict=True):
        if run.status != "complete":
            yield f"The run {side} is not complete ({run.status}): its measured cells are compared."
    emulated = [run for run in runs if not run.lab.representative]
    if emulated:
        why = " / ".join(dict.fromkeys(run.lab.why for run in emulated))
        yield f"The changes say nothing about real disks, because a lab does not represent real hardware: {why}."
    if comparison.before.lab.host != comparison.after.lab.host:
        yield "The runs are of different hosts: the changes are not those of the disk alone."
    if comparison.outcome is ComparisonOutcome.NOT_COMPARABLE:
        yield "The findings of the figures stand for themselves: nothing follows from them about what was measured."
    if any(difference.effect is Effect.CAUSE for difference in comparison.differences):
        yield "Everything that differs between the runs, see below, can be the cause of a change."
    arms = [arm for scenario in comparison.scenarios for arm in scenario.arms]
    yield (
        f"Intervals: {_format_confidence(arms)}, from the blocks of each run. They do not cover what changes from run "
        "to run of the same disk, for example with a new boot or new data. To see how much that is, measure one side "
        "twice and compare these runs."
    )
    if len(arms) > 1:
        yield (
            "better, worse and equal are corrected for the number of figures, so the interval of an undecided figure "
            "can exclude 1, or lie within the margin."
        )
    if any(arm.place is Place.TWIN for arm in arms):
        yield "twin:MODE is fio on the host, on the volume or file that the guest gets in this mode."


def _format_confidence(arms: Sequence[ArmChange]) -> str:
    least, most = min(arm.confidence for arm in arms), max(arm.confidence for arm in arms)
    return f"{least * 100:.3g} %" if least == most else f"{least * 100:.3g} to {most * 100:.3g} %"


def _list_differences(differences: Sequence[RunDifference]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for effect, title in _EFFECTS.items():
        if own := tuple(_describe_difference(difference) for difference in differences if difference.effect is effect):
            yield f"{title} ({len(own)})", own


def _describe_difference(difference: RunDifference) -> str:
    cells = f" ({_name_cells(difference.cells)})" if difference.cells else ""
    before, after = (format_fact(value, _LONGEST) for value in (difference.before, difference.after))
    return f"{difference.what}: {before} -> {after}{cells}"


def _describe_left_out(left_out: Sequence[UncomparedCell]) -> Iterator[str]:
    by_reason: dict[tuple[Side, str], list[str]] = {}
    for each in left_out:
        by_reason.setdefault((each.run, shorten(" ".join(each.why.split()), _LONGEST)), []).append(each.cell)
    for (side, why), cells in by_reason.items():
        yield f"{side}: {_name_cells(cells)}: {why}"


def _name_cells(cells: Sequence[str]) -> str:
    more = len(cells) - _MOST_CELLS
    return ", ".join(cells[:_MOST_CELLS]) + (f" and {more} more" if more > 0 else "")


_STYLES = {"better": "green", "worse": "bold red", "equal": "cyan", "undecided": "dim"}
_OUTCOMES = {
    ComparisonOutcome.NOT_COMPARABLE: "bold yellow",
    ComparisonOutcome.WORSE: "bold red",
    ComparisonOutcome.MIXED: "bold red",
    ComparisonOutcome.BETTER: "bold green",
    ComparisonOutcome.EQUAL: "bold",
    ComparisonOutcome.UNDECIDED: "bold",
}
_OVERALL = "throughput over all jobs (geometric mean)"


def print_comparison(comparison: RunComparison, metric: str | None = None, console: Console | None = None) -> None:
    """The figures over all jobs, one table for each job, and the lines around them. Colours only for a terminal."""
    console = console or CleanConsole()

    def line(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    for run in describe_runs(comparison):
        line(run)
    line(f"\n{describe_outcome(comparison, metric)}", _OUTCOMES[comparison.outcome])
    if why := explain_ruled_out(comparison):
        line(why)
    for scenario in list_scenarios(comparison, metric):
        line(f"\n{scenario.title}", "bold")
        for title, columns, rows in _split_tables(scenario):
            line(title)
            table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
            for number, name in enumerate(("", *columns, "")):
                is_text = not name or name == "jobs"
                table.add_column(
                    "" if is_text else name,
                    justify="left" if is_text else "right",
                    overflow="fold",
                    no_wrap=number > 0,
                )
            for row, fields in rows:
                table.add_row(*map(Text, (row.arm, *fields)), Text(row.finding.value, _STYLES[row.finding]))
            console.print(table)
    for title, sentences in list_remarks(comparison):
        line(f"\n{title}", "bold")
        for sentence in sentences:
            line(f"  {sentence}")


def comparison_markdown(comparison: RunComparison, metric: str | None = None) -> str:
    """The same as Markdown, for example for the summary of a CI job."""
    lines = [f"**{plain(describe_outcome(comparison, metric))}**", ""]
    if why := explain_ruled_out(comparison):
        lines += [plain(why), ""]
    lines += [f"- {plain(run)}" for run in describe_runs(comparison)]
    for scenario in list_scenarios(comparison, metric):
        lines += ["", f"### {plain(scenario.title)}", ""]
        for title, columns, rows in _split_tables(scenario):
            marks = "|".join(":--" if name == "jobs" else "--:" for name in columns)
            lines += [f"**{plain(title)}**", "", f"| arm | {' | '.join(columns)} | |", f"|:--|{marks}|:--|"]
            lines += [
                f"| `{code(row.arm)}` | {' | '.join(map(plain, fields))} | {_render_finding(row.finding)} |"
                for row, fields in rows
            ]
            lines.append("")
    for title, sentences in list_remarks(comparison):
        lines += [f"**{title}**", "", *(f"- {plain(sentence)}" for sentence in sentences), ""]
    return "\n".join(lines).rstrip() + "\n"


_Rows = Sequence[tuple[ChangeRow, tuple[str, ...]]]


def _split_tables(scenario: ScenarioRows) -> Iterator[tuple[str, tuple[str, ...], _Rows]]:
    """For text: the title of each table, its columns between the arm and the finding, and its rows."""
    if scenario.overall:
        rows = [(row, (row.change, row.n, row.jobs)) for row in scenario.overall]
        yield _OVERALL, ("after / before", "n", "jobs"), rows
    for job in scenario.jobs:
        of_job = [(row, (row.before, row.after, row.change, row.n)) for row in job.rows]
        yield job.job, ("before", "after", "after / before", "n"), of_job


def _render_finding(finding: ChangeFinding) -> str:
    return f"**{finding}**" if finding in (ChangeFinding.BETTER, ChangeFinding.WORSE) else finding.value
