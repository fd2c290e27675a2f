"""The node's own disks: listing them, and making volume groups, thin pools, directories and ZFS pools of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pve_double.errors import PveError
from pve_double.storage.store import Store
from pve_double.storage.volumes import Storage

_EXTENT = 4 * 1024**2
_NVME_PARTITION = re.compile(r"(/dev/nvme\d+n\d+)p\d+")
_CONTENT = frozenset({"images", "rootdir"})
_DIRECTORY_CONTENT = frozenset({"backup", "images", "import", "iso", "rootdir", "snippets", "vztmpl"})
UNITS = "/etc/systemd/system"
USES = {"lvm": "LVM", "lvmthin": "LVM", "directory": "ext4", "zfs": "ZFS"}
"""What the list of disks says of a disk that was made into one of these."""


@dataclass(slots=True)
class Disk:
    """A disk of the node, or a partition with its UUID. `used` is empty while nothing is on it."""

    device: str
    size_bytes: int
    serial: str = "unknown"
    by_id: str = ""
    model: str = "unknown"
    vendor: str = "unknown"
    kind: str = "ssd"
    used: str = ""
    mounted: bool = False
    partuuid: str = ""
    minor: int = 0
    """The kernel's number of an NVMe partition, among those that it gives out as they come; 0 for any other device."""
    read_bytes: int = 0
    """What the node's own services have read from it."""

    def entry(self) -> dict[str, Any]:
        """As disks/list has it."""
        entry: dict[str, Any] = {
            "devpath": self.device,
            "gpt": 0,
            "health": "UNKNOWN",
            "model": self.model,
            "mounted": int(self.mounted),
            "osdid": -1,
            "osdid-list": None,
            "rpm": 0 if self.kind == "ssd" else -1,
            "serial": self.serial,
            "size": self.size_bytes,
            "type": self.kind,
            "vendor": self.vendor,
            "wearout": "N/A",
            "wwn": "unknown",
        }
        entry |= {"by_id_link": self.by_id} if self.by_id else {}
        return entry | ({"used": self.used} if self.used else {})


class DiskBacking(Protocol):
    """What really happens to a disk."""

    def make(self, kind: str, name: str, disk: Disk, *, filesystem: str) -> None: ...

    def unmake(self, kind: str, name: str, disk: Disk | None, *, wipe: bool) -> None: ...

    def wipe(self, disk: Disk) -> None: ...

    def probe(self, path: str) -> Disk | None:
        """The block device at a path that is not in the node's list, such as a partition; None if there is none."""
        ...


@dataclass(slots=True)
class Pool:
    """What was made of a disk: a volume group, a thin pool, a mounted file system or a ZFS pool."""

    kind: str
    name: str
    disk: Disk
    filesystem: str = "ext4"
    node: str = "pve"

    @property
    def path(self) -> str:
        return f"/mnt/pve/{self.name}"

    def storage(self) -> Storage:
        """The storage that PVE configures for it with add_storage."""
        usable = self.disk.size_bytes // _EXTENT * _EXTENT - _EXTENT
        match self.kind:
            case "lvm":
                made = Storage(self.name, "lvm", _CONTENT, usable, vgname=self.name, options={"shared": "0"})
            case "lvmthin":
                made = Storage(self.name, "lvmthin", _CONTENT, usable, vgname=self.name, thinpool=self.name)
            case "zfs":
                made = Storage(self.name, "zfspool", _CONTENT, usable, pool=self.name)
                # ZFSPoolPlugin::on_add_hook.
                made.options["mountpoint"] = f"/{self.name}"
            case _:
                made = Storage(self.name, "dir", _DIRECTORY_CONTENT, usable, path=self.path)
                made.options["is_mountpoint"] = "1"
        made.options["nodes"] = self.node
        return made


