"""Boots a guest: room on the host, repeated tries, the Linux in it, and the state of a guest that is lost."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from harness.errors import GuestError, HostError, LabUnavailable, Unsupported
from harness.events import Events, Note
from harness.feature import features
from harness.files import install_command, read_script
from harness.guest.protocol import Backup, BlockDevice, Guest, System
from harness.lab.counters import VmThreads
from harness.lab.facts import HostFacts
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS, Attach, Attachment
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions, find_guest_problems, parse_cpu_type
from harness.model.option import BUSES, Bus, Effective, VirtioFeature, read_from
from harness.model.values import format_list, parse_cpus
from harness.units import format_size
from harness.untrusted import reading

_DRIVERS: Mapping[Bus, str] = {bus: facts.guest_controller_driver for bus, facts in BUSES.items()} | {
    "virtio-blk": "virtio_blk"
}
"""The driver of each bus in Linux."""

_CHECK = read_script("harness.guest", "check_guest_os.sh")


@dataclass(frozen=True, slots=True)
class LinuxInside:
    """What a Linux has, by the words of the check. `fio` is the program there."""

    system: Mapping[str, str]
    fio: str = "fio"

    def unsupported_by_guest_os(self, vm: str, attach: Attachment, *, otherwise: str = "") -> str | None:
        """An `Inside`. `otherwise` is another remedy if it lacks fio."""
        system = self.system
        if system.get("user") != "0":
            user = system.get("user") or "unknown"
            return f"in {vm}, only root can open disks, but the user id is {user}: log in as root"
        if not system.get("fio", "").startswith("fio-"):
            if self.fio != "fio":
                return f"in {vm}, {self.fio} is not fio, or cannot be started: correct the path"
            return f"in {vm}, fio is not installed: {install_command(system.get('os', '').strip(), 'fio')}{otherwise}"
        driver = _DRIVERS[attach.bus if isinstance(attach, Attach) else "nvme"]
        if system.get(driver) != "yes":
            return f"in {vm}, the kernel has no driver {driver}: install a kernel package that has it"
        return None

    def refuse_idle(self, vm: str, options: GuestOptions) -> str | None:
        """Why its CPUs cannot wait as requested, with the remedy; None if they can."""
        if options.idle == "haltpoll" and self.system.get("haltpoll") != "yes":
            return (
                f"in {vm}, the kernel has no cpuidle_haltpoll: leave out idle, or use a kernel with "
                "CONFIG_HALTPOLL_CPUIDLE"
            )
        return None


def look_inside_linux(runner: Runner, fio: str = "fio") -> LinuxInside:
    """What the system behind `runner` has. Raises HostError."""
    words = ["sh", "-s", "--", fio, " ".join(_DRIVERS.values())]
    printed = runner.run(words, stdin=_CHECK, deadline=60, check=False).stdout
    return LinuxInside(dict(line.split("=", 1) for line in printed.splitlines() if "=" in line), fio)


LOOKED_AT = "look"
"""The variant of the guests that are booted to be looked at."""


class OwnSystems:
    """The systems that were looked at in a run, each in a guest without disks under test.

    Such a guest ends before the disks are prepared. A system that runs meanwhile would see what was on them before: it
    might start its volume groups and arrays, and a qcow2 file that a guest has open cannot be filled.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, LinuxInside] = {}

    def unsupported_by_guest_os(
        self,
        system: Hashable,
        attach: Attachment,
        boot: Callable[[], AbstractContextManager[Guest]],
        options: GuestOptions = ANY_GUEST,
        *,
        words: str,
        otherwise: str,
    ) -> str | None:
        """What the `system` lacks for measuring a disk that is attached in this way, with the remedy; else None.

        `boot` starts it, `options` are requested of it, `words` name its guest, and `otherwise` is the
        rest of the remedy if it lacks fio. Raises what `boot` raises, and HostError.
        """
        if system not in self._found:
            with boot() as guest:
                self._found[system] = look_inside_linux(guest.runner, guest.fio)
        inside = self._found[system]
        return inside.unsupported_by_guest_os(words, attach, otherwise=otherwise) or inside.refuse_idle(words, options)


READY_SECONDS = 60

_WAIT = "i=0; until [ -e /run/ready ]; do i=$((i+1)); [ $i -gt $(($1 * 10)) ] && exit 1; usleep 100000; done"

