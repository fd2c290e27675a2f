"""The requested disks of a guest, resolved on its host: what is missing for them, and their serial numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import Unsupported
from harness.guest import pci
from harness.guest.libvirt.disks import root_ports
from harness.guest.libvirt.requirements import Versions, missing_for, unoffered
from harness.guest.pci import PciDisk
from harness.guest.protocol import GuestDisk
from harness.guest.storage_daemon import PROGRAM, SERIAL
from harness.lab.facts import HostFacts
from harness.lab.inventory import AnyDisk, DiskById
from harness.lab.transport.base import Runner
from harness.model.attach import Attach, Attachment, Vfio

# $1: a disk's link or device. Prints the serial number in SCSI page 0x80; nothing if the device is not a SCSI disk.
_SERIAL = (
    'name=$(readlink -f "$1"); tail -c +5 "/sys/block/${name##*/}/device/vpd_pg80" 2>/dev/null | tr -d "\\000 "; true'
)


@dataclass(frozen=True, slots=True)
class Attachments:
    """The disks of a guest by name, and the serial numbers by which the guest finds them.

    `passed` has the devices that are passed through, `ports` the PCIe bus of the guest that each is plugged into.
    """

    disks: Mapping[str, GuestDisk]
    serials: Mapping[str, str]
    passed: Mapping[str, PciDisk]
    ports: Mapping[str, int]

    @property
    def lasting(self) -> list[str]:
        """The serial numbers of the disks that the guest has during its whole lifetime."""
        return [self.serials[name] for name in self.disks if name not in self.passed]


def resolved(runner: Runner, host: str, disks: Sequence[GuestDisk]) -> Attachments:
    """The attachments of a guest on `host`. Raises Unsupported if a disk cannot be passed through."""
    serials = {}
    passed = {}
    for disk in disks:
        if why := _cannot_be_handed(runner, disk.attach, disk.source.path):
            raise Unsupported(f"host {host}: {disk.name}: {why}")
        serials[disk.name] = disk.serial
        if isinstance(disk.attach, Vfio):
            device = pci.behind(runner, disk.source.path)
            assert device is not None, "refused above"
            passed[disk.name] = device
            serials[disk.name] = device.serial
        elif served_by_daemon(disk.attach):
            serials[disk.name] = SERIAL
        elif disk.attach.device == "lun":
            serials[disk.name] = _scsi_serial(runner, disk.source.path)
    return Attachments({disk.name: disk for disk in disks}, serials, passed, root_ports(tuple(disks)))


def served_by_daemon(attach: Attachment) -> bool:
    """Whether a storage daemon serves a disk that is attached in this way."""
    return isinstance(attach, Attach) and not attach.in_qemu


def missing(runner: Runner, facts: HostFacts, versions: Versions, attach: Attachment, disk: AnyDisk) -> str | None:
    """Why the host cannot attach `disk` in this way, with the remedy; None if it can."""
    cpus = int(facts["cpus"] or 1)
    if isinstance(attach, Attach) and (why := unoffered(attach, versions)):
        return why
    if served_by_daemon(attach) and not facts.has_tool(PROGRAM):
        return f"{PROGRAM} is not installed there: apt-get install qemu-system-common"
    if isinstance(attach, Attach) and (why := missing_for(attach, versions, cpus)):
        return why
    if isinstance(disk, DiskById):
        return _cannot_be_handed(runner, attach, disk.id)
    if isinstance(attach, Vfio) or attach.device == "lun":
        return f"{disk.identity} is not a device, so it cannot be passed through to a guest"
    return None


def _cannot_be_handed(runner: Runner, attach: Attachment, path: str) -> str | None:
    if isinstance(attach, Vfio):
        return pci.refusal(pci.behind(runner, path))
    if attach.device == "lun" and not _scsi_serial(runner, path):
        return f'device = "lun" passes SCSI commands through, but {path} is not a SCSI disk with a serial number'
    return None


def _scsi_serial(runner: Runner, path: str) -> str:
    return runner.run(["sh", "-c", _SERIAL, "sh", path], deadline=30).stdout.strip()
