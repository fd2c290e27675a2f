"""The chart of a search: latency over load for each arm, the bound, and where the curves reach it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from harness.report.arms import look_of
from harness.report.axes import log_axis
from harness.report.search import ArmView, SearchView
from harness.report.theme import HOST, translucent

_US = 1e6


def search_chart(view: SearchView, modes: Sequence[str]) -> go.Figure:
    """The fitted latency in us over the achieved IOPS, with bands. A large marker is the result with its interval."""
    figure = go.Figure()
    for arm in view.arms:
        for trace in _traces(arm, modes, view.record.bound):
            figure.add_trace(trace)
    bound = view.record.bound * _US
    figure.add_hline(y=bound, line={"dash": "dot", "width": 1.4, "color": HOST})
    latencies = [rate.latency * _US for arm in view.arms for rate in arm.record.rates if rate.latency is not None]
    figure.update_layout(height=340, margin={"l": 58, "r": 14, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(title="achieved IOPS", rangemode="tozero", separatethousands=True, exponentformat="none")
    figure.update_yaxes(title=f"{view.metric}, us", **log_axis([*latencies, bound]))
    return figure


def _traces(arm: ArmView, modes: Sequence[str], bound: float) -> Iterator[Any]:
    look = look_of(modes, arm.place, arm.mode)
    rows = [row for row in arm.rates if row.record.latency is not None]
    loads = [fmean(row.record.iops) for row in rows]
    upper, lower = ([(getattr(row.record, end) or 0.0) * _US for row in rows] for end in ("high", "low"))
    common = {"meta": arm.record.arm}
    yield go.Scatter(
        x=loads + loads[::-1],
        y=upper + lower[::-1],
        fill="toself",
        fillcolor=translucent(look.colour, 0.14),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        **common,
    )
    yield go.Scatter(
        x=loads,
        y=[(row.record.latency or 0.0) * _US for row in rows],
        mode="lines+markers",
        name=look.name,
        line={"color": look.colour, "width": 1.8, "dash": look.dash},
        marker={"symbol": look.symbol, "size": 5},
        customdata=[f"{look.name}: {row.iops} IOPS, {row.latency} us {row.interval}" for row in rows],
        hovertemplate="%{customdata}<extra></extra>",
        **common,
    )
    found = arm.record
    if found.iops is None or not arm.is_known:
        return
    low, high = found.low or 0.0, found.iops if found.high is None else found.high
    yield go.Scatter(
        x=[found.iops],
        y=[bound * _US],
        error_x={"type": "data", "symmetric": False, "array": [high - found.iops], "arrayminus": [found.iops - low]},
        mode="markers",
        marker={"symbol": look.symbol, "size": 10, "color": look.colour},
        customdata=[f"{look.name}: {arm.load}"],
        hovertemplate="%{customdata}<extra></extra>",
        **common,
    )
