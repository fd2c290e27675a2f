"""The waterfall of one decomposition: each step begins at the end of the step before, then all steps together."""

from __future__ import annotations

import plotly.graph_objects as go

from harness.analysis import Estimate
from harness.report.labels import label_room, safe
from harness.report.numbers import count
from harness.report.theme import HOST, LAYER, VIRTUALISATION
from harness.report.waterfall import ALL, StepRow, Waterfall

_US = 1e6
_ROW_HEIGHT = 34


def waterfall_chart(waterfall: Waterfall) -> go.Figure:
    """Microseconds added to the host's mean latency, from top to bottom. Steps that are not a result are grey and
    hatched.

    Only for a decomposition that was not skipped.
    """
    rows = waterfall.rows
    starts = [0.0, *(sum(row.added.point for row in rows[: number + 1]) for number in range(len(rows)))]
    bars = [
        (f"{number}. {_short(row)}", row, start)
        for number, (row, start) in enumerate(zip(rows, starts[:-1], strict=True), 1)
    ]
    if waterfall.total is not None:
        bars.append((ALL, waterfall.total, 0.0))
    labels = [safe(label) for label, _, _ in bars]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=labels,
            base=[start * _US for _, _, start in bars],
            x=[row.added.point * _US for _, row, _ in bars],
            error_x=_errors([row.added for _, row, _ in bars]),
            marker={
                "color": [_colour(row) for _, row, _ in bars],
                "opacity": [0.45 if row.doubt else 1 for _, row, _ in bars],
                "pattern": {"shape": ["/" if row.doubt else "" for _, row, _ in bars]},
            },
            customdata=[_hover(row) for _, row, _ in bars],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_layout(
        height=64 + _ROW_HEIGHT * len(bars),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        bargap=0.3,
    )
    figure.update_xaxes(
        title=f"added to the host's mean latency, us ({count(len(waterfall.record.rounds), 'block')})", zeroline=True
    )
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], showgrid=False, ticksuffix="  ")
    return figure


def _short(row: StepRow) -> str:
    return row.change.partition(" (")[0]


def _colour(row: StepRow) -> str:
    if row.doubt or row.change == ALL:
        return HOST
    return LAYER if row.arm.startswith("twin:") else VIRTUALISATION


def _hover(row: StepRow) -> str:
    added, overhead = row.values
    remark = f"<br>{row.remark}" if row.remark else ""
    return f"{safe(row.arm)}<br>{added} us, {overhead} %{remark}"


def _errors(estimates: list[Estimate]) -> dict[str, object] | None:
    """The whiskers of each step; None if a value has no interval."""
    if any(each.low is None or each.high is None for each in estimates):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [((each.high or 0.0) - each.point) * _US for each in estimates],
        "arrayminus": [(each.point - (each.low or 0.0)) * _US for each in estimates],
    }
