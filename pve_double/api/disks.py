"""The calls about the node's disks and what is made of them."""

from __future__ import annotations

import time
from typing import Any

from pve_double.api.call import Call, Handler
from pve_double.errors import PveError
from pve_double.schema import split_list
from pve_double.storage.disks import UNITS, Pool, mount_unit
from pve_double.storage.volumes import Storage
from pve_double.tasks import TaskLog

_DISKS = "/nodes/{node}/disks"
_LEAST_DISKS = {
    "mirror": 2, "raid10": 4, "raidz": 3, "raidz2": 4, "raidz3": 5, "draid": 3, "draid2": 4, "draid3": 5,
}  # fmt: skip
_KINDS = ("lvm", "lvmthin", "directory", "zfs")


def list_disks(call: Call) -> list[dict[str, Any]]:
    disks = [disk.entry() for disk in call.node.disks.disks]
    return [each for each in disks if not (call.text("type") == "unused" and each.get("used"))]


def wipe_disk(call: Call) -> str:
    path = call.text("disk")
    disk = call.node.disks.find(path)
    if disk.mounted or any(pool.disk is disk for pool in call.node.disks.pools):
        call.node.disks.wipe(path)
    return call.node.tasks.start(
        "wipedisk", disk.device.rpartition("/")[2], call.user, lambda _log: call.node.disks.wipe(path)
    )


def _make(kind: str) -> Handler:
    def make(call: Call) -> str:
        name, add_storage = call.text("name"), call.flag("add_storage")
        if add_storage:
            call.node.permissions.require(call.user, "/storage", ["Datastore.Allocate"])
        paths = split_list(call.text("devices")) or [call.text("device")]
        if kind == "zfs":
            _require_zfs(call)
            _check_raid(call.text("raidlevel"), len(paths))
        for path in paths:
            call.node.disks.unused(path)
        if add_storage:
            call.node.disks.check_storage_name(name)
        call.node.disks.check_pool_name(kind, name)
        filesystem = call.text("filesystem", "ext4")

        def work(log: TaskLog) -> None:
            del log
            call.node.disks.make(kind, name, paths[0], filesystem=filesystem, add_storage=add_storage)

        return call.node.tasks.start(_task(kind, "create"), name, call.user, work)

    return make


def _require_zfs(call: Call) -> None:
    if not call.node.settings.zfs:
        raise PveError("zfsutils-linux not installed")


def _check_raid(level: str, disks: int) -> None:
    """In the words of PVE::API2::Disks::ZFS. The double makes a pool of one disk, whatever it is asked for."""
    if level == "raid10" and disks % 2:
        raise PveError("raid10 needs an even number of disks")
    if level == "single" and disks > 1:
        raise PveError("please give only one disk for single disk mode")
    if disks < (needed := _LEAST_DISKS.get(level, 1)):
        raise PveError(f"{level} needs at least {needed} disks")


def _unmake(kind: str) -> Handler:
    def unmake(call: Call) -> str:
        name = call.text("name")
        config, disks = call.flag("cleanup-config"), call.flag("cleanup-disks")

        def work(log: TaskLog) -> None:
            del log
            call.node.disks.unmake(kind, name, group=group, cleanup_config=config, cleanup_disks=disks)

        group = call.text("volume-group", name)
        id_ = f"{group}-{name}" if kind == "lvmthin" else name
        return call.node.tasks.start(_task(kind, "remove"), id_, call.user, work)

    return unmake


def _task(kind: str, verb: str) -> str:
    return {"directory": "dir"}.get(kind, kind) + verb


def _list(kind: str) -> Handler:
    def listing(call: Call) -> Any:
        if kind == "zfs":
            _require_zfs(call)
        match kind:
            case "lvm":
                return {"children": _groups(call), "leaf": 0}
            case "lvmthin":
                return _thin_pools(call)
        return [_entry(pool) for pool in call.node.disks.pools if pool.kind == kind]

    return listing


def _groups(call: Call) -> list[dict[str, Any]]:
    """The volume groups of the node, as PVE::Storage::LVMPlugin::lvm_vgs has them: also those that storages name."""
    storages = call.node.store.storages.values()
    devices = {each.vgname: call.node.executor.group_device for each in storages if each.vgname and not each.offline}
    devices |= {pool.name: pool.disk.device for pool in call.node.disks.pools if pool.kind in ("lvm", "lvmthin")}
    return [_group(call, name, device) for name, device in sorted(devices.items())]


