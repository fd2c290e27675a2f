"""What the disks of the OSDs moved for the bytes of a job, by cell (`rbd` in results.json), if all are on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.model.counters import Transferred
from harness.model.layout import Rbd
from harness.model.values import RecordValue
from harness.results import ArmName, Measurement
from harness.results.assemble import AssembledRun


@dataclass(frozen=True, slots=True)
class OsdBytes(RecordValue):
    """The bytes of one arm over all slices: by fio, and on the disks of all OSDs together."""

    fio: Transferred
    """By fio."""
    disks: Transferred
    """On the disks, also for others."""

    @property
    def copies(self) -> float | None:
        """Bytes written to the disks for each byte that fio wrote; None if it wrote nothing."""
        return self.disks.written / self.fio.written if self.fio.written else None


@dataclass(frozen=True, slots=True)
class RbdRecord(RecordValue):
    """What the disks of the cluster moved in the job of a cell. Only of a cluster whose OSDs are all on the host."""

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, OsdBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[RbdRecord, ...]:
    """A record for each cell on an image with an arm whose disks were counted, in the order of the cells."""
    records = []
    for cell, slices in run.tabulate_on(Rbd).items():
        arms: dict[ArmName, OsdBytes] = {
            place.value: moved
            for place, of_arm in slices.arms.items()
            if place.value in ("host", "twin", "guest") and (moved := _account(of_arm.values())) is not None
        }
        if arms:
            records.append(RbdRecord(cell, arms))
    return tuple(records)


def _account(slices: Iterable[Measurement]) -> OsdBytes | None:
    """The bytes of these slices of one arm; None if the disks were not counted."""
    counted = [(slice_.counters.fio, disks) for slice_ in slices if (disks := slice_.counters.storage) is not None]
    if not counted:
        return None
    return OsdBytes(
        fio=sum((Transferred(fio.read, fio.written) for fio, _ in counted), Transferred()),
        disks=sum((disks for _, disks in counted), Transferred()),
    )
