"""The waterfall of one decomposition: each step begins at the end of the step before, then all steps together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import plotly.graph_objects as go

from harness.analysis import Estimate
from harness.report.labels import label_room, safe
from harness.report.numbers import count
from harness.report.theme import HOST, LAYER, VIRTUALISATION
from harness.report.waterfall import ALL, StepRow, Waterfall

_US = 1e6
_ROW_HEIGHT = 34


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a waterfall: what it adds, in seconds, from `start`. `doubt` draws it hatched."""

    label: str
    added: Estimate
    start: float
    colour: str
    hover: str
    doubt: bool = False


def waterfall_chart(waterfall: Waterfall) -> go.Figure:
    """Microseconds added to the host's mean latency, from top to bottom. Steps that are not a result are grey and
    hatched.

    Only for a decomposition that was not skipped.
    """
    rows = waterfall.rows
    bars = [
        _bar(f"{number}. {_short(row)}", row, start)
        for number, (row, start) in enumerate(zip(rows, starts(row.added for row in rows), strict=True), 1)
    ]
    if waterfall.total is not None:
        bars.append(_bar(ALL, waterfall.total, 0.0))
    return bars_chart(bars, blocks=len(waterfall.record.rounds))


def starts(added: Iterable[Estimate]) -> list[float]:
    """Where each bar starts, in seconds: at the end of the one before."""
    return list(accumulate((each.point for each in added), initial=0.0))[:-1]


def bars_chart(bars: Sequence[Bar], *, blocks: int) -> go.Figure:
    """Bars from top to bottom, over the microseconds added to the host's mean latency in this number of blocks."""
    labels = [safe(bar.label) for bar in bars]
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=labels,
            base=[bar.start * _US for bar in bars],
            x=[bar.added.point * _US for bar in bars],
            error_x=_errors([bar.added for bar in bars]),
            marker={
                "color": [bar.colour for bar in bars],
                "opacity": [0.45 if bar.doubt else 1 for bar in bars],
                "pattern": {"shape": ["/" if bar.doubt else "" for bar in bars]},
            },
            customdata=[bar.hover for bar in bars],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_layout(
        height=64 + _ROW_HEIGHT * len(bars),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        bargap=0.3,
    )
    figure.update_xaxes(title=f"added to the host's mean latency, us ({count(blocks, 'block')})", zeroline=True)
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], showgrid=False, ticksuffix="  ")
    return figure


def _bar(label: str, row: StepRow, start: float) -> Bar:
    return Bar(label, row.added, start, _colour(row), _hover(row), bool(row.doubt))


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
    if any(estimate.low is None or estimate.high is None for estimate in estimates):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [((estimate.high or 0.0) - estimate.point) * _US for estimate in estimates],
        "arrayminus": [(estimate.point - (estimate.low or 0.0)) * _US for estimate in estimates],
    }
