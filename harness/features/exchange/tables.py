"""The measurements of a run as rows, with everything that identifies them, and as CSV or Parquet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.analysis import METRICS, Verdict
from harness.files import write_atomically
from harness.model.cell import Place
from harness.model.job import Job
from harness.results import Journal, Measurement, Run
from harness.results.carried import split_by_length
from harness.results.cells import CellRecord
from harness.results.tables import TypedColumn, Value, parquet_bytes
from harness.terminal import one_line


@dataclass(frozen=True, slots=True)
class MeasurementRow:
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


def make_rows(run: Run, journal: Journal) -> list[MeasurementRow]:
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
    used = {id(measurement) for measurement in split_by_length(whole)[0]}
    rows = []
    for measurement in journal.measurements:
        mode = measurement.arm.partition(":")[2] or measurement.arm
        rows.append(
            MeasurementRow(
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


def _job_column(name: str, of_type: type) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, of_type, lambda row: getattr(row.job, name) if row.job is not None else None)


def _measurement_column(name: str, of_type: type) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, of_type, lambda row: getattr(row.measurement, name))


def _metric_column(name: str) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, float, lambda row: row.measurement.metrics.get(name))


COLUMNS: tuple[TypedColumn[MeasurementRow], ...] = (
    TypedColumn("run", str, lambda row: row.run),
    TypedColumn("host", str, lambda row: row.host),
    TypedColumn("cell", str, lambda row: row.cell.id if row.cell else None),
    TypedColumn("scenario", str, lambda row: row.cell.scenario if row.cell else None),
    TypedColumn("verdict", str, lambda row: row.cell.verdict.value if row.cell else None),
    _measurement_column("group", str),
    TypedColumn("disk", str, lambda row: row.disk),
    TypedColumn("mode", str, lambda row: row.mode),
    _measurement_column("arm", str),
    _measurement_column("job", str),
    _job_column("pattern", str),
    _job_column("rw", str),
    _job_column("bs", int),
    _job_column("iodepth", int),
    _job_column("numjobs", int),
    _job_column("read_share", float),
    _job_column("rate", int),
    _measurement_column("round", int),
    _measurement_column("block", int),
    _measurement_column("boot", int),
    _measurement_column("repeat", int),
    TypedColumn("counts", bool, lambda row: row.counts),
    _measurement_column("started", float),
    _measurement_column("seconds", float),
    _measurement_column("wall", float),
    _measurement_column("discarded_s", float),
    _measurement_column("io_bytes", int),
    *map(_metric_column, METRICS),
    _measurement_column("raw", str),
    TypedColumn("notes", str, lambda row: "; ".join(row.measurement.notes) or None),
)
"""The columns of an exported table, in their order."""


# Programs skip blanks, and know the full-width forms of these characters.
_FORMULA = re.compile("\\s*[=+@\uff1d\uff0b\uff0d\uff20\u2212-]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(rows: Sequence[MeasurementRow], path: Path) -> None:
    """Write the rows with a header. A missing value is empty; truth values are `true` and `false`. Raises OSError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for row in rows:
        values = (column.of(row) for column in COLUMNS)
        writer.writerow(map(_escape_cell, values))
    write_atomically(path, text.getvalue())


def _escape_cell(value: Value) -> Value:
    """A spreadsheet takes a text that begins with such a character for a formula. A text is one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_parquet(rows: Sequence[MeasurementRow], path: Path) -> None:
    """Write the rows with typed columns. Raises ConfigError without pyarrow, and OSError."""
    write_atomically(path, parquet_bytes(rows, COLUMNS, needed_for="--parquet", extra="parquet"))
