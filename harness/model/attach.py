"""How a guest gets a disk, in QEMU's terms: the options, and what must be read back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Discriminator, Field, Tag

from harness.model.bus import BUSES, Bus
from harness.model.effective import NOTHING, Effective
from harness.model.throttle import NO_LIMIT, Limit, LimitKind, shown_limits
from harness.model.values import VALUE, Count, Flag, PollTime, Rate, Size, power_of_two
from harness.units import format_size

Cache = Literal["none", "directsync", "writeback", "writethrough", "unsafe"]
Aio = Literal["native", "io_uring", "threads"]
Controller = Literal["single", "shared"]
Discard = Literal["ignore", "unmap"]
DetectZeroes = Literal["off", "on", "unmap"]
Server = Literal["qemu", "storage-daemon", "ublk", "nvme-io_uring", "vhost-vdpa"]

KIB, MIB = 1024, 1024**2

# QEMU accepts up to 2 MiB for both (util/block-helpers.c). A guest's kernel accepts logical blocks up to a page.
LogicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 4 * KIB))]
PhysicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 2 * MIB))]
# A virtio device has at most 1024 virtqueues, and virtio-scsi reserves two. Each has room for 4 to 1024 requests.
Queues = Annotated[Count, Field(ge=1, le=1022)]
QueueSize = Annotated[Count, AfterValidator(power_of_two(4, 1024, sizes=False))]
GroupName = Annotated[str, Field(pattern="^[a-z][a-z0-9-]{0,30}$")]
Iops = Annotated[Count, Field(ge=1, le=1_000_000_000)]


class CacheFlags(NamedTuple):
    """The meaning of a cache mode in QEMU. Source: QEMU's manual, table of the block device option `cache`."""

    direct: bool
    no_flush: bool
    write_cache: bool


CACHES: Mapping[Cache, CacheFlags] = {
    "none": CacheFlags(direct=True, no_flush=False, write_cache=True),
    "directsync": CacheFlags(direct=True, no_flush=False, write_cache=False),
    "writeback": CacheFlags(direct=False, no_flush=False, write_cache=True),
    "writethrough": CacheFlags(direct=False, no_flush=False, write_cache=False),
    "unsafe": CacheFlags(direct=False, no_flush=True, write_cache=True),
}


VHOST_USER = "vhost-user-blk-pci"
"""QEMU's device for a disk that another process serves."""


