"""Slices as they ran: what fio measured of each job, and when."""

from __future__ import annotations

from dataclasses import dataclass

from harness.lab.cycles import Cycles
from harness.lab.sampling import Sample
from harness.measure.fio_results import JobResult
from harness.model.cell import Part
from harness.results.journal_records import BackupCounts
from harness.scenario.timetable import Slice


@dataclass(frozen=True, slots=True)
class RanPart:
    """One of the jobs of a slice as it ran. The moments are as in RanSlice, of this job alone."""

    planned: Part
    result: JobResult
    first: float
    begun: float
    ended: float
    raw: str


@dataclass(frozen=True, slots=True)
class RanSlice:
    """One slice as it ran. `result` has all jobs that the arm's figures are about. `begun` and `ended` are moments of
    this process's monotonic clock, without the ramp. At `first`, its ramp began, if there is one. If several jobs ran
    at the same time, these are the first start and the last end, and `begun` is that of the first job.

    `before` and `after` are the host's counters around it; None if one of them was read while a slice ran. `raw` is the
    path of fio's output. `overlap` names a slice that ran at the same time, else it is empty.
    """

    planned: Slice
    result: JobResult
    first: float
    begun: float
    ended: float
    before: Sample | None
    after: Sample | None
    cycles: Cycles
    raw: str
    overlap: str = ""
    backup: BackupCounts | None = None
    """The backup that ran during it; None if none was to run."""
    parts: tuple[RanPart, ...] = ()
    """Each of its jobs, the arm's own guest first."""

    @property
    def together(self) -> float:
        """The share of the time of its first job in which all its jobs ran, 0 to 1."""
        first = self.parts[0]
        begun, ended = max(part.begun for part in self.parts), min(part.ended for part in self.parts)
        return max(ended - begun, 0.0) / max(first.ended - first.begun, 1e-9)
