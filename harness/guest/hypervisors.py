"""Which hypervisor a host has: the one place that chooses between the backends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from harness.doctor.findings import Finding
from harness.events import Events
from harness.guest.protocol import Backend, Hypervisor, Remover
from harness.lab.hosts import Host, ReachedHost
from harness.lab.inventory import HostSpec
from harness.lab.proxmox import ProxmoxSpec
from harness.lab.transport.base import Runner


def backend_of(spec: HostSpec) -> Backend:
    """What the hypervisor that the lab file names offers. Only its own libraries are loaded."""
    if isinstance(spec.hypervisor, ProxmoxSpec):
        from harness.guest.proxmox.backend import ProxmoxBackend  # noqa: PLC0415 - other hosts need no HTTP client

        return ProxmoxBackend(spec.hypervisor)
    from harness.guest.libvirt.backend import LibvirtBackend  # noqa: PLC0415 - nodes of Proxmox VE need no libvirt

    return LibvirtBackend()


def hypervisor_of(host: Host, events: Events) -> AbstractContextManager[Hypervisor]:
    """What makes guests on this host. Raises LabUnavailable with the remedy where it cannot be reached."""
    return backend_of(host.spec).hypervisor(host, events)


def remover_of(host: ReachedHost) -> AbstractContextManager[Remover]:
    """What removes the guests and volumes that runs have left on this host. Raises as `hypervisor_of`."""
    return backend_of(host.spec).remover(host)


def findings_of(host: HostSpec, runner: Runner) -> Sequence[Finding]:
    """What the doctor says of the host's hypervisor."""
    return backend_of(host).findings(host, runner)
