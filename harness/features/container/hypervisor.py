"""The hypervisor of a host with containers beside its VMs. The volumes are those that it makes for its VMs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.events import Events
from harness.features.container.lxc import refuse_lxc, start_container
from harness.guest.booting import choose_vcpus
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk, ProxmoxSpec
from harness.layout.build import Layouts
from harness.model.attach import InContainer
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode

if TYPE_CHECKING:
    from harness.guest.proxmox.client import Client


class ContainersBesideVms:
    """A `Hypervisor`: what `vms` does, and a container where the disks are attached to one."""

    def __init__(self, host: Host, vms: Hypervisor, events: Events) -> None:
        self._host = host
        self._vms = vms
        self._events = events

    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> AbstractContextManager[Guest]:
        """A VM, or a container, with these disks. Raises GuestError or HostError if it does not start."""
        if not any(disk.attach.device == "container" for disk in disks):
            return self._vms.guest(log, disks, options, variant=variant)
        cpus = choose_vcpus(self._host.facts, [disk.attach for disk in disks], options)
        if (client := self._find_client()) is not None:
            from harness.features.container.proxmox import start_on_node  # noqa: PLC0415 - it needs an HTTP client

            return start_on_node(self._host, client, log, disks, options, cpus=cpus, events=self._events)
        return start_container(self._host, log, disks, options, cpus=cpus, events=self._events)

    def remove(self, entry: Entry) -> Removal | None:
        """The thing of the entry, if it is of a VM. Commands on the host remove containers."""
        return self._vms.remove(entry)

    @property
    def poll_seconds(self) -> float:
        """As without containers."""
        return self._vms.poll_seconds

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host does not support `mode` on `disk`, with the remedy; None if it does."""
        if not mode.in_container:
            return self._vms.unsupported_by_host(mode, disk)
        # Without an attachment, it is about the layout only.
        why = self._vms.unsupported_by_host(replace(mode, attach=None, guest=ANY_GUEST), disk)
        unprivileged = isinstance(mode.attach, InContainer) and mode.attach.unprivileged
        why = why or refuse_lxc(self._host, mode.guest, unprivileged=unprivileged)
        if why or (client := self._find_client()) is None:
            return why
        from harness.features.container.proxmox import refuse_container  # noqa: PLC0415 - it needs an HTTP client

        return refuse_container(client, self._host, mode)

    def _find_client(self) -> Client | None:
        """The API that makes the containers of the host; None if commands on the host do."""
        spec = self._host.spec.hypervisor
        by_api = isinstance(spec, ProxmoxSpec) and spec.boots_guests and spec.guest.container_storage is not None
        return getattr(self._vms, "client", None) if by_api else None

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the system of a VM lacks. The system of a container is that of its host."""
        return None if mode.in_container else self._vms.unsupported_by_guest_os(log, mode)

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """As without containers: they use the volumes of the VMs that they are compared with."""
        return self._vms.layouts(log, disks, modes, span=span)
