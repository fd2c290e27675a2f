"""A running VM of others on a node of Proxmox VE: what is read of it, and how drives are plugged into it.

The volumes of a run belong to another VM, which the run creates and never starts, so the borrowed VM owns nothing of
them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from harness.errors import GuestError, HarnessError, HostError, Unsupported
from harness.events import Events
from harness.features.borrow.agent import INSTALL, AgentOfVm, AgentSilent
from harness.features.borrow.hypervisor import (
    BorrowingHypervisor,
    Plugging,
    describe_vm,
    refuse_plugging,
    require_same,
)
from harness.features.proxmox import GuestRules, OnNode, ProxmoxSpec
from harness.features.proxmox.backend import ProxmoxHypervisor, name_source, require_attachable
from harness.features.proxmox.client import Client, PveError, list_needed_to_borrow, open_client
from harness.features.proxmox.creation import PveVolume
from harness.features.proxmox.disk_users import require_same_node, require_unshared
from harness.features.proxmox.guest import PID_FILE, ProxmoxGuest
from harness.features.proxmox.machine import CONFIG_SECONDS, VirtualMachine, has_vm, require_all
from harness.features.proxmox.vm_config import (
    CONTROLLERS,
    DRIVE,
    choose_drives,
    format_drive,
    list_by_arguments,
    parse_drive,
    read_uuid,
)
from harness.guest.booting import Booted, GuestRunner, refuse_queues
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.guest.qemu_process import InspectedProcess, find_qemu_threads
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.hosts import Host
from harness.lab.inventory import BorrowedVm
from harness.lab.transport.base import Runner
from harness.model.attach import Attach, Attachment
from harness.model.guest import GuestOptions
from harness.signals import Deadline, attempts, growing
from harness.units import format_duration
from harness.untrusted import reading

_OWNER: Mapping[str, object] = {"memory": 16, "onboot": 0}
"""The settings of the VM that owns the volumes of a run. It never starts."""
_NO_VM = 0
CALL_SECONDS = 30.0
_BYTES = "latin-1"
_SILENT = "QEMU guest agent is not running"
_NOT_CONFIGURED = "No QEMU guest agent configured"


class PluggedDrive(Thing):
    """A drive in the running VM of others with this SMBIOS UUID. Source and serial number identify the drive."""

    kind: Literal["pve-drive"] = "pve-drive"
    node: str
    vmid: int
    uuid: str
    key: str
    source: str
    serial: str

    @property
    def words(self) -> str:
        return f"the drive {self.key} ({self.source}) in the borrowed VM {self.vmid}"

    def in_config(self, config: Mapping[str, Any]) -> list[str]:
        """The drives of a VM with this configuration that have the same source and serial number."""
        return [key for key, value in config.items() if DRIVE.fullmatch(key) and self._is(parse_drive(str(value)))]

    def _is(self, options: Mapping[str, str]) -> bool:
        return (options["file"], options.get("serial")) == (self.source, self.serial)


@dataclass(frozen=True, slots=True)
class ProxmoxAgent(AgentOfVm):
    """The agent of one VM."""

    machine: VirtualMachine

    @property
    def host(self) -> str:
        return self.machine.client.host

    @property
    def vm(self) -> str:
        return f"VM {self.machine.vmid}"

    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        given: dict[str, object] = {"command": [path, *arguments]}
        if stdin:
            given["input-data"] = stdin.decode(_BYTES)
        try:
            answer = self.machine.client.write(
                "post", f"{self._path}/exec", given, is_done=lambda: False, deadline=CALL_SECONDS
            )
        except PveError as error:
            raise self._refused(error) from error
        with self.reading("exec"):
            return int(answer["pid"])

    @staticmethod
    def decode(output: str) -> bytes:
        return output.encode(_BYTES)

    @property
    def _path(self) -> str:
        return f"{self.machine.path}/agent"

    def ask(self, command: str, **parameters: object) -> Any:
        try:
            answer = self.machine.client.get(f"{self._path}/{command}", parameters, deadline=CALL_SECONDS)
        except PveError as error:
            raise self._refused(error) from error
        # Proxmox VE passes answers on as they are, except that to `exec-status`.
        with self.reading(command):
            return answer if command == "exec-status" else answer["result"]

    def _refused(self, error: PveError) -> HostError:
        if _SILENT in error.reason:
            return AgentSilent(f"{self.where} does not answer: {error.reason.strip()}", hint=INSTALL)
        if _NOT_CONFIGURED in error.reason:
            vmid = self.machine.vmid
            remedy = f"qm set {vmid} --agent enabled=1, then start VM {vmid} anew, and {INSTALL}"
            return AgentSilent(f"{self.where} is not configured: {error.reason.strip()}", hint=remedy)
        return error


@contextmanager
def borrow_from_node(host: Host, events: Events) -> Iterator[Hypervisor]:
    """The hypervisor that borrows the VM that the lab file names. Raises LabUnavailable if the API is unreachable."""
    spec = host.spec.hypervisor
    if not isinstance(spec, ProxmoxSpec) or spec.borrowed is None:
        raise ValueError(f"the lab file names no VM to borrow on host {host.name}")
    with open_client(host.name, spec) as client:
        yield borrow_vm(host, client, spec.guest, spec.borrowed, events)


def borrow_vm(
    host: Host, client: Client, rules: GuestRules, vm: BorrowedVm, events: Events
) -> BorrowingHypervisor[Mapping[str, Any]]:
    """The same with a login to the node's API."""
    layout_maker = ProxmoxHypervisor(host, client, rules, events, owner=_OWNER)
    return BorrowingHypervisor(host, layout_maker, vm, NodeVm(host, client, vm, events), events)


