"""Which hypervisor a host has, opened for work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.events import Events
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.connection import connect
from harness.guest.protocol import Hypervisor
from harness.lab.hosts import Host


@contextmanager
def hypervisor_of(host: Host, events: Events) -> Iterator[Hypervisor]:
    """What makes guests on this host. Raises LabUnavailable with the remedy where it cannot be reached."""
    if host.spec.proxmox is not None:
        from harness.guest.proxmox.backend import open_proxmox  # noqa: PLC0415 - other hosts need no HTTP client

        with open_proxmox(host, events) as proxmox:
            yield proxmox
        return
    with connect(host) as connection:
        yield LibvirtHypervisor(host, connection, events)
