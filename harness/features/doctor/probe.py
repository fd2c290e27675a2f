"""Reads the state of a host: one script reads sysfs and procfs, and watches CPUs and disks for a moment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from harness.errors import HostError
from harness.files import read_script
from harness.lab.facts import HostFacts
from harness.lab.inventory import DiskById, DiskSpec
from harness.lab.pin import LEASE_DIRECTORY
from harness.lab.transport.base import Runner
from harness.untrusted import reading

WINDOW_SECONDS = 1.0
"""How long CPUs and disks are watched: long for the kernel's ticks of 1 to 10 ms, short for the user who waits."""
DEADLINE_SECONDS = 60.0

_SCRIPT = read_script("harness.features.doctor", "probe_host.sh")


@dataclass(frozen=True, slots=True)
class DiskState:
    """A disk under test. `device` is the kernel's name of its device, empty if there is none.

    If the disk is a file, `device` is the disk that holds the file. Others use that disk too: `owned` is false.
    """

    name: str
    identity: str
    owned: bool
    device: str
    numa_node: int | None
    link_power: str


@dataclass(frozen=True, slots=True)
class Process:
    """A process that ran during the whole watched time, and the share of one CPU that it used in this time."""

    pid: int
    parent: int
    command: str
    cpu_share: float


@dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host at one moment. Paths are the host's (`/sys/...`); they were read below `root`.

    `before` and `after` are the counters of CPUs, processes and disks, read `seconds` apart.
    """

    facts: HostFacts
    files: Mapping[str, str]
    disks: tuple[DiskState, ...] = ()
    guests: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The arguments of processes that may be QEMU, by process id."""
    before: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    seconds: float = WINDOW_SECONDS
    root: str = ""

    def text(self, path: str) -> str:
        """A file's content; empty if the file does not exist."""
        return self.files.get(path, "")

    def number(self, path: str) -> int | None:
        """The integer in a file; None if the file does not exist or contains something else."""
        content = self.text(path)
        return int(content) if re.fullmatch(r"-?\d+", content) else None

    def matching(self, pattern: str) -> dict[str, str]:
        """The files whose path matches the shell pattern, by path."""
        return {path: text for path, text in sorted(self.files.items()) if fnmatchcase(path, pattern)}

    def chosen(self, path: str) -> str:
        """The word in brackets in a file that lists the allowed values: `always [madvise] never`."""
        content = self.text(path)
        bracketed = re.search(r"\[(\S+)\]", content)
        return bracketed[1] if bracketed else content

    def memory_bytes(self, key: str) -> int | None:
        """A line of /proc/meminfo in bytes; None if the line does not exist."""
        match = re.search(rf"^{key}: *(\d+) kB", self.text("/proc/meminfo"), re.M)
        return int(match[1]) * 1024 if match else None

    @property
    def cpus(self) -> int:
        return int(self.facts["cpus"] or 1)


def look(
    runner: Runner, facts: HostFacts, disks: Sequence[DiskSpec], *, root: str = "", window: float = WINDOW_SECONDS
) -> HostState:
    """The state of the machine behind `runner`, watched for `window` seconds. Changes nothing.

    `root` is a directory to read instead of `/`. Raises HostError if the script did not run to its end.
    """
    named = [word for disk in disks for word in _name_disk(disk)]
    argv = ["sh", "-s", "--", root, str(window), LEASE_DIRECTORY, *named]
    printed = runner.run(argv, stdin=_SCRIPT, deadline=DEADLINE_SECONDS + window, check=False)
    sections = _split_sections(printed.stdout)
    if "end" not in sections:
        reason = printed.stderr.strip()[-300:] or "its output is not usable"
        raise HostError(f"{runner.name}: its settings could not be read: {reason}", hint="use a Linux host that has sh")
    with reading(f"{runner.name}: its settings"):
        return HostState(
            facts=facts,
            files={**sections["files"], **sections["disks"]},
            disks=tuple(_to_state(disk, number, sections["disks"]) for number, disk in enumerate(disks)),
            guests={int(path.split("/")[2]): tuple(text.split("\t")) for path, text in sections["guests"].items()},
            before=sections["before"],
            after=sections["after"],
            seconds=window,
            root=root,
        )


def list_processes(state: HostState) -> list[Process]:
    """The processes of the host, sorted by the CPU time that they used while watched, largest first."""
    ticks = count_cpu_ticks(state)
    per_cpu = sum(ticks.values()) / state.cpus
    processes = []
    for path, line in state.after.items():
        old, new = _split_process_fields(state.before.get(path, "")), _split_process_fields(line)
        # Field 22 of proc(5), the start time, distinguishes a process from a later one with the same id.
        if path.startswith("/proc/") and new and old and old[21] == new[21]:
            used = sum(int(new[at]) - int(old[at]) for at in (13, 14))
            processes.append(Process(int(new[0]), int(new[3]), new[1], used / per_cpu if per_cpu else 0.0))
    return sorted(processes, key=lambda process: -process.cpu_share)


def count_cpu_ticks(state: HostState) -> dict[str, int]:
    """Ticks of all CPUs while watched: `busy`, `idle` and `steal`; see proc(5)."""
    old, new = (
        [int(word) for word in sample.get("/proc/stat", "").split()[1:9]] for sample in (state.before, state.after)
    )
    if len(old) < 8 or len(new) < 8:
        return {}
    user, nice, system, idle, iowait, irq, softirq, steal = (end - start for start, end in zip(old, new, strict=True))
    return {"busy": user + nice + system + irq + softirq, "idle": idle + iowait, "steal": steal}


def _name_disk(disk: DiskSpec) -> tuple[str, str]:
    return ("id", disk.id) if isinstance(disk, DiskById) else ("file", str(disk.file))


def _to_state(disk: DiskSpec, number: int, printed: Mapping[str, str]) -> DiskState:
    # The first one was read from the device that is nearest to the disk.
    node = printed.get(f"/{number}/numa", "").partition("\n")[0]
    return DiskState(
        name=disk.name,
        identity=disk.identity,
        owned=isinstance(disk, DiskById),
        device=printed.get(f"/{number}/name", ""),
        numa_node=int(node) if node.isdigit() else None,
        link_power=printed.get(f"/{number}/link", "").partition("\n")[0],
    )


def _split_sections(printed: str) -> dict[str, dict[str, str]]:
    """The sections by name; in each, the text of each file by its path from the root."""
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in printed.split("\n"):
        if line.startswith("#"):
            current = sections.setdefault(line[1:], {})
            continue
        path, colon, text = line.partition(":")
        if colon:
            path = f"/{path.removeprefix('./')}"
            current[path] = f"{current[path]}\n{text}" if path in current else text.rstrip()
    return sections


def _split_process_fields(line: str) -> list[str]:
    """The fields of /proc/PID/stat; empty for another line. A command may contain blanks and parentheses."""
    head, _, tail = line.rpartition(")")
    pid, _, command = head.partition(" (")
    rest = tail.split()
    return [pid, command, *rest] if pid.isdigit() and len(rest) > 20 else []
