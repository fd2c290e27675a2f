"""How a guest gets a disk, in QEMU's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bus = Literal["virtio-blk", "virtio-scsi", "sata", "ide", "nvme"]
Cache = Literal["none", "directsync", "writeback", "writethrough", "unsafe"]
Aio = Literal["native", "io_uring", "threads"]
Controller = Literal["single", "shared"]
Discard = Literal["ignore", "unmap"]
DetectZeroes = Literal["off", "on", "unmap"]
DeviceKind = Literal["disk", "lun"]


@dataclass(frozen=True, slots=True)
class Attach:
    """A disk that QEMU serves. The default is what Proxmox VE users call VirtIO SCSI single.

    `queues` None is the hypervisor's own choice (one per vCPU for virtio), as are `queue_size` None and the block
    sizes None, in bytes. `iothread_vq_mapping` is among how many iothreads the queues of virtio-blk or virtio-scsi are
    spread; 0 is no such mapping. `controller` says whether a virtio-scsi disk has its controller to itself. `device`
    lun hands SCSI commands of the guest through to a SCSI disk of the host.
    """

    bus: Bus = "virtio-scsi"
    cache: Cache = "none"
    aio: Aio = "native"
    iothread: bool = True
    queues: int | None = None
    queue_size: int | None = None
    iothread_vq_mapping: int = 0
    controller: Controller = "single"
    discard: Discard = "ignore"
    detect_zeroes: DetectZeroes = "off"
    logical_block_size: int | None = None
    physical_block_size: int | None = None
    read_only: bool = False
    device: DeviceKind = "disk"

    @property
    def direct(self) -> bool:
        """True where QEMU opens the layout with O_DIRECT (its `cache.direct`)."""
        return self.cache in ("none", "directsync")

    @property
    def host_counts(self) -> bool:
        """Whether the host's block layer counts the guest's I/O. Of SCSI commands that it hands through it does not.

        Source: Linux commit 110234da18ab, which lets newer kernels count them where `queue/iostats_passthrough` is set.
        """
        return self.device != "lun"


@dataclass(frozen=True, slots=True)
class Vfio:
    """The whole PCI device: the guest's own driver works on it, and QEMU serves no request."""

    @property
    def direct(self) -> bool:
        """Always: there is no cache of the host in between."""
        return True

    @property
    def read_only(self) -> bool:
        return False

    @property
    def host_counts(self) -> bool:
        """Never: the device is not the host's for as long as the guest has it."""
        return False


Attachment = Attach | Vfio
