"""The lab's disks for arrays behind controllers, which let through less than their disks can do together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.lab.inventory import DiskById

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a disk or a controller does in a second, reads and writes together.

    QEMU's throttling applies it, which is a leaky bucket of 0.1 s. So 0.1 s after a pause are faster.
    """

    iops: int
    bytes_per_s: int

    def times(self, number: int) -> Limit:
        """The limit of so many together."""
        return Limit(self.iops * number, self.bytes_per_s * number)


@dataclass(frozen=True, slots=True)
class Controller:
    """A SCSI controller at the address `pci` of the lab host. `limit` is for all its disks together."""

    name: str
    pci: str
    disks: int
    limit: Limit

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

    controller: Controller
    target: int
    size_bytes: int
    limit: Limit

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
        own = f"throttling.iops-total={self.limit.iops},throttling.bps-total={self.limit.bytes_per_s}"
        # A throttle group counts the bytes of a discard, so it would take as long as a write. QEMU ignores discards.
        file = f"throttle-group={self.controller.group},file.driver=raw,file.file.driver=file"
        return [
            *("-drive", f"if=none,id={self.name},driver=throttle,{file},file.file.filename={image},cache=unsafe,{own}"),
            "-device",
            f"scsi-hd,bus={self.controller.name}.0,scsi-id={self.target},drive={self.name},serial={self.spec.serial}",
        ]


DISK_LIMIT = Limit(iops=200, bytes_per_s=8 * MIB)
"""So slow that two controllers at their limits leave the emulated CPUs idle for most of the time."""
DISK_BYTES = 160 * MIB
"""More than the guard reads as a whole (`WHOLE_BYTES`): at the disks' speed, this would take 12 min for 24 disks."""
LIMITING = 4
"""A controller does as much as so many of its disks. So 8 disks on it saturate it, and 16 are no faster."""
CONTROLLERS = (
    Controller("raid_a", "0000:00:10.0", disks=16, limit=DISK_LIMIT.times(LIMITING)),
    Controller("raid_b", "0000:00:11.0", disks=8, limit=DISK_LIMIT.times(LIMITING)),
)
CONTROLLER_DISKS = tuple(
    ControllerDisk(controller, target, DISK_BYTES, DISK_LIMIT)
    for controller in CONTROLLERS
    for target in range(1, controller.disks + 1)
)
