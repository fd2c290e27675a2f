"""Which published figures belong to a cell: the same kind of disk, mode and job. Pure.

A mode is compared by what the studies state: where it runs, what it lies on, and which layout is between. They do not
state bus, cache and aio, so these may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.features.published.figures import Band, Figure, Link, PublishedArm, PublishedDisk
from harness.model.attach import Attach
from harness.model.base import Device, Md, Shape
from harness.model.job import Job
from harness.model.layout import Layout, Lvm, RawFile
from harness.model.mode import ModeDetail, Place


@dataclass(frozen=True, slots=True)
class Counterpart:
    """A figure that belongs to a cell: which of its arms, and which place of the cell it is about."""

    disk: PublishedDisk
    figure: Figure
    arm: PublishedArm
    place: Place

    @property
    def ratio(self) -> Band | None:
        """The published arm divided by its reference: guest/host, guest/array, array/disk; None without one of them."""
        if self.place is Place.HOST:  # The cell has no other place to which its host is relative.
            return None
        return self.figure.ratio(self.arm, self.disk.reference(self.arm))


def counterparts(link: Link, mode: ModeDetail, job: Job, existing: Shape | None = None) -> tuple[Counterpart, ...]:
    """The linked figures for a cell of this mode and job, in the order of the file.

    `existing` is the shape of the array that the cell's disk is. None stands for a single disk, and for an unknown one.
    A figure with a stated depth replaces one of the same workload, metric and arm that does not state its depth.
    """
    found = [counterpart for disk in link.disks for counterpart in _of_disk(link, disk, mode, job, existing)]
    stated = {(each.disk.model, each.figure.metric, each.arm) for each in found if each.figure.iodepth is not None}
    return tuple(
        each
        for each in found
        if each.figure.iodepth is not None or (each.disk.model, each.figure.metric, each.arm) not in stated
    )


def _of_disk(
    link: Link, disk: PublishedDisk, mode: ModeDetail, job: Job, existing: Shape | None
) -> Iterator[Counterpart]:
    for figure in disk.figures:
        if figure.covers(job):
            for arm in figure.arms:
                place = _place(arm, disk, mode, existing, disk_is_array=link.disk_is_array)
                if place is not None:
                    yield Counterpart(disk, figure, arm, place)


def _place(
    arm: PublishedArm, disk: PublishedDisk, mode: ModeDetail, existing: Shape | None, *, disk_is_array: bool
) -> Place | None:
    """The place of the mode at which the published arm was measured; None if the mode is another one."""
    base = mode.layout.base
    is_like = disk.array is not None and existing is not None and disk.array.is_like(existing)
    is_single = disk.array is None and existing is None
    is_the_disk = isinstance(base, Device) and (is_single or is_like or (disk_is_array and disk.array is not None))
    same_array = (
        isinstance(base, Md)
        and base.is_optimal
        and disk.array is not None
        and disk.array.is_like(base.shape)
        and not disk_is_array
    )
    if mode.attach is None:  # the mode `host`, always on the bare device
        return Place.HOST if is_the_disk and arm == ("array" if disk.array else "host") else None
    if arm == "array":
        return Place.TWIN if same_array and mode.layout.is_base else None
    served_by_qemu = isinstance(mode.attach, Attach) and mode.attach.device == "disk"
    return Place.GUEST if (is_the_disk or same_array) and served_by_qemu and _lies_on(arm, mode.layout) else None


def _lies_on(arm: PublishedArm, layout: Layout) -> bool:
    """Whether the guest of `arm` has this layout."""
    match arm:
        case "passthrough":
            return layout.is_base
        case "lvm":
            return isinstance(layout, Lvm) and not layout.encrypted
        case "raw":
            return isinstance(layout, RawFile) and layout.filesystem == "ext4" and not layout.encrypted
        case "guest":
            return True
    return False
