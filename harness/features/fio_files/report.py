"""Jobs of a user's own fio file: what fio got of each section, and which options of the file did not apply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.feature import FeatureReport, ReportPlace, Subject
from harness.model.job import FioSection
from harness.report.blocks import Aside, Block, Code, Column, Fold, Heading, On, Row, Sentence, Table, TableCell
from harness.report.section import Section
from harness.results import FIO_FILES, Run

_Sections = tuple[tuple[str, FioSection], ...]
"""The id of a job with a section of it. Sections that ran at the same time have the same job."""


def fio_file_blocks(section: Section) -> Iterator[Block]:
    """The fio files of a disk's jobs; nothing if all jobs are of the harness."""
    files: dict[str, dict[tuple[str, FioSection], None]] = {}
    for job in dict.fromkeys(cell.job for cell in section.cells):
        if job.from_file is not None:
            of_job = ((job.id, part) for part in job.from_file.sections)
            files.setdefault(job.from_file.file, {}).update(dict.fromkeys(of_job))
    for file, parts in files.items():
        yield Heading(file)
        yield Aside("fio got these options of the file. virt-overhead sets the others itself, equally on every arm.")
        yield Table(
            (
                Column("job", "head"),
                Column("section"),
                Column("options of the file", "code"),
                Column("not applied", "code"),
                Column("instead"),
            ),
            tuple(row for job, part in parts for row in _yield_rows(job, part)),
            f"Sections of {file} as they were measured on {section.name}",
            on=On.PAGE,
        )
        for path, text in _read_texts(section.run, section.all_cells[0].scenario, file):
            yield Fold(path, (Code(text),))
        yield Sentence(f"{describe_fio_file(file, tuple(parts))}.", on=On.TEXT)


def describe_fio_file(file: str, parts: _Sections) -> str:
    """Which options of the file did not apply."""
    names = dict.fromkeys(option.name for _, part in parts for option in part.overridden)
    if not names:
        return f"{file} was measured with all of its options"
    return f"{file} was measured without its own {', '.join(names)}: the report says what applied instead"


def _yield_rows(job: str, part: FioSection) -> Iterator[Row]:
    """A row for each option that did not apply."""
    lines = len(part.overridden) or 1
    first: Sequence[TableCell] = [TableCell(text, lines=lines) for text in (job, part.name, part.text)]
    for option in part.overridden:
        name = f"{option.name}={option.value}" if option.value else option.name
        yield Row((*first, name, option.instead))
        first = [TableCell("", lines=0)] * 3
    if not part.overridden:
        yield Row((*first, "", ""))


def _read_texts(run: Run, scenario: str, file: str) -> Iterator[tuple[str, str]]:
    """The stored texts of the file and of those that it includes, by path. The provenance has any JSON."""
    stored: object = run.provenance.get(FIO_FILES)
    for key in (scenario, file):
        stored = stored.get(key) if isinstance(stored, dict) else None
    for path, text in stored.items() if isinstance(stored, dict) else ():
        yield path, str(text)


REPORT = FeatureReport(
    subject=Subject(in_record=lambda cell: cell.job.from_file is not None),
    contents={ReportPlace.FINDINGS: fio_file_blocks},
)
