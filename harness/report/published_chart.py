"""The chart of published figures: the published ratio and ours, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from harness.report.axes import scalable
from harness.report.labels import label_room, safe
from harness.report.numbers import significant
from harness.report.published import PublishedRow
from harness.report.theme import HOST, mode_colours, mode_symbols

_MANY_TIMES = 10.0
"""A whisker does not widen the axis beyond this multiple of its point."""


def published_chart(rows: Sequence[PublishedRow], modes: Sequence[str]) -> go.Figure:
    """For each row with both ratios: the published one as an open diamond, ours as a dot with its interval.

    A published range is a line between two diamonds.
    """
    labels = _labels(rows)
    figure = go.Figure()
    reached = [1.0]
    for label, row in zip(labels, rows, strict=True):
        band, own = row.counterpart.ratio, row.own
        if band is None or own is None or own.ratio is None:
            continue
        mode = row.cells[0].mode
        colour = mode_colours(modes).get(mode, HOST)
        ends = list(dict.fromkeys((band.low, band.high)))
        low, high = own.low or own.ratio, own.high or own.ratio
        reached += [*ends, own.ratio, max(low, own.ratio / _MANY_TIMES), min(high, own.ratio * _MANY_TIMES)]
        figure.add_trace(
            go.Scatter(
                x=ends,
                y=[label] * len(ends),
                mode="lines+markers",
                name="published",
                line={"color": HOST, "width": 2},
                marker={"symbol": "diamond-open", "size": 9, "color": HOST, "line": {"width": 2}},
                customdata=[f"{label}, published: {row.relation} {row.published_ratio}"] * len(ends),
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
        figure.add_trace(
            go.Scatter(
                x=[own.ratio],
                y=[label],
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [high - own.ratio],
                    "arrayminus": [own.ratio - low],
                    "color": colour,
                    "thickness": 1.4,
                    "width": 4,
                },
                mode="markers",
                name="ours",
                marker={"symbol": mode_symbols(modes).get(mode, "circle"), "size": 8, "color": colour},
                customdata=[f"{label}, ours at iodepth {own.iodepth}: {significant(own.ratio)}"],
                hovertemplate="%{customdata}<extra></extra>",
                meta=f"{row.counterpart.place}:{mode}",
            )
        )
    figure.update_layout(
        height=64 + 26 * len(labels),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        hovermode="closest",
    )
    scalable(figure, "xaxis", reached, log=True)
    figure.update_xaxes(title="ratio")
    figure.add_shape(
        type="line", x0=1, x1=1, y0=0, y1=1, yref="paper", line={"width": 1.4, "dash": "dot", "color": HOST}
    )
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], ticksuffix="  ")
    return figure


def _labels(rows: Sequence[PublishedRow]) -> list[str]:
    """A label for each row, with a number behind what is there several times."""
    seen: Counter[str] = Counter()
    found = []
    for row in rows:
        label = safe(f"{row.workload} {row.mode}")
        seen[label] += 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found
