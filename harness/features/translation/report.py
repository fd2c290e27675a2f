"""The lines of other tools that a run can fill, with the figures of host and guests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.translation.lines import LINES, QuotedLine
from harness.model.job import Job
from harness.report.blocks import Aside, Block, Column, Fold, TableCell, make_table
from harness.report.numbers import NONE, significant, with_interval
from harness.report.section import ArmOfCell, Section, arms_of
from harness.results import CellRecord


@dataclass(frozen=True, slots=True)
class Translated:
    """A line of another tool with the arms of the job that does the same I/O."""

    quoted: QuotedLine
    job: Job
    host: ArmOfCell | None
    guests: tuple[ArmOfCell, ...]

    def find_guest(self, mode: str) -> ArmOfCell | None:
        return next((guest for guest in self.guests if guest.mode == mode), None)

    def mean(self, arm: ArmOfCell | None) -> Estimate | None:
        """The mean over the blocks, in the line's unit."""
        mean = arm.mean(self.quoted.metric) if arm is not None else None
        return mean.divided_by(self.quoted.scale) if mean is not None else None


def translate(section: Section) -> tuple[Translated, ...]:
    """The lines that results of this disk fill, in the order of the tools."""
    return section.once(_translate)


def _translate(section: Section) -> tuple[Translated, ...]:
    cells: dict[Job, list[CellRecord]] = {}
    for cell in section.alone:
        cells.setdefault(cell.job, []).append(cell)
    jobs = {job: arms_of(of_job) for job, of_job in cells.items()}
    lines = (
        Translated(
            line,
            job,
            next((arm for arm in arms if arm.place == "host"), None),
            tuple(arm for arm in arms if arm.place == "guest"),
        )
        for line in LINES
        for job, arms in jobs.items()
        if line.fits(job)
    )
    return tuple(line for line in lines if any(line.mean(arm) for arm in (line.host, *line.guests)))


def yield_lines(section: Section) -> Iterator[Block]:
    """A table of these lines, folded away; nothing without any."""
    lines = translate(section)
    if not lines:
        return
    modes = [mode for mode in section.modes if any(line.find_guest(mode) for line in lines)]
    guests = [(Column(f"guest {mode}"), lambda line, mode=mode: _quote(line, line.find_guest(mode))) for mode in modes]
    table = make_table(
        lines,
        f"{section.name} in the words of other tools",
        (Column("tool", "head"), lambda line: line.quoted.tool),
        (Column("its line", "name"), lambda line: line.quoted.call(line.job)),
        (Column("job", "name"), lambda line: line.job.id),
        (Column("host"), lambda line: _quote(line, line.host)),
        *guests,
        (Column("unit", "text"), lambda line: line.quoted.unit),
        (Column("what differs", "why"), lambda line: f"{line.quoted.tool} {line.quoted.differs}"),
    )
    explained = Aside(
        "For a comparison with figures that others published. A figure of another tool may differ for the reason in "
        "the last column, and because another tool pairs no host with its guest."
    )
    yield Fold("As other tools quote it", (explained, table))


def _quote(line: Translated, arm: ArmOfCell | None) -> TableCell | str:
    mean = line.mean(arm)
    return NONE if mean is None else TableCell(significant(mean.point), title=with_interval(mean))


def to_json(section: Section) -> dict[str, Any]:
    """The same for programs: each line with the means by arm, in its unit."""
    lines = [
        {
            "tool": line.quoted.tool,
            "line": line.quoted.call(line.job),
            "job": line.job.id,
            "unit": line.quoted.unit,
            "means": {
                arm.label: mean.point
                for arm in (line.host, *line.guests)
                if arm is not None and (mean := line.mean(arm)) is not None
            },
            "differs": line.quoted.differs,
        }
        for line in translate(section)
    ]
    return {"quoted": lines} if lines else {}


REPORT = FeatureReport(contents={ReportPlace.FINDINGS: yield_lines}, section_json=to_json)
