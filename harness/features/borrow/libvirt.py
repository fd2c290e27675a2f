"""A running VM of others of libvirt: what is read of it, and how disks are plugged into it."""

from __future__ import annotations

import base64
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar
from xml.etree import ElementTree as ET

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.features.borrow.agent import INSTALL, AgentOfVm, AgentSilent
from harness.features.borrow.hypervisor import (
    AddedThread,
    BorrowingHypervisor,
    PluggedIn,
    Plugging,
    describe_vm,
    find_plugged,
    list_threads,
    read_attribute,
    read_numbers,
    read_source,
    refuse_plugging,
    require_same,
)
from harness.features.borrow.plugged import LIVE, PLUG_SECONDS, identify_process, remove_thread, unplug
from harness.guest.booting import Booted, GuestRunner, refuse_queues
from harness.guest.libvirt.backend import LibvirtHypervisor
from harness.guest.libvirt.binding import libvirt, libvirt_qemu
from harness.guest.libvirt.connection import Connection, LibvirtRefusal, ask, connect
from harness.guest.libvirt.domain import DomainDisks, RootBus, UsedIds, name_alias
from harness.guest.libvirt.effective import (
    PID_FILE,
    Running,
    copy_attributes,
    find_block_device,
    find_disk,
    live_xml,
    name_log,
    running,
)
from harness.guest.libvirt.guest import LibvirtGuest, RunningDomain, last_words
from harness.guest.libvirt.requirements import Attachments, resolve_attachments
from harness.guest.protocol import Guest, GuestDisk, Hypervisor
from harness.guest.qemu_process import find_qemu_threads
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog
from harness.lab.guard import require_leading_to
from harness.lab.hosts import Host
from harness.lab.inventory import BorrowedVm, LibvirtSpec
from harness.lab.transport.base import Overdue, Runner, within
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment
from harness.model.guest import GuestOptions
from harness.model.option import BlockNode, QemuOverride, Xml
from harness.units import format_duration
from harness.untrusted import parse_json, reading

ANSWER_SECONDS = 20
"""How long libvirt waits for an answer. A guest under load answers late."""
_SILENT = (
    libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
    libvirt.VIR_ERR_AGENT_UNSYNCED,
    libvirt.VIR_ERR_OPERATION_TIMEOUT,
    # Older libraries have one number for all of these.
    getattr(libvirt, "VIR_ERR_AGENT_COMMAND_TIMEOUT", libvirt.VIR_ERR_AGENT_UNRESPONSIVE),
)
_TOO_LONG = "encode message payload"
"""Part of libvirt's error for an answer of more than 4 MiB, with base64: REMOTE_STRING_MAX of its protocol."""
_CHANNEL = (
    "virsh attach-device {name} FILE --live, with this in FILE: <channel type='unix'><target type='virtio' "
    "name='org.qemu.guest_agent.0'/></channel> (--config keeps it), then {install}"
)


class AnyPlace(RootBus):
    """The bus of a guest that runs already: libvirt chooses free places for devices that are plugged in."""

    def place(self, device: ET.Element) -> None:
        """Leave the device without an address."""


@dataclass(frozen=True, slots=True)
class LibvirtAgent(AgentOfVm):
    """The agent of the domain `handle`. `name` is the VM's name in libvirt."""

    prefix: ClassVar[str] = "guest-"

    connection: Connection
    handle: Any
    name: str

    @property
    def host(self) -> str:
        return self.connection.host

    @property
    def vm(self) -> str:
        return f"VM {self.name}"

    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        given: dict[str, object] = {"path": path, "arg": list(arguments), "capture-output": True}
        if stdin:
            given["input-data"] = base64.b64encode(stdin).decode()
        answer = self.ask("exec", **given)
        with self.reading("exec"):
            return int(answer["pid"])

    @staticmethod
    def decode(output: str) -> bytes:
        return base64.b64decode(output, validate=True)

    def ask(self, command: str, **parameters: object) -> Any:
        name = f"{self.prefix}{command}"
        text = json.dumps({"execute": name, "arguments": parameters})
        try:
            answer = within(
                ANSWER_SECONDS + 20, lambda: libvirt_qemu.qemuAgentCommand(self.handle, text, ANSWER_SECONDS, 0)
            )
        except Overdue:
            raise AgentSilent(
                f"{self.where} did not answer {name} within {format_duration(ANSWER_SECONDS + 20)}", hint=INSTALL
            ) from None
        except libvirt.libvirtError as error:
            raise self._refused(name, error) from error
        with self.reading(command):
            return parse_json(answer, self.where, HostError)["return"]

    def _refused(self, command: str, error: libvirt.libvirtError) -> HostError:
        where, code, said = self.where, error.get_error_code(), error.get_error_message()
        if code in _SILENT:
            return AgentSilent(f"{where} does not answer: {said}", hint=INSTALL)
        if code == libvirt.VIR_ERR_ARGUMENT_UNSUPPORTED:
            channel = _CHANNEL.format(name=self.name, install=INSTALL)
            return AgentSilent(f"{where} is not configured: {said}", hint=channel)
        too_long = 'the command may have printed more than 3 MiB; use SSH instead (reach = "node" in the lab file)'
        return HostError(f"{where} did not do {command}: {said}", hint=too_long if _TOO_LONG in said else None)


