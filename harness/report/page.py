"""Blocks of content as HTML, with the figures of their charts and the parts that a large page inserts later."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from markupsafe import Markup, escape

from harness.analysis import Estimate
from harness.report.blocks import (
    LEFT,
    Aside,
    AtDepth,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Fold,
    Heading,
    Inline,
    Key,
    Link,
    Listing,
    Mark,
    On,
    Panels,
    Part,
    Row,
    Sentence,
    Table,
    Words,
    slug,
)
from harness.report.intervals import Scale
from harness.report.packing import Parts
from harness.terminal import visible

_TAGS = {"small": "small", "strong": "strong", "bold": "b", "emphasis": "i", "raised": "sup"}
_CLASSES = {
    "mode": "mode",
    "step": "mode",
    "depth": "depth",
    "strong": "strong",
    "name": "mode",
    "strong_code": "strong",
    "reason": "reason",
    "drawing": "drawing",
    "why": "why",
}
_HEADS = ("head", "depth", "mode", "step")
_FIGURE = re.compile(r"[<>]?[\d.\N{MINUS SIGN}]+ %(?: \[[^\]]*\])?")


class Page:
    """One page while it is made: it collects the figures of its charts, and the parts of a large run."""

    def __init__(self, cells: int) -> None:
        self.parts = Parts(cells)
        self.figures: dict[str, Any] = {}

    def render(self, blocks: Iterable[Block]) -> Markup:
        """The blocks that are for the page."""
        return Markup("\n").join(self._block(block) for block in blocks if On.PAGE in getattr(block, "on", On.PAGE))

    def _block(self, block: Block) -> Markup:
        match block:
            case Table():
                return _table(block)
            case Chart():
                return self._chart(block)
            case Panels():
                return Markup('<div class="panels">\n{}\n</div>').format(
                    Markup("\n").join(map(self._chart, block.charts))
                )
            case Fold():
                return self._fold(block)
            case Part():
                title = Markup('<h4 id="{}-title">{}</h4>').format(block.key, visible(block.title))
                return Markup('<section class="workload" aria-labelledby="{}-title">\n{}\n{}\n</section>').format(
                    block.key, title, self.render(block.content)
                )
            case _:
                return _text_block(block)

    def _chart(self, chart: Chart) -> Markup:
        if isinstance(chart.figure, Mapping):
            depths = {str(depth): draw().document for depth, draw in chart.figure.items()}
            self.figures[chart.key] = {"depths": depths}
        else:
            self.figures[chart.key] = chart.figure().document
        return Markup(
            '<figure class="chart"><figcaption>{}</figcaption>'
            '<div class="plot{}" id="{}" role="img" aria-label="{}"></div></figure>'
        ).format(words(chart.caption), f" {chart.style}" if chart.style else "", chart.key, visible(chart.label))

    def _fold(self, fold: Fold) -> Markup:
        content = self.render(fold.content)
        return Markup("<details{}{}><summary>{}</summary>\n{}</details>").format(
            _class(fold.style),
            Markup(" open") if fold.open else "",
            words(fold.summary),
            self.parts.part(fold.key, content) if fold.key else content,
        )


def _text_block(block: Heading | Sentence | Listing | Aside | Code) -> Markup:
    match block:
        case Heading():
            return Markup("<h{0}>{1}</h{0}>").format(block.level, words(block.text))
        case Sentence():
            return Markup("<p{}>{}</p>").format(_class(block.style), words(block.text))
        case Listing():
            items = Markup("").join(Markup("<li>{}</li>").format(words(item)) for item in block.items)
            return Markup('<ul class="notes">{}</ul>').format(items) if block.items else Markup("")
        case Aside():
            return Markup('<p class="aside">{}</p>').format(words(block.text))
        case Code():
            return Markup('<pre class="setting">{}</pre>').format(visible(block.text))


def words(text: Words) -> Markup:
    """Words as HTML: code between backticks; figures do not break across lines and have proper minus signs."""
    if isinstance(text, str):
        return _sentence(text)
    return Markup("").join(map(_inline, text))


def typographic(text: str) -> str:
    """A number of numbers.py with a minus sign and narrow spaces between thousands."""
    return re.sub(r"(?<=\d) (?=\d{3})", "\N{NARROW NO-BREAK SPACE}", text.replace("-", "\N{MINUS SIGN}"))


def axis(scale: Scale) -> Markup:
    """The ticks above a column of drawings, in percent."""
    ticks = (
        Markup('<i style="left:{}%">{}</i>').format(scale.at(tick), typographic(f"{tick * 100:.0f}"))
        for tick in scale.ticks
    )
    return Markup('<span class="axis" aria-hidden="true">{}</span>').format(Markup("").join(ticks))


def interval_drawing(scale: Scale, estimate: Estimate, limit: float | None = None) -> Markup:
    """An estimate as a dot, its interval as a bar, and its budget as a line."""
    parts = [
        Markup('<i class="tick{}" style="left:{}%"></i>').format(" zero" * (tick == 0), scale.at(tick))
        for tick in scale.ticks
    ]
    if estimate.low is not None:
        ends = scale.at(estimate.low), 100 - scale.at(estimate.high)
        parts.append(Markup('<i class="range" style="left:{}%;right:{}%"></i>').format(*ends))
    parts.append(Markup('<i class="dot" style="left:{}%"></i>').format(scale.at(estimate.point)))
    if limit is not None:
        parts.append(Markup('<i class="limit" style="left:{}%"></i>').format(scale.at(limit)))
    return Markup('<span class="track" aria-hidden="true">{}</span>').format(Markup("").join(parts))


def _class(name: str) -> Markup:
    return Markup(' class="{}"').format(name) if name else Markup("")


def _sentence(text: str) -> Markup:
    signed = re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", text)
    whole = _FIGURE.sub(lambda figure: figure[0].replace(" ", "\N{NO-BREAK SPACE}"), signed)
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(visible(whole)))))


def _inline(part: Inline) -> Markup:
    match part:
        case str():
            return _sentence(part)
        case Mark(style="verdict" | "tone"):
            return Markup('<span class="{} {}">{}</span>').format(part.style, slug(part.tone), visible(part.text))
        case Mark():
            return Markup("<{0}>{1}</{0}>").format(_TAGS[part.style], _sentence(part.text))
        case Link():
            elsewhere = Markup(' rel="noreferrer"') if ":" in part.address else ""
            return Markup('<a href="{}"{}>{}</a>').format(part.address, elsewhere, visible(part.text))
        case Key():
            return Markup('<i class="key" style="background:{}"></i>{}').format(part.colour, part.text)
        case AtDepth():
            return Markup('<span class="at-depth"></span>')


def _table(table: Table) -> Markup:
    columns = [column for column in table.columns if On.PAGE in column.on]
    places = [number for number, column in enumerate(table.columns) if On.PAGE in column.on]
    bodies = (
        Markup("<tbody>\n{}\n</tbody>").format(
            Markup("\n").join(line for row in rows for line in _row(row, columns, places, labels=table.narrow))
        )
        for _, rows in groupby(table.rows, key=lambda row: row.group)
    )
    return Markup('<div class="scroll"><table class="{}">\n<caption{}>{}</caption>\n{}{}\n</table></div>').format(
        table.style,
        "" if table.caption_shown else _class("hidden"),
        words(table.caption),
        _head(columns),
        Markup("\n").join(bodies),
    )


def _head(columns: Iterable[Column]) -> Markup:
    cells = list(map(_head_cells, columns))
    if not any(column.name for column in columns):
        return Markup("")
    return Markup("<thead><tr>{}</tr></thead>\n").format(Markup("").join(cells))


def _head_cells(column: Column) -> Markup:
    if not column.name:
        return Markup("<td></td>")
    name = words(column.name)
    if column.hidden:
        name = Markup('<span class="hidden">{}</span>').format(name)
    if column.scale is not None:
        name += axis(column.scale)
    left = _class("left") if column.kind in LEFT else _class("drawing") if column.kind == "drawing" else Markup("")
    head = Markup('<th scope="col"{}>{}</th>').format(left, name)
    if column.interval is None:
        return head
    confidence = f"interval, {column.interval}" if column.interval else "interval"
    return head + Markup('<th scope="col">{}</th>').format(visible(confidence))


def _row(row: Row, columns: list[Column], places: list[int], *, labels: bool) -> Iterator[Markup]:
    width = sum(1 if column.interval is None else 2 for column in columns)
    style = " ".join(filter(None, (slug(row.tone), "doubtful" * row.doubtful)))
    of = Markup(' data-cell="{}"').format(row.of) if row.of else ""
    cells = [row.cells[place] for place in places if place < len(row.cells)]
    spans = len(cells) < len(columns)
    shown, used = [], 0
    for number, (column, cell) in enumerate(zip(columns, cells, strict=False)):
        last = spans and number == len(cells) - 1
        if last:
            shown.append(
                Markup('<td colspan="{}" class="reason">{}</td>').format(width - used, _text(column, _cell(cell)))
            )
        else:
            shown.append(_cells(column, _cell(cell), label=labels))
        used += 1 if column.interval is None else 2
    yield Markup("<tr{}{}>{}</tr>").format(_class(style), of, Markup("").join(shown))
    if row.remark:
        of = Markup(' data-of="{}"').format(row.of) if row.of else ""
        before = 1 + (len(columns) > 1 and columns[1].kind in _HEADS)
        yield Markup('<tr class="remark"{}><td colspan="{}"></td><td colspan="{}"><span>{}</span></td></tr>').format(
            of, before, width - before, visible(row.remark)
        )


def _cell(cell: Cell | str) -> Cell:
    return Cell(cell) if isinstance(cell, str) else cell


def _cells(column: Column, cell: Cell, *, label: bool) -> Markup:
    """The cell, and the one with its interval if its column has them; nothing below a cell that spans rows."""
    if cell.lines == 0:
        return Markup("")
    name = _class(_CLASSES.get(column.kind, ""))
    title = Markup(' title="{}"').format(cell.title) if cell.title else Markup("")
    lines = Markup(' rowspan="{}"').format(cell.lines) if cell.lines > 1 else ""
    if column.kind in _HEADS:
        shown = Markup('<th scope="row"{}{}{}>{}</th>').format(name, title, lines, _text(column, cell))
    else:
        title += Markup(' data-label="{}"').format(column.name) if label else ""
        shown = Markup("<td{}{}{}>{}</td>").format(name, title, lines, _text(column, cell))
    if column.interval is None:
        return shown
    return shown + Markup('<td class="interval">{}</td>').format(typographic(cell.interval))


def _text(column: Column, cell: Cell) -> Markup:
    if column.scale is not None:
        return interval_drawing(column.scale, cell.drawn, cell.limit) if cell.drawn is not None else Markup("")
    text = _shown(column, cell.text)
    if cell.repeated:
        return Markup('<span class="hidden">{}</span>').format(text)
    if cell.tone:
        text = Markup('<span class="verdict {}">{}</span>').format(slug(cell.tone), text)
    if cell.link:
        text = Markup('<a href="{}">{}</a>').format(cell.link, text)
    for note in cell.notes:
        text += Markup("<small>{}</small>").format(words(note))
    return text


def _shown(column: Column, text: Words) -> Markup:
    if not isinstance(text, str):
        return words(text)
    if column.kind in ("figure", "strong"):
        return escape(typographic(visible(text)))
    if column.kind in ("code", "strong_code"):
        return Markup("<code>{}</code>").format(visible(text)) if text else Markup("")
    return words(text) if column.kind == "sentence" else escape(visible(text))
