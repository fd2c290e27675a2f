"""Where a running guest's threads and memory really are, as its host shows it, and what the guest sees of its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.errors import GuestError
from harness.lab.transport.base import Runner
from harness.model.cpus import kernels_form
from harness.model.effective import Effective
from harness.model.guest import compressed
from harness.shipped import read_script
from harness.untrusted import reading

MOST_RESERVED = 16 << 20
"""The most bytes of a guest's memory that its firmware keeps from its kernel. SeaBIOS keeps less than 1 MiB."""
_LEAST = 1 << 20

_LOOK = read_script("harness.guest", "read_placement.sh")


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
            host_vcpu_cpus=compressed(lists) or None,
            host_emulator_cpus=self.cpus.get(self.pid),
            host_page_size=self.page_size,
        )

    def of(self, threads: Iterable[int]) -> str | None:
        """The host's CPUs of these threads, in one text; None if they are not known."""
        lists = dict.fromkeys(self.cpus[thread] for thread in threads if thread in self.cpus)
        return " / ".join(lists) or None


def read_placement(runner: Runner, pid_file: str, memory: int) -> Placement:
    """The placement of the running process. `memory` is the guest's in bytes. HostError if there is no such process."""
    printed = runner.run(["sh", "-s", "--", pid_file, str(memory >> 10)], stdin=_LOOK, deadline=60).stdout
    with reading(f"{runner.name}: the CPUs of QEMU's threads ({pid_file})"):
        return parse_placement(printed)


def parse_placement(printed: str) -> Placement:
    """The placement, from the output of the script. Raises ValueError for other output.

    A thread that ended meanwhile has no CPUs. It is left out.
    """
    lines = [line.split() for line in printed.splitlines()]
    ((pid, nodes),) = (line[1:] for line in lines if line[:1] == ["process"])
    threads = (line[1:] for line in lines if line[:1] == ["thread"] and len(line) == 3)
    cpus = {int(thread): kernels_form(text) for thread, text in threads}
    page = next((int(line[1]) * 1024 for line in lines if line[:1] == ["page"]), None)
    return Placement(int(pid), kernels_form(nodes), cpus, page)


def seen_by_guest(evidence: Mapping[str, str], memory: int | None) -> Effective:
    """The kernel, the program fio, the number of CPUs and the memory that the guest reports.

    `memory` is what QEMU gives it, in bytes. The guest's memory counts as complete if only the firmware's part is
    missing. A guest whose kernel hides its memory reports a few bytes.
    """
    with reading("guest: the size that it reports", GuestError):
        cpus, found = int(evidence.get("cpus") or 0), int(evidence.get("memory_bytes") or 0)
    if memory is not None and 0 <= memory - found <= MOST_RESERVED:
        found = memory
    return Effective(
        guest_kernel=evidence.get("kernel") or None,
        guest_fio=evidence.get("fio_program") or None,
        guest_cpus=cpus or None,
        guest_memory=found if found >= _LEAST else None,
    )