@contextmanager
def borrow_from_libvirt(host: Host, events: Events) -> Iterator[Hypervisor]:
    """The hypervisor that borrows the VM that the lab file names. Raises LabUnavailable if libvirt is unreachable."""
    spec = host.spec.hypervisor
    vm = spec.borrowed if isinstance(spec, LibvirtSpec) else None
    if vm is None:
        raise ValueError(f"the lab file names no VM to borrow on host {host.name}")
    with connect(host) as connection:
        yield borrow_vm(host, connection, vm, events)


def borrow_vm(host: Host, connection: Connection, vm: BorrowedVm, events: Events) -> BorrowingHypervisor[ET.Element]:
    """The same with a connection to the host's libvirt."""
    layout_maker = LibvirtHypervisor(host, connection, events)
    return BorrowingHypervisor(host, layout_maker, vm, LibvirtVm(host, connection, vm, events), events)


class LibvirtVm:
    """A `VmOfOthers`: a domain, described by its XML."""

    def __init__(self, host: Host, connection: Connection, vm: BorrowedVm, events: Events) -> None:
        self._host = host
        self._connection = connection
        self._name = vm.name
        self._words = describe_vm(vm)
        self._events = events

    @property
    def agent(self) -> LibvirtAgent:
        return LibvirtAgent(self._connection, self._find_domain(), self._name)

    def require_allowed(self) -> None:
        """Whoever may connect to libvirt may do everything."""

    def read(self) -> ET.Element:
        return live_xml(self._connection, self._find_domain())

    def why_emulated(self, state: ET.Element) -> str | None:
        return None if state.get("type") == "kvm" else "change its definition to <domain type='kvm'>"

    def why_not_plugged(self, state: ET.Element, attach: Attachment, options: GuestOptions) -> str | None:
        return refuse_disk(self._words, count_vcpus(state), attach, options)

    def prepare(self, disks: Sequence[GuestDisk], state: ET.Element) -> Plugging:
        host, connection = self._host.runner, self._connection
        attached = resolve_attachments(host, self._host.name, disks)

        @contextmanager
        def plug(log: CreationLog) -> Iterator[Callable[[GuestRunner], Guest]]:
            domain = self._find_domain()

            def make_guest(runner: GuestRunner) -> Guest:
                threads = find_qemu_threads(host, PID_FILE.format(name=self._name), self._events)
                machine = RunningDomain(connection, domain, self._name, console="")
                up = Booted(machine, runner, None)
                return BorrowedDomain(up, threads=threads, host=host, log=log, attached=attached)

            devices = devices_for(state, disks, uuid.uuid4().hex[:8])
            with devices_plugged(connection, domain, log, disks, devices):
                yield make_guest

        return Plugging(attached.serials, [disk.name for disk in disks if find_plugged(state, name_alias(disk))], plug)

    def list_changes(self, before: ET.Element, after: ET.Element) -> list[str]:
        return list_differences(before, after)

    def _find_domain(self) -> Any:
        """libvirt's handle of the running VM. Raises Unsupported if there is none, HostError."""
        name, connection = self._name, self._connection
        remedy = f"virt-overhead never starts a VM of others: virsh start {name} on {self._host.name}"
        try:
            domain: Any = connection.call(f"find the VM {name}", partial(connection.handle.lookupByName, name))
        except LibvirtRefusal as error:
            raise Unsupported(error.message, hint="virsh list --all lists the VMs of the host") from error
        if not connection.call(f"report whether the VM {name} runs", domain.isActive):
            raise Unsupported(f"host {self._host.name}: {self._words} does not run", hint=remedy)
        return domain


