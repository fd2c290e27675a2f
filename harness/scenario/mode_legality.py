"""Finds layouts and attach options of one mode that conflict on every hypervisor. Pure.

Each problem names two keys with their values, the reason, and what is allowed. Limits of one version or one host are
found on that host. A mode that a host does not support is skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from harness.model.attach import Attach, Attachment
from harness.model.base import Device, Md, RaidLevel
from harness.model.layout import Layout, Qcow2
from harness.model.values import shown_field
from harness.units import format_size

FEWEST_DISKS: dict[RaidLevel, int] = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}
"""The fewest disks of an array. md also accepts two for RAID 10, but that is a mirror."""

_VIRTIO = ("virtio-blk", "virtio-scsi")


def mode_problems(layout: Layout, attach: Attachment, given: Collection[str]) -> Iterator[str]:
    """The conflicts within one mode, with the keys of its table: `attach.aio = "native" (the default) conflicts ...`.

    `given` holds the keys that the file sets. A message marks the value of any other key as the default.
    """
    md = layout.base
    if isinstance(md, Md):
        yield from _array(md, _Option("layout" if layout is md else "layout.on", md, given))
    if isinstance(attach, Attach):
        option = _Option("attach", attach, given)
        yield from _caches(attach, option)
        yield from _threads_and_queues(attach, option)
        yield from _ports(attach, option)
        yield from _block_sizes(attach, option)
        yield from _limits(attach, option)
        yield from _virtio(attach, option)
        yield from _lun(attach, option)
        yield from _server(attach, option)
        if isinstance(layout, Qcow2) and layout.data_file:
            yield from _data_file(layout, attach, option)
        if attach.metadata_cache is not None and not isinstance(layout, Qcow2):
            why = "because only qcow2 files have such tables"
            yield _conflict(option("metadata_cache"), f'layout.kind = "{layout.kind}"', why, "kind qcow2")
    yield from _whole_device(layout, attach)


def vfio_problems(attach: object) -> Iterator[str]:
    """Keys in addition to `device = "vfio"`. Such a device has no options on the host's side."""
    if isinstance(attach, Mapping) and attach.get("device") == "vfio":
        for key in sorted(set(attach) - {"device"}):
            why = "because the guest's own driver does all the work"
            yield _conflict(f"attach.{key}", 'attach.device = "vfio"', why, "device alone, or device disk")


@dataclass(frozen=True, slots=True)
class _Option:
    """A key of a table with its value, as messages write it."""

    table: str
    values: Attach | Md
    given: Collection[str]

    def __call__(self, name: str) -> str:
        key = f"{self.table}.{name}"
        if getattr(self.values, name) is None:
            return f"{key} left out"
        return f"{key} = {shown_field(self.values, name)}" + ("" if key in self.given else " (the default)")

    def is_given(self, name: str) -> bool:
        return f"{self.table}.{name}" in self.given


def _conflict(one: str, other: str, why: str, allowed: str) -> str:
    return f"{one} conflicts with {other}, {why}; allowed: {allowed}"


def _array(md: Md, option: _Option) -> Iterator[str]:
    per_leg, fewest = md.disks // md.legs, FEWEST_DISKS[md.level]
    if md.disks % md.legs:
        yield _conflict(
            option("disks"), option("legs"), "because each leg has half of the disks", "an even number of disks"
        )
    elif per_leg < fewest and md.legs == 1:
        yield _conflict(option("disks"), option("level"), f"which needs {fewest} disks", f"disks = {fewest} or more")
    elif per_leg < fewest:
        needed = f"an even number of disks, disks = {md.legs * fewest} or more, or legs = 1"
        yield _conflict(
            option("legs"), option("disks"), f"because a leg of RAID {md.level} needs {fewest} disks", needed
        )
    if md.starts and len(md.starts) != md.legs:
        places = "one place" if md.legs == 1 else "two places"
        yield _conflict(
            option("starts"), option("legs"), "because each leg starts at one disk", f"{places}, or no starts"
        )
    elif len(set(md.places)) < len(md.places):
        needed = f"places that are {per_leg} or more apart"
        yield _conflict(option("starts"), option("disks"), f"because each leg needs {per_leg} disks of its own", needed)
    yield from _state(md, option)
    if md.level == 1 and md.legs == 1 and option.is_given("chunk"):
        why = "because all disks of RAID 1 hold the same data"
        yield _conflict(option("chunk"), option("level"), why, "no chunk, or another level")


