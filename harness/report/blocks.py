"""Blocks of content: what a section of a report says, once, for the page, the terminal and Markdown.

A section is a function of a section's results that yields blocks. `page.py` renders them as HTML, `lines.py` as lines
for a terminal, `markdown.py` as Markdown. A renderer leaves out what is not for it (`on`). In all words, backticks mark
names, for example of modes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Any, Literal, TypeVar

from harness.analysis import Estimate
from harness.report.draw import Figure
from harness.report.numbers import microseconds, microseconds_interval, percent, percent_interval

_ItemT = TypeVar("_ItemT")
MOST_LISTED = 10
"""The largest number of cells listed under one title below the table of a run. The report has all."""
MOST_DIFFERENCES = 40
"""The largest number of differences between guests listed."""


class On(Flag):
    """Where a block is shown."""

    PAGE = auto()
    TERMINAL = auto()
    """The lines around the table of a run."""
    MARKDOWN = auto()
    BRIEF = auto()
    """The last lines of a run."""
    TEXT = TERMINAL | MARKDOWN
    ALL = PAGE | TERMINAL | MARKDOWN


@dataclass(frozen=True, slots=True)
class Mark:
    """Words in a sentence that look different on the page, for example a verdict. Other renderers show the text."""

    text: str
    style: Literal["verdict", "tone", "ramp", "small", "strong", "bold", "emphasis", "raised"] = "emphasis"
    tone: str = ""
    """The outcome that gives a verdict, or a `tone`, its colour."""


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to a place on the page (`#id`), to a file beside it, or to a web page."""

    text: str
    address: str
    label: str = ""
    """For a reader who does not see what is around it."""


@dataclass(frozen=True, slots=True)
class Key:
    """The explanation of a colour in a chart."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class AtDepth:
    """The iodepth of a chart that has a figure for each, as the page's reader chooses it."""


Inline = str | Mark | Link | Key | AtDepth
Words = str | tuple[Inline, ...]


def join_words(*parts: Inline) -> Words:
    """Words of several parts."""
    return parts


@dataclass(frozen=True, slots=True)
class Heading:
    """A title; of level 1, the answer of the page."""

    text: Words
    level: int = 3
    on: On = On.PAGE


@dataclass(frozen=True, slots=True)
class Sentence:
    """A paragraph; a line in a terminal, `indent` columns from its left end."""

    text: Words
    on: On = On.ALL
    style: Literal["", "headline", "basis", "basis meta", "reason", "doubt", "raw"] = ""
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """Items below each other, in the terminal and in Markdown at most `most`."""

    items: tuple[Words, ...]
    on: On = On.ALL
    most: int | None = None
    indent: int = 0


@dataclass(frozen=True, slots=True)
class Aside:
    """What explains the figures around it."""

    text: Words
    on: On = On.PAGE


@dataclass(frozen=True, slots=True)
class Code:
    """Text exactly as a file or a command has it."""

    text: str
    on: On = On.PAGE


@dataclass(frozen=True, slots=True)
class TableCell:
    """A field of a table. A plain string is a cell with nothing but text."""

    text: Words
    interval: str = ""
    """The interval of the figure: in a column of its own on the page, beside the text elsewhere."""
    tone: str = ""
    """The outcome that gives the text the colour of a verdict."""
    link: str = ""
    title: str = ""
    """What a pointer over the cell shows."""
    notes: tuple[Words, ...] = ()
    """Small lines below the text, on the page."""
    drawn: Estimate | None = None
    """For a column that draws intervals."""
    limit: float | None = None
    """The budget in such a drawing, as a share."""
    lines: int = 1
    """The rows that the cell spans; 0 for a cell that one above it spans."""
    columns: int = 1
    """The columns that the cell spans."""
    bar: float | None = None
    """For a column of bars, its length as a share."""
    repeated: bool = False
    """Whether the text is that of the row above. Then only a screen reader has it."""


def percent_cell(share: Estimate | None) -> TableCell:
    """A share in percent, with its interval."""
    return TableCell(percent(share.point if share else None), interval=percent_interval(share))


def microseconds_cell(seconds: Estimate | None, *, signed: bool = False) -> TableCell:
    """A duration in us, with its interval."""
    text = microseconds(seconds.point if seconds else None, signed=signed)
    return TableCell(text, interval=microseconds_interval(seconds))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    `kind` is what its fields are: `head`, `depth`, `mode` and `step` name the row, `figure` and `strong` are numbers,
    `text`, `name`, `verdict` and `evidence` are plain, `sentence`, `reason` and `why` wrap, `code` is code, `drawing`
    draws intervals on its `scale`, and `bar` draws bars.
    """

    name: Words
    kind: Literal[
        "head",
        "depth",
        "mode",
        "step",
        "figure",
        "strong",
        "text",
        "name",
        "sentence",
        "reason",
        "code",
        "strong_code",
        "drawing",
        "bar",
        "why",
        "verdict",
        "evidence",
    ] = "figure"
    interval: str | None = None
    """The confidence, or "" without one, of a figure that has an interval; None if it has none."""
    scale: Scale | None = None
    hidden: bool = False
    """Whether only a screen reader has the name."""
    on: On = On.ALL


LEFT = ("head", "mode", "step", "text", "name", "sentence", "reason", "code", "strong_code", "why", "verdict")
"""The kinds of columns whose text begins at the left."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table. If it has fewer cells than there are columns, its last cell spans the rest."""

    cells: tuple[TableCell | str, ...]
    sentence: str = ""
    """What the terminal says of the row; the terminal leaves a row without it out."""
    doubtful: bool = False
    """Whether the figures are not a result."""
    remark: str = ""
    """A line below the row on the page."""
    group: str = ""
    """Rows of the same group are together."""
    of: str = ""
    """Id and outcome of the cell that the row is of, for the page's filter."""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Figures side by side.

    The terminal shows the sentences of the rows, at most `most`; Markdown shows the table or, with `listed`, the same
    sentences as a list. `style` is how the page shows it: `cells` over the whole width, `facts` as wide as its text,
    `glance` with drawings.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: Words
    on: On = On.ALL
    style: str = "cells"
    caption_shown: bool = False
    narrow: bool = False
    """Whether a narrow window shows its cells below each other, each with the name of its column."""
    listed: bool = False
    most: int | None = None


