"""A comparison, and the trends of a history, as offline HTML pages; trends as text for a terminal, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.analysis import METRICS
from harness.features.compare.comparability import format_fact
from harness.features.compare.records import RunComparison
from harness.features.compare.trends import Nearby, Shift, Trend
from harness.features.compare.words import (
    ChangeRow,
    ScenarioRows,
    describe_outcome,
    describe_pair,
    describe_runs,
    explain_ruled_out,
    list_remarks,
    list_scenarios,
)
from harness.report.blocks import (
    Banner,
    Block,
    Box,
    Chart,
    Column,
    Heading,
    Listing,
    Mark,
    Row,
    Scale,
    Sentence,
    Table,
    TableCell,
    join_words,
)
from harness.report.draw import HOST, Figure, mode_colours, scatter
from harness.report.numbers import count, percent, significant
from harness.report.page import render_page

_CLASSES = {
    "worse": "exceeds",
    "mixed": "exceeds",
    "not comparable": "void",
    "better": "within",
    "equal": "within",
    "undecided": "inconclusive",
}
"""The report's colours of outcomes and findings: those of its verdicts."""


def render_comparison(comparisons: Sequence[RunComparison], metric: str | None) -> str:
    """The page for the comparisons with one reference. It loads no other file, and has no script."""
    titles = list(map(describe_pair, comparisons))
    return render_page(
        f"{titles[0]} \N{MIDDLE DOT} virt-overhead compare",
        ("virt-overhead compare", ", ".join(titles)),
        _yield_header(comparisons, metric),
        (_make_box(comparison, metric) for comparison in comparisons),
        scripted=False,
    )


def _yield_header(comparisons: Sequence[RunComparison], metric: str | None) -> Iterator[Block]:
    for number, comparison in enumerate(comparisons):
        name = (f"`{describe_pair(comparison)}` ",) if len(comparisons) > 1 else ()
        outcome = comparison.outcome.value
        verdict = describe_outcome(comparison, metric).removeprefix(outcome)
        words = join_words(*name, Mark(outcome, "verdict", _CLASSES[outcome]), verdict)
        yield Sentence(words, style="headline") if number else Heading(words, level=1)
        if why := explain_ruled_out(comparison):
            yield Banner("status", outcome, why)


def _make_box(comparison: RunComparison, metric: str | None) -> Box:
    blocks: list[Block] = [Heading(describe_pair(comparison), level=2)]
    blocks += [Sentence(run, style="basis meta") for run in describe_runs(comparison)]
    for scenario in list_scenarios(comparison, metric):
        blocks += [Heading(scenario.title), _change_table(scenario)]
    for title, sentences in list_remarks(comparison):
        blocks += [Heading(title), Listing(tuple(sentences))]
    return Box((*blocks,))


def _change_table(scenario: ScenarioRows) -> Table:
    """All arms of a scenario, first over all jobs, then in each job."""
    columns = (
        Column("arm", "head"),
        *map(Column, ("before", "after", "after / before")),
        Column("drawing", "drawing", scale=_scale(scenario), hidden=True),
        Column("n"),
        Column("finding", "text"),
    )
    rows = []
    if scenario.overall:
        rows.append(Row(("throughput over all jobs (geometric mean)",), group="overall"))
    rows += [
        Row((overall.arm, TableCell(overall.jobs, columns=2), *_change_cells(overall)), group="overall")
        for overall in scenario.overall
    ]
    for job in scenario.jobs:
        rows.append(Row((job.job,), group=job.job))
        rows += [Row((arm.arm, arm.before, arm.after, *_change_cells(arm)), group=job.job) for arm in job.rows]
    caption = "After divided by before, with its interval; the drawing shows the change in percent"
    return Table(columns, tuple(rows), caption, style="glance", caption_shown=True)


def _change_cells(arm: ChangeRow) -> tuple[TableCell | str, ...]:
    finding = TableCell(arm.finding.value, tone=_CLASSES[arm.finding])
    return (arm.change, TableCell("", drawn=arm.of.share), arm.n, finding)


def _scale(scenario: ScenarioRows) -> Scale:
    """One scale for all rows of a scenario."""
    changes = [row.of for row in scenario.overall] + [row.of for job in scenario.jobs for row in job.rows]
    return Scale.around([change.share for change in changes])


_MOST_NEARBY = 8
"""The largest number of changes that are named near a change point."""
_LONGEST = 80
"""Characters of a value."""


def describe_trends(trends: Sequence[Trend]) -> Iterator[str]:
    """A line for each trend, and below it each change point with what changed near it."""
    changed = sum(bool(trend.shifts) for trend in trends)
    runs = len({run for trend in trends for run in trend.runs})
    yield f"{count(len(trends), 'cell')}, {count(runs, 'run')}; change points in {changed} of the cells"
    for trend in trends:
        yield f"{trend.cell} on {trend.host} ({trend.profile}): {describe_quantity(trend)}, {describe_latest(trend)}"
        for shift in trend.shifts:
            yield f"  {shift_words(trend, shift)}"
            yield from (f"    {nearby_word}" for nearby_word in describe_nearby(shift))


def describe_quantity(trend: Trend) -> str:
    """What the values are: "iops overhead" or "iops (IOPS)"."""
    shown = METRICS[trend.metric].shown
    return f"{trend.metric} overhead, %" if trend.relative else f"{trend.metric}, {shown.unit}"


