"""The QEMU process of a guest, as its host shows it, and the storage daemon that serves a disk by vhost-user-blk.

The arguments of a process are the effective request, for every hypervisor. QEMU refuses to start with an engine that is
not available. It may also drop an engine later, and reports that only in its log.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import GuestError, HostError
from harness.events import Events, Note
from harness.files import read_script
from harness.lab.counters import VmThreads, find_threads
from harness.lab.transport.base import Completed, Runner
from harness.model.guest import compress_lists
from harness.model.option import Effective
from harness.model.values import NO_LIMIT, normalise_list
from harness.untrusted import reading

_LOOK = read_script("harness.guest", "read_qemu_process.sh")
NETWORK_DRIVERS = ("rbd",)
"""The drivers of QEMU that are clients of a network."""
_ENGINES = {"native": "Linux AIO", "io_uring": "linux io_uring"}
"""QEMU's option, and its name in QEMU's log."""


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines for asynchronous I/O: the number of rings of each in the process, and the engines that it dropped.

    `rings` is empty if the process cannot be read.
    """

    rings: Mapping[str, int]
    dropped: frozenset[str] = frozenset()

    def in_effect(self, requested: str, image_format: str) -> str:
        """The requested engine, or `threads` (QEMU's thread pool) if QEMU dropped it or never set it up.

        QEMU sets a ring up for the first I/O to the file. A guest that finds a raw disk reads it; an empty image of
        another format answers that itself, so nothing follows from a missing ring.
        """
        missing = image_format == "raw" and self.rings.get(requested) == 0
        return "threads" if requested in self.dropped or missing else requested


@dataclass(frozen=True, slots=True)
class InspectedProcess:
    """QEMU's arguments, and its engines."""

    arguments: tuple[str, ...]
    engines: Engines


def look_at_process(runner: Runner, pid_file: str, *, log: str = "", would_be: Sequence[str] = ()) -> Completed:
    """What the host prints about the process with the id in `pid_file`, for `parse_inspected`."""
    words = ["sh", "-s", "--", pid_file, log, *would_be]
    return runner.run(words, stdin=_LOOK, deadline=60, check=False)


def parse_inspected(printed: str) -> InspectedProcess:
    """Arguments and engines, from lines of a word, a tab and a text. Pure. Raises ValueError for other output."""
    lines = [line.split("\t", 1) for line in printed.splitlines() if "\t" in line]
    arguments = [text for word, text in lines if word == "argument"]
    for word, text in lines:
        if word == "command":
            arguments += shlex.split(text)
    log = [text for word, text in lines if word == "log"]
    rings = {word: int(text) for word, text in lines if word in _ENGINES}
    dropped = (engine for engine, name in _ENGINES.items() if any(f"Unable to use {name}," in text for text in log))
    return InspectedProcess(tuple(arguments), Engines(rings, frozenset(dropped)))


def find_qemu_threads(runner: Runner, pid_file: str, events: Events) -> VmThreads | None:
    """The threads of the guest's process on its host; None, with a note, if the host does not show them.

    Without them a run reports only the total CPU time, and everything else.
    """
    try:
        return find_threads(runner, pid_file)
    except HostError as error:
        events(Note(f"CPU time is not reported per QEMU thread: {error.message}"))
        return None


MOST_RESERVED = 16 << 20
"""The most bytes of a guest's memory that its firmware keeps from its kernel. SeaBIOS keeps less than 1 MiB."""
_LEAST = 1 << 20

_READ_PLACEMENT = read_script("harness.guest", "read_placement.sh")


@dataclass(frozen=True, slots=True)
class Placement:
    """The process of a guest, the host's CPUs that each of its threads may run on, and the nodes for its memory.

    `page_size` is the size in bytes of the host's pages that back the guest's memory; None if it is not known.
    """

    pid: int = 0
    nodes: str = ""
    cpus: Mapping[int, str] = field(default_factory=dict)
    page_size: int | None = None

    def effective(self, vcpus: Iterable[int]) -> Effective:
        """What belongs to the guest as a whole. `vcpus` are the threads of the vCPUs, in their order."""
        lists = [self.cpus[thread] for thread in vcpus if thread in self.cpus]
        return Effective(
            host_vcpu_cpus=compress_lists(lists) or None,
            host_emulator_cpus=self.cpus.get(self.pid),
            host_page_size=self.page_size,
        )

    def of(self, threads: Iterable[int]) -> str | None:
        """The host's CPUs of these threads, in one text; None if they are not known."""
        lists = dict.fromkeys(self.cpus[thread] for thread in threads if thread in self.cpus)
        return " / ".join(lists) or None


