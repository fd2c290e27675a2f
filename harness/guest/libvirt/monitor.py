"""What QEMU reports about a running guest over its monitor (QMP)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import libvirt
import libvirt_qemu

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection
from harness.lab.transport.base import Overdue, within
from harness.model.counters import Transferred
from harness.units import format_duration
from harness.untrusted import count, parse_json, reading

_SECONDS = 30.0
_NO_QEMU = "check which QEMU the guest runs in: virt-overhead doctor"


def ask(connection: Connection, domain: Any, command: str, **arguments: object) -> Any:
    """The answer to one QMP command. Raises GuestError if QEMU refuses it, hangs or has ended."""
    text = json.dumps({"execute": command, "arguments": arguments})
    try:
        answer = within(_SECONDS, lambda: libvirt_qemu.qemuMonitorCommand(domain, text, 0))
    except Overdue:
        raise GuestError(
            f"host {connection.host}: QEMU did not answer {command} within {format_duration(_SECONDS)}",
            hint=f"it hangs or was stopped; see on {connection.host}: journalctl -u libvirtd",
        ) from None
    except libvirt.libvirtError as error:
        raise GuestError(
            f"host {connection.host}: QEMU did not get the command {command}: {error.get_error_message()}"
        ) from error
    return answer_of(answer, command, f"host {connection.host}: QEMU")


def answer_of(text: str, command: str, who: str) -> Any:
    """What QEMU returns in its answer to `command`. Raises GuestError if it refuses or the answer is not valid."""
    source = f"{who}: its answer to {command}"
    with reading(source, GuestError, hint=_NO_QEMU):
        found = parse_json(text, source, GuestError, hint=_NO_QEMU)
        if "return" not in found:
            raise GuestError(f"{who} refused {command}: {str(found.get('error', {}).get('desc', text))[:300]}")
        return found["return"]


def of_device(alias: str, entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The entry of `query-block` or `query-blockstats` that belongs to the device libvirt calls `alias`.

    QEMU names it by its path in the object tree. For virtio-blk, the path has one more part below the device.
    """
    return next((entry for entry in entries if f"/{alias}/" in f"/{entry.get('qdev', '')}/"), None)


def transferred(connection: Connection, domain: Any, aliases: Iterable[str]) -> dict[str, Transferred]:
    """The bytes that the guest read from and wrote to the devices with these aliases, as QEMU counts them."""
    entries = ask(connection, domain, "query-blockstats")
    counted = {}
    for alias in aliases:
        with reading(f"host {connection.host}: QEMU's counts for the guest's disk {alias}", GuestError, hint=_NO_QEMU):
            entry = of_device(alias, entries)
            if entry is None:
                raise GuestError(f"host {connection.host}: QEMU counts nothing for the guest's disk {alias}")
            counted[alias] = Transferred(count(entry["stats"]["rd_bytes"]), count(entry["stats"]["wr_bytes"]))
    return counted
