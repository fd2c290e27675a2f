"""Which content a report has of a disk, and where: each function yields the blocks of one subject."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from harness.feature import ReportPlace, features
from harness.report.best import best_blocks
from harness.report.blocks import Block, Chart
from harness.report.disks import disk_blocks
from harness.report.modes import Headline, headline

if TYPE_CHECKING:
    from harness.report.section import Section
    from harness.report.workload import WorkloadCells
    from harness.results import Run


Content = Callable[["Section"], Iterable[Block]]

CONTENTS: dict[ReportPlace, tuple[Content, ...]] = {
    ReportPlace.FACTS: (disk_blocks,),
    ReportPlace.ANSWERS: (),
    ReportPlace.DIFFERENCES: (),
    ReportPlace.PARTS: (),
    ReportPlace.FINDINGS: (best_blocks,),
    ReportPlace.COSTS: (),
}
"""By place, in the order of the report. The content of features follows it."""


def headline_of(section: Section) -> Headline:
    """The answer for a disk, with all details."""
    answer = section.special or headline(section.name, section.comparison)
    details = (sentence for feature in features() for sentence in feature.details(section))
    return Headline(answer.sentence, (*lead_sentences(section), *answer.details, *details))


def lead_sentences(section: Section) -> tuple[str, ...]:
    """The first details below the headline of a disk."""
    return tuple(sentence for feature in features() for sentence in feature.leads(section))


def lab_sentences(run: Run) -> tuple[str, ...]:
    """What is known about the smallest overhead that the lab can show."""
    return tuple(sentence for feature in features() for sentence in feature.about_lab(run))


def blocks_at(place: ReportPlace, section: Section) -> Iterator[Block]:
    """What is there of a disk."""
    if place is ReportPlace.FINDINGS:
        yield from blocks_at(ReportPlace.PARTS, section)
    for content in CONTENTS[place]:
        yield from content(section)
    for feature in features():
        if place in feature.contents:
            yield from feature.contents[place](section)


def further_charts(section: Section, workload: WorkloadCells, key: str) -> Iterator[Chart]:
    """The charts of features of a workload."""
    for feature in features():
        yield from feature.workload_charts(section, workload, key)


def further_tables(section: Section, workload: WorkloadCells, key: str) -> Iterator[Block]:
    """What features say of a workload below its cells."""
    for feature in features():
        yield from feature.workload_tables(section, workload, key)
