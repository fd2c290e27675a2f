"""The free space on storages of a node: enough for a volume before it is created, and a reserve while it is filled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import HostError, SafetyError, Unsupported
from harness.feature import locate_on_node
from harness.guest.proxmox.client import Client
from harness.lab.guard.room import filling_up, part_of, unallocated_bytes
from harness.lab.space import Allocation, StorageSpace, read_space, shortages
from harness.lab.transport.base import Runner

Allocated = Literal["in full", "as a file", "when written"]
"""How a storage allocates a volume: when it is created, what its file has, or each time when something is written."""


def allocated(entry: Mapping[str, Any]) -> Allocated:
    """How the storage with this entry of storage.cfg allocates its volumes. Pure."""
    kind = str(entry.get("type", ""))
    if kind == "lvm" or (kind == "zfspool" and not int(entry.get("sparse", 0))):
        return "in full"
    # A write to btrfs takes new blocks.
    return "as a file" if kind in ("dir", "nfs", "cifs", "cephfs") else "when written"


@dataclass(frozen=True, slots=True)
class Filled:
    """A volume of the run on an existing storage."""

    storage: str
    allocated: Allocated


@dataclass(frozen=True, slots=True)
class StoresReserve:
    """Keeps the reserve of existing storages free while the volumes of a run are filled and measured: a `Reserve`.

    `volumes` has the volumes by their paths on the node.
    """

    client: Client
    runner: Runner
    volumes: Mapping[str, Filled]

    def require(self, size_bytes: int) -> None:
        for storage in dict.fromkeys(volume.storage for volume in self.volumes.values()):
            self._require(Allocation(storage, size_bytes))

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        volume = self.volumes[path]
        match volume.allocated:
            case "in full":
                missing = 0
            case "as a file":
                missing = unallocated_bytes(self.runner, path, size_bytes)
            case "when written":
                missing = size_bytes
        self._require(part_of(volume.storage, part_bytes, missing=missing, size_bytes=size_bytes))

    def _require(self, wanted: Allocation) -> None:
        if why := "; ".join(shortages(_read_places(self.client, self.runner, [wanted.storage]), [wanted])):
            raise filling_up(f"host {self.client.host}: nothing more is written to storage {wanted.storage}", why)


def require_room(client: Client, runner: Runner, wanted: Sequence[Allocation]) -> None:
    """Raises Unsupported if too little space would remain free on a storage, SafetyError if the space is unknown."""
    places = _read_places(client, runner, list(dict.fromkeys(allocation.storage for allocation in wanted)))
    if reasons := list(shortages(places, wanted)):
        raise Unsupported(
            f"host {client.host}: " + "; ".join(reasons),
            hint="free space there, measure a smaller span (a lighter profile), select fewer modes with -k, or name "
            "another storage",
        )


def _read_places(client: Client, runner: Runner, names: Sequence[str]) -> list[StorageSpace]:
    """The places from which these storages take space. Raises SafetyError if they are unknown."""
    entries = client.storages()
    words = [word for name in names for word in _describe_place(client, name, entries.get(name, {}))]
    try:
        places = read_space(runner, words)
    except HostError as error:
        raise SafetyError(
            f"host {client.host}: the free space on {', '.join(names)} is unknown: {error.message}",
            hint="see pvesm status, vgs, lvs and df on the node",
        ) from error
    if unknown := [name for name in names if name not in {place.storage for place in places}]:
        raise SafetyError(f"host {client.host}: the node does not report the free space on {', '.join(unknown)}")
    return places


def _describe_place(client: Client, name: str, entry: Mapping[str, Any]) -> tuple[str, str, str]:
    kind = str(entry.get("type", ""))
    at = {
        "lvm": str(entry.get("vgname", "")),
        "lvmthin": f"{entry.get('vgname', '')}/{entry.get('thinpool', '')}",
        "zfspool": str(entry.get("pool", "")),
        **dict([locate_on_node(entry) or ("", "")]),
    }.get(kind, str(entry.get("path", "")))
    if not at.strip("/"):
        raise SafetyError(f"host {client.host}: the place of storage {name} of type {kind or '(none)'} is unknown")
    return name, kind, at