def count_vcpus(live: ET.Element) -> int:
    """The vCPUs that the running VM has, which may be fewer than it could get."""
    vcpu = live.find("vcpu")
    return int(vcpu.get("current") or vcpu.text or 1) if vcpu is not None else 1


def refuse_disk(vm: str, vcpus: int, attach: Attachment, options: GuestOptions) -> str | None:
    """Why a disk cannot be plugged in like this, or the VM cannot have the options, with the remedy; None if it can."""
    if (why := refuse_plugging(vm, attach, options)) or not isinstance(attach, Attach):
        return why
    if key := _name_fixed_option(attach):
        return f"{key} cannot be changed in {vm} while it runs: leave it out"
    return refuse_queues(attach, vcpus, GuestOptions(vcpus=vcpus))


def _name_fixed_option(attach: Attach) -> str | None:
    """An option that libvirt has only for a VM that it starts: shared memory, polling, properties of a controller."""
    if not attach.in_qemu:
        return f'server = "{attach.server}"'
    if attach.poll_max_ns is not None:
        return "poll_max_ns"
    places = ((name, row.place(attach.bus)) for name, row in attach.used.items())
    name = next((name for name, place in places if isinstance(place, QemuOverride)), None)
    return f'{name} with bus = "{attach.bus}"' if name else None


def list_differences(before: ET.Element, after: ET.Element) -> list[str]:
    """The devices and iothreads that the VM has only in one of these two moments."""
    had, has = _list_parts(before), _list_parts(after)
    return [f"{part} was removed" for part in sorted(had - has)] + [f"{part} was added" for part in sorted(has - had)]


def _list_parts(live: ET.Element) -> set[str]:
    aliases = {
        f"{device.tag} {read_attribute(device, 'alias', 'name')}" for device in live.iterfind("devices/*[alias]")
    }
    return aliases | {f"iothread {number}" for number in list_threads(live)}


def add_plugged(guest: Running, aliases: Iterable[str]) -> Running:
    """The guest with these disks, which were plugged in after QEMU was started and are not in its arguments.

    QEMU's monitor reports neither engine nor discard, so these are what libvirt shows that it requested.
    """
    nodes = dict(guest.process.nodes)
    for alias in aliases:
        with reading(f"guest {guest.live.findtext('name')}: the options of its disk {alias}", GuestError):
            name = find_block_device(guest, alias)["inserted"]["node-name"]
            disk = find_disk(guest.live, alias)
            options = copy_attributes(disk.find("driver"))
            discard = options.get("discard", "ignore")
            image = {"driver": options.get("type", "raw"), "discard": discard, "file": f"{alias}-storage"}
            nodes[name] = image | dict(_read_requested(disk))
            nodes[f"{alias}-storage"] = {"aio": options.get("io", "threads"), "discard": discard}
    return replace(guest, process=replace(guest.process, nodes=nodes))


def _read_requested(disk: ET.Element) -> Iterator[tuple[str, Any]]:
    """The options of a disk's block node that libvirt shows."""
    for row in ATTACH_OPTIONS.values():
        for shown in row.shown:
            if isinstance(shown.source, BlockNode) and isinstance(row.xml, Xml):
                value = row.xml.read(disk)
                if value is not None:
                    yield shown.source.key, value


class BorrowedDomain(LibvirtGuest):
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
        log = last_words(self._host, name_log(domain.name), "QEMU's log")
        return f"libvirt reports that the borrowed VM {'still runs' if domain.is_running() else 'has ended'}{log}"

    @cached_property
    def _running(self) -> Running:
        domain = running(self._connection, self._domain, self._host)
        return add_plugged(domain, [name_alias(disk) for disk in self._attached.disks.values()])


@dataclass(frozen=True, slots=True)
class PluggableDevice:
    """A controller or a disk to plug in. `target` and `source` are empty for a controller."""

    xml: str
    alias: str
    target: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Devices:
    """What a VM gets: iothreads by their ids, controllers, and disks by the names of the modes."""

    threads: tuple[int, ...]
    controllers: tuple[PluggableDevice, ...]
    disks: dict[str, PluggableDevice]


