"""The share of others in what the disks of a storage in use moved while a cell was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from harness.model.counters import Transferred
from harness.results.journal_records import Measurement
from harness.units import format_size


def others_notes(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """How many bytes others moved, for a cell on a storage in use; nothing for disks that only the run uses.

    It is the difference between all bytes of the disks and those of the arms: by the counters of the arm's volume, or
    by fio if the volume is a file. It includes what the storage itself adds, for example metadata and mirrors. Arms
    whose reads come from a cache move fewer bytes than fio counts. They do not reduce the bytes of others.
    """
    by_arm: dict[str, list[tuple[Transferred, Transferred]]] = {}
    for measurement in measurements:
        counters = measurement.counters
        if counters.storage is not None:
            transferred = counters.disk or Transferred(counters.fio.read, counters.fio.written)
            by_arm.setdefault(measurement.arm, []).append((counters.storage, transferred))
    total, others = Transferred(), Transferred()
    for counted in by_arm.values():
        moved, transferred = (sum(several, Transferred()) for several in zip(*counted, strict=True))
        total += moved
        others += Transferred(max(moved.read - transferred.read, 0), max(moved.written - transferred.written, 0))
    everything = total.read + total.written
    if not everything:
        return ()
    share = (others.read + others.written) / everything
    note = (
        f"while this cell was measured, {share:.1%} of the bytes on the storage's disks were not its own: "
        f"{format_size(others.read)} read and {format_size(others.written)} written by others and by the storage "
        "itself (metadata, mirrors)"
    )
    return (note,)
