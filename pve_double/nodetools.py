"""LVM, ZFS, blkid and the like as they would answer on the node, from what the double has: for its tests alone.

Where guests really run, the machine that they run on has these tools itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from pve_double.errors import PveError
from pve_double.executor.memory import MemoryExecutor
from pve_double.state import Node
from pve_double.storage.disks import Disk
from pve_double.storage.store import Volume
from pve_double.storage.volumes import CLUSTER, Storage, split_volume_id

_CHUNK = 64 * 1024
_METADATA = 1 << 30


def printed(node: Node, words: list[str]) -> str | None:
    """What a command prints, given its words without options; None where it is called in a way that is not known."""
    for pattern, answer in _ANSWERS.items():
        asked = pattern.split("|")
        if len(asked) == len(words) and all(each in ("*", word) for each, word in zip(asked, words, strict=True)):
            given = [word for each, word in zip(asked, words, strict=True) if each == "*"]
            return "".join(f"{line}\n" for line in answer(node, *given))
    return "" if words[0] in _SILENT else None


def _resolved(node: Node, path: str) -> list[str]:
    if path.startswith(f"/dev/rbd-pve/{CLUSTER}/"):
        image = path.removeprefix(f"/dev/rbd-pve/{CLUSTER}/")
        if image not in _ceph(node).mapped:
            raise PveError(f"{path}: No such file or directory")
        return [_ceph(node).mapped[image]]
    return [_disk(node, path).device]


def _ceph(node: Node) -> MemoryExecutor:
    """What there is of a cluster of Ceph."""
    if not isinstance(node.executor, MemoryExecutor):
        raise TypeError("where guests really run, the machine has the commands of Ceph itself")
    return node.executor


def _ceph_pools(node: Node) -> list[Storage]:
    """A storage for each pool."""
    found = {each.pool or "rbd": each for each in node.store.storages.values() if each.kind == "rbd"}
    return list(found.values())


def _osd_dump(node: Node) -> list[str]:
    lines = ["epoch 7", f"fsid {CLUSTER}"]
    for number, storage in enumerate(_ceph_pools(node), 2):
        name = storage.pool or "rbd"
        lines.append(f"pool {number} '{name}' replicated size 3 min_size 2 flags hashpspool application rbd")
    return [*lines, *(f"osd.{number} up   in  weight 1" for number in range(3))]


def _ceph_usage(node: Node) -> list[str]:
    pools = [
        {"name": each.pool or "rbd", "stats": {"stored": 0, "max_avail": each.total_bytes, "quota_bytes": 0}}
        for each in _ceph_pools(node)
    ]
    return [json.dumps({"pools": pools}, separators=(",", ":"))]


def _image(node: Node, image: str) -> Volume:
    for volume in node.store.volumes.values():
        storage, volname = split_volume_id(volume.id)
        if (config := node.store.config(storage)).kind == "rbd" and config.image_of(volname) == image:
            return volume
    raise PveError(f"rbd: error opening image {image}: (2) No such file or directory")


def _image_info(node: Node, image: str) -> list[str]:
    volume = _image(node, image)
    features = [each for each in _FEATURES if each not in _ceph(node).disabled.get(image, ())]
    facts = {"name": image.rpartition("/")[2], "id": volume.uid.replace("-", "")[:14], "features": features}
    return [json.dumps(facts, separators=(",", ":"))]


def _image_snapshots(node: Node, image: str) -> list[str]:
    volume = _image(node, image)
    taken = sorted(each for each in _ceph(node).snapshots if each.partition("@")[0] == volume.id)
    return [json.dumps([{"id": 4, "name": each.partition("@")[2]} for each in taken], separators=(",", ":"))]


def _image_status(node: Node, image: str) -> list[str]:
    _image(node, image)
    clients = [{"client": 4100 + number} for number in range(int(image in _ceph(node).mapped))]
    return [json.dumps({"watchers": clients}, separators=(",", ":"))]


def _disable_feature(node: Node, image: str, feature: str) -> list[str]:
    _image(node, image)
    _ceph(node).disabled.setdefault(image, set()).add(feature)
    return []


def _map_image(node: Node, image: str) -> list[str]:
    _image(node, image)
    return [_ceph(node).map_image(image)]


def _unmap_device(node: Node, device: str) -> list[str]:
    _ceph(node).unmap_device(device)
    return []


def _partuuid(node: Node, device: str) -> list[str]:
    return list(filter(None, [_disk(node, device).partuuid]))


def _identity(node: Node, *words: str) -> list[str]:
    path = words[-1]
    found = [each for each in node.store.volumes.values() if _is_at(node, each, path)]
    if not found:
        raise PveError(f"{path}: No such file or directory")
    return [found[0].uid]


def _is_at(node: Node, volume: Volume, path: str) -> bool:
    return node.store.path(volume.id) in (path, f"/dev/zvol/{path}")


def _allocated(node: Node, path: str) -> list[str]:
    """Blocks of a file and their size. PVE preallocates none of a raw file, and nothing is written to the double's."""
    _identity(node, path)
    return ["0 512"]


def _physical_volumes(node: Node) -> list[str]:
    made = [each for each in node.disks.pools if each.kind in ("lvm", "lvmthin")]
    return [f"  {node.executor.group_device} pve", *(f"  {each.disk.device} {each.name}" for each in made)]


def _logical_volumes(node: Node) -> list[str]:
    lines = ["  pve data", "  pve root"]
    for pool in node.disks.pools:
        if pool.kind in ("lvm", "lvmthin"):
            names = [pool.name] if pool.kind == "lvmthin" else []
            names += [*_volumes(node, "vgname", pool.name), *node.files.get(f"/dev/{pool.name}", [])]
            lines += [f"  {pool.name} {name}" for name in names]
    return lines