def devices_for(live: ET.Element, disks: Sequence[GuestDisk], token: str) -> Devices:
    """The devices that attach these disks to a VM that runs as `live`, without addresses: libvirt chooses them.

    `token` makes the aliases of the controllers unique.
    """
    taken = find_used_ids(live)
    root = ET.Element("devices")
    added = DomainDisks(root, AnyPlace(), "q35", taken)
    users = Counter(disk.source.path for disk in disks)
    for disk in disks:
        added.add(disk, shared=disk.shared or users[disk.source.path] > 1)
    controllers = []
    for controller in root.iterfind("controller"):
        alias = f"ua-voh-{token}-{controller.get('index')}"
        ET.SubElement(controller, "alias", name=alias)
        controllers.append(PluggableDevice(_format_xml(controller), alias))
    return Devices(
        tuple(range(taken.threads + 1, added.threads + 1)),
        tuple(controllers),
        {disk.name: _describe_device(element) for disk, element in zip(disks, root.iterfind("disk"), strict=True)},
    )


def find_used_ids(live: ET.Element) -> UsedIds:
    """The iothreads, SCSI controllers and names of disks that the VM has."""
    scsi = frozenset(read_numbers(live, "devices/controller[@type='scsi']", "index"))
    names = frozenset(target.get("dev", "") for target in live.iterfind("devices/disk/target"))
    return UsedIds(max(list_threads(live), default=0), scsi, names)


def _describe_device(disk: ET.Element) -> PluggableDevice:
    return PluggableDevice(
        _format_xml(disk),
        read_attribute(disk, "alias", "name"),
        read_attribute(disk, "target", "dev"),
        read_source(disk),
    )


def _format_xml(element: ET.Element) -> str:
    ET.indent(element)
    return ET.tostring(element, encoding="unicode").strip()


@contextmanager
def devices_plugged(
    connection: Connection, domain: Any, log: CreationLog, disks: Sequence[GuestDisk], devices: Devices
) -> Iterator[None]:
    """The running VM has the iothreads, controllers and disks until the end of the block.

    Each is in the creation log before it is added. Raises HostError if libvirt refuses one, or if the VM does not
    release one at the end: then it stays in the log, and so does everything below it.
    """
    name, uuid = domain.name(), domain.UUIDString()
    persistent = bool(connection.call(f"report whether it has a definition of {name}", domain.isPersistent))
    serials = tuple(dict.fromkeys(serial for disk in disks for serial in disk.source.writable.disks))
    with ExitStack() as stack:
        if devices.threads:
            process = identify_process(log.runner, name)
            for number in devices.threads:
                thread = AddedThread(
                    disks=serials, name=name, uuid=uuid, thread=number, process=process, persistent=persistent
                )
                stack.enter_context(log.making(thread, partial(remove_thread, connection, log.runner, thread)))
                _add(connection, f"add an iothread to {name}", partial(domain.addIOThread, number, LIVE))
        for controller in devices.controllers:
            stack.enter_context(_plug(connection, domain, log, controller, serials, persistent=persistent))
        for disk in disks:
            require_leading_to({disk.source.path: disk.source.writable})
            serials_of_disk = disk.source.writable.disks
            stack.enter_context(
                _plug(connection, domain, log, devices.disks[disk.name], serials_of_disk, persistent=persistent)
            )
        yield


@contextmanager
def _plug(
    connection: Connection,
    domain: Any,
    log: CreationLog,
    device: PluggableDevice,
    serials: tuple[str, ...],
    *,
    persistent: bool,
) -> Iterator[None]:
    made = PluggedIn(
        disks=serials,
        name=domain.name(),
        uuid=domain.UUIDString(),
        alias=device.alias,
        target=device.target,
        source=device.source,
        persistent=persistent,
    )
    with log.making(made, partial(unplug, connection, made)):
        what = f"plug {device.source or device.alias} into the VM {made.name}"
        _add(connection, what, partial(domain.attachDeviceFlags, device.xml, LIVE))
        yield


def _add(connection: Connection, what: str, action: Callable[[], object]) -> None:
    hint = "a VM of the type q35 needs a free pcie-root-port for each disk; select fewer modes with -k"
    connection.call(what, action, deadline=PLUG_SECONDS, hint=hint, creates=True)
