"""Charts as plotly.js draws them: colours, traces, axes, whiskers and labels, without plotly's own classes.

A figure is made of the same names and options as in plotly.py, whose classes take a second to import and check each
value again. `tests/unit/pages.py` checks the figures of pages with them.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from harness.analysis import Estimate
from harness.report.numbers import count, shorten

HOST = "#7d858d"
# Okabe and Ito (2008) without yellow, which is not visible on white. All have 3:1 contrast on both backgrounds.
_MODES = ("#0a7abf", "#d55e00", "#0b9a72", "#c067a0", "#b3860b", "#7a6ad8", "#5d8a1f", "#c2455c")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "hexagon", "cross")

LAYER, VIRTUALISATION = "#b3860b", "#5b7fa6"

# Blue is a gain, orange is a loss, and 0 is the page's own surface.
# In the light theme, every field has dark text; in the dark theme, light text.
_LOW = {"light": "#74b0dc", "dark": "#1f6fb2"}
_HIGH = {"light": "#ea9550", "dark": "#b4530f"}
_SURFACE = {"light": "#f3f2ee", "dark": "#2c3036"}
_INK = {"light": "#22262b", "dark": "#dfe3e6"}
INK, SOFT, PAPER, RULE = _INK["light"], "#5a636b", "#fdfdfb", "#e4e5e2"
"""Text, secondary text, surface and lines of pictures, which have one theme."""
_GRID = {"light": "#e4e5e2", "dark": "#33383f"}
_PAPER = {"light": "#ffffff", "dark": "#1b1e22"}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def mode_colours(modes: Sequence[str]) -> Mapping[str, str]:
    """A colour for each mode, by its position among the modes of the disk."""
    return {mode: _MODES[number % len(_MODES)] for number, mode in enumerate(modes)}


def mode_symbols(modes: Sequence[str]) -> Mapping[str, str]:
    """A marker for each mode, to distinguish lines without colour."""
    return {mode: _SYMBOLS[number % len(_SYMBOLS)] for number, mode in enumerate(modes)}


def translucent(colour: str, alpha: float) -> str:
    """`#rrggbb` as `rgba(...)`."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def templates() -> dict[str, Any]:
    """plotly templates for the page's light and dark appearance."""
    return {appearance: _template(appearance) for appearance in ("light", "dark")}


def _template(appearance: str) -> dict[str, Any]:
    ink, grid = _INK[appearance], _GRID[appearance]
    axis = {
        "gridcolor": grid,
        "linecolor": grid,
        "zerolinecolor": grid,
        "tickcolor": grid,
        "zerolinewidth": 1,
        "title": {"standoff": 8},
    }
    whiskers = {"color": ink, "thickness": 1, "width": 3}
    return {
        "data": {"bar": [{"error_x": whiskers}], "scatter": [{"error_y": whiskers}]},
        "layout": {
            "font": {"family": _FONT, "size": 12, "color": ink},
            "separators": ".\N{NARROW NO-BREAK SPACE}",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": _PAPER[appearance], "bordercolor": grid, "font": {"color": ink, "size": 12}},
            "coloraxis": {
                "colorscale": [
                    [0, _LOW[appearance]],
                    [0.5, _SURFACE[appearance]],
                    [1, _HIGH[appearance]],
                ]
            },
        },
    }


LONGEST_LABEL = 28
_FURTHEST = 1e9

Trace = dict[str, Any]


class Figure:
    """A chart: its traces, and the layout around them."""

    def __init__(self, *traces: Trace, **layout: Any) -> None:
        self.data = list(traces)
        self.layout: dict[str, Any] = {"dragmode": False}
        self.update_layout(**layout)

    def add_trace(self, trace: Trace) -> None:
        """Draw one more trace, above the others."""
        self.data.append(trace)

    def update_layout(self, **options: Any) -> None:
        """Set options of the layout. An option of several parts keeps the parts that are not named."""
        _merge(self.layout, options)

    def update_xaxes(self, **options: Any) -> None:
        """Set options of the x axis."""
        _merge(self.layout.setdefault("xaxis", {}), _with_title(options))

    def update_yaxes(self, **options: Any) -> None:
        """Set options of the y axis."""
        _merge(self.layout.setdefault("yaxis", {}), _with_title(options))

    def add_shape(self, **options: Any) -> None:
        """Draw a line or an area that is not a trace."""
        self.layout.setdefault("shapes", []).append(options)

    @property
    def document(self) -> dict[str, Any]:
        """The figure as JSON values, without a template: the page adds the one for light or dark."""
        return {"data": self.data, "layout": self.layout}


def scatter(**options: Any) -> Trace:
    """Points, lines or areas; a pointer shows `customdata`. An option that is None is left out."""
    return {"type": "scatter", **_hover(options), **_given(options)}


