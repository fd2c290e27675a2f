"""Which content a report has of a disk, and where: each function yields the blocks of one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from harness.feature import Place, features
from harness.report.blocks import Block

if TYPE_CHECKING:
    from harness.report.section import Section

Content = Callable[["Section"], Iterable[Block]]

CONTENTS: dict[Place, tuple[Content, ...]] = {
    Place.DIFFERENCES: (),
    Place.FINDINGS: (),
}
"""By place, in the order of the report. The content of features follows it."""


def blocks_at(place: Place, section: Section) -> Iterator[Block]:
    """What is there of a disk."""
    for content in CONTENTS[place]:
        yield from content(section)
    for feature in features():
        if place in feature.contents:
            yield from feature.contents[place](section)
