"""Boots a guest: whether a host has room for it, repeated tries, the login, and the state of a guest that is lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from harness.errors import GuestError, HostError, LabUnavailable, Unsupported
from harness.events import Events, Note
from harness.feature import features
from harness.files import read_script
from harness.guest.linux import GuestSystem
from harness.guest.protocol import Backup, Guest, System
from harness.lab.counters import VmThreads
from harness.lab.facts import HostFacts
from harness.lab.hosts import Host
from harness.lab.transport.agent import AgentRunner
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner
from harness.model.attach import Attach, Attachment
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions, find_guest_problems, parse_cpu_type
from harness.model.values import format_list, parse_cpus
from harness.units import format_size
from harness.untrusted import reading

GuestRunner = SshRunner | AgentRunner
"""Runs commands in a guest. It knows whether the guest still answers."""
Machine_co = TypeVar("Machine_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Started(Generic[Machine_co]):
    """A guest that was started and logged in to: the hypervisor's handle of it, and the runner for commands in it.

    `fio` is the program fio in it.
    """

    machine: Machine_co
    runner: GuestRunner
    fio: str = field(default="fio", kw_only=True)


@dataclass(frozen=True, slots=True)
class Booted(Started[Machine_co]):
    """A guest that is ready: its drivers are loaded. `seconds` is the time from the start to the first answer."""

    seconds: float | None
    """None for a guest that ran already."""


@contextmanager
def booted(
    start: Callable[[], AbstractContextManager[Started[Machine_co]]], *, tries: int, expected_s: float, events: Events
) -> Iterator[Booted[Machine_co]]:
    """A guest from `start` that is ready for measurements until the end of the block.

    If it does not become ready, it is ended and started again, at most `tries` times in total: nothing is measured yet.
    Raises the GuestError of the last try.
    """
    for attempt in range(1, tries + 1):
        with ExitStack() as stack:
            try:
                with events.step("boot the guest", expected_s) as step:
                    started = stack.enter_context(start())
                    seconds = step.seconds
                    GuestSystem(started.runner).wait_ready()
            except GuestError as error:
                if attempt == tries:
                    raise
                events(Note(f"{error.message}; starting it again ({attempt + 1} of {tries})"))
                continue
            yield Booted(started.machine, started.runner, seconds, fio=started.fio)
            return


@contextmanager
def logging_in(what: str, *, hint: str, last_words: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turns a HostError in the block into a GuestError: `what` did not answer, with the last lines that it printed."""
    try:
        yield
    except HostError as error:
        raise GuestError(f"{what} did not answer over SSH: {error.message}{last_words()}", hint=hint) from error


def detect_system(runner: GuestRunner, fio: str = "fio") -> System:
    """The operating system of the guest, which its SSH server reports at the login. `fio` is its program on Linux.

    Raises Unsupported if this installation lacks what measures it.
    """
    if not runner.windows:
        return GuestSystem(runner, fio)
    for feature in features():
        if (windows := feature.systems.get("windows")) is not None:
            return windows(runner)
    raise Unsupported(f"{runner.name}: it runs Windows", hint="install the feature `windows`, which measures it")


class BootedGuest(ABC):
    """The part of a running guest that is the same for all hypervisors."""

    def __init__(self, booted: Booted[object], *, threads: VmThreads | None) -> None:
        self.boot_seconds = booted.seconds
        self.threads = threads
        self.fio = booted.fio
        self.system = detect_system(booted.runner, self.fio)
        self.evidence = self.system.evidence()
        self._connected = booted.runner

    @property
    def runner(self) -> Runner:
        return self.system.runner

    @property
    def windows(self) -> bool:
        return self.system.windows

    def backup(self, disk: str, target: str) -> Backup:
        """Only some hypervisors offer it: the others skip modes with a backup before a guest is made."""
        raise Unsupported(f"{self.runner.name}: no backup of {disk} to {target}", hint="leave out backup in the mode")

    def post_mortem(self) -> str | None:
        """The state of a lost guest, as text for the end of a message; None if it still answers."""
        if self._connected.alive:
            return None
        try:
            return self.state()
        except (HostError, LabUnavailable) as error:
            return error.message

    @abstractmethod
    def state(self) -> str:
        """The state of the guest as the hypervisor reports it. Raises HostError or LabUnavailable if it does not."""


