"""The lab's simulated disks and their controllers. Each disk has an identity like a real disk.

null_blk or QEMU provides them. Disks for arrays are behind controllers that let through less than their disks can do
together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.lab.inventory import DiskById

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class SpeedLimit:
    """The most that a disk or a controller does in a second, reads and writes together.

    QEMU's throttling applies it, which is a leaky bucket of 0.1 s. So 0.1 s after a pause are faster.
    """

    iops: int
    bytes_per_s: int

    def times(self, number: int) -> SpeedLimit:
        """The limit of so many together."""
        return SpeedLimit(self.iops * number, self.bytes_per_s * number)


@dataclass(frozen=True, slots=True)
class SimulatedController:
    """A SCSI controller at the address `pci` of the lab host. `limit` is for all its disks together."""

    name: str
    pci: str
    disks: int
    limit: SpeedLimit

    @property
    def group(self) -> str:
        """QEMU's throttle group of its disks."""
        return f"{self.name}-limit"

    def hardware(self) -> list[str]:
        """QEMU's arguments for the controller."""
        limits = f"x-iops-total={self.limit.iops},x-bps-total={self.limit.bytes_per_s}"
        slot, function = self.pci.rpartition(":")[2].split(".")
        return [
            *("-object", f"throttle-group,id={self.group},{limits}"),
            *("-device", f"virtio-scsi-pci,id={self.name},addr=0x{slot}.{function}"),
        ]


@dataclass(frozen=True, slots=True)
class ControllerDisk:
    """A disk with a limit of its own behind a controller. `target` is its number there, from 1."""

    controller: SimulatedController
    target: int
    size_bytes: int
    limit: SpeedLimit

    @property
    def name(self) -> str:
        return f"{self.controller.name}_{self.target}"

    @property
    def spec(self) -> DiskById:
        """The disk for the inventory, with udev's link of vendor, product and serial number."""
        serial = f"sim_{self.name}"
        link = f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}"
        return DiskById(self.name, link, serial, destroy=True, iops=self.limit.iops)

    def hardware(self, image: Path) -> list[str]:
        """QEMU's arguments for the disk, with its data in the file `image`. The controller's arguments come first."""
        limits = f"throttling.iops-total={self.limit.iops},throttling.bps-total={self.limit.bytes_per_s}"
        # A throttle group counts the bytes of a discard, so it would take as long as a write. QEMU ignores discards.
        file = f"throttle-group={self.controller.group},file.driver=raw,file.file.driver=file"
        return [
            *(
                "-drive",
                f"if=none,id={self.name},driver=throttle,{file},file.file.filename={image},cache=unsafe,{limits}",
            ),
            "-device",
            f"scsi-hd,bus={self.controller.name}.0,scsi-id={self.target},drive={self.name},serial={self.spec.serial}",
        ]


DISK_LIMIT = SpeedLimit(iops=200, bytes_per_s=8 * MIB)
"""So slow that two controllers at their limits leave the emulated CPUs idle for most of the time."""
DISK_BYTES = 160 * MIB
"""More than the guard reads as a whole (`WHOLE_BYTES`): at the disks' speed, this would take 12 min for 24 disks."""
LIMITING = 4
"""A controller does as much as so many of its disks. So 8 disks on it saturate it, and 16 are no faster."""
CONTROLLERS = (
    SimulatedController("raid_a", "0000:00:10.0", disks=16, limit=DISK_LIMIT.times(LIMITING)),
    SimulatedController("raid_b", "0000:00:11.0", disks=8, limit=DISK_LIMIT.times(LIMITING)),
)
CONTROLLER_DISKS = tuple(
    ControllerDisk(controller, target, DISK_BYTES, DISK_LIMIT)
    for controller in CONTROLLERS
    for target in range(1, controller.disks + 1)
)


