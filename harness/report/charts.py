"""Charts of a workload: its throughput, its latency and the parts of its overhead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis import METRICS, Estimate
from harness.analysis.metrics import Shown
from harness.report.draw import (
    HOST,
    LAYER,
    VIRTUALISATION,
    Figure,
    Trace,
    band,
    bar,
    label_room,
    list_categories,
    mode_colours,
    safe,
    scatter,
    set_labelled_rows,
    set_scalable_axis,
    translucent,
    whiskers,
)
from harness.report.numbers import microseconds, percent_with_interval, significant
from harness.report.section import (
    Allowance,
    ArmSeries,
    ArmStyle,
    Quantity,
    Section,
    Split,
    WorkloadCells,
    look_of,
)

# The interval of two rounds can be too wide for a browser to draw, so a band ends at this multiple of its point.
_BAND_ROOM = 20.0
FASTER = "<br>faster than its host: find out why"
"""What a pointer shows of a doubtful figure."""


def draw_over_iodepth(section: Section, workload: WorkloadCells, quantity: Quantity) -> Figure:
    """Where an arm saturates: throughput, or mean completion latency, over iodepth. Dotted lines are the budgets."""
    scale = _shown(workload, quantity).scale
    series = workload.series(quantity)
    figure = Figure()
    for arm in series:
        for trace in _traces(section, arm, quantity, scale):
            figure.add_trace(trace)
    allowances = workload.allowances(quantity)
    for allowance in allowances:
        figure.add_trace(_allowance(section, allowance, quantity, scale))
    values = [estimate.point / scale for arm in series for _, estimate in arm.points]
    values += [value / scale for allowance in allowances for _, value in allowance.points]
    figure.update_layout(height=300, margin={"l": 58, "r": 10, "t": 10, "b": 44}, showlegend=False, hovermode="closest")
    figure.update_xaxes(
        type="log",
        title="iodepth",
        tickvals=list(workload.depths),
        ticktext=[str(depth) for depth in workload.depths],
        range=[math.log10(workload.depths[0] / 1.25), math.log10(workload.depths[-1] * 1.25)],
    )
    set_scalable_axis(figure, "yaxis", values, log=quantity == "latency")
    return figure


def draw_at_one_depth(section: Section, workload: WorkloadCells, quantity: Quantity) -> Figure:
    """A workload with one iodepth: throughput, or mean completion latency, as a dot with its interval for each arm.

    A vertical mark in the row of a guest is its budget.
    """
    scale = _shown(workload, quantity).scale
    series = [arm for arm in workload.series(quantity) if arm.points]
    figure = Figure()
    reached: list[float] = []
    for arm in series:
        look = look_of(section.modes, arm.place, arm.mode)
        _, value = arm.points[0]
        reached += [value.point / scale, min(value.high or 0.0, value.point * 2) / scale or value.point / scale]
        if quantity == "latency":
            reached.append(max(value.low or value.point, value.point / 4) / scale)
        figure.add_trace(
            scatter(
                x=[value.point / scale],
                y=[look.name],
                error_x=whiskers([value], 1 / scale, color=look.colour, thickness=1.4, width=4),
                mode="markers",
                name=look.name,
                marker={"color": look.colour, "symbol": _symbols(arm, look), "size": 8},
                customdata=_hovers(arm, look, quantity, scale),
                meta=look.key,
            )
        )
    for allowance in workload.allowances(quantity):
        look = look_of(section.modes, "guest", allowance.mode)
        limit = allowance.points[0][1] / scale
        reached.append(limit)
        figure.add_trace(
            scatter(
                x=[limit],
                y=[look.name],
                mode="markers",
                name=f"budget of {safe(allowance.mode)}",
                marker={
                    "color": look.colour,
                    "symbol": "line-ns",
                    "size": 13,
                    "line": {"color": look.colour, "width": 2},
                },
                hovertemplate=f"budget of {safe(allowance.mode)}: %{{x:,.3~r}}<extra></extra>",
                meta=f"budget:{allowance.mode}",
            )
        )
    labels = [look_of(section.modes, arm.place, arm.mode).name for arm in series]
    set_labelled_rows(figure, labels, height=24, least=180)
    figure.update_layout(hovermode="closest")
    list_categories(figure, labels)
    set_scalable_axis(figure, "xaxis", reached, log=quantity == "latency", most=5)
    figure.update_xaxes(title=_shown(workload, quantity).unit, nticks=5)
    return figure


def draw_split(section: Section, workload: WorkloadCells, iodepth: int) -> Figure:
    """The cause of the overhead: the storage layer (twin against host) and virtualisation (guest against twin).

    Figures that are void or faster than the host are grey, hatched and labelled.
    """
    parts = workload.split(iodepth)
    modes = [_split_label(part) for part in parts]
    figure = Figure()
    for name, colour, estimates in (
        ("virtualisation", VIRTUALISATION, [part.virtualisation for part in parts]),  # drawn from below
        ("storage layer", LAYER, [part.layer for part in parts]),
    ):
        figure.add_trace(
            bar(
                orientation="h",
                name=name,
                y=modes,
                x=[None if value is None else value.point * 100 for value in estimates],
                error_x=whiskers(estimates, 100),
                marker={
                    "color": [HOST if part.doubt else colour for part in parts],
                    "opacity": [0.45 if part.doubt else 1 for part in parts],
                    "pattern": {"shape": ["/" if part.doubt else "" for part in parts]},
                },
                customdata=[percent_with_interval(value) for value in estimates],
                hovertemplate=f"%{{y}}, {name}: %{{customdata}} %<extra></extra>",
            )
        )
    results = [part for part in parts if not part.doubt] or parts
    low, high = _reach([value for part in results for value in (part.layer, part.virtualisation) if value is not None])
    if len(results) < len(parts):
        low = min(low, -(high - low) * 0.25)  # so that a doubtful bar on the other side of 0 is visible
    figure.update_layout(
        height=300,
        margin={"l": label_room([_split_label(part) for part in parts] or section.modes), "r": 14, "t": 10, "b": 44},
        showlegend=False,
        barmode="group",
        bargap=0.32,
        bargroupgap=0.08,
    )
    figure.update_xaxes(title="overhead, %", range=[low, high], zeroline=True)
    list_categories(figure, modes, showgrid=False)
    return figure


def _traces(section: Section, arm: ArmSeries, quantity: Quantity, scale: float) -> Iterator[Any]:
    look = look_of(section.modes, arm.place, arm.mode)
    depths = [depth for depth, _ in arm.points]
    bounded = [(depth, value) for depth, value in arm.points if value.low is not None and value.high is not None]
    if len(bounded) > 1:
        upper = [min(value.high or 0, value.point * _BAND_ROOM) / scale for _, value in bounded]
        lower = [max(value.low or 0, value.point / _BAND_ROOM) / scale for _, value in bounded]
        around = [depth for depth, _ in bounded]
        yield band(around, upper, lower, translucent(look.colour, 0.14), meta=look.key)
    yield scatter(
        x=depths,
        y=[value.point / scale for _, value in arm.points],
        mode="lines+markers",
        name=look.name,
        line={"color": look.colour, "width": 2.4 if arm.mode is None else 1.8, "dash": look.dash},
        marker={
            "symbol": _symbols(arm, look),
            "size": 7 if arm.place == "guest" else 5,
        },
        customdata=_hovers(arm, look, quantity, scale),
        meta=look.key,
    )


def _symbols(arm: ArmSeries, look: ArmStyle) -> list[str]:
    """The marker of each point: open if it is not a result."""
    return [f"{look.symbol}-open" if depth in arm.doubtful else look.symbol for depth, _ in arm.points]


def _hovers(arm: ArmSeries, look: ArmStyle, quantity: Quantity, scale: float) -> list[str]:
    show = microseconds if quantity == "latency" else lambda value: significant(value / scale)
    unit = "us" if quantity == "latency" else ""
    return [
        f"{look.name}, qd{depth}: {show(value.point)} {unit}".rstrip() + (FASTER if depth in arm.doubtful else "")
        for depth, value in arm.points
    ]


def _shown(workload: WorkloadCells, quantity: Quantity) -> Shown:
    first = workload.cells[0]
    return METRICS[first.latency_name if quantity == "latency" else first.throughput_name].shown


def _allowance(section: Section, allowance: Allowance, quantity: Quantity, scale: float) -> Trace:
    """A dotted line over the depths that have the budget. A single depth gets a short line."""
    points = allowance.points
    name = f"budget of {safe(allowance.mode)}"
    show = microseconds if quantity == "latency" else lambda value: significant(value / scale)
    single = len(points) == 1
    return scatter(
        x=[points[0][0] / 1.15, points[0][0] * 1.15] if single else [depth for depth, _ in points],
        y=[value / scale for _, value in (points * 2 if single else points)],
        mode="lines",
        name=name,
        line={"color": mode_colours(section.modes).get(allowance.mode, HOST), "width": 1.4, "dash": "dot"},
        customdata=[f"{name}, qd{depth}: {show(value)}" for depth, value in (points * 2 if single else points)],
        meta=f"budget:{allowance.mode}",
    )


def _split_label(part: Split) -> str:
    return safe(f"{part.mode} ({part.doubt})" if part.doubt else part.mode)


def _reach(estimates: Sequence[Estimate]) -> tuple[float, float]:
    """The axis in percent: from 0 or the largest gain to the largest interval, at most twice as wide as the points."""
    points = [estimate.point * 100 for estimate in estimates]
    low, high = min([0.0, *points]), max([10.0, *points])
    width = high - low
    ends = [end * 100 for estimate in estimates for end in (estimate.low, estimate.high) if end is not None]
    lowest, highest = min([low, *ends]), max([high, *ends])
    return max(lowest, low - width) - (width * 0.04 if lowest < 0 else 0), min(highest, high + width) + width * 0.06
