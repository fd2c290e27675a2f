"""Which hypervisor a host has, opened for work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.events import Events
from harness.guest.libvirt.backend import LibvirtHypervisor, LibvirtRemover
from harness.guest.libvirt.connection import connect
from harness.guest.protocol import Hypervisor, Remover
from harness.lab.hosts import Host, ReachedHost


@contextmanager
def hypervisor_of(host: Host, events: Events) -> Iterator[Hypervisor]:
    """What makes guests on this host. Raises LabUnavailable with the remedy where it cannot be reached."""
    if (proxmox := host.spec.proxmox) is not None:
        from harness.guest.proxmox.backend import ProxmoxHypervisor  # noqa: PLC0415 - other hosts need no HTTP client
        from harness.guest.proxmox.look import logged_in  # noqa: PLC0415

        with logged_in(host.name, proxmox) as client:
            yield ProxmoxHypervisor(host, client, proxmox.guest, events)
        return
    with connect(host) as connection:
        yield LibvirtHypervisor(host, connection, events)


@contextmanager
def remover_of(host: ReachedHost) -> Iterator[Remover]:
    """What removes the guests and volumes that runs have left on this host. Raises as `hypervisor_of`."""
    if (proxmox := host.spec.proxmox) is not None:
        from harness.guest.proxmox.backend import ProxmoxRemover  # noqa: PLC0415 - other hosts need no HTTP client
        from harness.guest.proxmox.look import logged_in  # noqa: PLC0415

        with logged_in(host.name, proxmox) as client:
            yield ProxmoxRemover(host.runner, client)
        return
    with connect(host) as connection:
        yield LibvirtRemover(host.runner, connection)
