"""A report's page as a browser reads it, for tests that assert what a user sees."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any

from plotly import graph_objects

from harness.report.html import render_html
from harness.results import Run


class Page(HTMLParser):
    """A page as a browser reads it: its tags, the rows of its tables, its text without scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.scripts: list[str] = []
        self.parts: list[str] = []
        self._inside = ""
        self._in_cell = False
        self.feed(html)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.parts).replace("\N{NO-BREAK SPACE}", " ").split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._in_cell = True
        elif tag in ("script", "style"):
            self._inside = tag
            self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""
        elif tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif not self._inside:
            self.parts.append(data)
            if self._in_cell:
                self.rows[-1][-1] += data.strip()

    def json(self, element: str) -> Any:
        return json.loads(self.unpacked(element))

    def unpacked(self, element: str) -> str:
        """The text that the page's script unpacks from this element."""
        scripts = [attributes for tag, attributes in self.tags if tag == "script"]
        found = self.scripts[[each.get("id") for each in scripts].index(element)]
        return gzip.decompress(base64.b64decode(found, validate=True)).decode()


def page(run: Run) -> Page:
    return Page(render_html(run))


def figures(run: Run) -> dict[str, Any]:
    """The charts of the run's page, by id. ValueError if plotly's own classes do not know an option of one."""
    charts: dict[str, Any] = page(run).json("figures")
    for chart in charts.values():
        for figure in chart["depths"].values() if "depths" in chart else (chart,):
            graph_objects.Figure(data=figure["data"], layout=figure["layout"])
    return charts
