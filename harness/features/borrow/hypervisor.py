"""A running VM of others as the guest, on any hypervisor: what a run does with it, and why it may not be used.

What is plugged in is in the creation log, by which it is found in the VM and unplugged after a killed run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, Protocol, TypeVar
from xml.etree import ElementTree as ET

from platformdirs import user_state_path

from harness.errors import GuestError, HostError, SafetyError, Unsupported
from harness.events import Events, Note
from harness.features.borrow.agent import AgentOfVm, AgentRunner
from harness.guest.booting import GuestRunner, detect_system, logging_in
from harness.guest.protocol import Guest, GuestDisk, Inside, Remover, System, block_devices, wait_for_disk
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk, BorrowedVm
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.layout.build import Layouts
from harness.model.attach import Attach, Attachment
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode

LOGIN_SECONDS = 30.0
_PLUGGABLE = ("virtio-blk", "virtio-scsi")
"""The buses that disks can be plugged into."""


State = TypeVar("State")
"""How the hypervisor describes the VM at one moment."""


class PluggedIn(Thing):
    """A device in the running VM with this UUID: the alias, target and source of a disk, or the alias of a controller.

    It is unplugged only if all of them match. `persistent`: libvirt has a definition of the VM while it does not run.
    """

    kind: Literal["plugged-in"] = "plugged-in"
    name: str
    uuid: str
    alias: str
    target: str = ""
    source: str = ""
    persistent: bool = True

    @property
    def words(self) -> str:
        what = f"the disk {self.target} ({self.source})" if self.target else f"the controller {self.alias}"
        return f"{what} in the borrowed VM {self.name}"


class AddedThread(Thing):
    """An iothread of the running VM with this UUID: its id, and the QEMU process by its id and its start."""

    kind: Literal["added-iothread"] = "added-iothread"
    name: str
    uuid: str
    thread: int
    process: str
    persistent: bool = True

    @property
    def words(self) -> str:
        return f"iothread {self.thread} in the borrowed VM {self.name}"


def list_threads(live: ET.Element) -> set[int]:
    """The ids of the VM's iothreads. libvirt leaves them out if it has numbered them from 1."""
    return set(read_numbers(live, "iothreadids/iothread", "id")) or set(
        range(1, int(live.findtext("iothreads") or 0) + 1)
    )


def find_plugged(live: ET.Element, alias: str) -> tuple[str, str] | None:
    """Target and source of the VM's disk or controller with this alias; None if it has none."""
    for tag in ("disk", "controller"):
        for element in live.iterfind(f"devices/{tag}"):
            if read_attribute(element, "alias", "name") == alias:
                return read_attribute(element, "target", "dev"), read_source(element)
    return None


def read_source(disk: ET.Element) -> str:
    """The path of the device or file behind a disk; empty if it has none."""
    return read_attribute(disk, "source", "dev") or read_attribute(disk, "source", "file")


def read_numbers(live: ET.Element, path: str, attribute: str) -> Iterator[int]:
    yield from (int(element.get(attribute, "0")) for element in live.iterfind(path))


def read_attribute(element: ET.Element, child: str, name: str) -> str:
    below = element.find(child)
    return below.get(name, "") if below is not None else ""


@dataclass(frozen=True, slots=True)
class Plugging:
    """Disks that can be plugged into the VM: their serial numbers there by the disks' names, and how.

    `clashes` are what the VM has of its own that looks like one of them. `plug` plugs them in for its block, and yields
    what makes the guest for a login to the VM.
    """

    serials: Mapping[str, str]
    clashes: Sequence[str]
    plug: Callable[[CreationLog], AbstractContextManager[Callable[[GuestRunner], Guest]]]


