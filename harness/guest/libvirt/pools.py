"""Where a storage pool of libvirt has its volumes, as a place that commands on the host can use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast
from xml.etree import ElementTree

from harness.errors import HostError, Unsupported
from harness.guest.libvirt.connection import Connection
from harness.lab.storage import DiskByStorage
from harness.lab.storage_look import Place

_PLACES: Mapping[str, tuple[Place, str]] = {
    "dir": ("directory", "target/path"),
    "fs": ("directory", "target/path"),
    "netfs": ("directory", "target/path"),
    "logical": ("volume_group", "source/name"),
    "zfs": ("dataset", "source/name"),
}
"""The place of each type of pool, and the element of its definition that names it (libvirt's formatstorage)."""


def place_of(connection: Connection, storage: DiskByStorage) -> tuple[Place, str]:
    """The place of a storage, and where it is. Raises Unsupported if it is a pool that cannot be used, HostError."""
    if storage.key == "storage":
        raise Unsupported(f"{storage.identity} belongs to Proxmox VE, but this host uses libvirt")
    if storage.key != "pool":
        return storage.key, storage.at
    where = f"host {connection.host}: libvirt pool {storage.at}"
    hint = "virsh pool-list --all lists the pools, and virsh pool-start NAME starts one"
    try:
        pool = connection.call(
            f"find the pool {storage.at}", partial(connection.handle.storagePoolLookupByName, storage.at)
        )
        active = connection.call(f"report whether the pool {storage.at} is active", pool.isActive)
        text = connection.call(f"describe the pool {storage.at}", pool.XMLDesc)
    except HostError as error:
        raise Unsupported(error.message, hint=hint) from error
    if not active:
        raise Unsupported(f"{where} is not active", hint=hint)
    return in_definition(cast("str", text), where)


def in_definition(text: str, where: str) -> tuple[Place, str]:
    """The place in the XML of a pool. `where` begins the message of Unsupported. Pure."""
    try:
        pool = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise Unsupported(f"{where}: libvirt describes it by XML that is not valid: {error}") from error
    kind = pool.get("type", "")
    place, element = _PLACES.get(kind, (None, ""))
    at = (pool.findtext(element) or "").strip()
    if place is None or not at:
        raise Unsupported(
            f"{where} has the type {kind or '(none)'}", hint=f"allowed: pools of the type {', '.join(_PLACES)}"
        )
    return place, at
