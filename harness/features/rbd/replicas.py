"""What the disks of the OSDs moved for the bytes of a job, by cell (`rbd` in results.json), if all are on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model.counters import Transferred
from harness.model.layout import Rbd
from harness.model.values import STRICT
from harness.results import ArmName, Measurement
from harness.results.assemble import AssembledRun


@dataclass(frozen=True, slots=True)
class OsdBytes:
    """The bytes of one arm over all slices: by fio, and on the disks of all OSDs together."""

    __pydantic_config__ = STRICT

    fio: Transferred
    """By fio."""
    disks: Transferred
    """On the disks, also for others."""

    @property
    def copies(self) -> float | None:
        """Bytes written to the disks for each byte that fio wrote; None if it wrote nothing."""
        return self.disks.written / self.fio.written if self.fio.written else None


@dataclass(frozen=True, slots=True)
class RbdRecord:
    """What the disks of the cluster moved in the job of a cell. Only of a cluster whose OSDs are all on the host."""

    __pydantic_config__ = STRICT

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, OsdBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[RbdRecord, ...]:
    """A record for each cell on an image with an arm whose disks were counted, in the order of the cells."""
    slices: dict[tuple[str, str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        if measurement.overlap is None and measurement.counters.storage is not None:
            slices.setdefault((measurement.group, measurement.arm, measurement.job), []).append(measurement)
    group_of = {cell.id: group.id for group in run.groups for cell in group.cells}
    records = []
    for cell in run.cells:
        if not isinstance(cell.mode.layout, Rbd) or cell.id not in group_of:
            continue
        arms: dict[ArmName, OsdBytes] = {
            place.value: _account(counted)
            for place, arm in cell.by_role.items()
            if place.value in ("host", "twin", "guest")
            and (counted := slices.get((group_of[cell.id], arm.id, cell.job.id)))
        }
        if arms:
            records.append(RbdRecord(cell.id, arms))
    return tuple(records)


def _account(slices: Sequence[Measurement]) -> OsdBytes:
    counters = [slice_.counters for slice_ in slices]
    return OsdBytes(
        fio=sum((Transferred(of.fio.read, of.fio.written) for of in counters), Transferred()),
        disks=sum((of.storage for of in counters if of.storage is not None), Transferred()),
    )
