"""The system of a guest that boots from a disk image: its part of the domain XML, and how it is read back. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree as ET

from harness.guest.libvirt.addresses import DriveNames, RootBus
from harness.guest.libvirt.disks import Taken
from harness.model.effective import Effective
from harness.model.guest import Firmware

_ALIASES = ("ua-voh-system", "ua-voh-seed")
_PREFIX = "vd"


@dataclass(frozen=True, slots=True)
class SystemFiles:
    """What a guest of a disk image boots from: the files in a directory on the host, made for this guest only."""

    directory: str
    firmware: Firmware = "bios"

    @property
    def layer(self) -> str:
        """The copy-on-write layer on top of the image."""
        return f"{self.directory}/system.qcow2"

    @property
    def seed(self) -> str:
        """The disk with the data for cloud-init."""
        return f"{self.directory}/seed.img"

    @property
    def variables(self) -> str:
        """The variables of UEFI. libvirt creates the file."""
        return f"{self.directory}/variables.fd"


def add_firmware(system: ET.Element, files: SystemFiles) -> None:
    """The firmware. BIOS is libvirt's default. libvirt chooses a UEFI that boots systems without a signature, too."""
    if files.firmware == "uefi":
        system.set("firmware", "efi")
        ET.SubElement(ET.SubElement(system, "firmware"), "feature", enabled="no", name="secure-boot")
        ET.SubElement(system, "nvram").text = files.variables


def add_system(devices: ET.Element, bus: RootBus, files: SystemFiles) -> Taken:
    """Add both disks of the system. Returns the names that they have.

    Nothing survives the guest, so nothing is flushed: what the system itself writes disturbs the measurement least.
    """
    names = DriveNames()
    taken = []
    for alias, path, image_format in zip(_ALIASES, (files.layer, files.seed), ("qcow2", "raw"), strict=True):
        disk = ET.SubElement(devices, "disk", type="file", device="disk")
        driver = {"name": "qemu", "type": image_format, "discard": "unmap", "detect_zeroes": "off"}
        ET.SubElement(disk, "driver", driver | {"cache": "unsafe", "io": "threads"})
        ET.SubElement(disk, "source", file=path)
        taken.append(names.next(_PREFIX))
        ET.SubElement(disk, "target", dev=taken[-1], bus="virtio")
        if path == files.seed:
            ET.SubElement(disk, "readonly")
        else:
            ET.SubElement(disk, "boot", order="1")
        bus.place(disk)
        ET.SubElement(disk, "serial").text = alias.removeprefix("ua-")
        ET.SubElement(disk, "alias", name=alias)
    return Taken(names=frozenset(taken))


def read_system(live: ET.Element) -> Effective:
    """Image and firmware of the guest that runs as `live`. Nothing for a guest without a disk for its system."""
    for disk in live.iterfind("devices/disk"):
        alias, below = disk.find("alias"), disk.find("backingStore/source")
        if alias is not None and alias.get("name") == _ALIASES[0]:
            uefi = live.find("os/loader") is not None
            image = below.get("file") if below is not None else None
            return Effective(qemu_image=image, qemu_firmware="uefi" if uefi else "bios")
    return Effective()