@contextmanager
def explained(guest: Guest | None) -> Iterator[None]:
    """Adds the state of the guest to an error in the block, if the guest no longer answers."""
    try:
        yield
    except (HostError, GuestError) as error:
        state = guest.post_mortem() if guest else None
        if state is None:
            raise
        raise GuestError(f"{error.message}; {state}") from error


MOST_VCPUS = 4
_PLUGGABLE = ("virtio-blk", "virtio-scsi")
"""The buses that disks can be plugged into."""


def choose_vcpus(facts: HostFacts, attachments: Iterable[Attachment] = (), guest: GuestOptions = ANY_GUEST) -> int:
    """The requested number. By default half of the host's CPUs, from 1 to 4.

    The other half is for the guest's iothreads and the host's kernel. More if a disk has more queues: the guest's
    kernel does not use more queues than it has CPUs.
    """
    if guest.vcpu_count is not None:
        return guest.vcpu_count
    half = max(1, min(int(facts["cpus"] or 1) // 2, MOST_VCPUS))
    return max([half, *(attach.queues or 0 for attach in attachments if isinstance(attach, Attach))])


def refuse_queues(attach: Attachment, cpus: int, guest: GuestOptions = ANY_GUEST) -> str | None:
    """Why a host with this number of CPUs cannot have a guest for a disk's queues, with the remedy; None if it can."""
    queues, vcpus = attach.queues or 0, guest.vcpu_count
    if vcpus is not None and queues > vcpus:
        return f"queues = {queues} needs as many vCPUs, but the guest has {vcpus}: request fewer queues or more vCPUs"
    if queues > cpus:
        return f"queues = {queues} needs as many vCPUs, but the host has {cpus} CPUs: request fewer queues"
    return None


_LOOK = read_script("harness.guest", "read_capacity.sh")


@dataclass(frozen=True, slots=True)
class Places:
    """The CPUs and NUMA nodes of a host, and the bytes in free huge pages by node and size of a page."""

    cpus: frozenset[int]
    nodes: frozenset[int] = frozenset({0})
    free: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def free_in(self, nodes: Iterable[int], page: int) -> int:
        """Bytes in free huge pages of this size on these nodes."""
        return sum(self.free.get((node, page), 0) for node in nodes)


def read_places(runner: Runner) -> Places:
    """The places of the machine behind `runner`, as they are now."""
    printed = runner.run(["sh", "-s"], stdin=_LOOK, deadline=30).stdout
    with reading(f"{runner.name}: its CPUs, NUMA nodes and huge pages", HostError):
        return parse_places(printed)


def parse_places(printed: str) -> Places:
    """The places, from the output of the script. Raises ValueError for other output."""
    lines = [line.split() for line in printed.splitlines() if line]
    facts = {line[0]: line[1] for line in lines if line[0] in ("cpus", "nodes")}
    free = {
        (int(node), int(kib) * 1024): int(kib) * 1024 * int(pages)
        for word, node, kib, pages in (line for line in lines if line[0] == "pages")
    }
    return Places(frozenset(parse_cpus(facts["cpus"])), frozenset(parse_cpus(facts["nodes"])), free)


def refuse_size(guest: GuestOptions, host: Host, *, reserved: bool = True) -> str | None:
    """Why the host cannot have a guest with these options, with the remedy; None if it can.

    `reserved` says whether somebody else must reserve huge pages before the guest starts.
    """
    if guest == ANY_GUEST:
        return None
    return next(find_size_problems(guest, host, read_places(host.runner), reserved=reserved), None)


def refuse_memory(number: int, guest: GuestOptions, host: Host) -> str | None:
    """Why the host has too little memory for so many guests at once, with the remedy; None if it has enough."""
    needs, has = number * (guest.memory or GUEST_MEMORY), int(host.facts["memory_bytes"] or 0)
    if number == 1 or not has or needs < has:
        return None
    return f"{number} guests need {format_size(needs)}, but the host has {format_size(has)}: request less memory"


def find_missing_file(guest: GuestOptions, runner: Runner) -> str | None:
    """Which requested file the host lacks, with the remedy; None if it has all of them."""
    for name, path in guest.files.items():
        test, what = ("-x", "a program") if name == "emulator" else ("-r", "a file that can be read")
        if runner.run(["test", "-f", path, "-a", test, path], deadline=30, check=False).status != 0:
            return f'{name} = "{path}": not {what} on {runner.name}: install it there, or correct the path'
    return None


def find_size_problems(guest: GuestOptions, host: Host, places: Places, *, reserved: bool = True) -> Iterator[str]:
    """Each reason why the host cannot have such a guest, with the remedy. Pure."""
    yield from (f"guest.{problem}" for problem in find_guest_problems(guest))
    count, cpus = guest.vcpu_count or 0, len(places.cpus)
    if count > cpus:
        yield f"the guest needs {count} vCPUs, but the host has {cpus} CPUs: request fewer vCPUs"
    memory, has = guest.memory or GUEST_MEMORY, int(host.facts["memory_bytes"] or 0)
    if has and memory >= has:
        yield f"the guest needs {format_size(memory)}, but the host has {format_size(has)}: request less memory"
    yield from _find_pin_problems(guest, host, places)
    nodes = parse_cpus(guest.numa_nodes) if guest.numa_nodes else tuple(sorted(places.nodes))
    if absent := [node for node in nodes if node not in places.nodes]:
        there, unknown = format_list(places.nodes), format_list(absent)
        yield f'numa_nodes = "{guest.numa_nodes}": the host has no node {unknown}; it has {there}: name these'
    if guest.hugepages and reserved and (free := places.free_in(nodes, guest.hugepages)) < memory:
        yield _describe_missing_pages(guest, memory // guest.hugepages, free // guest.hugepages, guest.hugepages)
    if guest.cpu and parse_cpu_type(guest.cpu) == "host" and host.acceleration.accel != "kvm":
        yield f'cpu = "{guest.cpu}": QEMU has it only with KVM, but guests here are emulated: request "max"'


def _describe_missing_pages(guest: GuestOptions, needed: int, free: int, page: int) -> str:
    on = f" on node {guest.numa_nodes}" if guest.numa_nodes else ""
    place = f"/sys/devices/system/node/node{parse_cpus(guest.numa_nodes)[0]}" if guest.numa_nodes else "/sys/kernel/mm"
    return (
        f'hugepages = "{format_size(page)}": the guest needs {needed} free pages{on}, but the host has {free}: add '
        f"{needed - free} to the number in {place}/hugepages/hugepages-{page // 1024}kB/nr_hugepages there"
    )


def _find_pin_problems(guest: GuestOptions, host: Host, places: Places) -> Iterator[str]:
    pins = {"pin_vcpus": ",".join(guest.pin_vcpus), "pin_iothreads": guest.pin_iothreads}
    for key, text in (pins | {"pin_emulator": guest.pin_emulator}).items():
        if text and (absent := [cpu for cpu in parse_cpus(text) if cpu not in places.cpus]):
            there = format_list(places.cpus)
            yield f"{key}: the host has no CPU {format_list(absent)}; it has {there}: pin to these"
    if host.spec.simulated and guest.pin_vcpus and len(parse_cpus(pins["pin_vcpus"] or "0")) > 1:
        yield (
            "pin_vcpus: a guest of the embedded lab crashes if it runs on more than one CPU of its host: pin all "
            f'vCPUs to one, for example ["{max(places.cpus)}"]'
        )


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
