"""What the disks of a pool moved for the bytes of a job, by cell (`zfs` in results.json)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.model.counters import Transferred
from harness.model.layout import OnZfs
from harness.model.values import RecordValue
from harness.results import ArmName, Measurement
from harness.results.assemble import AssembledRun


@dataclass(frozen=True, slots=True)
class MovedBytes(RecordValue):
    """Bytes of the disks below an arm for each byte that fio read or wrote there, over all slices."""

    read: float
    """Bytes that the disks read."""
    written: float
    """Bytes that they wrote."""

    @property
    def both(self) -> float:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class ZfsRecord(RecordValue):
    """What the disks of the pool moved in the job of a cell. On a storage in use, also for others."""

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, MovedBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[ZfsRecord, ...]:
    """A record for each cell on ZFS with an arm whose disks were counted, in the order of the cells."""
    records = []
    for cell, slices in run.tabulate_on(OnZfs).items():
        arms: dict[ArmName, MovedBytes] = {
            place.value: moved
            for place, of_arm in slices.arms.items()
            if place.value in ("host", "twin", "guest") and (moved := _account(of_arm.values())) is not None
        }
        if arms:
            records.append(ZfsRecord(cell, arms))
    return tuple(records)


def _account(slices: Iterable[Measurement]) -> MovedBytes | None:
    """What the disks moved in these slices of one arm; None if that was not counted, or fio moved nothing."""
    moved, by_fio = Transferred(), 0
    for slice_ in slices:
        counters = slice_.counters
        counted = counters.storage if counters.storage is not None else counters.disk
        if counted is not None:
            moved += counted
            by_fio += counters.fio.read + counters.fio.written
    return MovedBytes(round(moved.read / by_fio, 4), round(moved.written / by_fio, 4)) if by_fio else None