class Disks:
    """The disks of the node and what was made of them."""

    def __init__(self, disks: Sequence[Disk], store: Store, backing: DiskBacking, node: str) -> None:
        self._node = node
        self.disks = list(disks)
        self.pools: list[Pool] = []
        self.mount_points: set[str] = set()
        """The directories below /mnt/pve. PVE leaves one behind when it removes what was mounted there."""
        self.hidden: dict[str, list[str]] = {}
        """Files that somebody has put into such a directory itself, below what is mounted there."""
        self.after_make: Callable[[], None] | None = None
        """What a test does when a pool is made and its storage is not yet in the configuration."""
        self._store = store
        self._backing = backing
        self._minors = itertools.count(1)

    def exists(self, path: str) -> bool:
        return self._found(path) is not None

    def find(self, path: str) -> Disk:
        """The block device of a path or by-id link; in PVE's words where there is none."""
        if not path.startswith("/dev/"):
            raise PveError(f"got unusual device path '{path}'")
        disk = self._found(path)
        if disk is None:
            raise PveError("not a valid block device")
        return disk

    def _found(self, path: str) -> Disk | None:
        known = [*self.disks, *(pool.disk for pool in self.pools)]
        return next((disk for disk in known if path in {disk.device, disk.by_id}), None) or self._backing.probe(path)

    def unused(self, path: str) -> Disk:
        disk = self.find(path)
        if disk.used:
            raise PveError(f"device '{disk.device}' is already in use")
        return disk

    def make(self, kind: str, name: str, path: str, *, filesystem: str, add_storage: bool) -> None:
        """Make a pool of an unused disk, and a storage of it if asked for."""
        disk = self.unused(path)
        if kind in {"lvm", "lvmthin"} and name in self._volume_groups():
            raise PveError(f"volume group with name '{name}' already exists on node '{self._node}'")
        self._set_type(disk)
        self._backing.make(kind, name, disk, filesystem=filesystem)
        disk.used = filesystem if kind == "directory" else USES[kind]
        disk.mounted = kind == "directory"
        pool = Pool(kind, name, disk, filesystem, self._node)
        self.pools.append(pool)
        if kind == "directory":
            self.mount_points.add(pool.path)
        if self.after_make is not None:
            self.after_make()
        if add_storage:
            self._store.locks.take_config("create")
            self._store.storages[name] = pool.storage()

    def _set_type(self, disk: Disk) -> None:
        """PVE::Diskmanage::change_parttype: sgdisk writes the table of a partition's disk.

        The kernel then reads it again, if none of the partitions is in use: it drops all of them and adds them with
        the next free numbers.
        """
        whole = _NVME_PARTITION.match(disk.device)
        partitions = [each for each in self.disks if whole and each.device.startswith(f"{whole[1]}p")]
        if not any(each.used or each.mounted for each in partitions):
            self.number(partitions)

    def number(self, partitions: Sequence[Disk]) -> None:
        """Give these partitions the next numbers, in an order that nobody knows before."""
        for each in reversed(partitions):
            each.minor = next(self._minors)

    def _volume_groups(self) -> set[str]:
        groups = {pool.name for pool in self.pools if pool.kind in {"lvm", "lvmthin"}}
        return groups | {storage.vgname for storage in self._store.storages.values() if not storage.offline}

    def check_storage_name(self, name: str) -> None:
        if name in self._store.storages:
            raise PveError(f"Storage ID '{name}' already exists on node {self._node}")

    def check_pool_name(self, kind: str, name: str) -> None:
        """What PVE looks at before it makes a task; a volume group is looked for in the task."""
        same = next((pool for pool in self.pools if (pool.kind, pool.name) == (kind, name)), None)
        if same is not None and kind == "directory":
            raise PveError(f"the path for '{name}' is already mounted: {same.path} ({same.disk.device})")
        if same is not None and kind == "zfs":
            raise PveError(f"pool '{name}' already exists on node '{self._node}'")

    def unmake(self, kind: str, name: str, *, group: str, cleanup_config: bool, cleanup_disks: bool) -> None:
        """Undo `make`: the pool, the signatures on its disk and its storage as far as asked for.

        PVE takes the storage from its configuration before it wipes the disk, but a failure counts only after that.
        """
        pool = next((each for each in self.pools if (each.kind, each.name) == (kind, name)), None)
        if pool is None or (kind == "lvmthin" and group != name):
            raise PveError(_missing(kind, name, group, cleanup_disks=cleanup_disks))
        self._backing.unmake(kind, name, pool.disk, wipe=cleanup_disks)
        self.pools.remove(pool)
        pool.disk.mounted = False
        if cleanup_disks:
            pool.disk.used = ""
            self._set_type(pool.disk)
        for storage in self._store.storages.values():
            storage.offline |= bool(storage.vgname) and storage.vgname == pool.name
        if cleanup_config:
            self._clean_config(pool)

    def _clean_config(self, pool: Pool) -> None:
        """PVE::API2::Storage::Config::cleanup_storages_for_node: every storage there, whatever its name is."""
        there = pool.storage()
        for storage in list(self._store.storages.values()):
            place = (storage.kind, storage.vgname, storage.thinpool, storage.pool, storage.path)
            if place != (there.kind, there.vgname, there.thinpool, there.pool, there.path):
                continue
            nodes = storage.options.get("nodes", self._node).split(",")
            if self._node in nodes:
                nodes.remove(self._node)
                try:
                    self._store.locks.take_config("update" if nodes else "delete")
                except PveError as failed:
                    raise PveError(f"config cleanup failed - {failed}") from None
                storage.options["nodes"] = ",".join(nodes)
                if not nodes:
                    del self._store.storages[storage.id]

    def wipe(self, path: str) -> None:
        disk = self.find(path)
        if disk.mounted:
            raise PveError(f"disk/partition '{disk.device}' is mounted")
        if any(pool.disk is disk for pool in self.pools):
            raise PveError(f"disk/partition '{disk.device}' has a holder")
        self._backing.wipe(disk)
        disk.used = ""


def _missing(kind: str, name: str, group: str, *, cleanup_disks: bool) -> str:
    """How the task ends whose pool does not exist: to wipe the disk, PVE first looks which one it is."""
    if kind == "directory":
        unit = mount_unit(name)
        if cleanup_disks:
            return f"can't open '{UNITS}/{unit}' - No such file or directory"
        return f"command 'systemctl stop {unit}' failed: exit code 5"
    return {
        "lvm": f"no such volume group '{name}'",
        "lvmthin": f"no such thin pool {group}/{name}",
    }.get(kind, f"command 'zpool {'list -vHPL' if cleanup_disks else 'destroy'} {name}' failed: exit code 1")


def mount_unit(name: str) -> str:
    """The unit that mounts /mnt/pve/NAME, as PVE::Systemd::escape_unit writes it."""
    escaped = name.replace("-", "\\x2d")
    return f"mnt-pve-{escaped}.mount"