class NodeVm:
    """A `VmOfOthers`: a VM of a node, described by its configuration."""

    def __init__(self, host: Host, client: Client, vm: BorrowedVm, events: Events) -> None:
        self._host = host
        self._client = client
        self._vm = vm
        self._events = events
        self._machine = VirtualMachine(client, int(vm.name))
        self._words = describe_vm(vm)

    @property
    def agent(self) -> ProxmoxAgent:
        return ProxmoxAgent(self._machine)

    def require_allowed(self) -> None:
        """Raises Unsupported, with the remedy, if Proxmox VE would refuse to the login what a run does with VMs."""
        client = self._client
        wanted = list_needed_to_borrow(self._vm)
        granted = {path: client.privileges(path) for path in dict.fromkeys(privilege.path for privilege in wanted)}
        missing = [
            f"{privilege.privilege} on {privilege.path}"
            for privilege in wanted
            if privilege.privilege not in granted[privilege.path]
        ]
        if missing:
            raise Unsupported(
                f"host {client.host}: to borrow VM {self._vm.name}, {client.spec.who} lacks {', '.join(missing)}",
                hint="give it a role with these privileges: docs/borrow.md has one",
            )

    def read(self) -> dict[str, Any]:
        """The VM's configuration. Raises Unsupported if there is no such VM, or if it does not run, HostError."""
        host, vmid = self._host.name, self._machine.vmid
        if not has_vm(self._client, vmid):
            raise Unsupported(f"host {host}: the node has no VM {vmid}", hint="qm list lists the VMs of the node")
        if not self._machine.running:
            remedy = f"virt-overhead never starts a VM of others: qm start {vmid} on {host}"
            raise Unsupported(f"host {host}: {self._words} does not run", hint=remedy)
        return self._machine.config()

    def why_emulated(self, state: Mapping[str, Any]) -> str | None:
        return f"qm set {self._vm.name} --kvm 1" if str(state.get("kvm", "1")) == "0" else None

    def why_not_plugged(self, state: Mapping[str, Any], attach: Attachment, options: GuestOptions) -> str | None:
        return refuse_disk(self._words, state, attach, options)

    def prepare(self, disks: Sequence[GuestDisk], state: Mapping[str, Any]) -> Plugging:  # noqa: ARG002 - a VmOfOthers
        machine, node = self._machine, self._host.runner
        require_attachable(self._client, disks)
        for path in dict.fromkeys(disk.source.path for disk in disks if not isinstance(disk.source, PveVolume)):
            # Nor may the VM itself have it.
            require_unshared(self._client, node, path, _NO_VM)

        @contextmanager
        def plug(log: CreationLog) -> Iterator[Callable[[GuestRunner], Guest]]:
            with ExitStack() as stack:
                keys = {
                    disk.name: stack.enter_context(plug_drive(machine, log, disk, name_source(disk))) for disk in disks
                }

                def make_guest(runner: GuestRunner) -> Guest:
                    threads = find_qemu_threads(node, PID_FILE.format(vmid=machine.vmid), self._events)
                    up = Booted(machine, runner, None)
                    return BorrowedMachine(up, threads=threads, node=node, disks=disks, keys=keys)

                yield make_guest

        return Plugging({disk.name: disk.serial for disk in disks}, [], plug)

    def list_changes(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
        return list_changed_settings(before, after)


def refuse_disk(vm: str, config: Mapping[str, Any], attach: Attachment, options: GuestOptions) -> str | None:
    """Why a VM with this configuration cannot get a disk like this while it runs, with the remedy; None if it can."""
    if (why := refuse_plugging(vm, attach, options)) or not isinstance(attach, Attach):
        return why
    if why := _refuse_any_disk(vm, config):
        return why
    if names := list_by_arguments(attach):
        return f"{vm} gets arguments of QEMU only at its start, which {', '.join(names)} needs: leave it out"
    controller = str(config.get("scsihw", "lsi"))
    if attach.bus == "virtio-scsi" and controller != (needed := CONTROLLERS[attach.controller]):
        return (
            f"{vm} has scsihw = {controller}, which it can change only at its start, and a disk on virtio-scsi needs "
            f'{needed} (controller = "{attach.controller}"): use bus = "virtio-blk", or change it and start the VM anew'
        )
    vcpus = int(config.get("vcpus") or int(config.get("sockets", 1)) * int(config.get("cores", 1)))
    return refuse_queues(attach, vcpus, GuestOptions(vcpus=vcpus))


def _refuse_any_disk(vm: str, config: Mapping[str, Any]) -> str | None:
    """Why a VM with this configuration takes no disks at all while it runs."""
    if lock := config.get("lock"):
        return f"{vm} is locked ({lock}): wait for the end of the task, or qm unlock it"
    if str(config.get("protection", "0")) == "1":
        return f"{vm} is protected, so that no disk can be removed from it: qm set ID --protection 0"
    features = str(config.get("hotplug", "1"))
    if features != "1" and "disk" not in features.split(","):
        return f'{vm} takes no disks while it runs (hotplug = "{features}"): qm set ID --hotplug disk,network,usb'
    return None


def list_changed_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings that are different in two configurations."""
    names = sorted((before.keys() | after.keys()) - {"digest"})
    return [name for name in names if before.get(name) != after.get(name)]


class BorrowedMachine(ProxmoxGuest):
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

    def _with_drives(self, process: InspectedProcess) -> InspectedProcess:
        """With the arguments that `qm showcmd` prints: drives that were plugged in later are only there.

        The engines are those of the process itself.
        """
        node, vmid = self._node, self._machine.vmid
        printed = node.run(["qm", "showcmd", str(vmid)], deadline=60).stdout
        with reading(f"{node.name}: the output of qm showcmd {vmid}", GuestError):
            return replace(process, arguments=tuple(shlex.split(printed)))


RELEASE_SECONDS = 120.0
_LONGEST_PAUSE = 4.0
_TRIES = 5
_CHANGED = ("checksum mismatch", "detected modified configuration")
"""PVE's words if the configuration is not the one of the digest."""
_PASSING = (*_CHANGED, "hotplug problem", "VM is locked")
"""Why a drive is not unplugged now, but may be later: the VM's system still uses it, or a task has the VM."""


@contextmanager
def plug_drive(machine: VirtualMachine, log: CreationLog, disk: GuestDisk, source: str) -> Iterator[str]:
    """The running VM has the disk as the drive with the yielded name until the end of the block.

    It is in the creation log before it is plugged in. Raises PveError, GuestError, Unsupported if the bus has no place
    left, and HostError if the VM does not release it at the end: then it stays in the log.
    """
    client, attach = machine.client, disk.attach
    if not isinstance(attach, Attach):
        raise TypeError(f"{disk.name} is not a drive")
    # Replication jobs of the VM would copy the volume, or fail because they cannot.
    value = f"{format_drive(source, attach, disk.serial)},replicate=0"
    for attempt in range(1, _TRIES + 1):
        config, later = machine.config(), client.get(f"{machine.path}/config")
        try:
            (key,) = choose_drives({disk.name: attach.bus}, {*config, *later}).values()
        except ValueError as error:
            raise Unsupported(f"host {client.host}: VM {machine.vmid}: {error}") from None
        made = PluggedDrive(
            disks=disk.source.writable.disks,
            node=client.spec.node,
            vmid=machine.vmid,
            uuid=read_uuid(config),
            key=key,
            source=source,
            serial=disk.serial,
        )
        with log.making(made, partial(unplug, client, made)):
            try:
                _plug(machine, made, value, str(config["digest"]))
            except PveError as error:
                if attempt == _TRIES or not _has_reason(error, _CHANGED):
                    raise
                continue
            yield key
            return


def _remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Unplug the drive that a killed run left; None for other entries. Raises HostError, SafetyError."""
    if (drive := entry.parsed((PluggedDrive,))) is None:
        return None
    require_same_node(client, runner)
    return unplug(client, drive)


ON_NODE = OnNode(things=(PluggedDrive,), remove=_remove_from_node)


def unplug(client: Client, made: PluggedDrive) -> Removal:
    """Unplug the drive if the VM has it. Its volume stays. Raises HostError if the VM does not release it in time."""
    client.require_node(made.node)
    if not has_vm(client, made.vmid):
        _require_on_no_other_node(client, made)
        return Removal("absent")
    machine = VirtualMachine(client, made.vmid)
    # A killed run may have left it so.
    outcome: Literal["removed", "absent"] = "removed" if _take_back(machine, made) else "absent"
    why = "it is still in the configuration"
    for attempt in attempts(Deadline.after(RELEASE_SECONDS), growing(0.1, _LONGEST_PAUSE)):
        config = machine.config()
        keys = made.in_config(config)
        if not keys:
            return Removal(outcome)
        if keys != [made.key] or read_uuid(config) != made.uuid:
            return Removal("foreign", f"VM {made.vmid} now has {made.source} as {', '.join(keys)}, or is another VM")
        try:
            _delete(machine, made, str(config["digest"]))
        except PveError as error:
            if not _has_reason(error, _PASSING):
                raise
            why = error.reason.strip()
        else:
            if not made.in_config(machine.config()):
                return Removal("removed")
        if attempt.is_last:
            break
    raise HostError(
        f"host {client.host}: VM {made.vmid} did not release {made.key} within {format_duration(RELEASE_SECONDS)}: "
        f"{why}",
        hint="end what uses it in the VM (lsblk, fuser), or the task that locks it, and run: "
        f"virt-overhead reap --host {client.host}",
    )


def _require_on_no_other_node(client: Client, made: PluggedDrive) -> None:
    """Raise HostError if the VM was migrated, and has the drive there."""
    listed = client.get("cluster/resources", {"type": "vm"})
    with reading(f"host {client.host}: the list of VMs of its cluster"):
        nodes = [str(vm["node"]) for vm in listed if vm["type"] == "qemu" and int(vm["vmid"]) == made.vmid]
    for node in nodes:
        config = client.get(f"nodes/{node}/qemu/{made.vmid}/config", {"current": 1})
        # A migration may give its volume another name.
        if made.serial in str(config) and read_uuid(config) == made.uuid:
            raise HostError(
                f"host {client.host}: VM {made.vmid} was migrated to node {node}, and still has this drive",
                hint=f"migrate it back to {made.node}, or detach {made.key} there, and run: "
                f"virt-overhead reap --host {client.host}",
            )


def _plug(machine: VirtualMachine, made: PluggedDrive, value: str, digest: str) -> None:
    try:
        wanted = {made.key: value, "digest": digest}
        end = machine.run_task(
            "qmconfig", "/config", wanted, lambda: made.key in made.in_config(machine.config()), CONFIG_SECONDS
        )
    except PveError:
        with suppress(HarnessError):
            _take_back(machine, made)
        raise
    require_all(machine, end, "configure")
    if _take_back(machine, made):
        raise GuestError(
            f"host {machine.client.host}: {made.words} would be plugged in only at the next start of the VM",
            hint=f"let the VM take disks while it runs: qm set {machine.vmid} --hotplug disk,network,usb",
        )


def _delete(machine: VirtualMachine, made: PluggedDrive, digest: str) -> None:
    """Remove the drive from the VM. It is not forced, so PVE keeps the volume, which belongs to another VM."""
    wanted = {"delete": made.key, "digest": digest}
    machine.run_task(
        "qmconfig", "/config", wanted, lambda: made.key not in made.in_config(machine.config()), CONFIG_SECONDS
    )


def _take_back(machine: VirtualMachine, made: PluggedDrive) -> bool:
    """Revert the change that would plug the drive in at the VM's next start. Returns whether there was one.

    Changes of others that wait for the next start stay.
    """
    waiting = machine.pending()
    if made.key not in made.in_config(waiting):
        return False
    machine.revert({made.key: waiting[made.key]})
    return True


def _has_reason(error: PveError, words: tuple[str, ...]) -> bool:
    return any(word in error.reason for word in words)
