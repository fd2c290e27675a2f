"""Hands a PCI device of the host to a running guest (VFIO), and takes it back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

import libvirt

from harness.errors import GuestError, HostError, SafetyError
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.effective import live_xml
from harness.guest.pci import PciDisk
from harness.guest.pci_return import given_back, mark
from harness.lab.guard import inspect
from harness.lab.transport.base import Runner
from harness.units import format_duration

PLUG_SECONDS = 120.0
RELEASE_SECONDS = 60.0
_POLL_SECONDS = 0.1


def hostdev_xml(address: str, bus: int, alias: str) -> str:
    """The host's PCI device at `address` (DDDD:BB:DD.F), plugged into the port that is the guest's PCIe bus `bus`.

    Managed: libvirt takes it from its driver on the host, and gives it back.
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
    connection: Connection, domain: Any, runner: Runner, disk: PciDisk, *, bus: int, alias: str
) -> Iterator[None]:
    """The guest has the device for as long as this lasts; then the host has the disk again under its link.

    Raises SafetyError where the host uses the disk, GuestError where the guest does not let go of it (it is destroyed
    then), HostError where the guest does not get it, or the host does not get it back.
    """
    require_unused(runner, disk)
    xml = hostdev_xml(disk.address, bus, alias)
    mark(runner, disk)
    released = True
    try:
        connection.call(
            f"give {disk.path} ({disk.address}) to the guest",
            partial(domain.attachDeviceFlags, xml, libvirt.VIR_DOMAIN_AFFECT_LIVE),
            deadline=PLUG_SECONDS,
            hint="see dmesg there; another device of its IOMMU group may be in use",
        )
        yield
    finally:
        released = _unplugged(connection, domain, xml, alias)
        if not released:
            # A device goes back to the host with the process that has it.
            with suppress(HostError):
                connection.call("destroy the guest", domain.destroy, deadline=60)
        given_back(runner, disk.address, disk.driver, disk.path)
    if not released:
        raise GuestError(
            f"host {connection.host}: the guest did not let go of {disk.path} within "
            f"{format_duration(RELEASE_SECONDS)}, and was destroyed",
            hint="its kernel needs PCI hot-plug (pciehp, acpiphp), and nothing in it may keep the disk busy",
        )


def require_unused(runner: Runner, disk: PciDisk) -> None:
    """Raise SafetyError where the host itself has the disk in use: it would vanish under its feet."""
    seen = inspect(runner, disk.path)
    if seen is None:
        raise SafetyError(f"{runner.name}: {disk.path} is no block device of the host now")
    reasons = [f"{mount} is mounted" for mount in seen.mounts]
    reasons += [f"{swap} is used as swap" for swap in seen.swaps]
    reasons += [f"{holder} is in use" for holder in seen.holders]
    if seen.is_root:
        reasons.append("the host's root file system is on it")
    if reasons:
        raise SafetyError(
            f"{runner.name}: {disk.path} will not be handed to a guest: {'; '.join(reasons)}",
            hint="a disk that is passed through can carry no other mode at the same time",
        )


def _unplugged(connection: Connection, domain: Any, xml: str, alias: str) -> bool:
    """Whether the guest has let go of the device, or is gone itself."""
    # Where it was not plugged in, or the guest has ended, libvirt refuses: both are what is wanted.
    with suppress(HostError):
        detach = partial(domain.detachDeviceFlags, xml, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        connection.call("take the device back", detach, deadline=PLUG_SECONDS)
    end = time.monotonic() + RELEASE_SECONDS
    while time.monotonic() < end:
        try:
            live = live_xml(connection, domain)
        except Refused:
            return True
        if all(each.get("name") != alias for each in live.iterfind("devices/hostdev/alias")):
            return True
        time.sleep(_POLL_SECONDS)
    return False