def _group(call: Call, name: str, device: str) -> dict[str, Any]:
    on_it = [each for each in call.node.store.storages.values() if each.vgname == name and not each.offline]
    pool = next((each for each in call.node.disks.pools if each.name == name), None)
    size = max([each.total_bytes for each in on_it] + ([pool.storage().total_bytes] if pool else []))
    thin = {each.thinpool for each in on_it if each.thinpool} | ({name} if pool and pool.kind == "lvmthin" else set())
    thick = sum(call.node.store.used_bytes(each) for each in on_it if not each.thinpool)
    free = 0 if thin else size - thick
    volumes = sum(len(call.node.store.of(each.id)) for each in on_it)
    child = {"name": device, "size": size, "free": free, "leaf": 1}
    return {
        "name": name, "size": size, "free": free, "lvcount": len(thin) + volumes, "leaf": 0, "children": [child]
    }  # fmt: skip


def _thin_pools(call: Call) -> list[dict[str, Any]]:
    """PVE::Storage::LvmThinPlugin::list_thinpools: all of the node, with what LVM says of each."""
    pools = {(each.vgname, each.thinpool): each for each in call.node.store.storages.values() if each.thinpool}
    made = [pool for pool in call.node.disks.pools if pool.kind == "lvmthin"]
    pools |= {(pool.name, pool.name): pool.storage() for pool in made}
    return [_thin_pool(call, storage) for storage in pools.values() if not storage.offline]


def _thin_pool(call: Call, storage: Storage) -> dict[str, Any]:
    used, metadata_used = call.node.thin_usage.get(f"{storage.vgname}/{storage.thinpool}", ("0.00", "10.42"))
    metadata = min(max(storage.total_bytes // 100, 1 << 30), 16 << 30)
    return {
        "lv": storage.thinpool,
        "vg": storage.vgname,
        "lv_size": storage.total_bytes,
        "lv_state": "a",
        "lv_type": "t",
        "ctime": str(int(time.time() - (time.monotonic() - call.node.started))),
        "used": int(storage.total_bytes * float(used or 0) / 100),
        "metadata_size": metadata,
        "metadata_used": int(metadata * float(metadata_used or 0) / 100),
    }


def _entry(pool: Pool) -> dict[str, Any]:
    size = pool.storage().total_bytes
    if pool.kind == "directory":
        unit = f"{UNITS}/{mount_unit(pool.name)}"
        return {"path": pool.path, "device": pool.disk.device, "type": pool.filesystem, "options": "defaults",
                "unitfile": unit}  # fmt: skip
    return {"name": pool.name, "size": size, "alloc": 0, "free": size, "frag": 0, "dedup": 1, "health": "ONLINE"}


def get_zfs(call: Call) -> dict[str, Any]:
    _require_zfs(call)
    name = call.text("name")
    pool = next((each for each in call.node.disks.pools if (each.kind, each.name) == ("zfs", name)), None)
    if pool is None:
        raise PveError(f"command 'zpool status -P {name}' failed: exit code 1")
    counted = {"state": "ONLINE", "read": 0, "write": 0, "cksum": 0, "msg": ""}
    leaf = {"name": pool.disk.device, "leaf": 1, **counted}
    tree = [{"name": name, "leaf": 0, "children": [leaf], **counted}]
    return {"name": name, "state": "ONLINE", "errors": "No known data errors", "leaf": 0, "children": tree}


ROUTES: dict[tuple[str, str], Handler] = {
    ("GET", f"{_DISKS}/list"): list_disks,
    ("PUT", f"{_DISKS}/wipedisk"): wipe_disk,
    ("GET", f"{_DISKS}/zfs/{{name}}"): get_zfs,
    **{("GET", f"{_DISKS}/{kind}"): _list(kind) for kind in _KINDS},
    **{("POST", f"{_DISKS}/{kind}"): _make(kind) for kind in _KINDS},
    **{("DELETE", f"{_DISKS}/{kind}/{{name}}"): _unmake(kind) for kind in _KINDS},
}
