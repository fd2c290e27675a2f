"""Reads a host's counters of one QEMU process: CPU time by the role of its threads, context switches, KVM exits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from harness.errors import HostError
from harness.lab.transport.base import Runner
from harness.model.counters import KvmCounts, QemuCounts
from harness.shipped import read_script
from harness.untrusted import finite, reading

Role = Literal["vcpu", "iothread", "main"]

TICK = 0.01
"""The length of a tick in /proc in seconds: 1 / USER_HZ, which is 100 on every architecture with KVM."""

EXITS = tuple(field.name for field in fields(KvmCounts))
"""The KVM counters of a vCPU that are recorded, by KVM's names."""

_DEBUGFS = "/sys/kernel/debug/kvm"

_FIND = read_script("harness.lab", "list_vm_threads.sh", DEBUGFS=_DEBUGFS)


@dataclass(frozen=True, slots=True)
class VmThreads:
    """The process of a guest on its host, and the roles of the threads that live as long as the process.

    `kvm` is the directory in debugfs where the host counts the guest's exits; None if the host has none.
    """

    pid: int
    roles: Mapping[int, Role]
    kvm: str | None

    @property
    def vcpus(self) -> int:
        """The number of the guest's CPUs."""
        return sum(role == "vcpu" for role in self.roles.values())

    @property
    def files(self) -> list[str]:
        """The files that `counts` and `exits` need."""
        tasks = [f"/proc/{self.pid}/task/{thread}" for thread in self.roles]
        return [
            f"/proc/{self.pid}/stat",
            *(f"{task}/{file}" for task in tasks for file in ("stat", "status")),
            *(f"{self.kvm}/{name}" for name in EXITS if self.kvm),
        ]

    def counts(self, lines: Mapping[str, list[str]]) -> QemuCounts:
        """Counts since the guest's start, from the lines of each of `files`.

        Threads of the thread pool and of io_uring start and end at any time. So the workers' time is the time of the
        process minus the time of the other threads. HostError if a thread is gone.
        Source: the kernel's Documentation/filesystems/proc.rst.
        """
        whole = _Times.of(lines, f"/proc/{self.pid}/stat")
        spent = dict.fromkeys(("vcpu", "iothread", "main"), 0.0)
        in_guest = waits = preemptions = 0.0
        for thread, role in self.roles.items():
            task = f"/proc/{self.pid}/task/{thread}"
            times = _Times.of(lines, f"{task}/stat")
            spent[role] += times.used
            in_guest += times.guest
            waits += _parse_value(lines, f"{task}/status", "voluntary_ctxt_switches")
            preemptions += _parse_value(lines, f"{task}/status", "nonvoluntary_ctxt_switches")
        return QemuCounts(
            guest_s=in_guest,
            vcpu_s=spent["vcpu"] - in_guest,
            iothread_s=spent["iothread"],
            main_s=spent["main"],
            worker_s=whole.used - sum(spent.values()),
            waits=waits,
            preemptions=preemptions,
        )

    def exits(self, lines: Mapping[str, list[str]]) -> KvmCounts | None:
        """KVM's counters since the guest's start, from the lines of `files`; None if the host has none."""
        read = {name: lines.get(f"{self.kvm}/{name}") for name in EXITS}
        found = {name: finite(text[0]) for name, text in read.items() if text}
        return KvmCounts(**found) if found else None


def find_threads(runner: Runner, pid_file: str) -> VmThreads:
    """The threads of the QEMU process whose id is in `pid_file`. HostError if there is no such process."""
    printed = runner.run(["sh", "-s", "--", pid_file], stdin=_FIND, deadline=30).stdout.splitlines()
    with reading(f"{runner.name}: the threads of QEMU ({pid_file})"):
        return parse_threads(printed)


def parse_threads(printed: Iterable[str]) -> VmThreads:
    """Parse the id of the process, then a line per thread with its id and name, then `kvm` and a directory."""
    pid, *rest = printed
    roles: dict[int, Role] = {int(pid): "main"}
    kvm = None
    for line in rest:
        word, _, name = line.partition(" ")
        if word == "kvm":
            kvm = name
        elif (role := _find_role(name)) is not None:
            roles[int(word)] = role
    return VmThreads(int(pid), roles, kvm)


def _find_role(name: str) -> Role | None:
    """The role of a QEMU thread with this name. QEMU names threads with debug-threads=on, which libvirt and PVE set."""
    if re.fullmatch(r"CPU \d+/(KVM|TCG)", name):
        return "vcpu"
    # libvirt's monitor has a separate iothread, which serves no disk.
    if name.startswith("IO ") and not name.startswith("IO mon_"):
        return "iothread"
    return None


@dataclass(frozen=True, slots=True)
class _Times:
    """CPU seconds that a process or thread has used, and the part of them in the guest."""

    used: float
    guest: float

    @classmethod
    def of(cls, lines: Mapping[str, list[str]], file: str) -> _Times:
        if file not in lines:
            raise HostError(f"{file} is gone: a thread of the guest ended", hint="see QEMU's log on the host")
        line = lines[file][0]
        return cls(cpu_seconds(line), int(_parse_fields(line)[40]) * TICK)


def cpu_seconds(line: str) -> float:
    """The CPU time of a process or thread, user and system, in a line of its `stat` in /proc."""
    fields = _parse_fields(line)
    return (int(fields[11]) + int(fields[12])) * TICK


def _parse_fields(line: str) -> list[str]:
    """The name in parentheses may contain any character. After it: fields 3 (state), 14 and 15 (user, system) ..."""
    return line.rpartition(")")[2].split()


def _parse_value(lines: Mapping[str, list[str]], file: str, name: str) -> float:
    return next(finite(line.split()[1]) for line in lines.get(file, ()) if line.startswith(f"{name}:"))