# $value: the first line of the file $1, empty without one. A nested guest takes 50 ms to start a program such as cat.
_FIRST_LINE = r"""
first() { value=; { read -r value <"$1"; } 2>/dev/null; }
"""

_DISKS = _FIRST_LINE + read_script("harness.guest", "list_guest_disks.sh")
_EVIDENCE = _FIRST_LINE + read_script("harness.guest", "describe_guest.sh")


_FEATURES = read_from(VirtioFeature, ATTACH_OPTIONS)
"""The numbers of virtio's features, by the settings that show them."""


@dataclass(frozen=True, slots=True)
class LinuxSystem:
    """A `System`: Linux, reached over SSH."""

    runner: Runner
    fio: str = "fio"
    windows: ClassVar[bool] = False

    def wait_ready(self) -> None:
        """Wait until all storage drivers are loaded. Raises GuestError if they are not in time, or the guest hangs."""
        wait = ["sh", "-c", _WAIT, "sh", str(READY_SECONDS)]
        try:
            done = self.runner.run(wait, deadline=READY_SECONDS + 10, check=False)
        except HostError as error:
            raise GuestError(f"{self.runner.name}: it stopped answering while its drivers were loaded") from error
        if done.status != 0:
            raise GuestError(
                f"{self.runner.name}: it answers, but its drivers were not loaded within {READY_SECONDS} s"
            )

    def shell(self, script: str, *arguments: str) -> str:
        words = ["sh", "-s", "--", *arguments] if arguments else ["sh", "-s"]
        return self.runner.run(words, stdin=script, deadline=60).stdout

    def disks(self) -> Mapping[str, BlockDevice]:
        printed = self.shell(_DISKS)
        with reading(f"{self.runner.name}: its list of disks", GuestError):
            return parse_disks(printed)

    def paths(self) -> Mapping[str, str]:
        return {serial: disk.path for serial, disk in self.disks().items()}

    def evidence(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.shell(_EVIDENCE, self.fio).splitlines() if "=" in line)

    def look_inside(self) -> LinuxInside:
        return look_inside_linux(self.runner, self.fio)

    def notes(self, evidence: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 - a System
        return ()

    def opened(
        self,
        serials: Mapping[str, bool],  # noqa: ARG002 - a System
        tell: Callable[[str], None],  # noqa: ARG002 - a System
    ) -> AbstractContextManager[None]:
        """Nothing to do: root may read and write every disk."""
        return nullcontext()


def parse_disks(printed: str) -> dict[str, BlockDevice]:
    """The disks by serial, from the output of the script."""
    disks = {}
    for line in printed.splitlines():
        name, serial, scheduler, rotational, write_cache, logical, physical, requests, discard, *rest = line.split("\t")
        read_only, queues, queue_size, driver, controller_driver, features = rest
        disks[serial] = BlockDevice(
            f"/dev/{name}",
            Effective(
                guest_scheduler=scheduler or None,
                guest_rotational=rotational == "1",
                guest_write_cache=write_cache or None,
                guest_logical_block_size=_parse_number(logical),
                guest_physical_block_size=_parse_number(physical),
                guest_nr_requests=_parse_number(requests),
                guest_discard_max_bytes=_parse_number(discard),
                guest_read_only=read_only == "1",
                guest_queues=_parse_number(queues),
                guest_queue_size=_parse_number(queue_size),
                guest_driver=driver or None,
                guest_controller_driver=controller_driver or None,
                **_parse_features(features),
            ),
        )
    return disks


def _parse_features(features: str) -> dict[str, Any]:
    """Whether guest and virtio device agreed on each feature that an option requests; None for other devices."""
    return {
        setting: features[bit.number] == "1" if re.fullmatch(f"[01]{{{bit.number + 1},64}}", features) else None
        for setting, bit in _FEATURES.items()
    }


def _parse_number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


class GuestRunner(Runner, Protocol):
    """Runs commands in a guest."""

    @property
    def windows(self) -> bool:
        """Whether the guest runs Windows."""

    @property
    def alive(self) -> bool:
        """Whether the guest still answers."""


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
                    LinuxSystem(started.runner).wait_ready()
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
        return LinuxSystem(runner, fio)
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
    if guest.idle == "haltpoll" and host.acceleration.accel != "kvm":
        yield 'idle = "haltpoll": Linux has it only under KVM, but guests here are emulated: leave out idle'
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
