"""The hooks: a host whose lab file names a VM of others gets the hypervisor that borrows it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from harness.feature import Feature

if TYPE_CHECKING:
    from harness.events import Events
    from harness.guest.libvirt.connection import Connection
    from harness.guest.protocol import Hypervisor
    from harness.guest.proxmox.client import Client
    from harness.lab.created import Entry, Removal, Thing
    from harness.lab.hosts import Host
    from harness.lab.transport.base import Runner


def _open_hypervisor(host: Host, events: Events) -> AbstractContextManager[Hypervisor] | None:
    """The hypervisor that borrows the VM of the host; None if the lab file names none. Loads only its own libraries."""
    spec = host.spec.hypervisor
    if spec.boots_guests:
        return None
    from harness.lab.inventory import LibvirtSpec

    if isinstance(spec, LibvirtSpec):
        from harness.features.borrow.libvirt import borrow_from_libvirt

        return borrow_from_libvirt(host, events)
    from harness.features.borrow.proxmox import borrow_from_node

    return borrow_from_node(host, events)


def _remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    from harness.features.borrow.plugging import PluggedDrive
    from harness.features.borrow.proxmox import unplug
    from harness.guest.proxmox.disk_users import require_same_node

    drive = entry.parsed((PluggedDrive,))
    if drive is None:
        return None
    require_same_node(client, runner)
    return unplug(client, drive)


def _remove_from_libvirt(connection: Connection, runner: Runner, entry: Entry) -> Removal | None:
    from harness.features.borrow.plugged import remove_from_libvirt

    return remove_from_libvirt(connection, runner, entry)


def _list_things() -> tuple[type[Thing], ...]:
    from harness.features.borrow.plugging import AddedThread, PluggedDrive, PluggedIn

    return AddedThread, PluggedDrive, PluggedIn


FEATURE = Feature(
    name="borrow",
    hypervisor=_open_hypervisor,
    remove_from_node=_remove_from_node,
    remove_from_libvirt=_remove_from_libvirt,
    list_things=_list_things,
)