@dataclass(frozen=True, slots=True)
class Attach:
    """A disk that QEMU serves. Proxmox VE calls the default VirtIO SCSI single."""

    __pydantic_config__ = VALUE

    bus: Bus = "virtio-scsi"
    """The bus of the guest that the disk is on."""
    cache: Cache = "none"
    """QEMU's cache mode."""
    aio: Aio = "native"
    """QEMU's engine for asynchronous I/O."""
    iothread: Flag = True
    """Whether the disk has its own thread."""
    queues: Queues | None = None
    """None is the hypervisor's default: one per vCPU for virtio."""
    queue_size: QueueSize | None = None
    """Requests in a queue. None is the hypervisor's default."""
    iothread_vq_mapping: Annotated[Count, Field(ge=0, le=1022)] = 0
    """The number of iothreads that share the queues of virtio-blk or virtio-scsi. 0 is no mapping."""
    poll_max_ns: PollTime | None = None
    """The longest time in nanoseconds for which its iothreads poll. 0 is no polling, None that of the guest."""
    controller: Controller = "single"
    """Whether a virtio-scsi disk has its controller to itself."""
    discard: Discard = "ignore"
    """Whether the guest's discards reach the layout."""
    detect_zeroes: DetectZeroes = "off"
    """Whether QEMU searches written data for zeros."""
    logical_block_size: LogicalBlock | None = None
    """In bytes. None is the hypervisor's default."""
    physical_block_size: PhysicalBlock | None = None
    """In bytes. None is the hypervisor's default."""
    read_only: Flag = False
    """Whether the guest must not write."""
    iops: Iops | None = None
    """The most I/Os per second, reads and writes together. None is no limit."""
    bw: Rate | None = None
    """The most bytes per second, read and written together. None is no limit."""
    iops_burst: Iops | None = None
    """The most I/Os per second in a burst. None is no bursts."""
    bw_burst: Rate | None = None
    """The most bytes per second in a burst. None is no bursts."""
    burst_seconds: Annotated[Count, Field(ge=1, le=3600)] | None = None
    """How long a burst may last. None is one second."""
    throttle_group: GroupName | None = None
    """The group of disks of the guest that share the limits. None is a group of its own."""
    packed: Flag | None = None
    """Whether the queues are packed rings. None is the hypervisor's default: split rings."""
    event_idx: Flag | None = None
    """Whether guest and host tell each other when to notify. None is the hypervisor's default: they do."""
    metadata_cache: Size | None = None
    """The cache of a qcow2 file's tables in bytes. None is QEMU's default."""
    server: Server = "qemu"
    """The process that serves the disk: the guest's QEMU, or a storage daemon by vhost-user-blk. No host offers the
    others today."""
    device: Literal["disk", "lun"] = "disk"
    """`lun` passes the guest's SCSI commands to a SCSI disk of the host."""

    @property
    def direct(self) -> bool:
        """Whether QEMU opens the layout with O_DIRECT (its `cache.direct`)."""
        return CACHES[self.cache].direct

    @property
    def threads(self) -> int:
        """How many iothreads serve the disk. 0 is QEMU's main thread."""
        return self.iothread_vq_mapping or int(self.iothread)

    @property
    def in_qemu(self) -> bool:
        """Whether the guest's QEMU serves the disk, with its own block layer and iothreads."""
        return self.server == "qemu"

    @property
    def limits(self) -> dict[LimitKind, Limit]:
        """The requested limits of the disk's I/O."""
        requested: dict[LimitKind, tuple[int | None, int | None]] = {
            "iops": (self.iops, self.iops_burst),
            "bps": (self.bw, self.bw_burst),
        }
        return {
            kind: Limit(rate, burst, self.burst_seconds or 1)
            for kind, (rate, burst) in requested.items()
            if rate is not None
        }

    @property
    def host_counts(self) -> bool:
        """Whether the host's block layer counts the guest's I/O. It does not count passed-through SCSI commands.

        Source: Linux commit 110234da18ab. Newer kernels count them if `queue/iostats_passthrough` is set.
        """
        return self.device != "lun"

    @property
    def words(self) -> str:
        """The attachment in a few words."""
        iothread = "iothread" if self.iothread else "no iothread"
        limits = f", at most {self.iops} I/Os per second" if self.iops else ""
        limits += f", at most {format_size(self.bw)}/s" if self.bw else ""
        server = "" if self.in_qemu else f", by a {self.server}"
        return f"{self.bus}, cache {self.cache}, aio {self.aio}, {iothread}{limits}{server}"

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from a disk that is attached in this way."""
        bus, lun, cache = BUSES[self.bus], self.device == "lun", CACHES[self.cache]
        kind = "scsi-block" if lun else bus.qemu_device if self.in_qemu else VHOST_USER
        return Effective(
            bus=bus.hypervisor,
            guest_driver=bus.guest_driver,
            guest_controller_driver=bus.guest_controller_driver,
            guest_windows_driver=bus.windows_driver,
            qemu_device=kind,
            # libvirt does not know the options of another process. Its own arguments show them.
            cache=self.cache if self.in_qemu else None,
            qemu_cache_direct=cache.direct,
            qemu_cache_no_flush=cache.no_flush,
            qemu_write_cache=cache.write_cache,
            # A LUN shows the cache of the host's disk. A read-only SCSI disk reports no cache.
            guest_write_cache=None if lun or self.read_only else "write back" if cache.write_cache else "write through",
            aio=self.aio if self.in_qemu else None,
            qemu_aio=self.aio,
            iothread=self.threads > 0 if self.in_qemu else None,
            qemu_iothread=self.threads > 0,
            qemu_iothreads=self.iothread_vq_mapping or None,
            qemu_poll_max_ns=self.poll_max_ns,
            qemu_queues=self.queues,
            guest_queues=self.queues,
            qemu_queue_size=self.queue_size,
            guest_queue_size=self.queue_size,
            controller_disks=1 if self.bus == "virtio-scsi" and self.controller == "single" else None,
            qemu_discard=self.discard,
            qemu_detect_zeroes=self.detect_zeroes,
            qemu_read_only=self.read_only,
            guest_read_only=self.read_only,
            qemu_logical_block_size=self.logical_block_size,
            guest_logical_block_size=self.logical_block_size,
            qemu_physical_block_size=self.physical_block_size,
            guest_physical_block_size=self.physical_block_size,
            qemu_iops_limit=self._limit("iops"),
            qemu_bw_limit=self._limit("bps"),
            qemu_throttle_group=self.throttle_group,
            host_io_limit=NO_LIMIT,
            qemu_packed=self.packed,
            guest_packed=self.packed,
            qemu_event_idx=self.event_idx,
            guest_event_idx=self.event_idx,
            qemu_metadata_cache=self.metadata_cache,
        )

    def _limit(self, kind: LimitKind) -> str:
        limit = self.limits.get(kind)
        return shown_limits(limit.settings(kind) if limit else {}, kind)


@dataclass(frozen=True, slots=True)
class Vfio:
    """The whole PCI device. The guest's own driver controls it, and QEMU serves no requests."""

    __pydantic_config__ = VALUE

    device: Literal["vfio"] = "vfio"
    """`vfio`: the device itself."""

    @property
    def direct(self) -> bool:
        """Always true, because the host's caches are not involved."""
        return True

    @property
    def read_only(self) -> bool:
        return False

    @property
    def queues(self) -> None:
        """The guest's driver chooses."""
        return

    @property
    def host_counts(self) -> bool:
        """Always false, because the host does not have the device while the guest has it."""
        return False

    @property
    def words(self) -> str:
        return "VFIO"

    @property
    def expected(self) -> Effective:
        """The settings that must be read back from a device that is passed through."""
        return Effective(qemu_device="vfio-pci", host_driver="vfio-pci", guest_driver="nvme")


