"""What is known about the noise of a cell before it is measured: from earlier runs, else from the calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis import METRICS, Verdict
from harness.errors import ResultsError
from harness.lab.hosts import lab_kind_of
from harness.lab.inventory import HostSpec
from harness.measure.calibration import Calibration
from harness.model.budget import LabKind
from harness.model.cell import Cell
from harness.results import CellRecord, Run, RunStore
from harness.results.scatter import scatter_of
from harness.run_id import RunId

MOST_RUNS = 10
"""Earlier runs that are read, the newest first."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of log(guest/host) of a cell: standard deviations between blocks and between boots, and correlation.

    `source` says in words where it comes from. `lab_kind` is the kind of lab there; None if it is not known.
    """

    sd: float
    sd_of_boots: float
    correlation: float
    source: str
    lab_kind: LabKind | None


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """The noise of the cells of one host. `runs` are its earlier runs, the newest first."""

    host: HostSpec
    runs: Sequence[Run] = ()
    calibration: Calibration | None = None
    _records: dict[str, list[tuple[Run, CellRecord]]] = field(default_factory=dict, init=False)
    """The records of all runs by the id of the cell, the newest first."""

    def __post_init__(self) -> None:
        for run in self.runs:
            for record in run.cells:
                self._records.setdefault(record.id, []).append((run, record))

    @classmethod
    def of(cls, host: HostSpec, reports: Path, calibration: Calibration | None) -> KnownNoise:
        """What the runs in the directory `reports` and the calibration show. Runs that cannot be read do not count."""
        return cls(host, tuple(run for run in _runs(reports) if run.lab.host == host.name), calibration)

    def noise(self, cell: Cell, metric: str) -> Noise | None:
        """The noise of a metric of the cell. None if it is not known.

        It is that of the newest run with this cell: the same disk, mode and job, with slices of the same length. Else
        it is the calibration's noise of the job, or of all its jobs together. The calibration is not about percentiles.
        """
        boots = self.calibration.boots if self.calibration is not None else None
        sd_of_boots = boots.sd if boots is not None else 0.0
        if (earlier := self._earlier(cell)) is not None:
            run, record = earlier
            if (scatter := scatter_of(record, metric)) is not None:
                of_boots = scatter.sd_of_boots if scatter.sd_of_boots is not None else sd_of_boots
                return Noise(scatter.sd, of_boots, scatter.correlation, f"run {run.run.id}", _lab_kind(run))
        if self.calibration is None or METRICS[metric].quantile is not None:
            return None
        by_job = self.calibration.noise_sd_by_job.get(cell.job.id)
        sd = self.calibration.noise_sd if by_job is None else by_job
        source = "calibration" if by_job is not None else "calibration with other jobs"
        return Noise(sd, sd_of_boots, 0.0, source, self.calibration.lab_kind)

    def _earlier(self, cell: Cell) -> tuple[Run, CellRecord] | None:
        pairs = self._records.get(cell.id, ())
        return next(((run, record) for run, record in pairs if self._is_same(run, record, cell)), None)

    def _is_same(self, run: Run, record: CellRecord, cell: Cell) -> bool:
        """Whether this record of the cell is about the same disk, and counts."""
        if record.skipped is not None or record.verdict is Verdict.VOID:
            return False
        requested = run.provenance.get("asked")
        disk = requested.get(f"{cell.scenario}.disk.{cell.disk}") if isinstance(requested, dict) else None
        same_disk = any(target.name == cell.disk and target.identity == disk for target in self.host.measured)
        return same_disk and (record.job, record.mode_detail) == (cell.job, cell.mode.detail)


def _runs(reports: Path) -> Iterator[Run]:
    """The newest runs that can be read, the newest first. The name of a run begins with its date."""
    try:
        names = [path.name for path in reports.iterdir() if not path.is_symlink() and _is_run(path)]
    except OSError:  # There is no directory yet, or this user may not read it. Creating the run reports that.
        return
    for name in sorted(names, reverse=True)[:MOST_RUNS]:
        try:
            yield RunStore.open(reports / name).read_results()
        except ResultsError:
            continue


def _is_run(path: Path) -> bool:
    try:
        RunId(path.name)
    except ValueError:
        return False
    return path.is_dir()


def _lab_kind(run: Run) -> LabKind | None:
    """The kind of lab of a run; None if the run does not have the properties of its host."""
    host = run.provenance.get("host")
    return lab_kind_of(run.lab.accel, str(host.get("hypervisor", ""))) if isinstance(host, dict) else None
