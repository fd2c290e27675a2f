"""What applies to a whole group: whether the host changed while the group was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis import drifted, estimate_drift
from harness.model.cell import Cell, Place
from harness.model.mode import Mode
from harness.results.cells import ValidityCheck
from harness.results.journal_records import Measurement
from harness.results.records import DriftRecord
from harness.scenario.timetable import rebuilds, stays_in_cache, takes_turns

DRIFT = "drift"
"""The name of the check."""
DRIFT_BOUND = 0.2
"""The largest harmless change of the bare host from the group's first measurement to its last.

Cells whose arms alternate within seconds get a note beyond it, because the drift cancels in each block. The other cells
are void, because their arms were measured up to a round apart.
"""


def host_drift(measurements: Iterable[Measurement]) -> tuple[DriftRecord, ...]:
    """The drift of each job of one group on the bare host, in I/Os per second, in the order of the jobs."""
    by_job: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.arm == Place.HOST and measurement.metrics.get("iops", 0.0) > 0:
            by_job.setdefault(measurement.job, []).append(measurement)
    found = []
    for job, several in by_job.items():
        if len({each.started for each in several}) < 2:
            continue
        change = estimate_drift([each.started for each in several], [each.metrics["iops"] for each in several])
        found.append(DriftRecord(job, change, drifted(change, DRIFT_BOUND)))
    return tuple(found)


def drift_checks(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[ValidityCheck]:
    """The failed check if the host of the cell's job drifted too much, and the cell's arms do not alternate.

    `modes` are those of all cells of the group.
    """
    if _alternates(cell, modes):
        return []
    return [ValidityCheck(DRIFT, ok=False, detail=_words(drift)) for drift in _of(drifts, cell)]


def drift_notes(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[str]:
    """The note if the host of the cell's job drifted too much, and the cell's arms alternate. `modes` as above."""
    if not _alternates(cell, modes):
        return []
    valid = "the arms alternate within seconds, so the overhead is valid"
    return [f"{_words(each)}; {valid}" for each in _of(drifts, cell)]


def _alternates(cell: Cell, modes: Sequence[Mode]) -> bool:
    """Whether the slices of the cell's arms alternate within seconds: `timetables` decides that for the whole group."""
    apart = rebuilds(cell.mode) or any(stays_in_cache(arm, cell.job) for arm in cell.arms)
    return not takes_turns(modes) and not apart


def _of(drifts: Iterable[DriftRecord], cell: Cell) -> list[DriftRecord]:
    return [drift for drift in drifts if drift.job == cell.job.id and drift.too_much]


def _words(drift: DriftRecord) -> str:
    return (
        f"the bare host changed by {drift.change.point:+.1%} while the group was measured, more than "
        f"{DRIFT_BOUND:.0%}: warm up the host, or find out what else it does"
    )
