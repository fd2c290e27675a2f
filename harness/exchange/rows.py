"""The measurements of a run as rows, with everything that identifies them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.analysis import METRICS, Verdict
from harness.model.cell import Place
from harness.model.job import Job
from harness.results import Journal, Measurement, Run
from harness.results.carried import split_by_length
from harness.results.cells import CellRecord

T = TypeVar("T")
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. `counts` is false if no figure uses it: its round was abandoned, its slice overlapped another
    one, or a longer slice replaced it. `cell` is None for an arm that the run has no cell for."""

    run: str
    host: str
    disk: str
    mode: str
    job: Job | None
    cell: CellRecord | None
    measurement: Measurement
    counts: bool

    @property
    def void(self) -> bool:
        """Whether it belongs to a void cell. The bare host is shared with other cells, so it does not."""
        return self.cell is not None and self.cell.verdict is Verdict.VOID and self.measurement.arm != Place.HOST


def rows_of(run: Run, journal: Journal) -> list[Row]:
    """A row for each measurement, in the order of the journal."""
    cells = {(raw, cell.mode, cell.job.id): cell for cell in run.cells for raw in cell.raw}
    jobs = {cell.job.id: cell.job for cell in run.cells}
    disks = {group.id: group.disk for group in run.groups}
    abandoned = {
        group: journal.abandoned(group) for group in {measurement.group for measurement in journal.measurements}
    }
    whole = [
        measurement for measurement in journal.measurements if measurement.round not in abandoned[measurement.group]
    ]
    used = {id(each) for each in split_by_length(whole)[0]}
    rows = []
    for measurement in journal.measurements:
        mode = measurement.arm.partition(":")[2] or measurement.arm
        rows.append(
            Row(
                run=run.run.id,
                host=run.lab.host,
                disk=disks.get(measurement.group, ""),
                mode=mode,
                job=jobs.get(measurement.job),
                cell=cells.get((measurement.raw, mode, measurement.job)),
                measurement=measurement,
                counts=id(measurement) in used and measurement.overlap is None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column of a table: its name, the type of its values, and how a row has it. A value may be None."""

    name: str
    type: type
    of: Callable[[T], Value]


def _job(name: str, of_type: type) -> Column[Row]:
    return Column(name, of_type, lambda row: getattr(row.job, name) if row.job is not None else None)


def _measured(name: str, of_type: type) -> Column[Row]:
    return Column(name, of_type, lambda row: getattr(row.measurement, name))


def _metric(name: str) -> Column[Row]:
    return Column(name, float, lambda row: row.measurement.metrics.get(name))


COLUMNS: tuple[Column[Row], ...] = (
    Column("run", str, lambda row: row.run),
    Column("host", str, lambda row: row.host),
    Column("cell", str, lambda row: row.cell.id if row.cell else None),
    Column("scenario", str, lambda row: row.cell.scenario if row.cell else None),
    Column("verdict", str, lambda row: row.cell.verdict.value if row.cell else None),
    _measured("group", str),
    Column("disk", str, lambda row: row.disk),
    Column("mode", str, lambda row: row.mode),
    _measured("arm", str),
    _measured("job", str),
    _job("pattern", str),
    _job("rw", str),
    _job("bs", int),
    _job("iodepth", int),
    _job("numjobs", int),
    _job("read_share", float),
    _job("rate", int),
    _measured("round", int),
    _measured("block", int),
    _measured("boot", int),
    _measured("repeat", int),
    Column("counts", bool, lambda row: row.counts),
    _measured("started", float),
    _measured("seconds", float),
    _measured("wall", float),
    _measured("discarded_s", float),
    _measured("io_bytes", int),
    *map(_metric, METRICS),
    _measured("raw", str),
    Column("notes", str, lambda row: "; ".join(row.measurement.notes) or None),
)
"""The columns of an exported table, in their order."""


def as_columns(rows: Sequence[T], columns: Sequence[Column[T]]) -> Mapping[str, list[Any]]:
    """The values by column."""
    return {column.name: [column.of(row) for row in rows] for column in columns}