def bar(**options: Any) -> Trace:
    """Bars; a pointer shows `customdata`."""
    return {"type": "bar", **_hover(options), **_given(options)}


def band(x: Sequence[float], upper: Sequence[float], lower: Sequence[float], colour: str, **options: Any) -> Trace:
    """The area between two lines, of a translucent colour (`translucent`)."""
    line = {"width": 0}
    area = {"fill": "toself", "fillcolor": colour, "line": line, "mode": "lines", "hoverinfo": "skip"}
    return scatter(x=[*x, *x[::-1]], y=[*upper, *lower[::-1]], **area, **options)


def heatmap(**options: Any) -> Trace:
    """Fields in rows and columns; a pointer shows `customdata`."""
    return {"type": "heatmap", **_hover(options), **_given(options)}


def safe(text: str) -> str:
    """Escaped text, because plotly interprets some HTML in labels. Long names are shortened."""
    return html.escape(shorten(text, LONGEST_LABEL))


def label_room(labels: Sequence[str]) -> int:
    """Pixels that the labels of a vertical axis take."""
    return 24 + round(7.2 * max((min(len(label), LONGEST_LABEL) for label in labels), default=0))


def log_axis(values: Sequence[float], most: int = 8) -> dict[str, Any]:
    """A logarithmic axis around the values above 0, with about `most` ticks at most: 1, 2, 5, 10, or some of these."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = min(positive) / 1.3, max(positive) * 1.3
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


def set_scalable_axis(figure: Figure, axis: str, values: Sequence[float], *, log: bool, most: int = 8) -> None:
    """An axis (`xaxis` or `yaxis`) around the values, logarithmic if `log`. The page's reader may choose the other."""
    linear = {"type": "linear", "range": [0, max(values, default=1) * 1.12], "tickvals": None, "ticktext": None}
    axes = {"linear": linear, "log": log_axis(values, most)}
    chosen = _given(axes["log" if log else "linear"])
    figure.update_layout(**{axis: {"separatethousands": True, "exponentformat": "none", **chosen}})
    figure.update_layout(meta={"scales": {axis: axes}})


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


def set_labelled_rows(figure: Figure, labels: Sequence[str], *, height: int, least: int = 0) -> None:
    """Make room for rows of a `height` in pixels, with their labels, and name the x axis below them."""
    figure.update_layout(
        height=max(least, 64 + height * len(labels)),
        margin={"l": label_room(labels), "r": 14, "t": 10, "b": 44},
        showlegend=False,
    )


def list_categories(figure: Figure, labels: Sequence[str], **options: Any) -> None:
    """A vertical axis with these labels, the first on top."""
    figure.update_yaxes(categoryorder="array", categoryarray=[*labels][::-1], ticksuffix="  ", **options)


def _gap(value: Estimate | None, end: str, factor: float) -> float:
    reach = getattr(value, end) if value else None
    return 0.0 if value is None or reach is None else min(abs(reach - value.point), _FURTHEST) * factor


def _hover(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"hovertemplate": "%{customdata}<extra></extra>"} if "customdata" in options else {}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _with_title(options: dict[str, Any]) -> dict[str, Any]:
    title = options.get("title")
    return {**options, "title": {"text": title}} if isinstance(title, str) else options


def _merge(into: dict[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        before = into.get(name)
        if isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        else:
            into[name] = dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a waterfall: what it adds, in seconds, from `start`. `doubt` draws it hatched."""

    label: str
    added: Estimate
    start: float
    colour: str
    hover: str
    doubt: bool = False


def find_starts(added: Iterable[Estimate]) -> list[float]:
    """Where each bar starts, in seconds: at the end of the one before."""
    return list(accumulate((estimate.point for estimate in added), initial=0.0))[:-1]


def draw_bars(bars: Sequence[Bar], *, blocks: int) -> Figure:
    """Bars from top to bottom, over the microseconds added to the host's mean latency in this number of blocks."""
    labels = [safe(one.label) for one in bars]
    figure = Figure(
        bar(
            orientation="h",
            y=labels,
            base=[one.start * 1e6 for one in bars],
            x=[one.added.point * 1e6 for one in bars],
            error_x=whiskers([one.added for one in bars], 1e6),
            marker={
                "color": [one.colour for one in bars],
                "opacity": [0.45 if one.doubt else 1 for one in bars],
                "pattern": {"shape": ["/" if one.doubt else "" for one in bars]},
            },
            customdata=[one.hover for one in bars],
        ),
        bargap=0.3,
    )
    set_labelled_rows(figure, labels, height=34)
    figure.update_xaxes(title=f"added to the host's mean latency, us ({count(blocks, 'block')})", zeroline=True)
    list_categories(figure, labels, showgrid=False)
    return figure
