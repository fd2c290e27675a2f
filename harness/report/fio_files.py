"""Jobs of a user's own fio file: what fio got of each section, and which options of the file did not apply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.model.fio_section import FioSection
from harness.report.cells import CellView
from harness.results import FIO_FILES, Run


@dataclass(frozen=True, slots=True)
class SectionRow:
    """One section of a file, as it was measured."""

    job: str
    """The job's id. Sections that ran at the same time have the same."""
    section: FioSection


@dataclass(frozen=True, slots=True)
class FioFileView:
    """A file, its sections, and its text with those of the files that it includes, by path."""

    file: str
    rows: tuple[SectionRow, ...]
    texts: Mapping[str, str]

    @property
    def sentence(self) -> str:
        """The options that did not apply, by name."""
        names = dict.fromkeys(each.name for row in self.rows for each in row.section.overridden)
        if not names:
            return f"{self.file} was measured with all of its options"
        return f"{self.file} was measured without its own {', '.join(names)}: the report says what applied instead"


def fio_file_views(run: Run, scenario: str, cells: Sequence[CellView]) -> tuple[FioFileView, ...]:
    """The fio files of these cells of a scenario, in the order of the plan."""
    rows: dict[str, dict[SectionRow, None]] = {}
    for job in dict.fromkeys(cell.record.job for cell in cells):
        if job.from_file is not None:
            own = (SectionRow(job.id, section) for section in job.from_file.sections)
            rows.setdefault(job.from_file.file, {}).update(dict.fromkeys(own))
    return tuple(FioFileView(file, tuple(own), dict(_texts(run, scenario, file))) for file, own in rows.items())


def _texts(run: Run, scenario: str, file: str) -> Iterator[tuple[str, str]]:
    """The stored texts. The provenance has any JSON."""
    found: object = run.provenance.get(FIO_FILES)
    for key in (scenario, file):
        found = found.get(key) if isinstance(found, dict) else None
    for path, text in found.items() if isinstance(found, dict) else ():
        yield path, str(text)
