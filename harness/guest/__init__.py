"""Guests: their protocols, and the backend of a host's hypervisor, which only this module chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import reduce

from harness.errors import LabUnavailable
from harness.events import Events
from harness.feature import FeatureHypervisor, features, find_brought
from harness.guest.protocol import Backend, Hypervisor, Remover
from harness.lab.hosts import Host, ReachedHost
from harness.lab.inventory import HostSpec


def choose_backend(spec: HostSpec) -> Backend:
    """The backend for the hypervisor that the lab file names. Loads only its own libraries."""
    if (brought := find_brought(FeatureHypervisor, kind=spec.kind)) is not None:
        return brought.load_backend(spec.hypervisor)
    from harness.guest.libvirt.backend import LibvirtBackend  # noqa: PLC0415 - other hypervisors need no libvirt

    return LibvirtBackend()


@contextmanager
def open_hypervisor(host: Host, events: Events) -> Iterator[Hypervisor]:
    """The hypervisor that makes guests on this host. Raises LabUnavailable, with the remedy, if it is unreachable."""
    with _open_own(host, events) as of_host:
        yield reduce(lambda below, feature: feature.extend_hypervisor(host, below, events), features(), of_host)


def _open_own(host: Host, events: Events) -> AbstractContextManager[Hypervisor]:
    """That of the host's backend, or of a feature in its place."""
    for feature in features():
        if (hypervisor := feature.hypervisor(host, events)) is not None:
            return hypervisor
    if not host.spec.hypervisor.boots_guests:
        raise LabUnavailable(
            f"host {host.name}: the lab file names a running VM of others, which this installation cannot measure",
            hint=f"leave out borrow in host.{host.name}.guest, or install the feature `borrow`",
        )
    return choose_backend(host.spec).hypervisor(host, events)


def open_remover(host: ReachedHost) -> AbstractContextManager[Remover]:
    """Removes the guests and volumes that runs left on this host. Raises the same errors as `open_hypervisor`."""
    return choose_backend(host.spec).remover(host)
