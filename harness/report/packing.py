"""Large parts of the page, compressed: its script unpacks them. A page is one file, so nothing can be loaded later."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache

from markupsafe import Markup
from plotly.offline import get_plotlyjs

MOST_INLINE = 200
"""Up to so many cells, all tables are in the page as they are, and readable without JavaScript."""


def compact_json(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def packed(text: str) -> Markup:
    """The text as gzip in base64, for a script element. The same text gives the same result."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())


@cache
def packed_plotly() -> Markup:
    """plotly.js as plotly.py brings it, so the charts are drawn by the version that they were made for.

    It is the whole bundle: compressed, it takes 2 MB of the page. A partial bundle takes 1 MB less, but it would be
    another version, to be kept in step by hand.
    """
    return packed(get_plotlyjs())


class Parts:
    """The parts of a page that the page's script inserts when they come into view."""

    def __init__(self, cells: int) -> None:
        self._lazy = cells > MOST_INLINE
        self._parts: dict[str, str] = {}

    def part(self, key: str, content: Markup) -> Markup:
        """The content, or a place for it in the page of a large run. `key` must be unique within the page."""
        if not self._lazy:
            return content
        self._parts[key] = str(content)
        return Markup('<div data-part="{}"></div>').format(key)

    def script(self) -> Markup:
        """The parts, for the page's script. Call it after all others."""
        return packed(json.dumps(self._parts, ensure_ascii=False))
