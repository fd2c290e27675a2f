"""The chart of the blocks of one job over time: a row for each arm, a dot for each block."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from harness.report.arms import look_of
from harness.report.axes import in_rows
from harness.report.order import ArmBlocks, rounds_of
from harness.report.theme import HOST, translucent

_ROW = 34
"""The height of a row in pixels."""
_WHOLE_HEIGHT = {"y0": 0, "y1": 1, "yref": "paper", "layer": "below"}
_LEAST, _MOST = 0.02, 1.0  # of the scale


def order_chart(found: Sequence[ArmBlocks], modes: Sequence[str]) -> go.Figure:
    """Each arm's values in a row around their mean. All rows have the same scale, in percent of their mean.

    Rounds are shaded. Dotted vertical lines are boots of the guest. Only with at least one arm.
    """
    reach = min(max(_LEAST, *(each.furthest for each in found)), _MOST) * 1.15
    figure = go.Figure()
    for number, each in enumerate(found):
        look, shown = look_of(modes, each.arm.place, each.arm.mode), each.metric.shown
        figure.add_trace(
            go.Scatter(
                x=[round(block.at, 2) for block in each.blocks],
                y=[float(f"{block.value / shown.scale:.4g}") for block in each.blocks],
                yaxis=f"y{number + 1}" if number else "y",
                mode="markers",
                name=look.name,
                marker={"color": look.colour, "symbol": look.symbol, "size": 5},
                # Not whole sentences: a page may have thousands of blocks.
                customdata=[(block.round, block.number) for block in each.blocks],
                hovertemplate=f"{look.name}, round %{{customdata[0]}}, block %{{customdata[1]}}: "
                f"%{{y:,.4~r}} {shown.unit}<extra></extra>",
                meta=look.key,
            )
        )
    in_rows(
        figure,
        [look_of(modes, each.arm.place, each.arm.mode).name for each in found],
        ranges=[(each.shown_mean * (1 - reach), each.shown_mean * (1 + reach)) for each in found],
        height=_ROW,
    )
    for first, last in rounds_of(found):
        figure.add_shape(
            type="rect", x0=first, x1=last, **_WHOLE_HEIGHT, fillcolor=translucent(HOST, 0.1), line={"width": 0}
        )
    for at in max(found, key=lambda each: len(each.blocks)).boots:
        figure.add_shape(type="line", x0=at, x1=at, **_WHOLE_HEIGHT, line={"dash": "dot", "width": 1, "color": HOST})
    time = "minutes" if all(each.timed for each in found) else "block"
    figure.update_xaxes(
        title=f"{time} (rows: \N{PLUS-MINUS SIGN}{reach * 100:.3g} %)",
        exponentformat="none",
        zeroline=False,
    )
    return figure
