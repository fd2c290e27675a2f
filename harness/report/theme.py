"""Colours of the charts, light and dark: one per arm in every chart, distinguishable for colour-blind readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
