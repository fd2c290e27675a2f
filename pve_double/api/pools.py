"""The calls about pools: named sets of VMs and storages, after PVE::API2::Pool."""

from __future__ import annotations

from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.errors import PveError
from pve_double.qemu import status
from pve_double.schema import split_list

_UPDATE = "update pools failed"


def list_pools(call: Call) -> list[dict[str, Any]]:
    may, pools = call.node.permissions, call.node.pools
    if "poolid" in call.params:
        may.require(call.user, f"/pool/{call.text('poolid')}", ["Pool.Audit"])
        return [get_pool(call)]
    return [
        {"poolid": name, **pools[name]} for name in sorted(pools) if may.has(call.user, f"/pool/{name}", ["Pool.Audit"])
    ]


def create_pool(call: Call) -> None:
    name, pools = call.text("poolid"), call.node.pools
    parent = name.rpartition("/")[0]
    if name in pools:
        raise PveError(f"create pool failed: pool '{name}' already exists")
    if parent and parent not in pools:
        raise PveError(f"create pool failed: parent pool '{parent}' does not exist")
    pools[name] = {"comment": call.text("comment")} if call.text("comment") else {}


def get_pool(call: Call) -> dict[str, Any]:
    name = _existing(call)
    kind = call.text("type")
    members = [
        status.resource(call.node, vmid)
        for vmid, pool in sorted(call.node.pool_of.items())
        if pool == name and vmid in call.node.machines and kind in {"", "qemu"}
    ]
    members += [
        {"id": f"storage/{call.node.name}/{each}", "type": "storage", "storage": each, "node": call.node.name}
        for each in sorted(call.node.pool_storages.get(name, ()))
        if each in call.node.store.storages and kind in {"", "storage"}
    ]
    return {"poolid": name, **call.node.pools[name], "members": members}


def update_pool(call: Call) -> None:
    name = _existing(call, f"{_UPDATE}: ")
    if "comment" in call.params:
        call.node.pools[name]["comment"] = call.text("comment")
    for each in split_list(call.text("vms")):
        call.node.permissions.require_to_modify(call.user, f"/vms/{each}")
        _change_vm(call, name, int(each))
    for each in split_list(call.text("storage")):
        call.node.permissions.require_to_modify(call.user, f"/storage/{each}")
        _change_storage(call, name, each)


def _change_vm(call: Call, name: str, vmid: int) -> None:
    # PVE does not look whether there is such a VM.
    pool_of, now = call.node.pool_of, call.node.pool_of.get(vmid)
    if call.flag("delete"):
        if now != name:
            raise PveError(f"{_UPDATE}: VM {vmid} is not a pool member")
        del pool_of[vmid]
        return
    if now == name:
        raise PveError(f"{_UPDATE}: VM {vmid} is already a pool member")
    if now is not None:
        if not call.flag("allow-move"):
            raise PveError(f"{_UPDATE}: VM {vmid} belongs already to pool '{now}' and 'allow-move' is not set")
        call.node.permissions.require(call.user, f"/pool/{now}", ["Pool.Allocate"])
    pool_of[vmid] = name


def _change_storage(call: Call, name: str, storage: str) -> None:
    members = call.node.pool_storages.setdefault(name, set())
    if call.flag("delete"):
        if storage not in members:
            raise PveError(f"{_UPDATE}: Storage '{storage}' is not a pool member")
        members.remove(storage)
        return
    if storage in members:
        raise PveError(f"{_UPDATE}: Storage '{storage}' is already a pool member")
    members.add(storage)


def delete_pool(call: Call) -> None:
    name, node, failed = _existing(call, "delete pool failed: "), call.node, "delete pool failed"
    for vmid in sorted(vmid for vmid, pool in node.pool_of.items() if pool == name and vmid in node.machines):
        raise PveError(f"{failed}: pool '{name}' is not empty (contains VM {vmid})")
    for storage in sorted(node.pool_storages.get(name, set()) & node.store.storages.keys()):
        raise PveError(f"{failed}: pool '{name}' is not empty (contains storage '{storage}')")
    for below in sorted(each for each in node.pools if each.startswith(f"{name}/")):
        raise PveError(f"{failed}: pool '{name}' is not empty (contains pool '{below}')")
    del node.pools[name]


def _existing(call: Call, failed: str = "") -> str:
    name = call.text("poolid")
    if name not in call.node.pools:
        raise PveError(f"{failed}pool '{name}' does not exist")
    return name


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", "/pools"): list_pools,
    ("POST", "/pools"): create_pool,
    ("GET", "/pools/{poolid}"): get_pool,
    ("PUT", "/pools/{poolid}"): update_pool,
    ("DELETE", "/pools/{poolid}"): delete_pool,
}
