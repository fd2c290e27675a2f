"""What QEMU itself says of a running guest, asked over its monitor (QMP)."""

from __future__ import annotations

import json
from typing import Any

import libvirt_qemu

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection
from harness.lab.counters import Transferred

_SECONDS = 60


def ask(connection: Connection, domain: Any, command: str, **arguments: object) -> Any:
    """The answer to one QMP command. GuestError where QEMU refuses it."""
    text = json.dumps({"execute": command, "arguments": arguments})
    answer = connection.call(
        f"pass {command} to QEMU", lambda: libvirt_qemu.qemuMonitorCommand(domain, text, 0), deadline=_SECONDS
    )
    found = json.loads(answer)
    if "return" not in found:
        why = found.get("error", {}).get("desc", answer)
        raise GuestError(f"host {connection.host}: QEMU refused {command}: {why}")
    return found["return"]


def of_device(alias: str, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The entry of `query-block` or `query-blockstats` that belongs to the device libvirt calls `alias`.

    QEMU names it by its path in the object tree; that of virtio-blk has a part below the device itself.
    """
    return next((each for each in entries if f"/{alias}/" in f"/{each.get('qdev', '')}/"), None)


def transferred(connection: Connection, domain: Any, alias: str) -> Transferred:
    """What the device libvirt calls `alias` was asked to read and to write, as QEMU counts it."""
    entry = of_device(alias, ask(connection, domain, "query-blockstats"))
    if entry is None:
        raise GuestError(f"host {connection.host}: QEMU counts nothing for the guest's disk {alias}")
    return Transferred(entry["stats"]["rd_bytes"], entry["stats"]["wr_bytes"])
