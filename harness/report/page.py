"""Blocks of content as HTML, with the figures of their charts and the parts that a large page inserts later."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from harness.analysis import Estimate
from harness.report.blocks import (
    LEFT,
    Aside,
    AtDepth,
    Banner,
    Block,
    Box,
    Chart,
    Code,
    Column,
    Fold,
    Heading,
    Inline,
    Key,
    Leaf,
    Legend,
    Link,
    Listing,
    Mark,
    Navigation,
    On,
    Panels,
    Part,
    Row,
    Scale,
    Sentence,
    Table,
    TableCell,
    Tally,
    Words,
    slug,
)
from harness.report.draw import HOST, mode_colours, mode_symbols, templates
from harness.terminal import visible

MOST_INLINE = 200
"""Up to so many cells, all tables are in the page as they are, and readable without JavaScript."""

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
    "bar": "bar",
    "verdict": "verdict-cell",
    "evidence": "evidence",
}
_HEADS = ("head", "depth", "mode", "step")
_FIGURE = re.compile(r"[<>]?[\d.\N{MINUS SIGN}]+ %(?: \[[^\]]*\])?")


@cache
def _template(name: str) -> Template:
    # A run writes its report many times. To compile a template takes longer than all the rest.
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    options = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    return options.get_template(name)


def render_page(
    title: str,
    kicker: tuple[str, ...],
    header: Iterable[Block],
    main: Iterable[Block],
    *,
    scripted: bool,
    cells: int = 0,
) -> str:
    """A page that loads no other file, with the number of its cells. Only a scripted page has charts."""
    page = Page(cells)
    head, content = page.render(header), page.render(main)
    scripts = {}
    if scripted:
        scripts = {
            "figures": _pack(_compact_json(page.figures)),
            "templates": _pack(_compact_json(templates())),
            "parts": page.parts.script(),
            "plotly": _pack_plotly(),
        }
    return _template("page.html.j2").render(
        title=visible(title),
        kicker=map(visible, kicker),
        header=head,
        main=content,
        scripts=scripts,
        lazy=page.parts.lazy,
        most_inline=MOST_INLINE,
    )


class Parts:
    """The parts of a page that the page's script inserts when they come into view."""

    def __init__(self, cells: int) -> None:
        self.lazy = cells > MOST_INLINE
        self._parts: dict[str, str] = {}

    def part(self, key: str, content: Markup) -> Markup:
        """The content, or a place for it in the page of a large run. `key` must be unique within the page."""
        if not self.lazy:
            return content
        self._parts[key] = str(content)
        return Markup('<div data-part="{}"></div>').format(key)

    def script(self) -> Markup:
        """The parts, for the page's script. Call it after all others."""
        return _pack(json.dumps(self._parts, ensure_ascii=False))


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
            case Chart():
                return self._chart(block)
            case Panels():
                charts = Markup("\n").join(map(self._chart, block.charts))
                return Markup('<div class="panels">\n{}\n</div>').format(charts)
            case Fold():
                return self._fold(block)
            case Part():
                return self._part(block)
            case Box():
                return self._box(block)
            case _:
                return _leaf(block)

    def _part(self, part: Part) -> Markup:
        title = Markup('<h4 id="{}-title">{}</h4>').format(part.key, visible(part.title))
        content = self.render(part.content)
        if part.lazy:
            content = self.parts.part(f"{part.key}-all", content)
        section = '<section class="workload" aria-labelledby="{}-title">\n{}\n{}\n</section>'
        return Markup(section).format(part.key, title, content)

    def _box(self, box: Box) -> Markup:
        content = self.render(box.content)
        if box.lazy:
            content = self.parts.part(box.lazy, content)
        tag = "section" if box.key else "div"
        key = Markup(' id="{}"').format(box.key) if box.key else ""
        return Markup("<{0}{1}{2}>\n{3}\n</{0}>").format(tag, key, _class(box.style), content)

    def _chart(self, chart: Chart) -> Markup:
        if isinstance(chart.figure, Mapping):
            depths = {str(depth): draw().document for depth, draw in chart.figure.items()}
            self.figures[chart.key] = {"depths": depths}
        else:
            self.figures[chart.key] = chart.figure().document
        plot = Markup('<div class="plot{}" id="{}" role="img" aria-label="{}"></div>').format(
            f" {chart.style}" if chart.style else "", chart.key, visible(chart.label)
        )
        caption = Markup("<figcaption>{}</figcaption>").format(words(chart.caption))
        if chart.style == "heat":
            return Markup('<figure class="chart"><div class="scroll">{}</div>{}</figure>').format(plot, caption)
        return Markup('<figure class="chart">{}{}</figure>').format(caption, plot)

    def _fold(self, fold: Fold) -> Markup:
        content = self.render(fold.content)
        if fold.key:
            content = self.parts.part(fold.key, content)
        if fold.anchor:
            content = Markup('<div id="{}">\n{}\n</div>').format(fold.anchor, content)
        return Markup("<details{}{}{}><summary>{}</summary>\n{}</details>").format(
            _class(fold.style),
            Markup(" open") if fold.open else "",
            Markup(' data-of="{}"').format(fold.of) if fold.of else "",
            words(fold.summary),
            content,
        )


