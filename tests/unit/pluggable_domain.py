"""libvirt's handle of a running VM, played: it plugs devices in as libvirt does, and refuses what libvirt refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from xml.etree import ElementTree as ET

import libvirt

from harness.guest.libvirt.connection import Connection

DEFINITION = """
<domain type="kvm">
  <name>shop</name>
  <uuid>6f0b8f6e-5d0a-4f5e-9a0e-0d5b1d0c9a11</uuid>
  <memory unit="MiB">2048</memory>
  <vcpu>2</vcpu>
  <iothreads>2</iothreads>
  <os><type arch="x86_64" machine="pc">hvm</type></os>
  <devices>
    <disk type="file" device="disk"><driver name="qemu" type="qcow2"/><source file="/srv/shop.qcow2"/>
      <target dev="vda" bus="virtio"/><alias name="virtio-disk0"/></disk>
    <disk type="block" device="disk"><driver name="qemu" type="raw"/><source dev="/dev/vg/shop"/>
      <target dev="sda" bus="scsi"/><alias name="scsi0-0-0-0"/>
      <address type="drive" controller="0" bus="0" target="0" unit="0"/></disk>
    <controller type="scsi" index="0" model="virtio-scsi"><alias name="scsi0"/></controller>
    <controller type="scsi" index="2" model="virtio-scsi"><alias name="scsi2"/></controller>
  </devices>
</domain>
"""
NAME, UUID = "shop", "6f0b8f6e-5d0a-4f5e-9a0e-0d5b1d0c9a11"


class PluggableDomain:
    """The VM. `definition` is what libvirt stores of it; `changes` is what it was asked for, in this order.

    `refuses` is the alias of a device that is not plugged in, `clings_to` of one that the VM does not release.
    """

    def __init__(self, definition: str = DEFINITION) -> None:
        self.definition = definition
        self.changes: list[str] = []
        self.runs = True
        self.ended: int = libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN
        self.saved = False
        self.persistent = True
        self.undefined = False
        self.refuses = ""
        self.clings_to = ""
        self.before_change: Callable[[str], None] = lambda _change: None
        self.job_seconds = 30.0
        self._job = threading.Lock()
        self._live = ET.fromstring(definition)

    def name(self) -> str:
        return NAME

    def UUIDString(self) -> str:  # noqa: N802 - libvirt's name
        return UUID

    def isActive(self) -> bool:  # noqa: N802
        return self.runs

    def isPersistent(self) -> bool:  # noqa: N802
        return self.persistent

    def hasManagedSaveImage(self, _flags: int = 0) -> bool:  # noqa: N802
        return self.saved

    def state(self, _flags: int = 0) -> list[int]:
        return [libvirt.VIR_DOMAIN_RUNNING, 1] if self.runs else [libvirt.VIR_DOMAIN_SHUTOFF, self.ended]

    def memoryStats(self) -> dict[str, int]:  # noqa: N802
        """libvirt answers between two changes."""
        if not self._job.acquire(timeout=self.job_seconds):
            raise _TimedOut("Timed out during operation: cannot acquire state change lock")
        self._job.release()
        return {}

    def XMLDesc(self, _flags: int = 0) -> str:  # noqa: N802
        return ET.tostring(self._live, encoding="unicode")

    def attachDeviceFlags(self, xml: str, flags: int) -> None:  # noqa: N802
        device = ET.fromstring(xml)
        alias = _alias(device)
        with self._changing(f"plug {alias}", flags):
            if alias == self.refuses:
                raise _Refusal("internal error: No more available PCI slots")
            devices = self._devices
            if any(_alias(each) == alias for each in devices):
                raise _Refusal(f"device with alias {alias} exists")
            devices.append(device)

    def detachDeviceAlias(self, alias: str, flags: int) -> None:  # noqa: N802
        with self._changing(f"unplug {alias}", flags):
            if alias != self.clings_to:
                devices = self._devices
                devices.remove(next(each for each in devices if _alias(each) == alias))

    def addIOThread(self, number: int, flags: int) -> None:  # noqa: N802
        with self._changing(f"add iothread {number}", flags):
            self._set_threads([*self._threads, number])

    def delIOThread(self, number: int, flags: int) -> None:  # noqa: N802
        with self._changing(f"remove iothread {number}", flags):
            self._set_threads([each for each in self._threads if each != number])

    def replace(self, alias: str, **source: str) -> None:
        """Somebody else gives the disk with this alias another source."""
        disk = next(each for each in self._devices if _alias(each) == alias)
        (found,) = disk.iterfind("source")
        found.attrib.clear()
        found.attrib.update(source)

    @property
    def serials(self) -> list[str]:
        """The serial numbers of its disks, as its system sees them."""
        return [each.findtext("serial") or "" for each in self._devices.iterfind("disk")]

    @property
    def _devices(self) -> ET.Element:
        (found,) = self._live.iterfind("devices")
        return found

    @property
    def _threads(self) -> list[int]:
        listed = [int(each.get("id", "0")) for each in self._live.iterfind("iothreadids/iothread")]
        return listed or list(range(1, int(self._live.findtext("iothreads") or 0) + 1))

    def _set_threads(self, numbers: list[int]) -> None:
        """As libvirt shows them: their ids only if it has not numbered all of them itself."""
        for old in self._live.findall("iothreadids"):
            self._live.remove(old)
        (count,) = self._live.iterfind("iothreads")
        count.text = str(len(numbers))
        if len(numbers) > 2:
            listed = ET.SubElement(self._live, "iothreadids")
            for number in numbers:
                ET.SubElement(listed, "iothread", id=str(number))

    @contextmanager
    def _changing(self, change: str, flags: int) -> Iterator[None]:
        """One change, as libvirt makes them: no other one of this VM meanwhile."""
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE, f"{change} would change the definition"
        with self._job:
            self.before_change(change)
            self.changes.append(change)
            yield


class _Refusal(libvirt.libvirtError):  # type: ignore[misc] # libvirt has no types
    def get_error_message(self) -> str:
        return str(self)


class _TimedOut(_Refusal):
    def get_error_code(self) -> int:
        return int(libvirt.VIR_ERR_OPERATION_TIMEOUT)


class _Handle:
    def __init__(self, domain: PluggableDomain) -> None:
        self._domain = domain

    def lookupByName(self, name: str) -> PluggableDomain:  # noqa: N802
        return self._found(name == NAME)

    def lookupByUUIDString(self, uuid: str) -> PluggableDomain:  # noqa: N802
        return self._found(uuid == UUID and not self._domain.undefined)

    def getLibVersion(self) -> int:  # noqa: N802
        return 11_003_000

    def getVersion(self) -> int:  # noqa: N802
        return 10_000_002

    def _found(self, there: bool) -> PluggableDomain:
        if not there:
            raise _no_domain()
        return self._domain


def connected(domain: PluggableDomain) -> Connection:
    """A connection to a host that has only this VM."""
    return Connection(cast(Any, _Handle(domain)), "kvm1")


def _no_domain() -> libvirt.libvirtError:
    """libvirt's own error for a domain that is not there."""
    handle = libvirt.open("test:///default")
    try:
        handle.lookupByName("absent")
    except libvirt.libvirtError as error:
        return error
    finally:
        handle.close()
    raise AssertionError("unreachable: it is not there")


def _alias(device: ET.Element) -> str:
    found = device.find("alias")
    return found.get("name", "") if found is not None else ""
