"""The VM ids that are in use on a node: by VMs and containers, and by volumes that one of them left."""

from __future__ import annotations

from typing import Any

from harness.errors import SafetyError
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.things import vmids_of
from harness.untrusted import reading

_HOLDS_VOLUMES = frozenset({"images", "rootdir"})


@reading("what Proxmox VE answers of its storages", SafetyError)
def taken_ids(client: Client) -> set[int]:
    """Ids of VMs and containers of the cluster, and of the owners of volumes on every active storage of the node.

    A volume outlasts its VM where its storage was away when that was removed. Raises SafetyError where a storage cannot
    be listed in full.
    """
    taken = {int(each["vmid"]) for each in client.get("cluster/resources", {"type": "vm"})}
    for storage in client.get(f"{client.node}/storage"):
        if storage.get("active") and _HOLDS_VOLUMES & set(str(storage.get("content", "")).split(",")):
            taken |= vmids_of(_listed(client, str(storage["storage"])))
    return taken


def _listed(client: Client, storage: str) -> list[dict[str, Any]]:
    require_sight(client, storage)
    try:
        found: list[dict[str, Any]] = client.get(f"{client.node}/storage/{storage}/content")
    except PveError as error:
        raise SafetyError(
            f"host {client.host}: the volumes on storage {storage} cannot be listed, so nobody knows which VM ids they "
            f"belong to: {error.said}",
            hint=f"see `pvesm list {storage}` on the node; if not needed there: pvesm set {storage} --disable 1",
        ) from error
    return found


def require_sight(client: Client, storage: str) -> None:
    """SafetyError where PVE hides volumes of the storage from this login, which it does without a word."""
    path = f"/storage/{storage}"
    granted = set(client.get("access/permissions", {"path": path}).get(path, {}))
    if "Datastore.Allocate" in granted:
        return
    of_vms = set(client.get("access/permissions", {"path": "/vms"}).get("/vms", {}))
    if "Datastore.Audit" not in granted or "VM.Config.Disk" not in of_vms:
        raise SafetyError(
            f"host {client.host}: {client.spec.who} may not see all volumes on storage {storage}, so nobody knows "
            "whose they are",
            hint=f"give it Datastore.Audit on {path} and VM.Config.Disk on /vms: docs/proxmox.md has roles",
        )
