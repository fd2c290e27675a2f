"""A run for continuous integration: GitHub-flavoured Markdown, and annotations as workflow commands of GitHub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.feature import ReportPlace
from harness.report.blocks import (
    LEFT,
    Block,
    Column,
    Heading,
    Listing,
    Mark,
    On,
    Sentence,
    Table,
    TableCell,
    Words,
    first,
    plain_text,
)
from harness.report.contents import blocks_at, find_banners, headline_of, lab_sentences
from harness.report.section import Section, find_sections
from harness.report.terminal import (
    efficiency_line,
    finding_lists,
    outcome_words,
    overhead_head,
    render_lines,
    row_values,
)
from harness.report.verdicts import find_verdicts
from harness.results import CellRecord, Outcome, Run
from harness.terminal import clean, one_line

_ALIGNMENT = "|:--|--:|--:|:--|--:|--:|--:|:--|"
_SPECIAL = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|~"} | {"&": "&amp;"})


def markdown_table(run: Run) -> str:
    """Warnings, the answer for each disk, what exceeds and what is void, its cells, and how the time was spent."""
    sections = find_sections(run)
    lines = [f"> **{banner.title}.** {plain(banner.text)}\n" for banner in find_banners(run)]
    for section in sections:
        lines += blocks_as_markdown(blocks_at(ReportPlace.DIFFERENCES, section))
        lines += _answer(section)
    for title, sentences in finding_lists(find_verdicts(run.cells)):
        lines += [f"**{title}**", "", *(f"- {marked(sentence)}" for sentence in sentences), ""]
    for section in sections:
        lines += _section(section)
    lines.append(" ".join((f"{efficiency_line(run)}.", *map(plain, lab_sentences(run)))))
    return "\n".join(lines) + "\n"


def blocks_as_markdown(blocks: Iterable[Block]) -> list[str]:
    """The lines of the blocks that are for Markdown."""
    return [line for block in blocks if On.MARKDOWN in getattr(block, "on", On.PAGE) for line in _block(block)]


def _block(block: Block) -> list[str]:
    match block:
        case Heading():
            return [f"**{_words(block.text)}**", ""]
        case Sentence():
            return [_words(block.text), ""]
        case Listing():
            return _listing([*map(_words, block.items)], block.most)
        case Table():
            return (
                _listing([plain(row.sentence.strip()) for row in block.rows], block.most)
                if block.listed
                else _table(block)
            )
    return []


def _listing(items: Sequence[str], most: int | None) -> list[str]:
    return [*(f"- {item}" for item in first(items, most)), ""] if items else []


def _table(table: Table) -> list[str]:
    places = [number for number, column in enumerate(table.columns) if On.MARKDOWN in column.on]
    columns = [table.columns[place] for place in places]
    heads = [_words(column.name) + (f" [{column.interval}]" if column.interval else "") for column in columns]
    marks = [":--" if column.kind in LEFT else "--:" for column in columns]
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(marks)}|"]
    for row in table.rows:
        cells = [row.cells[place] if place < len(row.cells) else "" for place in places]
        fields = [_field(column, cell) for column, cell in zip(columns, cells, strict=True)]
        lines.append(f"| {' | '.join(fields)} |")
    return [*lines, ""]


def _field(column: Column, cell: TableCell | str) -> str:
    cell = TableCell(cell) if isinstance(cell, str) else cell
    text = plain_text(cell.text)
    if column.kind in ("mode", "name", "code"):
        return f"`{code(text)}`" if text else ""
    if column.kind in ("figure", "strong"):
        return one_line(f"{text} {cell.interval}".rstrip()).replace("|", "\\|").replace("<", "\\<")
    return plain(text)


def _words(text: Words) -> str:
    parts = (text,) if isinstance(text, str) else text
    return "".join(
        f"**{marked(part.text)}**" if isinstance(part, Mark) and part.style == "strong" else marked(plain_text((part,)))
        for part in parts
    )


def _answer(section: Section) -> list[str]:
    """The headline, which mode to use for what, and what single options do."""
    headline = headline_of(section)
    lines = [f"### {marked(headline.sentence)}", ""]
    if headline.details:
        lines += [" ".join(map(marked, headline.details)), ""]
    indented = [
        (line, len(line) - len(line.lstrip())) for line in render_lines(blocks_at(ReportPlace.ANSWERS, section))
    ]
    return lines + [f"{' ' * indent}- {marked(line.strip())}" for line, indent in indented] + [""] * bool(indented)


def _section(section: Section) -> list[str]:
    facts = blocks_as_markdown(blocks_at(ReportPlace.FACTS, section))
    rows = [
        f"| `{code(cell.id)}` | {_values(cell)} | {_verdict(cell)} |" for cell in section.cells if not cell.is_baseline
    ]
    steps = blocks_as_markdown(blocks_at(ReportPlace.FINDINGS, section))
    head = f"| cell | host | guest | unit | {overhead_head(section.cells)} | n | added us | verdict |"
    return [
        *facts,
        *([head, _ALIGNMENT, *rows, ""] if rows else []),
        *steps,
    ]


def _values(cell: CellRecord) -> str:
    host, guest, *rest = row_values(cell)
    return " | ".join((host, guest, cell.headline_unit, *rest))


def _verdict(cell: CellRecord) -> str:
    words = outcome_words(cell)
    return f"**{words}**" if cell.outcome in (Outcome.EXCEEDS, Outcome.VOID) else words


def marked(text: str) -> str:
    """A sentence of the report, in which backticks mark the names of modes."""
    return "".join(f"`{code(part)}`" if number % 2 else plain(part) for number, part in enumerate(text.split("`")))


def code(text: str) -> str:
    """The text for a place between backticks."""
    return one_line(text).replace("`", "'").replace("|", "\\|")


def plain(text: str) -> str:
    """The text without any mark-up."""
    return one_line(text).translate(_SPECIAL)


def annotation_lines(run: Run) -> Iterator[str]:
    """One line each: what exceeds or is void (errors), what is inconclusive and what the run warns of (warnings).

    GitHub shows the first ten errors and the first ten warnings of a step.
    """
    verdicts = find_verdicts(run.cells)
    for judged in verdicts.exceeds:
        yield _command("error", f"{judged.cell.id} exceeds its budget", judged.sentence)
    for cell in verdicts.void:
        yield _command("error", f"{cell.id} is void", "; ".join(cell.remarks))
    for banner in find_banners(run):
        yield _command("warning", banner.title, banner.text)
    for judged in verdicts.inconclusive:
        text = "; ".join(filter(None, (judged.sentence, judged.decides)))
        yield _command("warning", f"{judged.cell.id} is inconclusive", text)


def _command(kind: str, title: str, text: str) -> str:
    # Hosts and files name things: what they say must not become a command or a property of its own.
    return f"::{kind} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(text)}"


def _escaped(text: str) -> str:
    return clean(text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"))