def _state(md: Md, option: _Option) -> Iterator[str]:
    if md.spares and md.state != "rebuilding":
        why = "because md rebuilds a spare at once" if md.state == "degraded" else "in which a spare moves no data"
        yield _conflict(option("spares"), option("state"), why, 'spares = 0, or state = "rebuilding"')
    if md.is_optimal:
        return
    if md.level == 0:
        allowed = 'level 1, 5, 6 or 10, or state = "optimal"'
        yield _conflict(option("state"), option("level"), "which cannot lose a member", allowed)
    if md.legs == 2:
        allowed = 'legs = 1, or state = "optimal"'
        yield _conflict(option("state"), option("legs"), "because the member of one array is missing", allowed)
    if md.state == "rebuilding" and not md.spares:
        yield _conflict(option("state"), option("spares"), "because a spare is rebuilt", "spares = 1")


def _caches(attach: Attach, option: _Option) -> Iterator[str]:
    if attach.aio == "native" and not attach.direct:
        allowed = "cache none or directsync, or aio threads or io_uring"
        yield _conflict(option("aio"), option("cache"), "which is not direct I/O", allowed)
    if attach.detect_zeroes == "unmap" and attach.discard != "unmap":
        allowed = 'discard = "unmap", or detect_zeroes = "on"'
        yield _conflict(option("detect_zeroes"), option("discard"), "which ignores the resulting discards", allowed)


def _threads_and_queues(attach: Attach, option: _Option) -> Iterator[str]:
    if attach.poll_max_ns is not None and not attach.threads:
        why = "because only iothreads poll"
        yield _conflict(option("poll_max_ns"), option("iothread"), why, "iothread = true, or no poll_max_ns")
    if attach.bus not in _VIRTIO:
        why = "because QEMU's main thread serves this bus"
        if attach.iothread:
            yield _conflict(
                option("iothread"), option("bus"), why, "iothread = false, or bus virtio-blk or virtio-scsi"
            )
        if attach.iothread_vq_mapping:
            yield _conflict(option("iothread_vq_mapping"), option("bus"), why, "bus virtio-blk or virtio-scsi")
        for key in ("queues", "queue_size"):
            if getattr(attach, key) is not None:
                yield _conflict(
                    option(key), option("bus"), "which is not a virtio bus", "bus virtio-blk or virtio-scsi"
                )
        return
    if not attach.iothread_vq_mapping:
        return
    if attach.iothread:
        yield _conflict(
            option("iothread"),
            option("iothread_vq_mapping"),
            "which assigns threads to the queues",
            "iothread = false, or no iothread_vq_mapping",
        )
    if attach.queues is None or attach.queues < attach.iothread_vq_mapping:
        yield _conflict(
            option("iothread_vq_mapping"),
            option("queues"),
            "because each thread needs a queue",
            f"queues = {attach.iothread_vq_mapping} or more",
        )


def _ports(attach: Attach, option: _Option) -> Iterator[str]:
    if attach.controller == "shared" and attach.bus != "virtio-scsi":
        allowed = "bus virtio-scsi, or no controller"
        yield _conflict(option("controller"), option("bus"), "which has no choice of controllers", allowed)
    if attach.read_only and attach.bus in ("sata", "ide"):
        allowed = "bus virtio-blk, virtio-scsi or nvme"
        yield _conflict(option("read_only"), option("bus"), "which does not support read-only disks", allowed)


def _block_sizes(attach: Attach, option: _Option) -> Iterator[str]:
    logical, physical = attach.logical_block_size, attach.physical_block_size
    if logical is None:
        return
    if logical > (physical or 512):
        allowed = f'physical_block_size = "{format_size(logical)}" or more'
        why = "because a physical block cannot be smaller than a logical block"
        yield _conflict(option("logical_block_size"), option("physical_block_size"), why, allowed)
    if logical != 512 and attach.bus in ("sata", "ide"):
        why = "because QEMU uses 512-byte blocks on this bus"
        yield _conflict(option("logical_block_size"), option("bus"), why, "bus virtio-blk, virtio-scsi or nvme")