@dataclass(frozen=True, slots=True)
class NullBlkDisk:
    """A disk of the kernel module null_blk: completion time per request, bandwidth, and number of parallel requests.

    `size_bytes` is nominal: the disk is in the lab host's memory, and uses only as much as was written to it.
    `queue_depth` is the depth of each of its `queues`.
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
        """The disk for the inventory. The lab's udev rules create the link and the serial number."""
        return DiskById(self.name, f"/dev/disk/by-id/lab-{self.device}", self.device, destroy=True)

    def creation(self) -> str:
        """A shell command that creates the disk in null_blk's directory of configfs, if it does not exist yet."""
        settings = {
            "size": self.size_bytes // MIB,
            "memory_backed": 1,
            # null_blk delays a request that exceeds its bandwidth of one tick. A discard of the whole disk never ends.
            "discard": int(self.bandwidth_mib_s is None),
            "blocksize": 512,
            "max_sectors": 2560,  # 1280 KiB, the kernel's limit for real disks; by default it is 127 KiB
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
    """An NVMe controller that QEMU emulates. It is alone in its IOMMU group, so VFIO can pass it through."""

    name: str
    size_bytes: int

    @property
    def spec(self) -> DiskById:
        """The disk for the inventory, with udev's link of model and serial number."""
        serial = f"sim_{self.name}"
        return DiskById(self.name, f"/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{serial}", serial, destroy=True)

    def hardware(self, image: Path) -> list[str]:
        """QEMU's arguments for the disk, with its data in the file `image`."""
        return [*_make_drive(self.name, image), "-device", f"nvme,drive={self.name},serial={self.spec.serial}"]


@dataclass(frozen=True, slots=True)
class WriteCache:
    """A write cache that drains slowly: it takes `writes` at full speed, and passes on `drained_per_s` of them.

    QEMU's throttling simulates it, which is a leaky bucket of this size and rate.
    """

    writes: int
    drained_per_s: int

    @property
    def options(self) -> str:
        """QEMU's options of the drive."""
        return f",throttling.iops-write={self.drained_per_s},throttling.iops-write-max={self.writes}"


@dataclass(frozen=True, slots=True)
class ScsiDisk:
    """A disk that QEMU emulates behind a SCSI controller. It accepts all SCSI commands of a guest."""

    name: str
    size_bytes: int
    cache: WriteCache | None = None

    @property
    def spec(self) -> DiskById:
        """The disk for the inventory, with udev's link of vendor, product and serial number."""
        serial = f"sim_{self.name}"
        return DiskById(self.name, f"/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}", serial, destroy=True)

    def hardware(self, image: Path) -> list[str]:
        """QEMU's arguments for the disk and its controller, with its data in the file `image`."""
        drive, options = _make_drive(self.name, image)
        return [
            *(drive, options + (self.cache.options if self.cache else "")),
            *("-device", f"virtio-scsi-pci,id={self.name}-controller"),
            *("-device", f"scsi-hd,bus={self.name}-controller.0,drive={self.name},serial={self.spec.serial}"),
        ]


EmulatedDisk = NvmeDisk | ScsiDisk | ControllerDisk
SimulatedDisk = NullBlkDisk | EmulatedDisk

IN_MEMORY = (
    NullBlkDisk("optane", 1024 * MIB, completion_ns=10_000, queue_depth=256, queues=2),
    NullBlkDisk("sata_ssd", 1024 * MIB, completion_ns=100_000, queue_depth=32, queues=2, bandwidth_mib_s=500),
    # One request at a time, 4 ms each. As with the head of a real disk, IOPS hardly grow with iodepth.
    NullBlkDisk("hdd", 1024 * MIB, completion_ns=4_000_000, queue_depth=1),
    # For arrays. Four of them together need less than the emulated CPUs can do, so an array scales.
    *(NullBlkDisk(f"ssd{n}", 512 * MIB, completion_ns=2_000_000, queue_depth=4) for n in (1, 2, 3, 4)),
)
EMULATED: tuple[EmulatedDisk, ...] = (
    NvmeDisk("nvme", 1024 * MIB),
    ScsiDisk("scsi", 256 * MIB),
    # On a slow machine, a guest writes about 1000 times in a second: more than the cache drains. So the arms of a block
    # fill it together.
    ScsiDisk("cached", 256 * MIB, WriteCache(writes=1500, drained_per_s=400)),
    *CONTROLLER_DISKS,
)
DISKS: tuple[SimulatedDisk, ...] = (*IN_MEMORY, *EMULATED)


def make_creation_script() -> str:
    """Shell commands that create the disks in memory and wait for the links of all disks. They can run again."""
    lines = ["set -eu", "modprobe null_blk nr_devices=0", "cd /sys/kernel/config/nullb"]
    lines += [disk.creation() for disk in IN_MEMORY]
    lines.append("udevadm settle --timeout=150")
    lines += [f"test -b {disk.spec.id}" for disk in DISKS]
    return "\n".join(lines)


def _make_drive(name: str, image: Path) -> list[str]:
    # No flushes and no direct I/O, because the data need not survive, and the speed does not represent a real disk.
    return ["-drive", f"if=none,id={name},file={image},format=raw,cache=unsafe,discard=unmap"]