def describe_latest(trend: Trend) -> str:
    """The newest value, and the number of runs."""
    return f"{format_value(trend, trend.values[-1])} in the newest of {count(len(trend.values), 'run')}"


def format_value(trend: Trend, value: float) -> str:
    """A value as the user reads it: the overhead in percent, or in the metric's unit."""
    return percent(scale_value(trend, value) / 100) if trend.relative else significant(scale_value(trend, value))


def scale_value(trend: Trend, value: float) -> float:
    """The overhead in percent, or the value in the shown unit of its metric."""
    if not trend.relative:
        return value / METRICS[trend.metric].shown.scale
    return ((1 - value) if trend.better == "higher" else (value - 1)) * 100


def shift_words(trend: Trend, shift: Shift) -> str:
    """For example "run ID: 10.2 -> 15.9, worse by x 0.937 (p = 0.001)"."""
    values = f"{format_value(trend, shift.before)} -> {format_value(trend, shift.after)}"
    what = "share of the host" if trend.relative else "value"
    direction = "better" if shift.better else "worse"
    factor = significant(shift.after / shift.before)
    return f"run {shift.run}: {values}, {direction}: {what} x {factor}, p = {shift.p_value:.3g}"


def describe_nearby(shift: Shift) -> Iterator[str]:
    """What changed near the change point, one line each."""
    for nearby in shift.nearby[:_MOST_NEARBY]:
        yield _change_words(nearby)
    if (more := len(shift.nearby) - _MOST_NEARBY) > 0:
        yield f"and {count(more, 'further change')}"
    if not shift.nearby:
        yield "no recorded version or setting changed near it"


def _change_words(nearby: Nearby) -> str:
    before, after = (format_fact(value, _LONGEST) for value in (nearby.before, nearby.after))
    return f"with run {nearby.run}, {nearby.what}: {before} -> {after}"


MOST_CHARTS = 200
"""Charts on a page: first those of cells with change points. A browser needs long for more."""


def render_history(trends: Sequence[Trend], url: str) -> str:
    """The page of these trends of the history at `url`. It loads no other file."""
    shown = sorted(trends, key=lambda trend: not trend.shifts)[:MOST_CHARTS]
    return render_page(
        "History \N{MIDDLE DOT} virt-overhead",
        ("virt-overhead history", url),
        _yield_trend_header(trends, len(shown)),
        (_make_trend_box(trend, number) for number, trend in enumerate(shown)),
        scripted=True,
    )


def _yield_trend_header(trends: Sequence[Trend], shown: int) -> Iterator[Block]:
    changed = sum(bool(trend.shifts) for trend in trends)
    yield Heading(f"{changed} of {len(trends)} cells changed", level=1)
    yield Sentence(
        "A dotted line is a change point: the values after it differ from those before it more clearly than in a "
        "random order of the same values. The lines between are the means.",
        style="basis",
    )
    if shown < len(trends):
        yield Sentence(
            f"The page has charts of {shown} cells, first those that changed. To see another cell, name it: "
            "`virt-overhead history CELL --html=FILE`.",
            style="basis",
        )


def _make_trend_box(trend: Trend, number: int) -> Box:
    """The chart of a cell, and each change point in words."""
    quantity = describe_quantity(trend)
    about = Mark(f"{trend.host}, {trend.profile}: {quantity}, {describe_latest(trend)}", "small")
    blocks: list[Block] = [
        Heading(join_words(f"{trend.cell} ", about), level=2),
        Sentence(trend.disk_id, style="basis meta"),
        Chart(f"trend{number}", lambda: _draw_chart(trend), "", f"{quantity} over the runs", style=""),
    ]
    for shift in trend.shifts:
        tone = "within" if shift.better else "exceeds"
        blocks += [Heading((Mark(shift_words(trend, shift), "verdict", tone),)), Listing((*describe_nearby(shift),))]
    return Box((*blocks,))


def _draw_chart(trend: Trend) -> Figure:
    """The values over time, the mean between the change points, and a line at each of them."""
    colour = mode_colours([trend.cell])[trend.cell]
    times = [datetime.fromtimestamp(started, UTC).isoformat() for started in trend.started]
    values = [scale_value(trend, value) for value in trend.values]
    figure = Figure()
    figure.add_trace(
        scatter(
            x=times, y=values, mode="markers", text=trend.runs, marker={"size": 5, "color": colour}, showlegend=False
        )
    )
    for start, end, mean in _list_levels(trend):
        level = scale_value(trend, mean)
        figure.add_trace(
            scatter(
                x=[times[start], times[end - 1]],
                y=[level, level],
                mode="lines",
                line={"color": HOST, "width": 2},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    figure.update_layout(
        height=260,
        margin={"l": 60, "r": 20, "t": 10, "b": 40},
        yaxis={"title": {"text": describe_quantity(trend)}},
        meta={"min_width": 320},
        shapes=[_draw_line(times[shift.at]) for shift in trend.shifts],
    )
    return figure


def _list_levels(trend: Trend) -> Sequence[tuple[int, int, float]]:
    """The first run, the end and the mean of each part between change points; empty without one."""
    if not trend.shifts:
        return ()
    ends = [*(shift.at for shift in trend.shifts), len(trend.values)]
    starts = [0, *ends[:-1]]
    means = [trend.shifts[0].before, *(shift.after for shift in trend.shifts)]
    return tuple(zip(starts, ends, means, strict=True))


def _draw_line(at: str) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"dash": "dot", "color": "#d55e00"},
    }