def make_table(
    items: Iterable[_ItemT],
    caption: Words,
    *columns: tuple[Column, Callable[[_ItemT], TableCell | str]],
    row: Callable[[_ItemT], Row] = lambda _item: Row(()),
    **options: Any,
) -> Table:
    """A table with a row for each item. Each column has what makes its field of an item; `row` has what else a row has.

    `options` are those of `Table`.
    """
    rows = tuple(replace(row(item), cells=tuple(field(item) for _, field in columns)) for item in items)
    return Table(tuple(column for column, _ in columns), rows, caption, **options)


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of figures that a table has too. `key` is its id: unique on the page, and begins with its section's.

    `figure` draws it, or draws it for each iodepth, of which the page shows one.
    """

    key: str
    figure: Callable[[], Figure] | Mapping[int, Callable[[], Figure]]
    caption: Words
    label: str
    """For a reader who cannot see it."""
    style: Literal["", "wide", "split", "rows", "heat"] = "wide"


@dataclass(frozen=True, slots=True)
class Panels:
    """Charts side by side."""

    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Content that a reader of the page opens. With `key`, a large page inserts it when it comes into view."""

    summary: Words
    content: tuple[Block, ...]
    open: bool = False
    key: str = ""
    style: str = ""
    on: On = On.PAGE
    anchor: str = ""
    """The id of the content, to which links lead."""
    of: str = ""
    """Id and outcome of the cell that it is about, for the page's filter."""


@dataclass(frozen=True, slots=True)
class Part:
    """Content of its own title, for example one workload."""

    title: str
    content: tuple[Block, ...]
    key: str
    lazy: bool = False
    """Whether a large page inserts the content when it comes into view."""


@dataclass(frozen=True, slots=True)
class Box:
    """Content that belongs together on the page. With `lazy`, a large page inserts it when it comes into view."""

    content: tuple[Block, ...]
    key: str = ""
    style: str = ""
    lazy: str = ""


@dataclass(frozen=True, slots=True)
class Banner:
    """A warning above the figures."""

    kind: Literal["status", "unknown", "judged", "writes", "lab", "blocks", "steady"]
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of cells by their outcome."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Navigation:
    """Links to the parts of the page."""

    label: str
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Legend:
    """The arms of a disk's charts, which a reader of the page hides, and what else he chooses. `key` is the disk's."""

    key: str
    modes: tuple[str, ...]
    depths: tuple[int, ...]
    depth: int
    """The iodepth that is chosen first."""


Leaf = Heading | Sentence | Listing | Aside | Code | Table | Banner | Tally | Navigation | Legend
"""A block without other blocks, and without figures to draw."""
Block = Leaf | Chart | Panels | Fold | Part | Box
"""A page has all of them; terminal and Markdown have those with `on`."""


def slug(text: str) -> str:
    """The text as a part of an id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def plain_text(text: Words) -> str:
    """The words without anything that only a page can show."""
    if isinstance(text, str):
        return text
    return "".join(part if isinstance(part, str) else "" if isinstance(part, AtDepth) else part.text for part in text)


def first(sentences: Sequence[str], most: int | None = MOST_LISTED) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - most if most is not None else 0
    return [*sentences[: len(sentences) - max(more, 0)], *([f"and {more} more: see the report"] if more > 0 else [])]


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale for overheads from `low` to `high`, as shares. It always contains 0."""

    low: float
    high: float

    @classmethod
    def around(cls, estimates: Sequence[Estimate], limits: Sequence[float] = ()) -> Scale:
        """From 0 (or the largest gain, down to -100 %) to the next 10 % above the largest overhead or limit."""
        points = [*(estimate.point for estimate in estimates), *limits]
        high = max([0.1, *points])
        low = min([0.0, *points])
        return cls(max(-1.0, -_up(-low)), _up(high * 1.08))

    @property
    def ticks(self) -> tuple[float, ...]:
        """Shares at steps of 10, 20, 50 % or more, at most seven."""
        step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 1e9) if (self.high - self.low) / step <= 6.001)
        first = round(self.low / step + 0.499)
        return tuple(number * step for number in range(first, int(self.high / step + 1e-9) + 1))

    def at(self, share: float | None) -> float:
        """The position in percent of the width, limited to the drawing."""
        place = ((share or 0.0) - self.low) / (self.high - self.low) * 100
        return round(max(0.0, min(100.0, place)), 2)


def _up(share: float) -> float:
    """The next multiple of 10 %."""
    return round(-(-share * 10 // 1) / 10, 1)
