"""The heat-map: overhead by attach mode and job, with the figure in each field. 0 has no colour."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from harness.analysis import Estimate
from harness.report.draw import Figure, heatmap, label_room, safe
from harness.report.numbers import percent, percent_with_interval
from harness.report.section import HeatMap, Section

_GAP = 0.35  # between workloads, in columns

_T = TypeVar("_T")
_Row = Sequence[Estimate | None]


MOST_COLUMNS = 90
"""Of one heat-map. plotly.js needs a minute for 2,000 columns, and nobody scrolls that far to the side."""
_FASTER = "<br>faster than its host: find out why"


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


def heat_map(view: HeatMap, limit: float) -> Figure:
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
            customdata=[_spread(fields, _hovers(view, row), "") for row in range(len(view.modes))],
            texttemplate="%{text}",
            hovertemplate="%{customdata}<extra></extra>",
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


def _hovers(view: HeatMap, row: int) -> list[str]:
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
