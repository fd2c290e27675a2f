"""The storages of a node and the volumes on them: allocating, finding and freeing, as PVE's plugins do it."""

from __future__ import annotations

import re
import struct
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pve_double.errors import PveError, bad_parameters
from pve_double.schema import split_list
from pve_double.storage.locks import StorageLocks
from pve_double.storage.volumes import Named, Storage, is_volume_id, split_volume_id
from pve_double.tasks import TaskLog

DEFAULT_FORMAT = "raw"
"""What every storage that the double has makes of a volume without a format."""
LARGEST_FILE = 16 * 1024**4
"""A larger image does not fit below the recorded node's thin pool."""
_UNSUPPORTED_LINE = {"lvmthin": ("LvmThinPlugin", 102), "lvm": ("LVMPlugin", 671), "zfspool": ("ZFSPoolPlugin", 222)}
"""Where PVE's source refuses a format: it forgets the newline, so that Perl adds file and line."""

_MIB = 1024**2
_EXTENT = 4 * _MIB
_CLUSTER = 64 * 1024
_FILE_BLOCK = 4096
_LEVEL_2_SPAN = _CLUSTER * _CLUSTER // 8
"""The bytes of an image whose clusters one table of level 2 names."""
QCOW2_MAGIC = b"QFI\xfb"
_QCOW2 = struct.Struct(">24sQ")
"""The first fields of a qcow2, of which the last one is the virtual size in bytes."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that exists. An image to import has `virtual_bytes` beside its file's size, where they are known."""

    id: str
    content: str
    format: str
    size_bytes: int
    created: int
    vmid: int | None = None
    virtual_bytes: int | None = None
    notes: str = ""
    """Of a backup."""
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    """What LVM, ZFS or a file system gives to no other one."""


class Backing(Protocol):
    """Where volumes really are."""

    def create(self, storage: Storage, volname: str, size_bytes: int) -> None: ...

    def remove(self, storage: Storage, volname: str) -> None: ...

    def copy(self, source: tuple[Storage, str], target: tuple[Storage, str]) -> None: ...

    def rename(self, storage: Storage, volname: str, new: str) -> None: ...

    def resize(self, storage: Storage, volname: str, size_bytes: int) -> None: ...

    def take_snapshot(self, storage: Storage, volname: str, name: str) -> None: ...

    def drop_snapshot(self, storage: Storage, volname: str, name: str) -> None: ...

    def activate(self, storage: Storage, volname: str) -> None: ...

    def deactivate(self, storage: Storage, volname: str) -> None: ...

    def put(self, file: Path, storage: Storage, volname: str) -> None: ...