def _leaf(block: Leaf) -> Markup:
    match block:
        case Table():
            return _table(block)
        case Banner() | Tally() | Navigation() | Legend():
            return _page_block(block)
        case _:
            return _text_block(block)


def _text_block(block: Heading | Sentence | Listing | Aside | Code) -> Markup:
    match block:
        case Heading():
            style = _class("headline" if block.level == 1 else "")
            return Markup("<h{0}{1}>{2}</h{0}>").format(block.level, style, words(block.text))
        case Sentence():
            return Markup("<p{}>{}</p>").format(_class(block.style), words(block.text))
        case Listing():
            items = Markup("").join(Markup("<li>{}</li>").format(words(item)) for item in block.items)
            return Markup('<ul class="notes">{}</ul>').format(items) if block.items else Markup("")
        case Aside():
            return Markup('<p class="aside">{}</p>').format(words(block.text))
        case Code():
            return Markup('<pre class="setting">{}</pre>').format(visible(block.text))


def _page_block(block: Banner | Tally | Navigation | Legend) -> Markup:
    match block:
        case Banner():
            return Markup('<p class="banner {}" role="note"><strong>{}:</strong> <span>{}</span></p>').format(
                block.kind, visible(block.title), visible(block.text)
            )
        case Tally():
            pairs = (
                Markup('<div class="{}"><dt>{}</dt><dd>{}</dd></div>').format(slug(name), name, number)
                for name, number in block.counts.items()
            )
            return Markup('<dl class="tally" aria-label="Verdicts">\n{}\n</dl>').format(Markup("\n").join(pairs))
        case Navigation():
            return Markup('<nav aria-label="{}">{}</nav>').format(block.label, words(block.links))
        case Legend():
            return _legend(block)


def _legend(legend: Legend) -> Markup:
    colours, symbols = mode_colours(legend.modes), mode_symbols(legend.modes)
    modes = [(visible(mode), colours[mode], symbols[mode]) for mode in legend.modes]
    return Markup(_template("legend.html.j2").render(legend=legend, modes=modes, host=HOST))


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
        case Mark():
            return _mark(part)
        case Link():
            more = Markup(' rel="noreferrer"') if ":" in part.address else Markup("")
            if part.label:
                more += Markup(' aria-label="{}"').format(visible(part.label))
            return Markup('<a href="{}"{}>{}</a>').format(part.address, more, visible(part.text))
        case Key():
            return Markup('<i class="key" style="background:{}"></i>{}').format(part.colour, part.text)
        case AtDepth():
            return Markup('<span class="at-depth"></span>')


def _mark(mark: Mark) -> Markup:
    if mark.style == "ramp":
        return Markup('<span class="ramp" aria-hidden="true"></span>')
    if mark.style in ("verdict", "tone"):
        return Markup('<span class="{} {}">{}</span>').format(mark.style, slug(mark.tone), visible(mark.text))
    return Markup("<{0}>{1}</{0}>").format(_TAGS[mark.style], _sentence(mark.text))


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
    cells = [_cell(row.cells[place]) for place in places if place < len(row.cells)]
    shown, place = [], 0
    for number, cell in enumerate(cells):
        column, last = columns[place], number == len(cells) - 1
        spanned = columns[place:] if last else columns[place : place + cell.columns]
        place += len(spanned)
        if len(spanned) == 1:
            shown.append(_cells(column, cell, label=labels))
            continue
        tag = 'th scope="rowgroup"' if column.kind in _HEADS else 'td class="reason"'
        wide = sum(1 if column.interval is None else 2 for column in spanned)
        text = _text(Column(column.name, "text") if column.kind in ("figure", "strong") else column, cell)
        shown.append(Markup(f'<{tag} colspan="{{}}">{{}}</{tag[:2]}>').format(wide, text))
    yield Markup("<tr{}{}>{}</tr>").format(_class(style), of, Markup("").join(shown))
    if row.remark:
        of = Markup(' data-of="{}"').format(row.of) if row.of else ""
        before = 1 + (len(columns) > 1 and columns[1].kind in _HEADS)
        yield Markup('<tr class="remark"{}><td colspan="{}"></td><td colspan="{}"><span>{}</span></td></tr>').format(
            of, before, width - before, visible(row.remark)
        )


def _cell(cell: TableCell | str) -> TableCell:
    return TableCell(cell) if isinstance(cell, str) else cell


def _cells(column: Column, cell: TableCell, *, label: bool) -> Markup:
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


def _text(column: Column, cell: TableCell) -> Markup:
    if cell.bar is not None:
        bar = '<span aria-hidden="true"><i style="width:{:.2f}%"></i></span>'
        return Markup(bar).format(min(max(cell.bar, 0), 1) * 100)
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


def _compact_json(value: object) -> str:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pack(text: str) -> Markup:
    """The text as gzip in base64, for a script element. The same text gives the same result."""
    return Markup(base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())


@cache
def _pack_plotly() -> Markup:
    """plotly.js as plotly.py brings it, so the charts are drawn by the version that they were made for.

    It is the whole bundle: compressed, it takes 2 MB of the page. A partial bundle takes 1 MB less, but it would be
    another version, to be kept in step by hand.
    """
    return _pack(get_plotlyjs())
