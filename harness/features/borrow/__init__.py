"""Borrow: a running VM of others as the guest. Disks are plugged into it, measured with its fio, and unplugged.

The lab file names the VM (`borrow` in `[host.NAME.guest]`), and how a run logs in to it: over SSH, or through its guest
agent (agent.py). The VM is never started, stopped or reset, its definition never changes, and its own disks are never
touched. `BorrowingHypervisor` (hypervisor.py) is the same for all hypervisors: it takes the layouts from the hypervisor
of the host, and the rest from a `VmOfOthers`, which libvirt.py and proxmox.py have. The creation log has
what is plugged in, and `virt-overhead reap` unplugs it after a killed run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from harness.feature import Feature, import_later

if TYPE_CHECKING:
    from harness.events import Events
    from harness.features.borrow import hypervisor, plugged
    from harness.guest.protocol import Hypervisor
    from harness.lab.hosts import Host
else:
    hypervisor, plugged = import_later(__name__, "hypervisor", "plugged")


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


FEATURE = Feature(
    name="borrow",
    hypervisor=_open_hypervisor,
    remove_from_libvirt=lambda connection, runner, entry: plugged.remove_from_libvirt(connection, runner, entry),
    list_things=lambda: (hypervisor.AddedThread, hypervisor.PluggedIn),
)
