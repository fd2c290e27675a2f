"""How a disk is really attached: read back from the live domain XML and from QEMU, not from what was asked."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import libvirt_qemu
from pydantic import JsonValue

from harness.guest.libvirt.connection import Connection
from harness.guest.protocol import GuestDisk


def read_effective(connection: Connection, domain: Any, disk: GuestDisk) -> dict[str, JsonValue]:
    """Bus, cache, aio and iothread of the disk, and what QEMU's block layer made of the cache mode."""
    live = ET.fromstring(connection.call("show the guest", domain.XMLDesc, deadline=60))
    element = next(each for each in live.iterfind("devices/disk") if each.findtext("serial") == disk.serial)
    driver = _attributes(element.find("driver"))
    target = _attributes(element.find("target"))
    address = _attributes(element.find("address"))
    alias = _attributes(element.find("alias")).get("name", "")
    iothread = driver.get("iothread") or _controller_iothread(live, target.get("bus", ""), address)
    return {
        "bus": target.get("bus"),
        "cache": driver.get("cache"),
        "aio": driver.get("io"),
        "iothread": iothread is not None,
        "machine": live.findtext("os/type") and _attributes(live.find("os/type")).get("machine"),
        **_qemu_cache(connection, domain, alias),
    }


def _attributes(element: ET.Element | None) -> dict[str, str]:
    return dict(element.attrib) if element is not None else {}


def _controller_iothread(live: ET.Element, bus: str, address: dict[str, str]) -> str | None:
    if bus != "scsi":
        return None
    for controller in live.iterfind("devices/controller"):
        if controller.get("type") == "scsi" and controller.get("index") == address.get("controller"):
            return _attributes(controller.find("driver")).get("iothread")
    return None


def _qemu_cache(connection: Connection, domain: Any, alias: str) -> dict[str, JsonValue]:
    """cache.direct, no-flush and write-cache as QEMU reports them for the disk's device."""
    command = json.dumps({"execute": "query-block"})
    answer = connection.call(
        "ask QEMU for its block devices", lambda: libvirt_qemu.qemuMonitorCommand(domain, command, 0), deadline=60
    )
    for each in json.loads(answer)["return"]:
        if alias and (f"/{alias}/" in f"/{each.get('qdev', '')}/" or each.get("qdev") == alias):
            cache = each["inserted"]["cache"]
            return {
                "qemu_cache_direct": cache["direct"],
                "qemu_cache_no_flush": cache["no-flush"],
                "qemu_write_cache": cache["writeback"],
            }
    return {}