class VmOfOthers(Protocol[State]):
    """A running VM on one kind of hypervisor."""

    @property
    def agent(self) -> AgentOfVm:
        """Its guest agent. Raises Unsupported if the VM does not run, HostError."""
        ...

    def require_allowed(self) -> None:
        """Raises Unsupported, with the remedy, if the login to the hypervisor may not do what a run does with it."""
        ...

    def read(self) -> State:
        """Its description now. Raises Unsupported, with the remedy, if there is no such VM or it does not run."""
        ...

    def why_emulated(self, state: State) -> str | None:
        """How to let it run under KVM; None if it does."""
        ...

    def why_not_plugged(self, state: State, attach: Attachment, options: GuestOptions) -> str | None:
        """Why it cannot get a disk like this while it runs, or have these options, with the remedy; None if it can."""
        ...

    def prepare(self, disks: Sequence[GuestDisk], state: State) -> Plugging:
        """How these disks get into it. Nothing is changed yet. Raises Unsupported, SafetyError, HostError."""
        ...

    def list_changes(self, before: State, after: State) -> Sequence[str]:
        """What differs between two moments, in words."""
        ...


class LayoutMaker(Remover, Protocol):
    """The part of a host's hypervisor that a borrowed VM does not replace."""

    @property
    def poll_seconds(self) -> float: ...

    def why_no_disk(self, mode: Mode, disk: AnyDisk) -> str | None: ...

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]: ...


@dataclass(frozen=True, slots=True)
class VmBefore(Generic[State]):
    """The VM before anything is plugged in: its description, and what its system has."""

    state: State
    system: Inside


class BorrowingHypervisor(Generic[State]):
    """A `Hypervisor` that plugs disks into one running VM of the host instead of making guests."""

    def __init__(
        self, host: Host, layout_maker: LayoutMaker, borrowed: BorrowedVm, vm: VmOfOthers[State], events: Events
    ) -> None:
        self._host = host
        self._layout_maker = layout_maker
        self._borrowed = borrowed
        self._vm = vm
        self._events = events
        self._words = describe_vm(borrowed)

    @property
    def poll_seconds(self) -> float:
        return self._layout_maker.poll_seconds

    def remove(self, entry: Entry) -> Removal | None:
        return self._layout_maker.remove(entry)

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        return self._layout_maker.layouts(log, disks, modes, span=span)

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the mode cannot be measured in the VM, with the remedy; None if it can."""
        why = refuse_others(self._words, mode) or self._layout_maker.why_no_disk(mode, disk)
        if why or mode.attach is None:
            return why
        before = self._before
        if isinstance(before, str):
            return before
        if self._host.acceleration.accel == "kvm" and (remedy := self._vm.why_emulated(before.state)):
            return f"{self._words} is emulated although the host has KVM: {remedy}"
        why = self._vm.why_not_plugged(before.state, mode.attach, mode.guest)
        return why or before.system.unsupported_by_guest_os(self._words, mode.attach)

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> None:
        """Nothing beside what `unsupported_by_host` says: the VM runs already."""

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
        be told apart from one of ours, or if another VM has one of ours.
        """
        host, vm = self._host, self._vm
        before = vm.read()
        for disk in disks:
            if why := vm.why_not_plugged(before, disk.attach, options):
                raise Unsupported(f"host {host.name}: {disk.name}: {why}")
        plugging = vm.prepare(disks, before)
        with closing(self._log_in()) as runner:
            system = detect_system(runner)
            require_distinct(host.name, self._words, system, list(plugging.serials.values()), plugging.clashes)
            attachments = {plugging.serials[disk.name]: disk.attach for disk in disks}
            with (
                plugging.plug(log) as make_guest,
                open_disks(host.name, self._words, system, attachments, self._events),
            ):
                guest = make_guest(runner)
                for note in list_differences_from_host(self._words, system, guest.evidence, host.facts["fio"]):
                    self._events(note)
                yield guest
        try:
            after = vm.read()
        except Unsupported as error:
            raise GuestError(error.message, hint=error.hint) from error
        # Everything is unplugged. Only the owner knows why something is different.
        if changes := vm.list_changes(before, after):
            self._events(Note(f"{self._words} was changed by others during the run: {', '.join(changes)}"))

    @cached_property
    def _before(self) -> VmBefore[State] | str:
        """The VM, or why it cannot be borrowed, with the remedy."""
        try:
            self._vm.require_allowed()
            state = self._vm.read()
            with closing(self._log_in()) as runner:
                return VmBefore(state, detect_system(runner).look_inside())
        except (GuestError, HostError, Unsupported) as error:
            return error.with_hint

    def _log_in(self) -> GuestRunner:
        return log_in(self._host, self._borrowed, self._vm)


