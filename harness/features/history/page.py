"""Trends of a history as one offline HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from harness.features.history.screen import latest, nearby_words, quantity_words, shift_words, shown_value
from harness.features.history.trends import Trend
from harness.report.draw import Figure, scatter
from harness.report.html import environment
from harness.report.packing import compact_json, packed, packed_plotly
from harness.report.theme import HOST, mode_colours, templates

MOST_CHARTS = 200
"""Charts on a page: first those of cells with change points. A browser needs long for more."""


def history_page(trends: Sequence[Trend], url: str) -> str:
    """The page of these trends of the history at `url`. It loads no other file."""
    ordered = sorted(trends, key=lambda trend: not trend.shifts)
    shown = ordered[:MOST_CHARTS]
    figures = {f"trend{number}": _chart(trend).document for number, trend in enumerate(shown)}
    page = environment().get_template("history.html.j2")
    return page.render(
        url=url,
        trends=trends,
        changed=[trend for trend in trends if trend.shifts],
        shown=shown,
        figures=packed(compact_json(figures)),
        templates=packed(compact_json(templates())),
        parts=packed(compact_json({})),
        plotly_js=packed_plotly(),
        quantity_words=quantity_words,
        latest=latest,
        shift_words=shift_words,
        nearby_words=nearby_words,
    )


def _chart(trend: Trend) -> Figure:
    """The values over time, the mean between the change points, and a line at each of them."""
    colour = mode_colours([trend.cell])[trend.cell]
    times = [datetime.fromtimestamp(started, UTC).isoformat() for started in trend.started]
    values = [shown_value(trend, value) for value in trend.values]
    figure = Figure()
    figure.add_trace(
        scatter(
            x=times, y=values, mode="markers", text=trend.runs, marker={"size": 5, "color": colour}, showlegend=False
        )
    )
    for start, end, mean in _levels(trend):
        level = shown_value(trend, mean)
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
        yaxis={"title": {"text": quantity_words(trend)}},
        meta={"min_width": 320},
        shapes=[_line(times[shift.at]) for shift in trend.shifts],
    )
    return figure


def _levels(trend: Trend) -> Sequence[tuple[int, int, float]]:
    """The first run, the end and the mean of each part between change points; empty without one."""
    if not trend.shifts:
        return ()
    ends = [*(shift.at for shift in trend.shifts), len(trend.values)]
    starts = [0, *ends[:-1]]
    means = [trend.shifts[0].before, *(shift.after for shift in trend.shifts)]
    return tuple(zip(starts, ends, means, strict=True))


def _line(at: str) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": at,
        "x1": at,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"dash": "dot", "color": "#d55e00"},
    }
