"""Disks whose PCI device a guest gets as a whole (VFIO): which ones may be, and that the host has them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.errors import HostError
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, Removal
from harness.lab.guard import Writable, lend, take_back
from harness.lab.transport.base import Runner
from harness.model.option import Effective
from harness.signals import cleaning_up
from harness.untrusted import reading

BACK_SECONDS = 60

_READ_PCI_DEVICE = read_script("harness.guest", "read_pci_device.sh")

_RETURN = read_script("harness.guest", "return_pci_device.sh")

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


def refuse_passthrough(disk: PciDisk | None) -> str | None:
    """Why this device cannot be passed through to a guest, with the remedy; None if it can. Pure."""
    if disk is None or disk.driver != "nvme":
        what = "no PCI device is behind it (a disk on a network, a loop device)"
        what = what if disk is None else f"the driver of {disk.address} is {disk.driver}"
        return f"VFIO passes a whole PCI device through, and only an NVMe disk is a PCI device: {what}"
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


@contextmanager
def lent(log: CreationLog, disk: PciDisk, grant: Writable) -> Iterator[None]:
    """The host does without the device until the end of the block. Then it has the disk again under its link.

    Raises SafetyError if the host uses the disk or another disk comes back, HostError if none does.
    """
    loan = lend(grant, disk.path)
    try:
        with log.making_here(
            PassedThrough(disks=grant.disks, address=disk.address, driver=disk.driver, link=disk.path)
        ):
            yield
    finally:
        with cleaning_up():
            take_back(loan)


def read_host_driver(host: Runner, disk: PciDisk) -> Effective:
    """The device as its host has it now: its address, its group and its driver. Raises HostError."""
    link = f"/sys/bus/pci/devices/{disk.address}/driver"
    return Effective(
        pci_address=disk.address,
        iommu_group=disk.group,
        host_driver=host.run(["readlink", link], deadline=20).stdout.strip().rpartition("/")[2],
    )
