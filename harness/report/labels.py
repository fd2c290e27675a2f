"""Names from results as chart labels: escaped, shortened if too long, and with enough space."""

from __future__ import annotations

import html
from collections.abc import Sequence

_LONGEST = 28


def safe(text: str) -> str:
    """Escaped text, because plotly interprets some HTML in labels. Long names are shortened."""
    return html.escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}")


def label_room(labels: Sequence[str]) -> int:
    """Pixels that the labels of a vertical axis take."""
    return 24 + round(7.2 * max((min(len(label), _LONGEST) for label in labels), default=0))
