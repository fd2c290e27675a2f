"""How a disk is really attached: read back from the live domain XML and from QEMU, not from what was asked."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

from pydantic import JsonValue

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection
from harness.guest.libvirt.monitor import ask, of_device


def live_xml(connection: Connection, domain: Any) -> ET.Element:
    """The domain as libvirt runs it, with the aliases and addresses that it gave."""
    return ET.fromstring(connection.call("show the guest", domain.XMLDesc, deadline=60))


def alias_of(live: ET.Element, serial: str) -> str:
    """libvirt's alias of the disk with this serial, which is QEMU's id of the device."""
    return _alias(_disk(live, serial))


def read_effective(connection: Connection, domain: Any, live: ET.Element, serial: str) -> dict[str, JsonValue]:
    """Bus, cache, aio and iothread of the disk, and what QEMU's block layer and device made of them."""
    element = _disk(live, serial)
    driver = _attributes(element.find("driver"))
    target = _attributes(element.find("target"))
    controller = _scsi_controller(live, element)
    owner = element if controller is None else controller
    return {
        "bus": target.get("bus"),
        "cache": driver.get("cache"),
        "aio": driver.get("io"),
        "iothread": "iothread" in _attributes(owner.find("driver")),
        "machine": live.findtext("os/type") and _attributes(live.find("os/type")).get("machine"),
        **_qemu(connection, domain, _alias(element)),
        "qemu_iothread": _qemu_iothread(connection, domain, _alias(owner)),
    }


def _disk(live: ET.Element, serial: str) -> ET.Element:
    return next(each for each in live.iterfind("devices/disk") if each.findtext("serial") == serial)


def _alias(device: ET.Element) -> str:
    return _attributes(device.find("alias"))["name"]


def _attributes(element: ET.Element | None) -> dict[str, str]:
    return dict(element.attrib) if element is not None else {}


def _scsi_controller(live: ET.Element, disk: ET.Element) -> ET.Element | None:
    """The controller of a SCSI disk: it, and not the disk, has the queues and the iothread."""
    if _attributes(disk.find("target")).get("bus") != "scsi":
        return None
    index = _attributes(disk.find("address")).get("controller")
    controllers = (each for each in live.iterfind("devices/controller") if each.get("type") == "scsi")
    return next(each for each in controllers if each.get("index") == index)


def _qemu_iothread(connection: Connection, domain: Any, alias: str) -> bool:
    """Whether QEMU's device has an iothread; one of a kind that knows none has no such property."""
    try:
        return bool(ask(connection, domain, "qom-get", path=f"/machine/peripheral/{alias}", property="iothread"))
    except GuestError:
        return False


def _qemu(connection: Connection, domain: Any, alias: str) -> dict[str, JsonValue]:
    """cache.direct, no-flush and write-cache, as QEMU reports them for the disk's device."""
    entry = of_device(alias, ask(connection, domain, "query-block"))
    if entry is None:
        return {}
    cache = entry["inserted"]["cache"]
    return {
        "qemu_cache_direct": cache["direct"],
        "qemu_cache_no_flush": cache["no-flush"],
        "qemu_write_cache": cache["writeback"],
    }
