"""Which content a report has of a disk, and where: each function yields the blocks of one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.report.blocks import Block
from harness.report.search import search_blocks
from harness.report.variants import variant_blocks

if TYPE_CHECKING:
    from harness.report.section import Section


class Place(StrEnum):
    """Where content stands. In a terminal, the differences come before the table of the run, the others after it."""

    DIFFERENCES = "differences"
    """Guests against each other."""
    FINDINGS = "findings"
    """Below the workloads of the page."""


Content = Callable[["Section"], Iterable[Block]]

CONTENTS: dict[Place, tuple[Content, ...]] = {
    Place.DIFFERENCES: (variant_blocks,),
    Place.FINDINGS: (search_blocks,),
}
"""By place, in the order of the report."""


def blocks_at(place: Place, section: Section) -> Iterator[Block]:
    """What is there of a disk."""
    for content in CONTENTS[place]:
        yield from content(section)
