"""Passes a PCI device of the host through to a running guest (VFIO), and returns it to the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import libvirt

from harness.errors import GuestError, HostError
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.effective import live_xml
from harness.guest.pci import PassedThrough, PciDisk
from harness.lab.created import CreationLog
from harness.lab.guard import Writable, lend, take_back
from harness.signals import cleaning_up
from harness.units import format_duration
from harness.waiting import wait_until

PLUG_SECONDS = 120.0
RELEASE_SECONDS = 60.0
_POLL_SECONDS = 0.1


def hostdev_xml(address: str, bus: int, alias: str) -> str:
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


@contextmanager
def plugged(
    connection: Connection, domain: Any, log: CreationLog, disk: PciDisk, grant: Writable, *, bus: int, alias: str
) -> Iterator[None]:
    """The guest has the device until the end of the block. Then the host has the disk again under its link.

    Raises SafetyError if the host uses the disk or another disk comes back, GuestError if the guest does not release
    it (then the guest is destroyed), and HostError if the guest does not get it or the host does not get it back.
    """
    loan = lend(grant, disk.path)
    xml = hostdev_xml(disk.address, bus, alias)
    released = True
    try:
        with log.making_here(
            PassedThrough(disks=grant.disks, address=disk.address, driver=disk.driver, link=disk.path)
        ):
            try:
                connection.call(
                    f"give {disk.path} ({disk.address}) to the guest",
                    partial(domain.attachDeviceFlags, xml, libvirt.VIR_DOMAIN_AFFECT_LIVE),
                    deadline=PLUG_SECONDS,
                    hint="see dmesg there; another device of its IOMMU group may be in use",
                )
                yield
            finally:
                with cleaning_up():
                    released = _unplugged(connection, domain, xml, alias)
                    if not released:
                        # The kernel returns the device to the host when the process ends.
                        with suppress(HostError):
                            connection.call("destroy the guest", domain.destroy, deadline=60)
    finally:
        with cleaning_up():
            take_back(loan)
    if not released:
        raise GuestError(
            f"host {connection.host}: the guest did not release {disk.path} within "
            f"{format_duration(RELEASE_SECONDS)}, and was destroyed",
            hint="its kernel needs PCI hot-plug (pciehp, acpiphp), and no program in it may use the disk",
        )


def _unplugged(connection: Connection, domain: Any, xml: str, alias: str) -> bool:
    """Whether the guest has released the device or has ended."""
    # libvirt refuses if the device was not plugged in or the guest has ended. Then nothing remains to do.
    with suppress(HostError):
        detach = partial(domain.detachDeviceFlags, xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        connection.call("take the device back", detach, deadline=PLUG_SECONDS)

    def released() -> bool:
        try:
            live = live_xml(connection, domain)
        except Refused:
            return True
        return all(each.get("name") != alias for each in live.iterfind("devices/hostdev/alias"))

    return wait_until(released, deadline=RELEASE_SECONDS, every=_POLL_SECONDS)
