"""Was an array in the requested state, slice by slice? The request against what the host reported. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.model.base import Md
from harness.model.cell import Cell, Place
from harness.results.backups import without_backup
from harness.results.cells import ValidityCheck
from harness.results.journal_records import Measurement

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


def does_not_count(slice_: Measurement, cell: Cell) -> bool:
    """Whether the slice, and with it its block, is no sample of its cell: another arm ran, no recovery or no backup."""
    md = cell.mode.layout.base
    if slice_.overlap is not None or without_backup(slice_):
        return True
    return isinstance(md, Md) and bool(md.spares) and in_other_state(slice_, md)


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
