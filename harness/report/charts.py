"""Charts of a disk: overhead by mode and job; throughput, latency and the parts of the overhead of a workload."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

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
    heatmap,
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
from harness.report.numbers import microseconds, percent, percent_with_interval, significant
from harness.report.section import (
    Allowance,
    ArmSeries,
    ArmStyle,
    HeatMap,
    Quantity,
    Section,
    Split,
    WorkloadCells,
    look_of,
)

# The interval of two rounds can be too wide for a browser to draw, so a band ends at this multiple of its point.
_BAND_ROOM = 20.0
_FASTER = "<br>faster than its host: find out why"
_GAP = 0.35  # between workloads, in columns

_T = TypeVar("_T")
_Row = Sequence[Estimate | None]
MOST_COLUMNS = 90
"""Of one heat-map. plotly.js needs a minute for 2,000 columns, and nobody scrolls that far to the side."""


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
        f"{look.name}, qd{depth}: {show(value.point)} {unit}".rstrip() + (_FASTER if depth in arm.doubtful else "")
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


def heat_maps(section: Section) -> tuple[HeatMap, ...]:
    """The heat-map of a disk in parts of whole workloads, each of at most MOST_COLUMNS columns or one workload."""
    whole = section.heat_map
    parts = [0]
    for number, (workload, _) in enumerate(whole.columns):
        begins = number == 0 or whole.columns[number - 1][0] != workload
        own = sum(name == workload for name, _ in whole.columns[number:]) if begins else 0
        if begins and number > parts[-1] and number + own - parts[-1] > MOST_COLUMNS:
            parts.append(number)
    return tuple(whole.of(begin, end) for begin, end in pairwise([*parts, len(whole.columns)]))


def draw_heat_map(view: HeatMap, limit: float) -> Figure:
    """Where the guests of a disk lose: orange is slower than the host, blue is faster within the limits of chance.

    `limit` is the overhead of the full colour.
    """
    edges, fields = _grid(view.columns)
    figure = Figure(
        heatmap(
            x=edges,
            y=[number - 0.5 for number in range(len(view.modes) + 1)],
            z=[_spread(fields, [value and _clipped(value.point) for value in row], None) for row in view.values],
            text=[_spread(fields, [_figure(value) if value else "" for value in row], "") for row in view.values],
            customdata=[_spread(fields, _field_hovers(view, row), "") for row in range(len(view.modes))],
            texttemplate="%{text}",
            textfont={"size": 11},
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            hoverongaps=False,
        )
    )
    centres = [(edges[field] + edges[field + 1]) / 2 for field in fields]
    figure.update_layout(
        height=88 + 34 * len(view.modes),
        margin={"l": label_room(view.modes), "r": 4, "t": 34, "b": 44},
        coloraxis={"cmin": -limit, "cmax": limit, "showscale": False},
        annotations=list(_annotations(view, centres)),
        meta={"min_width": label_room(view.modes) + _least_field(view.columns) * len(fields)},
    )
    figure.update_xaxes(
        tickvals=centres,
        ticktext=[str(depth) for _, depth in view.columns],
        tickangle=0,
        title="iodepth",
        showgrid=False,
        zeroline=False,
        range=[edges[0], edges[-1]],
    )
    figure.update_yaxes(
        tickvals=list(range(len(view.modes))),
        ticktext=[safe(mode) for mode in view.modes],
        range=[len(view.modes) - 0.5, -0.5],
        showgrid=False,
        zeroline=False,
    )
    return figure


def colour_limit(values: Sequence[_Row]) -> float:
    """The overhead of the full colour: 25, 50 or 100 %. So similar runs have similar colours."""
    largest = max((abs(value.point) for row in values for value in row if value is not None), default=0.0)
    return next((limit for limit in (0.25, 0.5) if largest <= limit), 1.0)


def _grid(columns: Sequence[tuple[str, int]]) -> tuple[list[float], list[int]]:
    """The edges of all fields of a row, and the numbers of the fields that are columns. Between workloads is an empty
    field."""
    edges, fields = [0.0], []
    for number, (workload, _) in enumerate(columns):
        if number > 0 and columns[number - 1][0] != workload:
            edges.append(edges[-1] + _GAP)
        fields.append(len(edges) - 1)
        edges.append(edges[-1] + 1)
    return edges, fields


def _least_field(columns: Sequence[tuple[str, int]]) -> int:
    """The pixels that a field needs for its figure and for its part of the workload's name above."""
    names = Counter(workload for workload, _ in columns)
    return max([29, *(math.ceil((7.8 * len(name) + 10) / number) for name, number in names.items())])


def _spread(fields: Sequence[int], values: Sequence[_T], empty: _T) -> list[_T]:
    """The values at their fields, with `empty` between workloads."""
    at = dict(zip(fields, values, strict=True))
    return [at.get(field, empty) for field in range(fields[-1] + 1)]


def _field_hovers(view: HeatMap, row: int) -> list[str]:
    mode = safe(view.modes[row])
    return [
        f"{mode}, {safe(workload)} qd{depth}<br>overhead {percent_with_interval(value)} %{_FASTER if word else ''}"
        for (workload, depth), value, word in zip(view.columns, view.values[row], view.words[row], strict=True)
    ]


def _annotations(view: HeatMap, centres: Sequence[float]) -> Iterator[dict[str, Any]]:
    """The workloads above their columns, and a word in each field without a value."""
    for row, words in enumerate(view.words):
        for centre, value, word in zip(centres, view.values[row], words, strict=True):
            if value is None and word:
                font = {"size": 10 if len(word) > 4 else 11}
                yield {"x": centre, "y": row, "text": word, "showarrow": False, "opacity": 0.75, "font": font}
    by_workload: dict[str, list[float]] = {}
    for centre, (name, _) in zip(centres, view.columns, strict=True):
        by_workload.setdefault(name, []).append(centre)
    for workload, own in by_workload.items():
        yield {
            "x": (own[0] + own[-1]) / 2,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "text": f"<b>{safe(workload)}</b>",
            "showarrow": False,
        }


def _figure(value: Estimate) -> str:
    return safe(percent(value.point).replace("-", "\N{MINUS SIGN}"))


def _clipped(share: float) -> float:
    return max(-10.0, min(10.0, share))