class Store:
    """The storages of the cluster, and the volumes on them that this node has."""

    def __init__(self, storages: dict[str, Storage], backing: Backing, node: str, locks: StorageLocks) -> None:
        self.storages = storages
        self.locks = locks
        self.node = node
        self.volumes: dict[str, Volume] = {}
        self.backing = backing
        self._lock = threading.RLock()

    def config(self, storage_id: str) -> Storage:
        if storage_id not in self.storages:
            raise PveError(f"storage '{storage_id}' does not exist")
        return self.storages[storage_id]

    def enabled(self, storage_id: str) -> Storage:
        storage = self.config(storage_id)
        if storage.disabled:
            raise PveError(f"storage '{storage_id}' is disabled")
        if not storage.is_on(self.node):
            raise PveError(f"storage '{storage_id}' is not available on node '{self.node}'")
        return storage

    def with_images(self, storage_id: str) -> Storage:
        """A storage for disks of VMs; 400 where it is not one."""
        storage = self.config(storage_id)
        if "images" not in storage.content:
            raise bad_parameters({"storage": f"storage '{storage_id}' does not support vm images"})
        return storage

    def parse(self, volid: str) -> Named:
        storage_id, volname = split_volume_id(volid)
        return self.config(storage_id).parse(volname)

    def path(self, volid: str) -> str:
        storage_id, volname = split_volume_id(volid)
        return self.config(storage_id).path_of(volname)

    def activate(self, volid: str) -> Volume:
        """The volume, ready for use; in the words of its plugin where it does not exist."""
        storage_id, volname = split_volume_id(volid)
        storage = self.enabled(storage_id)
        storage.parse(volname)
        if volid in self.volumes:
            if storage.vgname or (storage.kind == "rbd" and storage.maps_images):
                self.backing.activate(storage, volname)
            return self.volumes[volid]
        if storage.kind == "lvmthin":
            raise PveError(f"no such logical volume {storage.vgname}/{volname}")
        if storage.kind == "lvm":
            path = storage.path_of(volname)
            raise PveError(f"can't activate LV '{path}':   Failed to find logical volume \"{path[5:]}\"")
        raise PveError(f"volume '{volid}' does not exist")

    def of(self, storage_id: str, *, vmid: int | None = None, content: str | None = None) -> list[Volume]:
        """The volumes on a storage, sorted by their ids."""
        found = [
            volume
            for volume in list(self.volumes.values())
            if volume.id.startswith(f"{storage_id}:")
            and (vmid is None or volume.vmid == vmid)
            and (content is None or volume.content == content)
        ]
        return sorted(found, key=lambda volume: volume.id.lower())

    def used_bytes(self, storage: Storage) -> int:
        """Thin volumes hold nothing that was not written, and nothing is written to the double's."""
        return 0 if storage.kind in ("lvmthin", "rbd") else sum(volume.size_bytes for volume in self.of(storage.id))

    def allocate(
        self, storage_id: str, vmid: int, log: TaskLog, *, size_bytes: int, format_: str | None = None, name: str = ""
    ) -> str:
        """A new volume for a VM; its id. Raises PveError in the words of the storage's plugin."""
        with self._lock:
            storage = self.enabled(storage_id)
            self.locks.take(storage_id)
            format_ = format_ or DEFAULT_FORMAT
            volname = self._new_name(storage, vmid, format_, name)
            volid = f"{storage_id}:{volname}"
            self._refuse(storage, volname, size_bytes)
            if storage.pool:
                # ZFSPoolPlugin::zfs_create_zvol, RBDPlugin::alloc_image: whole MiB.
                size_bytes = -(-size_bytes // _MIB) * _MIB
            self.backing.create(storage, volname, size_bytes)
            self.volumes[volid] = Volume(volid, "images", format_, size_bytes, int(time.time()), vmid)
        for line in _created(storage, volname, format_, size_bytes):
            log.line(line)
        return volid

    def _refuse(self, storage: Storage, volname: str, size_bytes: int) -> None:
        if storage.offline:
            raise PveError(f"no such volume group '{storage.vgname}'")
        free = storage.total_bytes - self.used_bytes(storage)
        if storage.kind == "lvm" and size_bytes // 1024 > free:
            # PVE compares bytes with KiB, so that mostly lvcreate refuses.
            raise PveError(f"not enough free space ({free} < {size_bytes // 1024})")
        if why := self._refused_by_plugin(storage, volname, size_bytes):
            raise PveError(why)
        if size_bytes > LARGEST_FILE:
            where = storage.path_of(volname) if storage.path else f"{storage.vgname or storage.pool}/{volname}"
            raise PveError(f"lvcreate '{where}' error: OSError: [Errno 27] File too large")

    def _refused_by_plugin(self, storage: Storage, volname: str, size_bytes: int) -> str | None:
        """What the plugin's own tool says of a volume that it cannot make; a file may be of any size."""
        exists = f"{storage.id}:{volname}" in self.volumes
        if storage.path or storage.kind == "rbd":
            of_rbd = f"rbd create '{volname}' error: rbd: create error: (17) File exists"
            said = f"disk image '{storage.path_of(volname)}' already exists" if storage.path else of_rbd
            return said if exists else None
        if storage.pool:
            why = "dataset already exists" if exists else "volume size cannot be zero" if not size_bytes else None
            return why and f"zfs error: cannot create '{storage.pool}/{volname}': {why}"
        failed = f"lvcreate '{storage.vgname}/{volname}' error:   "
        if not size_bytes:
            return f"{failed}Run `lvcreate --help' for more information."
        if exists:
            return f'{failed}Logical Volume "{volname}" already exists in volume group "{storage.vgname}"'
        free, extents = storage.total_bytes - self.used_bytes(storage), -(-size_bytes // _EXTENT)
        if storage.kind == "lvm" and extents > free // _EXTENT:
            room = f"insufficient free space ({free // _EXTENT} extents): {extents} required."
            return f'{failed}Volume group "{storage.vgname}" has {room}'
        return None

    def _new_name(self, storage: Storage, vmid: int, format_: str, name: str) -> str:
        if storage.path:
            name = name or self._free_name(storage, vmid, f".{format_}")
            if storage.parse(f"{vmid}/{name}").format != format_:
                extension = name.rpartition(".")[2]
                raise PveError(f"illegal name '{name}' - wrong extension for format ('{extension} != '{format_}')")
            return f"{vmid}/{name}"
        if format_ != "raw":
            plugin, line = _UNSUPPORTED_LINE.get(storage.kind, ("Plugin", 1))
            raise PveError(f"unsupported format '{format_}' at /usr/share/perl5/PVE/Storage/{plugin}.pm line {line}.")
        if name and storage.kind == "lvm":
            # Only the other plugins compare the name with the VM.
            storage.parse(name)
        elif name and not name.startswith(f"vm-{vmid}-"):
            raise PveError(f"illegal name '{name}' - should be 'vm-{vmid}-*'")
        return name or self._free_name(storage, vmid, "")

    def _free_name(self, storage: Storage, vmid: int, suffix: str) -> str:
        pattern = re.compile(rf"(?:vm|base)-{vmid}-disk-(\d+){re.escape(suffix)}")
        taken = {int(match[1]) for volume in self.of(storage.id) if (match := pattern.search(volume.id))}
        free = next(number for number in range(len(taken) + 1) if number not in taken)
        return f"vm-{vmid}-disk-{free}{suffix}"

    def add_file(self, storage_id: str, content: str, name: str, size_bytes: int, file: Path | None = None) -> str:
        """A file that was uploaded, replacing one of the same name; its volume id."""
        storage, volname = self.enabled(storage_id), f"{content}/{name}"
        named = storage.parse(volname)
        volid = f"{storage_id}:{volname}"
        listed = "iso" if content == "iso" else named.format
        virtual = virtual_bytes(file) if content == "import" and file is not None else None
        if file is not None:
            self.backing.put(file, storage, volname)
        self.volumes[volid] = Volume(volid, content, listed, size_bytes, int(time.time()), virtual_bytes=virtual)
        return volid

    def add_backup(self, storage_id: str, name: str, size_bytes: int, vmid: int, notes: str) -> str:
        """A backup that is complete; its volume id."""
        volid = f"{storage_id}:backup/{name}"
        self.volumes[volid] = Volume(volid, "backup", "vma", size_bytes, int(time.time()), vmid, notes=notes)
        return volid

    def relabel(self, volid: str, content: str) -> None:
        """Say what a volume is for: a storage allocates all of them as images."""
        with self._lock:
            self.volumes[volid] = replace(self.volumes[volid], content=content)

    def free(self, volid: str, log: TaskLog) -> None:
        """Remove a volume; as PVE does, without a word where a logical volume is already gone."""
        storage_id, volname = split_volume_id(volid)
        storage = self.enabled(storage_id)
        storage.parse(volname)
        self.locks.take(storage_id)
        if storage.kind == "rbd":
            # RBDPlugin::free_image deactivates it first.
            self.backing.deactivate(storage, volname)
        with self._lock:
            if self.volumes.pop(volid, None) is None:
                if storage.path:
                    log.line(f"disk image '{storage.path_of(volname)}' does not exist")
                return
            self.backing.remove(storage, volname)
        if storage.vgname:
            log.line(f'  Logical volume "{volname}" successfully removed.')

    def rename(self, volid: str, new_volname: str) -> str:
        """The volume under another name on its storage; its new id."""
        storage_id, volname = split_volume_id(volid)
        with self._lock:
            old = self.volumes.pop(volid)
            self.backing.rename(self.config(storage_id), volname, new_volname)
            named = self.config(storage_id).parse(new_volname)
            new = f"{storage_id}:{new_volname}"
            self.volumes[new] = replace(old, id=new, vmid=named.vmid)
        return new

    def linked(self, volid: str, base: str) -> str:
        """The volume as a linked clone of the volume `base` of its storage, which is then in its name; its new id."""
        storage_id, volname = split_volume_id(volid)
        with self._lock:
            new = f"{storage_id}:{base}/{volname}"
            self.volumes[new] = replace(self.volumes.pop(volid), id=new)
        return new

    def reassign(self, volid: str, vmid: int) -> str:
        """The volume under the next free name of another VM; its new id."""
        storage_id, volname = split_volume_id(volid)
        storage = self.config(storage_id)
        suffix = f".{storage.parse(volname).format}" if storage.path else ""
        name = self._free_name(storage, vmid, suffix)
        return self.rename(volid, f"{vmid}/{name}" if storage.path else name)

    def resize(self, volid: str, size_bytes: int) -> None:
        storage_id, volname = split_volume_id(volid)
        with self._lock:
            old = self.volumes[volid]
            self.backing.resize(self.config(storage_id), volname, size_bytes)
            self.volumes[volid] = replace(old, size_bytes=size_bytes)

    def deactivate(self, volids: Iterable[str], log: TaskLog) -> None:
        """After their use, as PVE::Storage::deactivate_volumes: where something has one open, it only warns.

        LVMPlugin deactivates each volume, RBDPlugin unmaps it also without krbd, and LvmThinPlugin keeps all but bases.
        """
        failed = []
        for volid in filter(is_volume_id, volids):
            storage_id, volname = split_volume_id(volid)
            storage = self.config(storage_id)
            if storage.kind in ("lvm", "rbd") or (storage.kind == "lvmthin" and volname.startswith("base-")):
                try:
                    self.backing.deactivate(storage, volname)
                except PveError as error:
                    log.line(str(error))
                    failed.append(volid)
        if failed:
            log.line(f"volume deactivation failed: {' '.join(failed)}")

    def take_snapshot(self, volid: str, name: str) -> None:
        """Take a snapshot of a volume on its storage."""
        storage_id, volname = split_volume_id(volid)
        self.backing.take_snapshot(self.config(storage_id), volname, name)

    def drop_snapshot(self, volid: str, name: str) -> None:
        """Remove it."""
        storage_id, volname = split_volume_id(volid)
        self.backing.drop_snapshot(self.config(storage_id), volname, name)

    def copy(self, source: str, target: str) -> None:
        """Fill `target`, which exists, with the content of `source`."""
        from_storage, from_name = split_volume_id(source)
        to_storage, to_name = split_volume_id(target)
        self.backing.copy((self.config(from_storage), from_name), (self.config(to_storage), to_name))

    def id_of_path(self, path: str) -> tuple[str, str] | None:
        """Content type and volume id of a path inside a file-based storage, as PVE maps it back.

        A disk image has to be there for it; of other files the name is enough.
        """
        for storage in [each for each in self.storages.values() if each.path]:
            for volume in self.of(storage.id, content="images"):
                if storage.path_of(split_volume_id(volume.id)[1]) == path:
                    return volume.content, volume.id
            if (volname := storage.volname_of_file(path)) is not None:
                return storage.parse(volname).content, f"{storage.id}:{volname}"
        return None

    def listing(self, volume: Volume) -> dict[str, Any]:
        """As a storage's content lists it: whole numbers, but the time of a logical volume is text."""
        storage = self.config(split_volume_id(volume.id)[0])
        entry: dict[str, Any] = {
            "volid": volume.id,
            "content": volume.content,
            "format": volume.format,
            "size": volume.size_bytes,
        }
        if volume.vmid is not None:
            entry["vmid"] = volume.vmid
        is_image = volume.content == "images"
        if volume.content == "backup":
            entry |= {"subtype": "qemu"} | ({"notes": volume.notes} if volume.notes else {})
        if storage.pool and is_image:
            # ZFSPoolPlugin::list_images, RBDPlugin::list_images: without a time.
            return entry | {"name": storage.parse(split_volume_id(volume.id)[1]).name, "parent": self.parent(volume)}
        if storage.path and is_image:
            entry |= {"used": self.allocated_bytes(volume), "parent": self.parent(volume)}
        return entry | {"ctime": str(volume.created) if storage.vgname else volume.created}

    def parent(self, volume: Volume) -> str | None:
        """What a linked clone is on, as qemu-img and ZFS name it; None for any other volume."""
        storage_id, volname = split_volume_id(volume.id)
        *base, _ = volname.split("/")
        if self.config(storage_id).path:
            return f"../{base[0]}/{base[1]}" if len(base) > 1 else None
        return f"{base[0]}@__base__" if base else None

    def allocated_bytes(self, volume: Volume) -> int:
        """The bytes that a file has on its disk as PVE makes it, and nothing is written to the double's.

        The clusters of qcow2 are of 64 KiB: its header, its tables of references and level 1, and those of level 2.
        """
        storage_id, volname = split_volume_id(volume.id)
        storage = self.config(storage_id)
        if volume.content != "images":
            return -(-volume.size_bytes // _FILE_BLOCK) * _FILE_BLOCK
        format_ = storage.parse(volname).format
        preallocation = storage.options.get("preallocation", "metadata" if format_ == "qcow2" else "off")
        if preallocation in ("falloc", "full"):
            return volume.size_bytes
        level_2 = -(-volume.size_bytes // _LEVEL_2_SPAN) if preallocation == "metadata" else 0
        return _CLUSTER * (4 + level_2) if format_ == "qcow2" else 0

    def statuses(self, *, content: str | None = None) -> Iterator[dict[str, Any]]:
        """Each storage with its sizes in bytes, as nodes/{node}/storage has it."""
        for storage in list(self.storages.values()):
            if not storage.is_on(self.node):
                continue
            if content is not None and (storage.disabled or not storage.content & set(split_list(content))):
                continue
            yield self.status(storage)

    def status(self, storage: Storage) -> dict[str, Any]:
        online = not storage.disabled and not storage.offline
        total = storage.total_bytes if online else 0
        used = self.used_bytes(storage) if online else 0
        return {
            "storage": storage.id,
            "type": storage.kind,
            "content": ",".join(sorted(storage.content)),
            "active": int(online),
            "enabled": int(not storage.disabled),
            "shared": int(storage.kind == "rbd"),
            "total": total,
            "used": used,
            "avail": total - used,
        } | ({"used_fraction": used / total} if total else {})


def virtual_bytes(image: Path) -> int:
    """How large a guest sees an image: what the header of a qcow2 says, else the file itself."""
    with image.open("rb") as content:
        header = content.read(_QCOW2.size)
    if len(header) == _QCOW2.size and header.startswith(QCOW2_MAGIC):
        _, size = _QCOW2.unpack(header)
        return int(size)
    return image.stat().st_size


def _created(storage: Storage, volname: str, format_: str, size_bytes: int) -> list[str]:
    if storage.vgname:
        return [f'  Logical volume "{volname}" created.']
    if not storage.path:
        return []
    details: Mapping[str, str] = {
        "qcow2": "cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib "
        f"size={size_bytes} lazy_refcounts=off refcount_bits=16",
        "raw": f"size={size_bytes} preallocation=off",
    }
    return [f"Formatting '{storage.path_of(volname)}', fmt={format_} {details.get(format_, f'size={size_bytes}')}"]
