"""Blocks of content as lines for a terminal. Backticks around names stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.report.blocks import AtDepth, Block, Code, Heading, Listing, On, Sentence, Table, Words

MOST_LISTED = 10
"""The largest number of cells listed under one title below the table of a run. The report has all."""


MOST_DIFFERENCES = 40
"""The largest number of differences between guests listed."""


def lines(blocks: Iterable[Block], on: On = On.TERMINAL) -> list[str]:
    """The lines of the blocks that are for the terminal, or for the ten lines at the end of a run."""
    return [line for block in blocks if on in getattr(block, "on", On.PAGE) for line in _lines(block)]


def plain_text(text: Words) -> str:
    """The words without anything that only a page can show."""
    if isinstance(text, str):
        return text
    return "".join(part if isinstance(part, str) else "" if isinstance(part, AtDepth) else part.text for part in text)


def first(sentences: Sequence[str], most: int | None = MOST_LISTED) -> list[str]:
    """The first sentences, and how many more there are."""
    more = len(sentences) - most if most is not None else 0
    return [*sentences[: len(sentences) - max(more, 0)], *([f"and {more} more: see the report"] if more > 0 else [])]


def _lines(block: Block) -> Iterator[str]:
    match block:
        case Heading():
            yield plain_text(block.text)
        case Sentence():
            yield " " * block.indent + plain_text(block.text)
        case Listing():
            if block.title and block.items:
                yield block.title
            yield from (f"{' ' * block.indent}{line}" for line in first([*map(plain_text, block.items)], block.most))
        case Table():
            yield from first([row.sentence for row in block.rows if row.sentence], block.most)
        case Code():
            yield from block.text.splitlines()
