"""Arrays with a missing member: their state in each slice against the request, and what it costs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis import Estimate
from harness.features.arrays.records import ArrayStateMetric, ArrayStateRecord
from harness.model.base import Md
from harness.model.cell import Arm, Cell, Place
from harness.model.layout import when_optimal
from harness.results.assemble import AssembledRun
from harness.results.cells import CellRecord, ValidityCheck
from harness.results.contrasts import contrast
from harness.results.journal import Measurement

CHECK = "array"
"""The name of the check."""
ENOUGH = 0.5
"""The smallest share of slices with a rebuilding array. With fewer, what is left says little about the mode."""
_MIB = 1024**2


def in_other_state(slice_: Measurement, md: Md) -> bool:
    """Whether the array was, in this slice, not in the state that its layout requests. False if that is not known."""
    array = slice_.counters.array
    if slice_.arm == Place.HOST or array is None:
        return False
    return array.state != md.state or array.missing != (0 if md.is_optimal else 1)


def is_rebuilding(slice_: Measurement, cell: Cell) -> bool:
    """Whether the slice counts: False if the array of its cell should have been rebuilding and was not."""
    md = cell.mode.layout.base
    return not (isinstance(md, Md) and md.spares and in_other_state(slice_, md))


def state_checks(measurements: Sequence[Measurement], cell: Cell) -> list[ValidityCheck]:
    """The check of the state of the cell's array; empty without one, or if the host reported no state.

    An array that should be optimal or degraded must be so in every slice. A recovery may begin late or end early: these
    slices do not count, and the check says how many, but it must have run in at least half of them.
    """
    md = cell.mode.layout.base
    known = [
        measurement
        for measurement in measurements
        if measurement.counters.array is not None and measurement.arm != Place.HOST
    ]
    if not isinstance(md, Md) or not known:
        return []
    other = [each for each in known if in_other_state(each, md)]
    right = len(known) - len(other)
    ok = right >= ENOUGH * len(known) if md.spares else not other
    detail = f"{md.state} in {right} of {len(known)} slices"
    if md.spares:
        detail += _rate([each for each in known if each not in other])
    if other:
        detail += f"; first in round {other[0].round} of {other[0].arm}: {_found(other[0])}"
    if not ok:
        detail += "; see /proc/mdstat and dmesg there, and whether a disk has failed"
    return [ValidityCheck(CHECK, ok=ok, detail=detail)]


def state_notes(measurements: Sequence[Measurement], cell: Cell) -> list[str]:
    """How many blocks do not count because no recovery ran in them. Of an array that was there already, its state."""
    md = cell.mode.layout.base
    if not isinstance(md, Md):
        return _of_existing(measurements)
    if not md.spares:
        return []
    lost = {(measurement.round, measurement.block) for measurement in measurements if in_other_state(measurement, md)}
    of = len({(measurement.round, measurement.block) for measurement in measurements})
    return [f"{len(lost)} of {of} blocks do not count, because the array was not rebuilding"] if lost else []


def _of_existing(measurements: Sequence[Measurement]) -> list[str]:
    """An array of md below the disk or the storage that was not optimal. The run neither requested nor changed that."""
    known = [measurement for measurement in measurements if measurement.counters.array is not None]
    other = [each for each in known if (array := each.counters.array) and array.state != "optimal"]
    if not other:
        return []
    return [f"the array below was not optimal in {len(other)} of {len(known)} slices; in the first: {_found(other[0])}"]


def rebuild_rate(slices: Sequence[Measurement]) -> float | None:
    """Bytes per second of each member that a recovery completed in these slices and the pauses around them."""
    counted = [array for slice_ in slices if (array := slice_.counters.array) and array.state == "rebuilding"]
    seconds = sum(array.seconds for array in counted)
    return sum(array.rebuilt for array in counted) / seconds if seconds else None


def _rate(slices: Sequence[Measurement]) -> str:
    """For example ", 0.8 MiB/s of each disk (sync_speed_max 1.0 MiB/s)"."""
    rate = rebuild_rate(slices)
    limits = {array.limit for slice_ in slices if (array := slice_.counters.array) and array.limit is not None}
    if rate is None:
        return ""
    limit = f" (sync_speed_max {max(limits) / _MIB:.3g} MiB/s)" if limits else ""
    return f", {rate / _MIB:.3g} MiB/s of each disk{limit}"


def _found(slice_: Measurement) -> str:
    array = slice_.counters.array
    state = array.state if array else None
    missing = array.missing if array else 0
    return f"{state or 'its state changed'}, {missing} missing"


COMPARED = ("iops", "bw", "lat_mean", "clat_p99")


def cost_of_states(run: AssembledRun) -> tuple[ArrayStateRecord, ...]:
    """One record per measured cell on an array that is not optimal, if the run has the optimal one, in their order.

    Only blocks count that count for both cells. The arms of a rebuilding array are in another
    timetable of the same round, so its pairs are up to a round apart.
    """
    by_arm: dict[tuple[str, str], list[Measurement]] = {}
    cells, records = run.cells, run.records
    for measurement in run.measurements:
        by_arm.setdefault((measurement.arm, measurement.job), []).append(measurement)
    optimal = {_key(cell, records): cell for cell in cells if _is_measured(cell, records)}
    array_states = []
    for cell in cells:
        base = cell.mode.layout.base
        other = optimal.get(_key(cell, records))
        if isinstance(base, Md) and not base.is_optimal and other is not None and _has_values(records.get(cell.id)):
            record = _record(cell, base, other, records, by_arm)
            array_states += [record] if record else []
    return tuple(array_states)


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
        measurement
        for arm in arms[:2]
        for measurement in by_arm.get((arm.id, cell.job.id), ())
        if measurement.raw in raw and measurement.counters.array is not None
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
        doubt=", ".join(dict.fromkeys(filter(None, (own.doubt_about(*arms[:2]), optimal.doubt_about(*arms[2:]))))),
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
