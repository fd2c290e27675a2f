"""A running VM of others on a node as the guest: drives are plugged into it, measured with its fio, and unplugged.

The VM is never started, stopped or reset, and its own disks are never touched. The volumes of a run belong to another
VM, which the run creates and never starts, so the borrowed VM owns nothing of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.guest.booting import Booted, system_of
from harness.guest.borrowed import (
    alone,
    changed_by_others,
    in_words,
    log_in,
    look_inside,
    never_plugged,
    notes,
    opened,
    require_distinct,
    require_same,
    words_of,
)
from harness.guest.machine_size import too_many_queues
from harness.guest.protocol import Guest, GuestDisk
from harness.guest.proxmox.agent import ProxmoxAgent
from harness.guest.proxmox.backend import ProxmoxHypervisor, source_of
from harness.guest.proxmox.client import Client
from harness.guest.proxmox.created_objects import CreatedVm
from harness.guest.proxmox.disk_users import require_unshared
from harness.guest.proxmox.guest import ProxmoxGuest
from harness.guest.proxmox.machine import VirtualMachine, exists
from harness.guest.proxmox.new_vm import created
from harness.guest.proxmox.node_state import needed_to_borrow
from harness.guest.proxmox.plugged import drive_plugged
from harness.guest.proxmox.process import PID_FILE, with_plugged
from harness.guest.proxmox.stores import PveVolume
from harness.guest.qemu_process import Inspected, qemu_threads
from harness.guest.system import Inside
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.hypervisor import BorrowedVm
from harness.lab.proxmox import GuestRules
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.attach import Attach, Attachment
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode

_OWNER: Mapping[str, object] = {"memory": 16, "onboot": 0}
"""The settings of the VM that owns the volumes of a run. It never starts."""
_NO_VM = 0
_CONTROLLER = "virtio-scsi-single"


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The VM before anything is plugged in: its configuration, and what its system has."""

    config: Mapping[str, Any]
    system: Inside


class BorrowingProxmox(ProxmoxHypervisor):
    """Plugs drives into one running VM of the node instead of making guests."""

    def __init__(self, host: Host, client: Client, rules: GuestRules, events: Events, vm: BorrowedVm) -> None:
        super().__init__(host, client, rules, events)
        self._vm = vm
        self._machine_of_others = VirtualMachine(client, int(vm.name))
        self._agent = ProxmoxAgent(self._machine_of_others)

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

        Raises Unsupported, GuestError or HostError as for every guest, and SafetyError if another VM has one of the
        disks, or if a disk of the VM's own cannot be told apart from one of ours.
        """
        host, machine = self._host, self._machine_of_others
        self._require_attachable(disks)
        before = self._running_config()
        for disk in disks:
            if why := why_not_plugged(self._words, before, disk.attach, options):
                raise Unsupported(f"host {host.name}: {disk.name}: {why}")
        for path in dict.fromkeys(disk.source.path for disk in disks if not isinstance(disk.source, PveVolume)):
            # Nor may the VM itself have it.
            require_unshared(self._client, host.runner, path, _NO_VM)
        serials = [disk.serial for disk in disks]
        with closing(log_in(host, self._vm, self._agent)) as runner:
            system = system_of(runner)
            require_distinct(host.name, self._words, system, serials, [])
            with ExitStack() as stack:
                plug = stack.enter_context
                keys = {disk.name: plug(drive_plugged(machine, log, disk, source_of(disk))) for disk in disks}
                opening = {disk.serial: disk.attach for disk in disks}
                plug(opened(host.name, self._words, system, opening, self._events))
                threads = qemu_threads(host.runner, PID_FILE.format(vmid=machine.vmid), self._events)
                up = Booted(machine, runner, None)
                guest = BorrowedGuest(up, threads=threads, node=host.runner, disks=disks, keys=keys)
                for note in notes(self._words, system, guest.evidence, host.facts["fio"]):
                    self._events(note)
                yield guest
        if changed := differences(before, machine.config()):
            self._events(changed_by_others(self._words, changed))

    def _too_many(self, mode: Mode) -> str | None:
        return alone(self._words, mode)

    def _no_guest(self, guest: GuestOptions, attach: Attachment) -> str | None:
        looked = self._looked_at
        if isinstance(looked, str):
            return looked
        if self._host.acceleration.accel == "kvm" and str(looked.config.get("kvm", "1")) == "0":
            return f"{self._words} is emulated although the host has KVM: qm set {self._vm.name} --kvm 1"
        why = why_not_plugged(self._words, looked.config, attach, guest)
        return why or looked.system.lacking(self._words, attach)

    @contextmanager
    def _shell(self, log: CreationLog) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
        """The VM that owns the volumes."""
        with created(self._client, log, self._rules, _OWNER) as found:
            yield found

    @property
    def _words(self) -> str:
        return words_of(self._vm)

    @cached_property
    def _looked_at(self) -> LookedAt | str:
        """The VM, or why it cannot be borrowed, with the remedy."""
        try:
            self._require_privileges()
            config = self._running_config()
            with closing(log_in(self._host, self._vm, self._agent)) as runner:
                return LookedAt(config, look_inside(runner))
        except (GuestError, HostError, Unsupported) as error:
            return in_words(error)

    def _require_privileges(self) -> None:
        """Raises Unsupported, with the remedy, if Proxmox VE would refuse to the login what a run does with VMs."""
        client = self._client
        wanted = needed_to_borrow(self._vm)
        granted = {path: client.privileges(path) for path in dict.fromkeys(each.path for each in wanted)}
        missing = [f"{each.privilege} on {each.path}" for each in wanted if each.privilege not in granted[each.path]]
        if missing:
            raise Unsupported(
                f"host {client.host}: to borrow VM {self._vm.name}, {client.spec.who} lacks {', '.join(missing)}",
                hint="give it a role with these privileges: docs/borrow.md has one",
            )

    def _running_config(self) -> dict[str, Any]:
        """The VM's configuration. Raises Unsupported if there is no such VM, or if it does not run, HostError."""
        host, vmid = self._host.name, self._machine_of_others.vmid
        if not exists(self._client, vmid):
            raise Unsupported(f"host {host}: the node has no VM {vmid}", hint="qm list lists the VMs of the node")
        if not self._machine_of_others.running:
            remedy = f"virt-overhead never starts a VM of others: qm start {vmid} on {host}"
            raise Unsupported(f"host {host}: {self._words} does not run", hint=remedy)
        return self._machine_of_others.config()


