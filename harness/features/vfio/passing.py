"""The PCI device of a disk: whether a guest can get it as a whole, and giving it to the guest and back to the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from xml.etree import ElementTree as ET

from harness.errors import GuestError, HostError
from harness.feature import import_later
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, Removal
from harness.lab.guard import Writable, lend, take_back
from harness.lab.transport.base import Runner
from harness.model.option import Effective
from harness.signals import cleaning_up, wait_until
from harness.units import format_duration
from harness.untrusted import reading

if TYPE_CHECKING:
    from harness.guest.libvirt import binding, effective
    from harness.guest.libvirt import connection as refusals
    from harness.guest.libvirt.connection import Connection
else:
    # Nodes of Proxmox VE need no libvirt.
    binding, effective, refusals = import_later("harness.guest.libvirt", "binding", "effective", "connection")

BACK_SECONDS = 60
PLUG_SECONDS = 120.0
RELEASE_SECONDS = 60.0
_POLL_SECONDS = 0.1

_READ_PCI_DEVICE = read_script("harness.features.vfio", "read_pci_device.sh")

_RETURN = read_script("harness.features.vfio", "return_pci_device.sh")

_ONLY_NVME = "VFIO passes a whole PCI device through, and only an NVMe disk is a PCI device"
_BRIDGE = "0x06"
"""PCI's class of bridges. The kernel's VFIO accepts a group whose other devices are bridges (PCIe ports)."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A device of an IOMMU group: its PCI class as the kernel writes it, and its driver, empty if it has none."""

    address: str
    pci_class: str
    driver: str


@dataclass(frozen=True, slots=True)
class PciDisk:
    """A disk and the PCI device behind it, as the host shows them. `group` is empty without an IOMMU.

    `disks` are the kernel's names of all disks behind the device. A guest sees the same `serial`.
    """

    path: str
    address: str
    driver: str
    serial: str
    group: str
    members: tuple[GroupMember, ...]
    disks: tuple[str, ...]
    has_vfio: bool

    @contextmanager
    def lent(self, log: CreationLog, grant: Writable) -> Iterator[None]:
        """The host does without the device until the end of the block. Then it has the disk again under its link.

        Raises SafetyError if the host uses the disk or another disk comes back, HostError if none does.
        """
        loan = lend(grant, self.path)
        try:
            thing = PassedThrough(disks=grant.disks, address=self.address, driver=self.driver, link=self.path)
            with log.making_here(thing):
                yield
        finally:
            with cleaning_up():
                take_back(loan)

    @contextmanager
    def plugged(
        self, connection: Connection, domain: Any, log: CreationLog, grant: Writable, *, bus: int, alias: str
    ) -> Iterator[None]:
        """The guest has the device until the end of the block. Then the host has the disk again under its link.

        Raises SafetyError if the host uses the disk or another disk comes back, GuestError if the guest does not
        release it (then the guest is destroyed), and HostError if one of both does not get it.
        """
        xml = build_hostdev_xml(self.address, bus, alias)
        released = True
        with self.lent(log, grant):
            try:
                connection.call(
                    f"give {self.path} ({self.address}) to the guest",
                    partial(domain.attachDeviceFlags, xml, binding.libvirt.VIR_DOMAIN_AFFECT_LIVE),
                    deadline=PLUG_SECONDS,
                    hint="see dmesg there; another device of its IOMMU group may be in use",
                )
                yield
            finally:
                with cleaning_up():
                    released = _unplug(connection, domain, xml, alias)
                    if not released:
                        # The kernel returns the device to the host when the process ends.
                        with suppress(HostError):
                            connection.call("destroy the guest", domain.destroy, deadline=60)
        if not released:
            raise GuestError(
                f"host {connection.host}: the guest did not release {self.path} within "
                f"{format_duration(RELEASE_SECONDS)}, and was destroyed",
                hint="its kernel needs PCI hot-plug (pciehp, acpiphp), and no program in it may use the disk",
            )

    def read_effective(self, host: Runner) -> Effective:
        """The device as its host has it now: its address, its group and its driver. Raises HostError."""
        link = f"/sys/bus/pci/devices/{self.address}/driver"
        return Effective(
            pci_address=self.address,
            iommu_group=self.group,
            host_driver=host.run(["readlink", link], deadline=20).stdout.strip().rpartition("/")[2],
        )


def find_passable(runner: Runner, path: str) -> PciDisk | str:
    """The PCI device behind the disk at `path`; or why no guest can get it, with the remedy. Raises HostError."""
    disk = find_pci_disk(runner, path)
    if disk is None:
        return f"{_ONLY_NVME}: no PCI device is behind it (a disk on a network, a loop device)"
    return refuse_passthrough(disk) or disk


def find_pci_disk(runner: Runner, path: str) -> PciDisk | None:
    """The PCI device behind the disk at `path`; None if there is not exactly one (a loop device, two paths)."""
    printed = runner.run(["sh", "-s", "--", path], stdin=_READ_PCI_DEVICE, deadline=60).stdout
    with reading(f"{runner.name}: the PCI device behind {path}"):
        return parse_pci_disk(path, printed)