def _group_size(node: Node, group: str) -> list[str]:
    storage = next(each for each in node.store.storages.values() if (each.kind, each.vgname) == ("lvm", group))
    return [f"  {storage.total_bytes} {_free(node, storage)}"]


def _pool_size(node: Node, pool: str) -> list[str]:
    group, _, name = pool.partition("/")
    storage = next(each for each in node.store.storages.values() if (each.vgname, each.thinpool) == (group, name))
    used, metadata = node.thin_usage.get(pool, ("0.00", "10.42"))
    return [f"  {storage.total_bytes} {used} {_CHUNK} {_METADATA} {metadata}"]


def _pool_of(node: Node, device: str) -> list[str]:
    return [f"  {node.thin_devices.get(device, 'pve/').replace('/', ' ')}"]


def _zpools(node: Node) -> list[str]:
    return [each.name for each in node.disks.pools if each.kind == "zfs"]


def _zpool_devices(node: Node, name: str) -> list[str]:
    pool = next(each for each in node.disks.pools if (each.kind, each.name) == ("zfs", name))
    return [f"{name}\t960M", f"\t{pool.disk.device}\t960M"]


def _datasets(node: Node, name: str) -> list[str]:
    return [name, *(f"{name}/{each}" for each in _volumes(node, "pool", name))]


def _dataset_size(node: Node, dataset: str) -> list[str]:
    storage = next(each for each in node.store.storages.values() if each.pool == dataset)
    return [f"{node.store.used_bytes(storage)}\t{_free(node, storage)}"]


def _mounted(node: Node, path: str) -> list[str]:
    return [each.disk.device for each in node.disks.pools if (each.kind, each.path) == ("directory", path)]


def _files(node: Node, path: str) -> list[str]:
    return [*(f"{path}/images/{each}" for each in _volumes(node, "path", path)), *node.files.get(path, [])]


def _file_system(node: Node, path: str) -> list[str]:
    storage = next(each for each in node.store.storages.values() if each.path == path)
    device = node.file_systems.get(path, "/dev/mapper/pve-root")
    return ["1B-blocks Avail Type Filesystem", f"{storage.total_bytes} {_free(node, storage)} ext4 {device}"]


def _directory(node: Node, path: str) -> list[str]:
    if path not in node.disks.mount_points:
        raise PveError(f"ls: cannot access '{path}': No such file or directory")
    return [path]


def _remove_directory(node: Node, path: str) -> list[str]:
    if _mounted(node, path):
        raise PveError(f"find: cannot delete '{path}': Device or resource busy")
    if node.disks.hidden.get(path):
        raise PveError(f"find: cannot delete '{path}': Directory not empty")
    node.disks.mount_points.discard(path)
    return []


def _mount_point(node: Node, name: str) -> list[str]:
    del node
    return [f"/{name}"]


def _free(node: Node, storage: Storage) -> int:
    return storage.total_bytes - node.store.used_bytes(storage)


def _disk(node: Node, path: str) -> Disk:
    found = next((each for each in node.disks.disks if path in (each.device, each.by_id)), None)
    if found is None:
        raise PveError(f"{path}: No such file or directory")
    return found


def _volumes(node: Node, key: str, place: str) -> list[str]:
    """The volumes on storages whose volume group, pool or path that is."""
    found = []
    for volid, volume in node.store.volumes.items():
        name, volname = split_volume_id(volid)
        storage = node.store.storages.get(name)
        if storage is not None and getattr(storage, key) == place and volume.content == "images":
            found.append(volname)
    return found


_FEATURES = ("layering", "exclusive-lock", "object-map", "fast-diff", "deep-flatten")
"""What Ceph gives to a new image."""
_ANSWERS: Mapping[str, Callable[..., Iterable[str]]] = {
    "readlink|*": _resolved,
    "blkid|PART_ENTRY_UUID|value|*": _partuuid,
    "stat|%b %B|*": _allocated,
    "stat|*|*": _identity,
    "lvs|lv_uuid|*": _identity,
    "zfs|get|value|guid|*": _identity,
    "pvs|pv_name,vg_name": _physical_volumes,
    "lvs|vg_name,lv_name": _logical_volumes,
    "vgs|b| |vg_size,vg_free|*": _group_size,
    "lvs|b| |lv_size,data_percent,chunk_size,lv_metadata_size,metadata_percent|*": _pool_size,
    "lvs|b| |vg_name,pool_lv|*": _pool_of,
    "zpool|list|name": _zpools,
    "zpool|list|*": _zpool_devices,
    "zfs|list|name|*": _datasets,
    "zfs|list|used,available|*": _dataset_size,
    "zfs|get|value|mountpoint|*": _mount_point,
    "findmnt|SOURCE|*": _mounted,
    "find|*|!|d": _files,
    "ls|*": _directory,
    "find|*|0|d": _remove_directory,
    "df|*": _file_system,
    "ceph|osd|dump": _osd_dump,
    "ceph|df|detail|json": _ceph_usage,
    "rbd|info|json|*": _image_info,
    "rbd|feature|disable|*|*": _disable_feature,
    "rbd|snap|ls|json|*": _image_snapshots,
    "rbd|status|json|*": _image_status,
    "rbd|map|*": _map_image,
    "rbd|unmap|*": _unmap_device,
}
"""By the words of a command that are not options; `*` stands for any."""
_SILENT = ("udevadm", "lvchange")
COMMANDS = tuple(dict.fromkeys([*(pattern.partition("|")[0] for pattern in _ANSWERS), *_SILENT]))
