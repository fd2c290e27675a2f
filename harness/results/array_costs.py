"""What a missing member of an array, or its recovery, costs: against the optimal array in the same blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.analysis import Estimate
from harness.model.base import Md
from harness.model.cell import Arm, Cell, Place
from harness.model.layout import when_optimal
from harness.results.array_states import in_other_state, rebuild_rate
from harness.results.cells import CellRecord
from harness.results.comparisons import ArrayStateMetric, ArrayStateRecord
from harness.results.contrasts import contrast
from harness.results.decomposition import doubt
from harness.results.journal_records import Measurement

COMPARED = ("iops", "bw", "lat_mean", "clat_p99")


def array_costs(
    cells: Sequence[Cell], records: Mapping[str, CellRecord], measurements: Iterable[Measurement]
) -> tuple[ArrayStateRecord, ...]:
    """One record per measured cell on an array that is not optimal, if the run has the optimal one, in their order.

    `records` is by cell id. Only blocks count that count for both cells. The arms of a rebuilding array are in another
    timetable of the same round, so its pairs are up to a round apart.
    """
    by_arm: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        by_arm.setdefault((measurement.arm, measurement.job), []).append(measurement)
    optimal = {_key(cell, records): cell for cell in cells if _is_measured(cell, records)}
    found = []
    for cell in cells:
        base = cell.mode.layout.base
        other = optimal.get(_key(cell, records))
        if isinstance(base, Md) and not base.is_optimal and other is not None and _has_values(records.get(cell.id)):
            record = _record(cell, base, other, records, by_arm)
            found += [record] if record else []
    return tuple(found)


def _key(cell: Cell, records: Mapping[str, CellRecord]) -> tuple[object, ...]:
    """Equal for cells that differ only in the state of their array."""
    record = records.get(cell.id)
    host = record.host if record else ""
    return (cell.scenario, host, cell.disk, cell.job, cell.mode.attach, when_optimal(cell.mode.layout))


def _is_measured(cell: Cell, records: Mapping[str, CellRecord]) -> bool:
    base = cell.mode.layout.base
    return isinstance(base, Md) and base.is_optimal and _has_values(records.get(cell.id))


def _has_values(record: CellRecord | None) -> bool:
    return record is not None and record.skipped is None and "iops" in record.metrics


def _record(
    cell: Cell,
    base: Md,
    other: Cell,
    records: Mapping[str, CellRecord],
    by_arm: Mapping[tuple[str, str], Sequence[Measurement]],
) -> ArrayStateRecord | None:
    own, optimal = records[cell.id], records[other.id]
    if not set(own.samples) & set(optimal.samples):
        return None
    metrics = {name: found for name in COMPARED if (found := _metric(name, own, optimal)) is not None}
    arms = [arm for each in (cell, other) for arm in (Arm(Place.TWIN, each.mode.twin), Arm(Place.GUEST, each.mode))]
    raw = set(own.raw)
    slices = [
        each
        for arm in arms[:2]
        for each in by_arm.get((arm.id, cell.job.id), ())
        if each.raw in raw and each.counters.array is not None
    ]
    right = [slice_ for slice_ in slices if not in_other_state(slice_, base)]
    rebuilding = base.state == "rebuilding"
    return ArrayStateRecord(
        cell=cell.id,
        optimal=other.id,
        state=base.state,
        metrics=metrics,
        confidence=max(own.confidence, optimal.confidence),
        rebuilding=len(right) / len(slices) if rebuilding and slices else None,
        rebuild_rate=rebuild_rate(right) if rebuilding else None,
        doubt=", ".join(dict.fromkeys(filter(None, (doubt(own, *arms[:2]), doubt(optimal, *arms[2:]))))),
    )


def _metric(name: str, own: CellRecord, optimal: CellRecord) -> ArrayStateMetric | None:
    """None if a cell lacks the metric, or if its samples are not single blocks."""
    if any(name not in cell.metrics or cell.metrics[name].batches for cell in (own, optimal)):
        return None
    twin, guest = (_cost(name, arm, own, optimal) for arm in (Place.TWIN, Place.GUEST))
    return ArrayStateMetric(twin, guest) if twin else None


def _cost(name: str, arm: Place, own: CellRecord, optimal: CellRecord) -> Estimate | None:
    confidence = max(own.confidence, optimal.confidence)
    found = contrast(optimal.series(name, arm), own.series(name, arm), confidence=confidence)
    return None if found is None else found.loss
