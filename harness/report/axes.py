"""Axes and whiskers that several charts share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from harness.analysis import Estimate
from harness.report.labels import label_room

_FURTHEST = 1e9


def log_axis(values: Sequence[float], most: int = 8) -> dict[str, Any]:
    """A logarithmic axis around the values, with at most about `most` ticks: at 1, 2, 5, 10, or some of these."""
    low, high = min(values, default=1.0) / 1.3, max(values, default=1.0) * 1.3
    inside: list[float] = []
    for steps in ((1, 2, 5), (1, 5), (1,)):
        inside = [tick for power in range(-3, 13) for step in steps if low <= (tick := step * 10.0**power) <= high]
        if len(inside) <= most:
            break
    return {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "tickvals": inside,
        "ticktext": [f"{tick:,.10g}".replace(",", "\N{NARROW NO-BREAK SPACE}") for tick in inside],
    }


def linear_axis(values: Sequence[float]) -> dict[str, Any]:
    """A linear axis from 0 to a little more than the largest value."""
    return {"type": "linear", "range": [0, max(values, default=1) * 1.12], "tickvals": None, "ticktext": None}


def scalable(figure: go.Figure, axis: str, values: Sequence[float], *, log: bool, most: int = 8) -> None:
    """An axis (`xaxis` or `yaxis`) around the values, logarithmic if `log`. The page's reader may choose the other."""
    axes = {"linear": linear_axis(values), "log": log_axis(values, most)}
    own = {key: value for key, value in axes["log" if log else "linear"].items() if value is not None}
    figure.update_layout({axis: {"separatethousands": True, "exponentformat": "none", **own}})
    meta = figure.layout.meta or {}
    figure.layout.meta = {**meta, "scales": {**meta.get("scales", {}), axis: axes}}


def whiskers(estimates: Sequence[Estimate | None], factor: float, **style: object) -> dict[str, Any] | None:
    """The intervals as error bars, in the estimates' unit times `factor`; None if no value has an interval."""
    if all(value is None or value.low is None for value in estimates):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [_gap(value, "high", factor) for value in estimates],
        "arrayminus": [_gap(value, "low", factor) for value in estimates],
        **style,
    }


def in_rows(
    figure: go.Figure, labels: Sequence[str], ranges: Sequence[tuple[float, float]], *, height: int = 26
) -> None:
    """Put the traces with the axes y, y2, ... below each other, the first on top. They share the x axis.

    A row has a label, the range of its axis, and a `height` in pixels.
    """
    share = 1 / max(len(labels), 1)
    for number, (label, (low, high)) in enumerate(zip(labels, ranges, strict=True)):
        figure.layout[f"yaxis{number + 1 if number else ''}"] = {
            "domain": [max(0.0, 1 - (number + 1) * share + share * 0.08), 1 - number * share],
            "range": [low, high],
            "tickvals": [low if low == 0 else (low + high) / 2],
            "ticktext": [label],
            "ticksuffix": "  ",
            "zeroline": False,
        }
    figure.update_layout(
        height=64 + height * len(labels),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        hovermode="closest",
    )
    figure.update_xaxes(anchor="free", position=0)


def _gap(value: Estimate | None, end: str, factor: float) -> float:
    reach = getattr(value, end) if value else None
    return 0.0 if value is None or reach is None else min(abs(reach - value.point), _FURTHEST) * factor
