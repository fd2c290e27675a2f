"""The VM ids in use on a node: by VMs and containers, and by volumes that remain from them."""

from __future__ import annotations

from typing import Any

from harness.errors import SafetyError
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.things import vmids_of
from harness.untrusted import reading

_HOLDS_VOLUMES = frozenset({"images", "rootdir"})


@reading("Proxmox VE's answer about its storages", SafetyError)
def taken_ids(client: Client) -> set[int]:
    """Ids of VMs and containers of the cluster, and of the owners of volumes on every active storage of the node.

    A volume remains if its storage was not available when its VM was removed. Raises SafetyError if the login may not
    see all volumes of a storage.
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
            f"host {client.host}: the volumes on storage {storage} cannot be listed, so their VM ids are unknown: "
            f"{error.reason}",
            hint=f"see `pvesm list {storage}` on the node; if it is not needed there: pvesm set {storage} --disable 1",
        ) from error
    return found


def require_sight(client: Client, storage: str) -> None:
    """Raises SafetyError if PVE hides volumes of the storage from this login, which it does without a warning."""
    path = f"/storage/{storage}"
    granted = client.privileges(path)
    if "Datastore.Allocate" in granted:
        return
    if "Datastore.Audit" not in granted or "VM.Config.Disk" not in client.privileges("/vms"):
        raise SafetyError(
            f"host {client.host}: {client.spec.who} may not see all volumes on storage {storage}, so their "
            "owners are unknown",
            hint=f"give it Datastore.Audit on {path} and VM.Config.Disk on /vms: docs/proxmox.md has roles",
        )