def describe_vm(vm: BorrowedVm) -> str:
    """The VM in messages."""
    return f"the borrowed VM {vm.name}"


def log_in(host: Host, vm: BorrowedVm, running: VmOfOthers[State]) -> GuestRunner:
    """A runner in the VM, over SSH or through its agent.

    Raises GuestError, with the remedy, if the VM does not answer, and Unsupported if its agent cannot run commands.
    """
    login, name = vm.login, f"VM {vm.name} on {host.name}"
    if login is None:
        agent = running.agent
        agent.require_usable()
        return AgentRunner(agent, name=name)
    known_hosts = user_state_path("virt-overhead") / "known_hosts"
    target = SshTarget(login.address, login.port, login.user, login.key, login.host_key, known_hosts)
    hint = f"check address, port, user and key in host.{host.name}.guest of the lab file"
    with logging_in(f"host {host.name}: {describe_vm(vm)}", hint=hint):
        via = host.ssh if login.through_host else None
        return SshRunner.connect(target, name=name, via=via, deadline=LOGIN_SECONDS)


def refuse_others(vm: str, mode: Mode) -> str | None:
    """Why the VM cannot be measured beside other guests; None if the mode has no others."""
    if mode.backup:
        return f"{vm} belongs to others, who may back it up at any time: measure backups without borrow in the lab file"
    if not mode.runs_with_others:
        return None
    return f"{vm} runs alone: measure several guests, or a neighbour, without borrow in the lab file"


def require_distinct(host: str, vm: str, system: System, serials: Sequence[str], clashes: Sequence[str]) -> None:
    """Raises SafetyError if the VM has disks with these serial numbers, or if there are `clashes` of another kind."""
    disks = block_devices(system, [], host)
    if same := [*(serial for serial in serials if serial in disks), *clashes]:
        raise SafetyError(
            f"host {host}: {vm} has a disk of its own with the serial number or alias of {', '.join(same)}, so a run "
            "cannot tell them apart",
            hint="give the mode another name; if a killed run left the disk: virt-overhead reap",
        )


def require_same(system: System, disk: str, serial: str, known: str) -> None:
    """Raises GuestError if the disk is no longer at the path `known`: somebody changed the VM's devices."""
    if (now := system.paths().get(serial)) != known:
        raise GuestError(
            f"{system.runner.name}: {disk} was {known} there, and is now {now or 'not there'}",
            hint="somebody changed the devices of the VM during the run; run it again",
        )


@contextmanager
def open_disks(host: str, vm: str, system: System, disks: Mapping[str, Attachment], events: Events) -> Iterator[None]:
    """The disks that were plugged in, by serial number, take fio's I/O until the end of the block."""
    for serial in disks:
        wait_for_disk(system, serial, host)
    writes = {serial: not attach.read_only for serial, attach in disks.items()}
    with system.opened(writes, lambda text: events(Note(f"{vm}: {text}"))):
        yield


def list_differences_from_host(vm: str, system: System, evidence: Mapping[str, str], of_host: str) -> Iterator[Note]:
    """What makes the figures of the VM differ from those of its host, beside virtualisation."""
    if (fio := evidence.get("fio", "")) != of_host:
        yield Note(f"{vm} has {fio}, its host has {of_host}: the overhead includes what differs")
    for text in system.notes(evidence):
        yield Note(f"{vm}: {text}")


def refuse_plugging(vm: str, attach: Attachment, options: GuestOptions) -> str | None:
    """Why no hypervisor can plug a disk in like this, or give a running VM these options; None if one may."""
    if options.requested:
        keys = ", ".join(options.requested)
        return f"{vm} has the size and placement that its owner gave it: leave out {keys} of [guest] in the scenario"
    if not isinstance(attach, Attach):
        return f"a device that is passed through to {vm} may come back only when the VM ends: leave out borrow for VFIO"
    if attach.bus not in _PLUGGABLE:
        allowed = ", ".join(_PLUGGABLE)
        return f'no disk can be plugged into bus = "{attach.bus}" of {vm} while it runs; allowed: {allowed}'
    return None
