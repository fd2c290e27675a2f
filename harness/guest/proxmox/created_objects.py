"""What runs create through Proxmox VE, as the node's creation log records it: VMs, volumes, storages. Pure."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from harness.guest.proxmox.drive import parse_drive
from harness.guest.proxmox.vm import name_vm
from harness.lab.created import Thing

Maker = Literal["lvm", "lvmthin", "directory", "zfs"]
"""What PVE creates on a device under `nodes/NODE/disks/`."""

MOUNTS = "/mnt/pve"
"""Where PVE mounts the directories that it creates on a disk."""

_TYPES: Mapping[Maker, str] = {"lvm": "lvm", "lvmthin": "lvmthin", "directory": "dir", "zfs": "zfspool"}
"""The type of the storage that PVE creates for each."""

_DRIVE = re.compile(r"(virtio|scsi|sata|ide|efidisk|tpmstate|unused)\d+|vmstate")
_UUID = re.compile(r"(?:^|,)uuid=([0-9a-fA-F-]+)")


class CreatedVm(Thing):
    """A VM. `token` is random and in its notes from the beginning. `uuid` is its SMBIOS UUID, which its clones lack.

    A clone gets its `uuid` from PVE. It is recorded later, and is empty until then.
    """

    kind: Literal["pve-vm"] = "pve-vm"
    node: str
    vmid: int
    name: str
    token: str
    uuid: str = ""

    @classmethod
    def planned(cls, node: str, vmid: int, run_id: str, *, clone: bool = False) -> CreatedVm:
        """A VM that is about to be created, with a unique identity."""
        token = secrets.token_hex(16)
        return cls(node=node, vmid=vmid, name=name_vm(run_id), token=token, uuid="" if clone else str(uuid.uuid4()))

    @property
    def words(self) -> str:
        return f"VM {self.vmid}"

    def differs(self, config: Mapping[str, Any]) -> str | None:
        """Why the VM with this configuration is not the one that the run created; None if it is."""
        if self.token not in str(config.get("description", "")):
            return f"the notes of VM {self.vmid} do not contain the run's token"
        if (name := str(config.get("name", ""))) != self.name:
            return f"VM {self.vmid} is called {name}, not {self.name}"
        if self.uuid and (shown := smbios_uuid(config)) != self.uuid:
            return f"the SMBIOS of VM {self.vmid} has the UUID {shown or '(none)'}, not {self.uuid}"
        return None


class CreatedVolume(Thing):
    """A volume that belongs to the VM `vmid` with this token. `identity` is its unique identity, once it exists.

    `in_store`: the run also created its storage.
    """

    kind: Literal["pve-volume"] = "pve-volume"
    node: str
    volid: str
    vmid: int
    token: str
    in_store: bool = False
    identity: str = ""

    @property
    def words(self) -> str:
        return f"volume {self.volid}"

    @property
    def storage(self) -> str:
        return self.volid.partition(":")[0]


class CreatedStore(Thing):
    """A storage on the partition with the UUID `partuuid`, which the run chose when it wrote the partition table."""

    kind: Literal["pve-store"] = "pve-store"
    node: str
    name: str
    maker: Maker
    partuuid: str

    @property
    def words(self) -> str:
        return f"storage {self.name}"

    @property
    def place(self) -> Mapping[str, str]:
        """The properties of its entry in the storage configuration that define its type and its place."""
        where = {
            "lvm": {"vgname": self.name},
            "lvmthin": {"vgname": self.name, "thinpool": self.name},
            "directory": {"path": f"{MOUNTS}/{self.name}"},
            "zfs": {"pool": self.name},
        }
        return {"type": _TYPES[self.maker], "nodes": self.node, **where[self.maker]}

    def differs(self, entry: Mapping[str, Any]) -> str | None:
        """Why this entry of the storage configuration is not the one that the run created; None if it is.

        Its name, type, place and node identify it. Everything else can be set by PVE itself or by its owner, such as
        the mount point of a ZFS pool.
        """
        for key, value in {"storage": self.name, **self.place}.items():
            if (shown := str(entry.get(key, "(not set)"))) != value:
                return f"storage {self.name} has {key} {shown}, not {value}"
        return None

    def others(self, entries: Iterable[Mapping[str, Any]]) -> list[str]:
        """The other storages on the same volume group, pool or directory, which would be removed with it."""
        group, pool, path = (str(self.place.get(key, "\0")) for key in ("vgname", "pool", "path"))
        return [
            str(entry["storage"])
            for entry in entries
            if entry["storage"] != self.name
            and (
                entry.get("vgname") == group
                or f"{entry.get('pool', '')}/".startswith(f"{pool}/")
                or f"{entry.get('path', '')}/".startswith(f"{path}/")
            )
        ]


class PluggedDrive(Thing):
    """A drive in the running VM of others with this SMBIOS UUID. Source and serial number identify the drive."""

    kind: Literal["pve-drive"] = "pve-drive"
    node: str
    vmid: int
    uuid: str
    key: str
    source: str
    serial: str

    @property
    def words(self) -> str:
        return f"the drive {self.key} ({self.source}) in the borrowed VM {self.vmid}"

    def in_config(self, config: Mapping[str, Any]) -> list[str]:
        """The drives of a VM with this configuration that have the same source and serial number."""
        return [key for key, value in config.items() if _DRIVE.fullmatch(key) and self._is(parse_drive(str(value)))]

    def _is(self, options: Mapping[str, str]) -> bool:
        return (options["file"], options.get("serial")) == (self.source, self.serial)


KINDS: tuple[type[Thing], ...] = (CreatedVm, CreatedVolume, CreatedStore, PluggedDrive)


def smbios_uuid(config: Mapping[str, Any]) -> str:
    """The SMBIOS UUID that PVE gives to each VM that it creates or clones; empty if there is none."""
    match = _UUID.search(str(config.get("smbios1", "")))
    return match[1].lower() if match else ""


def volumes_of(config: Mapping[str, Any], vmid: int) -> dict[str, str]:
    """The VM's own volumes, and for each the first setting that names it. Removing the VM removes them.

    Without the cloud-init drive, because PVE may write it again at any time.
    """
    volumes: dict[str, str] = {}
    for key in sorted(config):
        if _DRIVE.fullmatch(key.partition(" ")[0]):
            volid = parse_drive(str(config[key]))["file"]
            if owner_of(volid) == vmid and not _is_cloudinit(volid):
                volumes.setdefault(volid, key)
    return volumes


def owner_of(volid: str) -> int | None:
    """The VM or container that owns a volume according to its name; None for an ISO or another file, and for a path."""
    storage, separator, name = volid.partition(":")
    if volid.startswith("/") or not separator or not storage:
        return None
    match = re.search(r"(?:^|/)(?:vm|base|subvol|basevol)-(\d+)-[^/]+$", name) or re.match(r"(\d+)/[^/]+$", name)
    return int(match[1]) if match else None


def _is_cloudinit(volid: str) -> bool:
    return re.search(r"vm-\d+-cloudinit(\.(raw|qcow2))?$", volid) is not None


def vmids_of(listed: Sequence[Mapping[str, Any]]) -> set[int]:
    """The VMs and containers that own the volumes in the list of a storage."""
    owners = {
        owner_of(str(volume.get("volid", ""))) for volume in listed if volume.get("content") in ("images", "rootdir")
    }
    owners |= {int(volume["vmid"]) for volume in listed if volume.get("vmid") and volume.get("content") != "backup"}
    return {owner for owner in owners if owner is not None}
