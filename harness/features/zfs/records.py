"""What the disks of a pool moved for the bytes of a job, by cell (`zfs` in results.json)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model.counters import Transferred
from harness.model.layout import OnZfs
from harness.model.values import STRICT
from harness.results import ArmName, Measurement
from harness.results.assemble import AssembledRun


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """Bytes of the disks below an arm for each byte that fio read or wrote there, over all slices."""

    __pydantic_config__ = STRICT

    read: float
    """Bytes that the disks read."""
    written: float
    """Bytes that they wrote."""

    @property
    def both(self) -> float:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class ZfsRecord:
    """What the disks of the pool moved in the job of a cell. On a storage in use, also for others."""

    __pydantic_config__ = STRICT

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, MovedBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[ZfsRecord, ...]:
    """A record for each cell on ZFS with an arm whose disks were counted, in the order of the cells."""
    slices: dict[tuple[str, str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        if measurement.overlap is None:
            slices.setdefault((measurement.group, measurement.arm, measurement.job), []).append(measurement)
    group_of = {cell.id: group.id for group in run.groups for cell in group.cells}
    records = []
    for cell in run.cells:
        if not isinstance(cell.mode.layout, OnZfs) or cell.id not in group_of:
            continue
        counted: dict[ArmName, MovedBytes | None] = {
            place.value: _account(slices.get((group_of[cell.id], arm.id, cell.job.id), ()))
            for place, arm in cell.by_role.items()
            if place.value in ("host", "twin", "guest")
        }
        arms = {place: moved for place, moved in counted.items() if moved is not None}
        if arms:
            records.append(ZfsRecord(cell.id, arms))
    return tuple(records)


def _account(slices: Sequence[Measurement]) -> MovedBytes | None:
    """What the disks moved in these slices of one arm; None if that was not counted, or fio moved nothing."""
    moved, by_fio = Transferred(), 0
    for slice_ in slices:
        counters = slice_.counters
        counted = counters.storage if counters.storage is not None else counters.disk
        if counted is not None:
            moved += counted
            by_fio += counters.fio.read + counters.fio.written
    return MovedBytes(round(moved.read / by_fio, 4), round(moved.written / by_fio, 4)) if by_fio else None
