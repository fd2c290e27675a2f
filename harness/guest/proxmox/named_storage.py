"""A storage that the lab file names without a layout: its type decides which layouts its volumes have."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.errors import Unsupported
from harness.guest.proxmox.client import Client
from harness.guest.proxmox.fitness import STORAGE_TYPES
from harness.lab.proxmox import StoredLayout
from harness.lab.storage import DiskByStorage
from harness.model.layout import Layout, Zvol
from harness.units import format_size

KIB = 1024
_LAYOUTS: tuple[StoredLayout, ...] = ("lvm", "lvm-thin", "raw", "qcow2", "zvol")

_NOT_YET = {"rbd": ": the host would have to map its images to measure the baseline, which virt-overhead does not do"}
"""Why a type that has disk images is not supported."""


def offered(kind: str) -> tuple[StoredLayout, ...]:
    """The layouts of volumes on a storage of this type; empty if the type is not supported. Pure."""
    return tuple(layout for layout in _LAYOUTS if kind in STORAGE_TYPES[layout])


def other_block_size(client: Client, disk: DiskByStorage, layout: Layout) -> str | None:
    """Why zvols on this storage do not have the block size that the layout requests, with the remedy; None if they do.

    PVE sets it for a storage and not for a volume, and a run does not change the settings of a storage in use.
    """
    storage = disk.storages.get("zvol")
    if not isinstance(layout, Zvol) or layout.volblocksize == Zvol().volblocksize or storage is None:
        return None
    entries = {str(each["storage"]): each for each in client.get("storage")}
    found = _bytes(str(entries.get(storage, {}).get("blocksize", "")))
    if found == layout.volblocksize:
        return None
    wanted = f"{layout.volblocksize // KIB}k" if layout.volblocksize % KIB == 0 else str(layout.volblocksize)
    has = f"a block size of {format_size(found)}" if found else "no block size set"
    return (
        f"storage {storage} has {has}, and virt-overhead does not change the settings of a storage in use: "
        f"pvesm set {storage} --blocksize {wanted} for a volblocksize of {format_size(layout.volblocksize)}"
    )


def _bytes(text: str) -> int:
    """A block size as PVE writes it, in bytes; 0 if it is not one."""
    found = re.fullmatch(r"([0-9]{1,8})([kmKM]?)", text)
    return int(found[1]) * {"": 1, "k": KIB, "m": KIB**2}[found[2].lower()] if found else 0


def with_layouts(client: Client, disk: DiskByStorage) -> DiskByStorage:
    """The same storage, with the layouts that its volumes can have.

    Raises Unsupported if the node has no storage with this name, or if its type is not supported.
    """
    if disk.storages:
        return disk
    known = {str(each["storage"]): str(each["type"]) for each in client.get(f"{client.node}/storage")}
    where = f"host {client.host}: {disk.identity}"
    if disk.at not in known:
        raise Unsupported(f"{where}: the node has no storage with this name", hint=f"it has: {', '.join(known)}")
    layouts = offered(known[disk.at])
    if not layouts:
        types = dict.fromkeys(type_ for types in STORAGE_TYPES.values() for type_ in types)
        why = f"{where} is of type {known[disk.at]}{_NOT_YET.get(known[disk.at], '')}"
        raise Unsupported(why, hint=f"allowed: a storage of type {', '.join(types)}")
    return replace(disk, storages=dict.fromkeys(layouts, disk.at))