@dataclass(frozen=True, slots=True)
class Unknown:
    """An attachment that is not known: the guest of a run that was imported. No scenario can request it."""

    __pydantic_config__ = VALUE

    device: Literal["unknown"] = "unknown"
    """`unknown`: nothing is known."""

    @property
    def direct(self) -> bool:
        """Always true: nothing says that a cache of the host is involved."""
        return True

    @property
    def read_only(self) -> bool:
        return False

    @property
    def queues(self) -> None:
        """Not known."""
        return

    @property
    def host_counts(self) -> bool:
        """Always false, because the host's counters are not known."""
        return False

    @property
    def words(self) -> str:
        return "attachment not known"

    @property
    def expected(self) -> Effective:
        """Nothing was requested."""
        return NOTHING


Attachment = Attach | Vfio | Unknown


def device(attachment: Any) -> str:
    """The tag of an attachment. pydantic's errors show this function's name, so it is the name of the key."""
    given = attachment.get("device", "disk") if isinstance(attachment, dict) else getattr(attachment, "device", "disk")
    return str(given)


AnyAttachment = Annotated[
    Annotated[Attach, Tag("disk")] | Annotated[Attach, Tag("lun")] | Annotated[Vfio, Tag("vfio")],
    Discriminator(device),
]
"""An attachment in a file. `device` selects the type."""
StoredAttachment = Annotated[
    Annotated[Attach, Tag("disk")]
    | Annotated[Attach, Tag("lun")]
    | Annotated[Vfio, Tag("vfio")]
    | Annotated[Unknown, Tag("unknown")],
    Discriminator(device),
]
"""An attachment in a record."""
