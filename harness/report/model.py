"""The view model: pure functions from a stored run to what the report shows, one section per disk and scenario."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from harness.feature import features
from harness.report.banners import Banner, banners
from harness.report.contents import special_headline
from harness.report.section import Section, outcome_counts
from harness.report.verdicts import Verdicts, verdicts
from harness.results import CellRecord, Outcome, Run

_Key = tuple[str, str, str]
"""Host, disk and scenario of a section."""


@dataclass(frozen=True, slots=True)
class ReportView:
    """The whole report."""

    run: Run
    banners: tuple[Banner, ...]
    sections: tuple[Section, ...]
    verdicts: Verdicts
    about_lab: tuple[str, ...]
    """What is known about the smallest overhead that this lab can show, sentence by sentence."""

    @property
    def cells(self) -> tuple[CellRecord, ...]:
        return tuple(cell for section in self.sections for cell in section.cells)

    @property
    def counts(self) -> dict[Outcome, int]:
        return outcome_counts(self.cells)


def report_view(run: Run) -> ReportView:
    """What the report shows of this run."""
    cells = [*run.cells]
    return ReportView(
        run=run,
        banners=banners(run),
        sections=_sections(run, cells),
        verdicts=verdicts(cells),
        about_lab=tuple(sentence for feature in features() for sentence in feature.about_lab(run)),
    )


def _sections(run: Run, cells: Sequence[CellRecord]) -> tuple[Section, ...]:
    """One section per host, disk and scenario, in the order of the plan."""
    by_key: dict[_Key, list[CellRecord]] = {}
    for cell in cells:
        by_key.setdefault((cell.host, cell.disk, cell.scenario), []).append(cell)
    return tuple(
        _section(run, key, tuple(own), html_id=f"disk{number}", name=_name(key, by_key))
        for number, (key, own) in enumerate(by_key.items(), start=1)
    )


def _name(key: _Key, keys: Iterable[_Key]) -> str:
    """The name of a section among all: the disk, with its scenario and host only if these distinguish it."""
    host, disk, scenario = key
    name = disk
    if sum(other[:2] == key[:2] for other in keys) > 1:
        name += f" ({scenario})"
    if len({other[0] for other in keys}) > 1:
        name += f" on {host}"
    return name


def _section(run: Run, key: _Key, cells: tuple[CellRecord, ...], *, html_id: str, name: str) -> Section:
    """The section of these cells."""
    title = run.run.scenarios.get(key[2], key[2])
    section = Section(run, html_id, name, title, cells)
    return replace(section, special=special_headline(section))