def why_not_plugged(vm: str, config: Mapping[str, Any], attach: Attachment, options: GuestOptions) -> str | None:
    """Why a VM with this configuration cannot get a disk like this while it runs, with the remedy; None if it can."""
    if (why := never_plugged(vm, attach, options)) or not isinstance(attach, Attach):
        return why
    if lock := config.get("lock"):
        return f"{vm} is locked ({lock}): wait for the end of the task, or qm unlock it"
    if str(config.get("protection", "0")) == "1":
        return f"{vm} is protected, so that no disk can be removed from it: qm set ID --protection 0"
    features = str(config.get("hotplug", "1"))
    if features != "1" and "disk" not in features.split(","):
        return f'{vm} takes no disks while it runs (hotplug = "{features}"): qm set ID --hotplug disk,network,usb'
    controller = str(config.get("scsihw", "lsi"))
    if attach.bus == "virtio-scsi" and controller != _CONTROLLER:
        return (
            f"{vm} has scsihw = {controller}, which it can change only at its start, and a disk on virtio-scsi needs "
            f'{_CONTROLLER} for a controller of its own: use bus = "virtio-blk", or change it and start the VM anew'
        )
    vcpus = int(config.get("vcpus") or int(config.get("sockets", 1)) * int(config.get("cores", 1)))
    return too_many_queues(attach, vcpus, GuestOptions(vcpus=vcpus))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings that are different in two configurations."""
    names = sorted((before.keys() | after.keys()) - {"digest"})
    return [name for name in names if before.get(name) != after.get(name)]


class BorrowedGuest(ProxmoxGuest):
    """The VM while our drives are plugged in."""

    def __init__(
        self,
        booted: Booted[VirtualMachine],
        *,
        threads: VmThreads | None,
        node: Runner,
        disks: Sequence[GuestDisk],
        keys: Mapping[str, str],
    ) -> None:
        super().__init__(booted, threads=threads, node=node, disks=disks, keys=keys)
        self.evidence = {**self.evidence, "borrowed": f"VM {booted.machine.vmid}"}
        if self.windows and str(booted.machine.config().get("kvm", "1")) == "1":
            # Windows does not report it. Proxmox VE starts such a VM only under KVM.
            self.evidence["hypervisor"] = "KVM"

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        """The disk is still the one that was plugged in."""
        serial = self._disks[disk].serial
        require_same(self.system, disk, serial, self.device(disk))
        yield

    def _with_drives(self, process: Inspected) -> Inspected:
        return with_plugged(self._node, self._machine.vmid, process)
