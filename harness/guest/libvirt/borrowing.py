"""A running VM of others as the guest: our disks are plugged into it, measured with its fio, and unplugged.

The VM is never started, stopped or reset, its definition never changes, and its own disks are never touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.guest.booting import Booted, system_of
from harness.guest.borrowed import (
    alone,
    changed_by_others,
    in_words,
    log_in,
    look_inside,
    notes,
    opened,
    require_distinct,
    require_same,
    words_of,
)
from harness.guest.libvirt.agent import LibvirtAgent
from harness.guest.libvirt.attachments import Attachments, resolved
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.disks import alias_of
from harness.guest.libvirt.effective import Running, live_xml, running, with_plugged
from harness.guest.libvirt.guest import LibvirtGuest
from harness.guest.libvirt.last_words import last_words, qemu_log
from harness.guest.libvirt.monitor import ask
from harness.guest.libvirt.plugged import devices_plugged
from harness.guest.libvirt.plugging import devices_for, differences, shown, vcpus_of, why_not_plugged
from harness.guest.libvirt.process import PID_FILE
from harness.guest.libvirt.requirements import Versions
from harness.guest.libvirt.running import RunningDomain
from harness.guest.protocol import Guest, GuestDisk
from harness.guest.qemu_process import qemu_threads
from harness.guest.system import Inside
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.hypervisor import BorrowedVm
from harness.lab.inventory import AnyDisk
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.attach import Attachment
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The VM before anything is plugged in: how libvirt runs it, and what its system has."""

    live: ET.Element
    system: Inside


class BorrowingHypervisor(LibvirtHypervisor):
    """Plugs disks into one running VM instead of making guests."""

    def __init__(self, host: Host, connection: Connection, events: Events, vm: BorrowedVm) -> None:
        super().__init__(host, connection, events)
        self._vm = vm

    @contextmanager
    def guest(
        self,
        log: CreationLog,
        disks: Sequence[GuestDisk],
        options: GuestOptions = ANY_GUEST,
        *,
        variant: str = "",  # noqa: ARG002 - the names of the disks have it
    ) -> Iterator[Guest]:
        """The VM with these disks until the end of the block.

        Raises Unsupported, GuestError or HostError as for every guest, and SafetyError if a disk of the VM's own cannot
        be told apart from one of ours.
        """
        host, vm = self._host, self._vm
        domain = self._domain()
        live = live_xml(self._connection, domain)
        for disk in disks:
            if why := why_not_plugged(self._words, vcpus_of(live), disk.attach, options):
                raise Unsupported(f"host {host.name}: {disk.name}: {why}")
        attached = resolved(host.runner, host.name, disks)
        with closing(log_in(self._host, self._vm, self._agent(domain))) as runner:
            system = system_of(runner)
            clashes = [disk.name for disk in disks if shown(live, alias_of(disk))]
            require_distinct(host.name, self._words, system, list(attached.serials.values()), clashes)
            devices = devices_for(live, disks, uuid.uuid4().hex[:8])
            opening = {attached.serials[disk.name]: disk.attach for disk in disks}
            with (
                devices_plugged(self._connection, domain, log, disks, devices),
                opened(host.name, self._words, system, opening, self._events),
            ):
                machine = RunningDomain(self._connection, domain, vm.name, console="")
                threads = qemu_threads(host.runner, PID_FILE.format(name=vm.name), self._events)
                up = Booted(machine, runner, None)
                guest = BorrowedGuest(up, threads=threads, host=host.runner, log=log, attached=attached)
                for note in notes(self._words, system, guest.evidence, host.facts["fio"]):
                    self._events(note)
                yield guest
        if changed := differences(live, live_xml(self._connection, domain)):
            self._events(changed_by_others(self._words, changed))

    def missing(self, mode: Mode, disk: AnyDisk) -> str | None:
        """As for guests that the run makes. There is only one VM."""
        return alone(self._words, mode) or super().missing(mode, disk)

    def _no_guest(self, guest: GuestOptions, attach: Attachment, versions: Versions) -> str | None:  # noqa: ARG002
        looked = self._looked_at
        if isinstance(looked, str):
            return looked
        if self._host.acceleration.accel == "kvm" and looked.live.get("type") != "kvm":
            return f"{self._words} is emulated although the host has KVM: change its definition to <domain type='kvm'>"
        why = why_not_plugged(self._words, vcpus_of(looked.live), attach, guest)
        return why or looked.system.lacking(self._words, attach)

    @property
    def _words(self) -> str:
        return words_of(self._vm)

    @cached_property
    def _looked_at(self) -> LookedAt | str:
        """The VM, or why it cannot be borrowed, with the remedy."""
        try:
            domain = self._domain()
            live = live_xml(self._connection, domain)
            with closing(log_in(self._host, self._vm, self._agent(domain))) as runner:
                return LookedAt(live, look_inside(runner))
        except (GuestError, HostError, Unsupported) as error:
            return in_words(error)

    def _agent(self, domain: Any) -> LibvirtAgent:
        return LibvirtAgent(self._connection, domain, self._vm.name)

    def _domain(self) -> Any:
        """libvirt's handle of the running VM. Raises Unsupported if there is none, HostError."""
        name, connection = self._vm.name, self._connection
        remedy = f"virt-overhead never starts a VM of others: virsh start {name} on {self._host.name}"
        try:
            domain: Any = connection.call(f"find the VM {name}", partial(connection.handle.lookupByName, name))
        except Refused as error:
            raise Unsupported(error.message, hint="virsh list --all lists the VMs of the host") from error
        if not connection.call(f"report whether the VM {name} runs", domain.isActive):
            raise Unsupported(f"host {self._host.name}: {self._words} does not run", hint=remedy)
        return domain


class BorrowedGuest(LibvirtGuest):
    """The VM while our disks are plugged in."""

    def __init__(
        self,
        booted: Booted[RunningDomain],
        *,
        threads: VmThreads | None,
        host: Runner,
        log: CreationLog,
        attached: Attachments,
    ) -> None:
        super().__init__(booted, threads=threads, host=host, log=log, attached=attached)
        self.evidence = {**self.evidence, "borrowed": booted.machine.name}
        if not self.evidence.get("hypervisor") and ask(self._connection, self._domain, "query-kvm")["enabled"]:
            # Its system has no program that shows it. QEMU knows it as well.
            self.evidence["hypervisor"] = "KVM"

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        """The disk is still the one that was plugged in: the owner of the VM may have changed its devices meanwhile."""
        serial = self._attached.serials[disk]
        require_same(self.system, disk, serial, self.device(disk))
        yield

    def state(self) -> str:
        domain = self._running_domain
        log = last_words(self._host, qemu_log(domain.name), "QEMU's log")
        return f"libvirt reports that the borrowed VM {'still runs' if domain.is_running() else 'has ended'}{log}"

    @cached_property
    def _running(self) -> Running:
        found = running(self._connection, self._domain, self._host)
        return with_plugged(found, [alias_of(disk) for disk in self._attached.disks.values()])
