"""Storages in use of a host with libvirt: where a pool has its volumes, and what the doctor finds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast
from xml.etree import ElementTree

from harness.errors import HarnessError, HostError, Unsupported
from harness.guest.libvirt.connection import Connection
from harness.lab.findings import Finding, Level
from harness.lab.guard.room import free_bytes
from harness.lab.inventory import DiskByStorage
from harness.lab.space import reserve_bytes
from harness.lab.storage_look import FoundStorage, Place, look_at
from harness.lab.transport.base import Runner
from harness.units import format_size

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


_WHY = "a run creates its own volumes on a storage in use, and keeps enough of it free for others"


def examine_storage(runner: Runner, storage: DiskByStorage) -> Finding:
    """Whether the storage can be used, which layouts it offers, and how much space a run may use."""
    check = f"{storage.name}: storage"
    try:
        storage_found = _found(runner, storage)
        free, total = free_bytes(runner, storage_found)
    except HarnessError as error:
        return Finding(check, error.message, Level.PROBLEM, _WHY, error.hint or "correct the lab file")
    usable = max(free - reserve_bytes(total), 0)
    value = (
        f"{storage_found.words} offers {', '.join(storage_found.layouts)}; {format_size(usable)} for volumes of a run"
    )
    if usable:
        return Finding(check, value, Level.OK, _WHY)
    return Finding(check, value, Level.PROBLEM, _WHY, "free space there, or name another storage")


def _found(runner: Runner, storage: DiskByStorage) -> FoundStorage:
    if storage.key == "pool":
        dump = ["virsh", "--connect", "qemu:///system", "pool-dumpxml", storage.at]
        text = runner.run(dump, deadline=60).stdout
        return look_at(runner, *in_definition(text, f"{runner.name}: {storage.identity}"))
    assert storage.key != "storage", "the lab file allows it only on a node of Proxmox VE"
    return look_at(runner, storage.key, storage.at)
