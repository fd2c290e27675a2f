"""The heat-map of a disk: what it shows, in parts that a browser can draw, and how."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.report.blocks import Block, Chart, Heading, Mark, Words, join_words
from harness.report.charts import FASTER
from harness.report.draw import Figure, heatmap, label_room, safe
from harness.report.numbers import percent, percent_with_interval
from harness.report.section import Section
from harness.results import CellRecord, Outcome

_GAP = 0.35  # between workloads, in columns

_T = TypeVar("_T")
_Row = Sequence[Estimate | None]
MOST_COLUMNS = 90
"""Of one heat-map. plotly.js needs a minute for 2,000 columns, and nobody scrolls that far to the side."""


def heat_map_blocks(section: Section) -> Iterator[Block]:
    """The heat-map of a disk, if at least one of its cells has a loss of throughput to compare."""
    if not any(cell.ranked and cell.overhead is not None for cell in section.cells):
        return
    yield Heading("Overhead by mode and job")
    limit = _choose_limit(section.once(make_heat_map).values)
    parts = split_heat_map(section)
    full = f"{limit * 100:.0f} %"
    for number, part in enumerate(parts, start=1):
        caption: Words = f"{part.columns[0][0]} to {part.columns[-1][0]}"
        if number == len(parts):
            caption = join_words(
                "Throughput lost against the host, in percent: ",
                Mark("", "ramp"),
                f" from {full} faster (blue) to {full} lost (orange). ",
                Mark("void"),
                " (a check failed) is not a result. \N{MIDDLE DOT} means not measured.",
            )
        yield Chart(
            f"{section.key}-heat{number}",
            lambda part=part: draw_heat_map(part, limit),  # type: ignore[misc]
            caption,
            "Heat-map of overhead by mode and job; the same figures are in the tables below",
            style="heat",
        )


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Overhead by mode (rows) and job (columns). None: no value to compare. `words` says why."""

    modes: tuple[str, ...]
    columns: tuple[tuple[str, int], ...]
    """Workload and iodepth of each column."""
    values: tuple[tuple[Estimate | None, ...], ...]
    words: tuple[tuple[str, ...], ...]
    """By field: "void", "faster", "skip", or a dot if nothing was measured; empty if there is a value."""

    def of(self, begin: int, end: int) -> HeatMap:
        """Only the columns from `begin` to before `end`."""
        values, words = (tuple(row[begin:end] for row in self.values), tuple(row[begin:end] for row in self.words))
        return HeatMap(self.modes, self.columns[begin:end], values, words)


def make_heat_map(section: Section) -> HeatMap:
    """The cells of a disk, without those at a fixed rate."""
    workloads = [workload for workload in section.workloads if not workload.rated]
    columns = tuple((workload.name, depth) for workload in workloads for depth in workload.depths)
    at = {(cell.mode, cell.workload, cell.iodepth): cell for cell in section.cells}
    rows = [[at.get((mode, *column)) for column in columns] for mode in section.modes]
    return HeatMap(
        modes=section.modes,
        columns=columns,
        values=tuple(tuple(cell.overhead if cell and cell.usable else None for cell in row) for row in rows),
        words=tuple(tuple(_choose_word(cell) if cell else "" for cell in row) for row in rows),
    )


def _choose_word(cell: CellRecord) -> str:
    """The word in a field without a value."""
    return cell.doubt or {Outcome.SKIPPED: "skip", Outcome.NOT_MEASURED: "\N{MIDDLE DOT}"}.get(cell.outcome, "")


def split_heat_map(section: Section) -> tuple[HeatMap, ...]:
    """The heat-map of a disk in parts of whole workloads, each of at most MOST_COLUMNS columns or one workload."""
    whole = section.once(make_heat_map)
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
    edges, fields = _find_edges(view.columns)
    figure = Figure(
        heatmap(
            x=edges,
            y=[number - 0.5 for number in range(len(view.modes) + 1)],
            z=[_spread(fields, [value and _clip(value.point) for value in row], None) for row in view.values],
            text=[_spread(fields, [_format_loss(value) if value else "" for value in row], "") for row in view.values],
            customdata=[_spread(fields, _describe_fields(view, row), "") for row in range(len(view.modes))],
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
        annotations=list(_annotate(view, centres)),
        meta={"min_width": label_room(view.modes) + _measure_field(view.columns) * len(fields)},
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


def _choose_limit(values: Sequence[_Row]) -> float:
    """The overhead of the full colour: 25, 50 or 100 %. So similar runs have similar colours."""
    largest = max((abs(value.point) for row in values for value in row if value is not None), default=0.0)
    return next((limit for limit in (0.25, 0.5) if largest <= limit), 1.0)


def _find_edges(columns: Sequence[tuple[str, int]]) -> tuple[list[float], list[int]]:
    """The edges of all fields of a row, and the numbers of the fields that are columns. Between workloads is an empty
    field."""
    edges, fields = [0.0], []
    for number, (workload, _) in enumerate(columns):
        if number > 0 and columns[number - 1][0] != workload:
            edges.append(edges[-1] + _GAP)
        fields.append(len(edges) - 1)
        edges.append(edges[-1] + 1)
    return edges, fields


def _measure_field(columns: Sequence[tuple[str, int]]) -> int:
    """The pixels that a field needs for its figure and for its part of the workload's name above."""
    names = Counter(workload for workload, _ in columns)
    return max([29, *(math.ceil((7.8 * len(name) + 10) / number) for name, number in names.items())])


def _spread(fields: Sequence[int], values: Sequence[_T], empty: _T) -> list[_T]:
    """The values at their fields, with `empty` between workloads."""
    at = dict(zip(fields, values, strict=True))
    return [at.get(field, empty) for field in range(fields[-1] + 1)]


def _describe_fields(view: HeatMap, row: int) -> list[str]:
    mode = safe(view.modes[row])
    return [
        f"{mode}, {safe(workload)} qd{depth}<br>overhead {percent_with_interval(value)} %{FASTER if word else ''}"
        for (workload, depth), value, word in zip(view.columns, view.values[row], view.words[row], strict=True)
    ]


def _annotate(view: HeatMap, centres: Sequence[float]) -> Iterator[dict[str, Any]]:
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


def _format_loss(value: Estimate) -> str:
    return safe(percent(value.point).replace("-", "\N{MINUS SIGN}"))


def _clip(share: float) -> float:
    return max(-10.0, min(10.0, share))


REPORT = FeatureReport(contents={ReportPlace.OVERVIEW: heat_map_blocks})
