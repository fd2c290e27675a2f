"""Checks that the node's storages have enough free space for the volumes of a run, before it creates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.errors import HostError, SafetyError, Unsupported
from harness.guest.proxmox.client import Client
from harness.lab.storage_space import Allocation, read_space, shortages
from harness.lab.transport.base import Runner


def require_room(client: Client, runner: Runner, wanted: Sequence[Allocation]) -> None:
    """Raises Unsupported if too little space would remain free on a storage, SafetyError if the space is unknown."""
    names = list(dict.fromkeys(each.storage for each in wanted))
    entries = {str(each["storage"]): each for each in client.get("storage")}
    words = [word for name in names for word in _words(client, name, entries.get(name, {}))]
    try:
        places = read_space(runner, words)
    except HostError as error:
        raise SafetyError(
            f"host {client.host}: the free space on {', '.join(names)} is unknown: {error.message}",
            hint="see pvesm status, vgs, lvs and df on the node",
        ) from error
    if unknown := [name for name in names if name not in {each.storage for each in places}]:
        raise SafetyError(f"host {client.host}: the node does not report the free space on {', '.join(unknown)}")
    if reasons := list(shortages(places, wanted)):
        raise Unsupported(
            f"host {client.host}: " + "; ".join(reasons),
            hint="free space there, measure a smaller span (a lighter profile), select fewer modes with -k, or name "
            "another storage",
        )


def _words(client: Client, name: str, entry: Mapping[str, Any]) -> tuple[str, str, str]:
    kind = str(entry.get("type", ""))
    at = {
        "lvm": str(entry.get("vgname", "")),
        "lvmthin": f"{entry.get('vgname', '')}/{entry.get('thinpool', '')}",
        "zfspool": str(entry.get("pool", "")),
    }.get(kind, str(entry.get("path", "")))
    if not at.strip("/"):
        raise SafetyError(f"host {client.host}: the place of storage {name} of type {kind or '(none)'} is unknown")
    return name, kind, at
