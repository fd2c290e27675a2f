"""Removes a storage that a run created on its own partition, if its identity still matches the creation log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from harness.errors import HostError, SafetyError
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.things import MOUNTS, CreatedStore, Maker
from harness.lab.created import Removal
from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import reading

STORE_SECONDS = 300.0

REMOVES: Mapping[Maker, str] = {
    "lvm": "lvmremove",
    "lvmthin": "lvmthinremove",
    "directory": "dirremove",
    "zfs": "zfsremove",
}
"""Kinds of tasks; see PVE::API2::Disks."""

LOOK = read_script("harness.guest.proxmox", "inspect_store.sh")

# $1: a mount point. Prints it if it exists.
MOUNT_POINT = 'ls -d "$1" 2>/dev/null || true'
# Removes neither a directory with contents nor one on which something is mounted.
REMOVE_MOUNT_POINT = r"""
ls -d "$1" >/dev/null 2>&1 || exit 0
find "$1" -maxdepth 0 -type d -delete
"""


def require_no_mount_point(runner: Runner, name: str) -> None:
    """Raises SafetyError if PVE's mount point for this storage already exists: the run must not remove it later."""
    printed = runner.run(["sh", "-c", MOUNT_POINT, "sh", f"{MOUNTS}/{name}"], deadline=30).stdout.strip()
    if printed:
        raise SafetyError(
            f"{runner.name}: {printed} already exists, and this run did not create it",
            hint=f"if it is empty and nothing is mounted there: rmdir {printed} on the node",
        )


@reading("Proxmox VE's answer about a storage")
def remove_store(client: Client, runner: Runner, store: CreatedStore) -> Removal:
    """Remove what PVE created under this name on the run's partition, and its entry in the storage configuration.

    It removes what exists, which may differ from the request: a failed creation of a thin pool leaves its volume group.
    Raises HostError if the storage holds something that the run did not create, or its owner is unknown, and PveError.
    """
    require_node(client, store.node)
    entries = [dict(each) for each in client.get("storage")]
    entry = next((entry for entry in entries if entry["storage"] == store.name), None)
    if entry is not None and (why := store.differs(entry)):
        return Removal("foreign", why)
    verdict = _look(client, runner, store)
    outcome, _, why = verdict.partition(": ")
    if outcome == "foreign":
        return Removal("foreign", why)
    if outcome == "absent" and entry is None:
        _remove_mount_point(runner, store)
        return Removal("absent")
    if outcome != "absent":
        _require_nothing_else(client, store, why, entry, store.others(entries))
        _unmake(client, store)
    if store.name in storage_ids(client):
        client.write("delete", f"storage/{store.name}", {}, is_done=partial(_is_gone, client, store.name))
    _remove_mount_point(runner, store)
    return Removal("removed")


def _remove_mount_point(runner: Runner, store: CreatedStore) -> None:
    """Remove the empty directory that PVE leaves. It did not exist before the run, see `require_no_mount_point`."""
    if store.maker == "directory":
        runner.run(["sh", "-c", REMOVE_MOUNT_POINT, "sh", f"{MOUNTS}/{store.name}"], deadline=30)


def require_node(client: Client, node: str) -> None:
    """Raises HostError if the log is from another node than the API."""
    if node != client.spec.node:
        raise HostError(
            f"host {client.host}: the creation log is from node {node}, but the API is on node {client.spec.node}",
            hint=f"correct host.{client.host}.api.node, or host.{client.host}.address",
        )


def storage_ids(client: Client) -> set[str]:
    return {str(each["storage"]) for each in client.get("storage")}


def children(tree: Any) -> list[Mapping[str, Any]]:
    """The entries of a list that PVE returns as a tree: volume groups with their devices as children."""
    found: list[Mapping[str, Any]] = tree.get("children", []) if isinstance(tree, Mapping) else []
    return found


def makers_of(client: Client, name: str) -> list[Maker]:
    """The kinds of things that PVE created under this name. There is more than one if a creation was interrupted."""
    thin = [str(each["vg"]) for each in _listed(client, "lvmthin")]
    groups = [str(child["name"]) for child in children(_listed(client, "lvm"))]
    pools = [str(each["name"]) for each in _listed(client, "zfs")]
    found: list[tuple[Maker, bool]] = [
        ("lvmthin", name in thin),
        ("lvm", name in groups and name not in thin),
        ("directory", _mounted(client, name) != ""),
        ("zfs", name in pools),
    ]
    return [maker for maker, is_there in found if is_there]


def _mounted(client: Client, name: str) -> str:
    """The device that PVE mounts under this name; empty if it mounts none."""
    path = f"{MOUNTS}/{name}"
    return next((str(each["device"]) for each in _listed(client, "directory") if each["path"] == path), "")


def _look(client: Client, runner: Runner, store: CreatedStore) -> str:
    device = _mounted(client, store.name) if store.maker == "directory" else ""
    arguments = [store.maker, store.name, store.partuuid, device]
    printed = runner.run(["sh", "-c", LOOK, "sh", *arguments], deadline=60).stdout.strip()
    if printed.partition(":")[0] not in ("absent", "ours", "foreign", "holds"):
        raise HostError(f"{runner.name}: the check of storage {store.name} did not report its result: {printed!r}")
    return printed


def _require_nothing_else(
    client: Client, store: CreatedStore, holds: str, entry: Mapping[str, Any] | None, others: Sequence[str]
) -> None:
    """Raises HostError if the removal would also remove something on the storage that the run did not create."""
    found = [*filter(None, [holds]), *(f"storage {other}" for other in others)]
    if entry is not None:
        found += [str(each["volid"]) for each in client.get(f"{client.node}/storage/{store.name}/content")]
    if found:
        raise HostError(
            f"host {client.host}: storage {store.name} is not removed: this run did not create everything on it: "
            + ", ".join(found),
            hint=f"move these to another storage, then: virt-overhead reap --host {client.host}",
        )


def _unmake(client: Client, store: CreatedStore) -> None:
    name = store.name
    makers = makers_of(client, name)
    if not makers:
        raise HostError(
            f"host {client.host}: {name} is on the partition of this run, but Proxmox VE does not list it",
            hint=f"{client.spec.who} needs Sys.Audit on /; see also: pvesh get /nodes/{store.node}/disks/lvm",
        )
    for maker in makers:
        group = {"volume-group": name} if maker == "lvmthin" else {}
        client.task(
            "delete",
            f"{client.node}/disks/{maker}/{name}",
            {"cleanup-config": 1, "cleanup-disks": 1, **group},
            is_done=partial(_is_unmade, client, maker, name),
            expected=Expected(REMOVES[maker], f"{name}-{name}" if maker == "lvmthin" else name),
            deadline=STORE_SECONDS,
            # PVE takes the storage from its configuration after it has removed what it is on.
            undo=partial(_is_still_made, client, maker, name),
        )


def _is_still_made(client: Client, maker: Maker, name: str) -> bool:
    return maker in makers_of(client, name)


def _is_unmade(client: Client, maker: Maker, name: str) -> bool:
    return maker not in makers_of(client, name) and _is_gone(client, name)


def _listed(client: Client, maker: Maker) -> Any:
    """What PVE lists; nothing if the login may not see it, because then it cannot have created anything either."""
    try:
        return client.get(f"{client.node}/disks/{maker}")
    except PveError as error:
        if error.lost:
            raise
        return []


def _is_gone(client: Client, storage: str) -> bool:
    return storage not in storage_ids(client)