def parse_pci_disk(path: str, printed: str) -> PciDisk | None:
    """The PCI device of the disk at `path`, from the output of the script."""
    facts: dict[str, list[str]] = {}
    for line in printed.splitlines():
        word, _, text = line.partition("\t")
        facts.setdefault(word, []).append(text)
    if len(facts.get("device", ())) != 1:
        return None
    address, _, driver = facts["device"][0].partition(" ")
    members = (text.split(" ") for text in facts.get("member", ()))
    return PciDisk(
        path=path,
        address=address,
        driver=driver,
        serial=facts["serial"][0],
        group=facts["group"][0],
        members=tuple(GroupMember(where, kind, by) for where, kind, by in members),
        disks=tuple(facts.get("disk", ())),
        has_vfio="vfio" in facts,
    )


def refuse_passthrough(disk: PciDisk) -> str | None:
    """Why this device cannot be passed through to a guest, with the remedy; None if it can. Pure."""
    if disk.driver != "nvme":
        return f"{_ONLY_NVME}: the driver of {disk.address} is {disk.driver}"
    return next(_find_passthrough_problems(disk), None)


def _find_passthrough_problems(disk: PciDisk) -> Iterator[str]:
    if not disk.group:
        yield (
            f"{disk.address} is in no IOMMU group: enable the IOMMU in the firmware (VT-d, AMD-Vi), and start the "
            "kernel with intel_iommu=on or amd_iommu=on"
        )
    others = [
        member for member in disk.members if member.address != disk.address and not member.pci_class.startswith(_BRIDGE)
    ]
    if others:
        named = ", ".join(f"{other.address} ({other.driver or 'no driver'})" for other in others)
        yield (
            f"{disk.address} shares IOMMU group {disk.group} with {named}, which the guest would also get: put the "
            "disk into a separate slot behind a port with ACS"
        )
    if len(disk.disks) != 1:
        yield f"{disk.address} is one device with {len(disk.disks)} disks: {', '.join(disk.disks)}"
    if not disk.serial:
        yield f"{disk.address} reports no serial number, which the guest needs to find the disk"
    if not disk.has_vfio:
        yield "the host's kernel has no vfio-pci: load it with modprobe vfio-pci, or use a kernel that has it"


class PassedThrough(HostThing):
    """A PCI device that a guest has: its address, its driver on the host, and the link of the disk behind it."""

    kind: Literal["passed-through"] = "passed-through"
    address: str
    driver: str
    link: str

    removal: ClassVar[str] = _RETURN
    seconds: ClassVar[float] = BACK_SECONDS * 2.0

    @property
    def words(self) -> str:
        return f"{self.link}, which a guest had"

    def arguments(self) -> Sequence[str]:
        return [self.address, self.driver, self.link, str(BACK_SECONDS)]

    def remove(self, runner: Runner) -> Removal:
        """Return the device to its driver. Raises HostError with the commands to do it by hand."""
        try:
            return super().remove(runner)
        except HostError as error:
            at = f"/sys/bus/pci/devices/{self.address}"
            raise HostError(
                f"{runner.name}: {self.link} did not come back from the guest within {BACK_SECONDS} s: {error.message}",
                hint=f"there: echo {self.address} >{at}/driver/unbind; echo >{at}/driver_override; "
                f"echo {self.address} >/sys/bus/pci/drivers_probe",
            ) from error


def build_hostdev_xml(address: str, bus: int, alias: str) -> str:
    """The XML of the host's PCI device at `address` (DDDD:BB:DD.F), plugged into the guest's PCIe bus `bus`.

    It is managed: libvirt unbinds it from its driver on the host, and returns it to that driver.
    """
    segment, of_host, rest = address.split(":")
    slot, function = rest.split(".")
    device = ET.Element("hostdev", mode="subsystem", type="pci", managed="yes")
    ET.SubElement(device, "driver", name="vfio")
    at = {"domain": f"0x{segment}", "bus": f"0x{of_host}", "slot": f"0x{slot}", "function": f"0x{function}"}
    ET.SubElement(ET.SubElement(device, "source"), "address", at)
    ET.SubElement(device, "alias", name=alias)
    place = {"type": "pci", "domain": "0x0000", "bus": f"{bus:#04x}", "slot": "0x00", "function": "0x0"}
    ET.SubElement(device, "address", place)
    ET.indent(device)
    return ET.tostring(device, encoding="unicode")


def _unplug(connection: Connection, domain: Any, xml: str, alias: str) -> bool:
    """Whether the guest has released the device or has ended."""
    # libvirt refuses if the device was not plugged in or the guest has ended. Then nothing remains to do.
    with suppress(HostError):
        detach = partial(domain.detachDeviceFlags, xml, binding.libvirt.VIR_DOMAIN_AFFECT_LIVE)
        connection.call("take the device back", detach, deadline=PLUG_SECONDS)

    def released() -> bool:
        try:
            live = effective.live_xml(connection, domain)
        except refusals.LibvirtRefusal:
            return True
        return all(other.get("name") != alias for other in live.iterfind("devices/hostdev/alias"))

    return wait_until(released, deadline=RELEASE_SECONDS, every=_POLL_SECONDS)
