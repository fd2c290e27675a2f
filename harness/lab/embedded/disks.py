"""The lab's simulated disks, each with an identity like a real disk's: in its kernel's memory or made by QEMU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.lab.inventory import DiskById

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class NullBlkDisk:
    """What null_blk is told: its answer time per request, its bandwidth, and how many requests it takes at once.

    `size_bytes` is nominal: the disk lives in the lab host's memory and takes up what was written to it.
    `queue_depth` is that of each of its `queues`.
    """

    name: str
    size_bytes: int
    completion_ns: int
    queue_depth: int
    queues: int = 1
    bandwidth_mib_s: int | None = None

    @property
    def device(self) -> str:
        return f"sim_{self.name}"

    @property
    def spec(self) -> DiskById:
        """The disk as an inventory names it; the lab's udev rules give the link and the serial."""
        return DiskById(self.name, f"/dev/disk/by-id/lab-{self.device}", self.device, destroy=True)

    def creation(self) -> str:
        """A shell command that makes the disk in null_blk's directory of configfs; it changes nothing where it is."""
        settings = {
            "size": self.size_bytes // MIB,
            "memory_backed": 1,
            # null_blk holds back a request larger than its bandwidth allows in one tick: a discard of it all, for ever.
            "discard": int(self.bandwidth_mib_s is None),
            "blocksize": 512,
            "max_sectors": 2560,  # 1280 KiB, as the kernel gives real disks; else a request ends at 127 KiB
            "queue_mode": 2,  # blk-mq
            "irqmode": 2,  # completed by a timer
            "completion_nsec": self.completion_ns,
            "hw_queue_depth": self.queue_depth,
            "submit_queues": self.queues,
            "mbps": self.bandwidth_mib_s or 0,
            "power": 1,
        }
        writes = "; ".join(f"echo {value} >{self.device}/{key}" for key, value in settings.items())
        return f"[ -d {self.device} ] || {{ mkdir {self.device}; {writes}; }}"


@dataclass(frozen=True, slots=True)
class NvmeDisk:
    """An NVMe controller that QEMU emulates, alone in its IOMMU group, so that it can be given to a guest whole."""

    name: str
    size_bytes: int

    @property
    def spec(self) -> DiskById:
        """The disk as an inventory names it, by model and serial as udev does."""
        serial = f"sim_{self.name}"
        return DiskById(self.name, f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{serial}", serial, destroy=True)

    def hardware(self, image: Path) -> list[str]:
        """QEMU's arguments for it, with its data in the file `image`."""
        return [*_drive(self.name, image), "-device", f"nvme,drive={self.name},serial={self.spec.serial}"]


@dataclass(frozen=True, slots=True)
class ScsiDisk:
    """A disk that QEMU emulates behind a SCSI controller: it takes whatever commands a guest may send."""

    name: str
    size_bytes: int

    @property
    def spec(self) -> DiskById:
        """The disk as an inventory names it, by vendor, product and serial as udev does."""
        serial = f"sim_{self.name}"
        return DiskById(self.name, f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}", serial, destroy=True)

    def hardware(self, image: Path) -> list[str]:
        """QEMU's arguments for it and its controller, with its data in the file `image`."""
        return [
            *_drive(self.name, image),
            *("-device", f"virtio-scsi-pci,id={self.name}-controller"),
            *("-device", f"scsi-hd,bus={self.name}-controller.0,drive={self.name},serial={self.spec.serial}"),
        ]


EmulatedDisk = NvmeDisk | ScsiDisk
SimulatedDisk = NullBlkDisk | EmulatedDisk

IN_MEMORY = (
    NullBlkDisk("optane", 1024 * MIB, completion_ns=10_000, queue_depth=256, queues=2),
    NullBlkDisk("sata_ssd", 1024 * MIB, completion_ns=100_000, queue_depth=32, queues=2, bandwidth_mib_s=500),
    # One request at a time, 4 ms each: like a head that has to be somewhere first, IOPS hardly grow with iodepth.
    NullBlkDisk("hdd", 1024 * MIB, completion_ns=4_000_000, queue_depth=1),
    # For arrays. So slow that four of them together keep below what the emulated CPUs can do: an array scales.
    *(NullBlkDisk(f"ssd{n}", 512 * MIB, completion_ns=2_000_000, queue_depth=4) for n in (1, 2, 3, 4)),
)
EMULATED = (NvmeDisk("nvme", 1024 * MIB), ScsiDisk("scsi", 256 * MIB))
DISKS: tuple[SimulatedDisk, ...] = (*IN_MEMORY, *EMULATED)


def creation_script() -> str:
    """Shell commands that make the disks in memory and wait for the links of all; a second run changes nothing."""
    lines = ["set -eu", "modprobe null_blk nr_devices=0", "cd /sys/kernel/config/nullb"]
    lines += [disk.creation() for disk in IN_MEMORY]
    lines.append("udevadm settle --timeout=20")
    lines += [f"test -b {disk.spec.id}" for disk in DISKS]
    return "\n".join(lines)


def _drive(name: str, image: Path) -> list[str]:
    # Neither flushed nor read past the page cache: the data need not survive, and it is no disk's speed that shows.
    return ["-drive", f"if=none,id={name},file={image},format=raw,cache=unsafe,discard=unmap"]