def _limits(attach: Attach, option: _Option) -> Iterator[str]:
    for limit, burst in (("iops", "iops_burst"), ("bw", "bw_burst")):
        rate, most = getattr(attach, limit), getattr(attach, burst)
        if most is not None and (rate is None or most < rate):
            why = "because a burst is for a while above the limit"
            yield _conflict(option(burst), option(limit), why, f"{limit}, and {burst} that is not smaller")
    if attach.throttle_group is not None and not attach.limits:
        why = "and bw left out as well: a group shares limits"
        yield _conflict(option("throttle_group"), option("iops"), why, "with iops or bw")
    if attach.burst_seconds is not None and attach.iops_burst is None and attach.bw_burst is None:
        allowed = "with iops_burst or bw_burst"
        yield _conflict(option("burst_seconds"), option("iops_burst"), "and bw_burst left out as well", allowed)


def _virtio(attach: Attach, option: _Option) -> Iterator[str]:
    for key in ("packed", "event_idx"):
        if getattr(attach, key) is not None and attach.bus not in _VIRTIO:
            yield _conflict(option(key), option("bus"), "which is not a virtio bus", "bus virtio-blk or virtio-scsi")


def _server(attach: Attach, option: _Option) -> Iterator[str]:
    """vhost-user-blk is a device of its own. The daemon has the options of a disk that concern its block layer."""
    if attach.server != "storage-daemon":
        return
    if attach.bus != "virtio-blk":
        why = "which serves disks by vhost-user-blk"
        yield _conflict(option("bus"), option("server"), why, "bus virtio-blk")
    usual = Attach()
    lacking = ("iothread_vq_mapping", "logical_block_size", "physical_block_size", "read_only", "iops", "bw", "packed")
    for key in (*lacking, "metadata_cache", "device"):
        if getattr(attach, key) != getattr(usual, key):
            why = "which does not have this option"
            yield _conflict(option(key), option("server"), why, f"no {key}, or server qemu")


def _data_file(layout: Qcow2, attach: Attach, option: _Option) -> Iterator[str]:
    one = "layout.data_file = true"
    if layout.snapshots:
        why = "because one option of the image is measured at a time"
        yield _conflict(one, f"layout.snapshots = {layout.snapshots}", why, "snapshots = 0")
    if not attach.in_qemu:
        why = "which gets the image only"
        yield _conflict(one, option("server"), why, "server qemu")


def _lun(attach: Attach, option: _Option) -> Iterator[str]:
    """QEMU sends the guest's SCSI commands to the host's disk by ioctl (SG_IO), so its block layer has no options."""
    if attach.device != "lun":
        return
    why = "which passes the guest's SCSI commands to the disk"
    usual = Attach()
    if attach.bus != "virtio-scsi":
        yield _conflict(option("bus"), option("device"), why, "bus virtio-scsi")
    if attach.cache != "none":
        yield _conflict(option("cache"), option("device"), f"{why} and bypasses every cache of the host", "cache none")
    if attach.aio != "threads":
        yield _conflict(option("aio"), option("device"), f"{why} in QEMU's thread pool", "aio threads")
    unseen = ("discard", "detect_zeroes", "logical_block_size", "physical_block_size", "read_only", "iops", "bw")
    for key in unseen:
        if getattr(attach, key) != getattr(usual, key):
            yield _conflict(option(key), option("device"), f"{why} unchanged", f"no {key}, or device disk")


def _whole_device(layout: Layout, attach: Attachment) -> Iterator[str]:
    """A disk that is passed through as a whole has no layer of the host."""
    device = f'attach.device = "{attach.device}"'
    if attach.device != "disk" and not isinstance(layout, Device):
        yield _conflict(f'layout.kind = "{layout.kind}"', device, "which passes the whole disk through", "kind device")
