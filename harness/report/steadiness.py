"""The plot of conditioning as SNIA's specification defines it: the figure per round, and the judged window."""

from __future__ import annotations

import plotly.graph_objects as go

from harness.analysis import SteadyState
from harness.report.groups import RegionView
from harness.report.numbers import significant
from harness.report.theme import HOST, LAYER, VIRTUALISATION, translucent

_BAND = 0.10  # half of the range that SNIA allows in the window: 20 % of its mean


def steadiness(region: RegionView) -> go.Figure:
    """IOPS by round, and for the last five rounds the mean, +-10 % around it, and the fitted line."""
    values = region.record.values
    figure = go.Figure()
    if region.window is not None:
        _draw_window(figure, region.window, last=len(values))
    figure.add_trace(
        go.Scatter(
            x=list(range(1, len(values) + 1)),
            y=list(values),
            mode="lines+markers",
            line={"color": HOST, "width": 1.8},
            marker={"size": 6},
            customdata=[f"round {number}: {significant(value)} IOPS" for number, value in enumerate(values, start=1)],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    figure.update_layout(height=230, margin={"l": 58, "r": 10, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(title="round", dtick=1 if len(values) <= 12 else 5, range=[0.5, max(len(values), 5) + 0.5])
    figure.update_yaxes(range=[0, max(values, default=1) * 1.12], separatethousands=True, exponentformat="none")
    return figure


def _draw_window(figure: go.Figure, window: SteadyState, *, last: int) -> None:
    first = last - len(window.window) + 1
    around = [first - 0.3, last + 0.3]
    figure.add_trace(
        go.Scatter(
            x=[*around, *around[::-1]],
            y=[window.mean * (1 + _BAND)] * 2 + [window.mean * (1 - _BAND)] * 2,
            fill="toself",
            fillcolor=translucent(VIRTUALISATION, 0.16),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
        )
    )
    rise = window.slope * (len(window.window) - 1) / 2
    for ends, colour, dash in (
        ([window.mean, window.mean], VIRTUALISATION, "solid"),
        ([window.mean - rise, window.mean + rise], LAYER, "dash"),
    ):
        figure.add_trace(
            go.Scatter(
                x=[first, last],
                y=ends,
                mode="lines",
                line={"color": colour, "width": 1.6, "dash": dash},
                hoverinfo="skip",
            )
        )
