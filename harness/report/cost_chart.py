"""The chart of where the time goes: a stacked bar per arm, with the parts of the host's CPU time per I/O."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from harness.report.costs import ArmCosts, parts_of
from harness.report.labels import label_room, safe
from harness.report.numbers import microseconds
from harness.report.theme import PART_COLOURS


def cost_chart(arms: Sequence[ArmCosts]) -> go.Figure:
    """CPU time of the host per I/O in us, arm by arm. Its parts add up to the length of the bar."""
    labels = [safe(arm.label) for arm in arms]
    figure = go.Figure()
    for part in parts_of(arms):
        estimates = [arm.figure(part.name) for arm in arms]
        figure.add_trace(
            go.Bar(
                orientation="h",
                name=part.title,
                y=labels,
                x=[None if estimate is None else estimate.point * 1e6 for estimate in estimates],
                marker={"color": PART_COLOURS[part.name]},
                customdata=[microseconds(estimate.point if estimate else None) for estimate in estimates],
                hovertemplate=f"%{{y}}, {part.title}: %{{customdata}} us<extra></extra>",
            )
        )
    figure.update_layout(
        height=70 + 26 * len(arms),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        barmode="stack",
        bargap=0.3,
    )
    figure.update_xaxes(title="CPU time of the host per I/O, us", rangemode="tozero", exponentformat="none")
    figure.update_yaxes(categoryorder="array", categoryarray=labels[::-1], showgrid=False, ticksuffix="  ")
    return figure