def read_placement(runner: Runner, pid_file: str, memory: int) -> Placement:
    """The placement of the running process. `memory` is the guest's in bytes. HostError if there is no such process."""
    printed = runner.run(["sh", "-s", "--", pid_file, str(memory >> 10)], stdin=_READ_PLACEMENT, deadline=60).stdout
    with reading(f"{runner.name}: the CPUs of QEMU's threads ({pid_file})"):
        return parse_placement(printed)


def parse_placement(printed: str) -> Placement:
    """The placement, from the output of the script. Raises ValueError for other output.

    A thread that ended meanwhile has no CPUs. It is left out.
    """
    lines = [line.split() for line in printed.splitlines()]
    ((pid, nodes),) = (line[1:] for line in lines if line[:1] == ["process"])
    threads = (line[1:] for line in lines if line[:1] == ["thread"] and len(line) == 3)
    cpus = {int(thread): normalise_list(text) for thread, text in threads}
    page = next((int(line[1]) * 1024 for line in lines if line[:1] == ["page"]), None)
    return Placement(int(pid), normalise_list(nodes), cpus, page)


def read_guest_facts(evidence: Mapping[str, str], memory: int | None) -> Effective:
    """The kernel, the program fio, the number of CPUs and the memory that the guest reports.

    `memory` is what QEMU gives it, in bytes. The guest's memory counts as complete if only the firmware's part is
    missing. A guest whose kernel hides its memory reports a few bytes.
    """
    with reading("guest: the size that it reports", GuestError):
        cpus, shown = int(evidence.get("cpus") or 0), int(evidence.get("memory_bytes") or 0)
    if memory is not None and 0 <= memory - shown <= MOST_RESERVED:
        shown = memory
    idle, polls = _name_idle(evidence), evidence.get("haltpoll_ns", "")
    return Effective(
        guest_kernel=evidence.get("kernel") or None,
        guest_fio=evidence.get("fio_program") or None,
        guest_cpus=cpus or None,
        guest_memory=shown if shown >= _LEAST else None,
        guest_idle=idle,
        guest_haltpoll_ns=int(polls) if idle == "haltpoll" and polls.isdecimal() else None,
        guest_kvm_clock="kvm-clock" in clocks.split() if (clocks := evidence.get("clocksources")) else None,
    )


def _name_idle(evidence: Mapping[str, str]) -> str | None:
    """How the guest's CPUs wait, as `Effective` has it; None for a guest that does not report it.

    The governor decides only with a driver. `idle=poll` needs neither.
    """
    if "idle_driver" not in evidence:
        return None
    driver, governor = evidence["idle_driver"], evidence.get("idle_governor", "")
    if "idle=poll" in evidence.get("idle_words", "").split():
        return "poll"
    if driver in ("", "none"):
        return "halt"
    return "haltpoll" if driver == governor == "haltpoll" else f"{driver}, governor {governor or 'unknown'}"


_READ_LIMITS = read_script("harness.guest", "read_io_limits.sh")


def read_io_limit(runner: Runner, pid_file: str, path: str) -> Effective:
    """The limits for the disk at `path` (a device or a file) of the process with the id in `pid_file`, or with this id.

    Raises HostError if there is no such process, or its control groups cannot be read.
    """
    printed = runner.run(["sh", "-s", "--", pid_file, path], stdin=_READ_LIMITS, deadline=60).stdout
    with reading(f"{runner.name}: the limits of I/O of QEMU's control group ({pid_file})"):
        return Effective(host_io_limit=parse_io_limit(printed))


def parse_io_limit(printed: str) -> str | None:
    """The limits, from the output of the script; None if no control group can be read.

    Of several limits, the kernel applies all, so all are shown. If the devices below the disk are not known, every
    limit is. Raises ValueError for other output.
    """
    lines = [line.split() for line in printed.splitlines()]
    if ["known"] not in lines:
        return None
    below = {line[1] for line in lines if line[:1] == ["device"]}
    limits: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for word, *rest in lines:
        if word == "limit":
            device, *settings = rest
            if not below or device in below:
                limits[device] |= dict.fromkeys(setting for setting in settings if not setting.endswith("=max"))
    return "; ".join(f"{device} {' '.join(settings)}" for device, settings in limits.items() if settings) or NO_LIMIT
