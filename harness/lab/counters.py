"""Reads a host's counters of block devices and CPUs. They include the activity of all programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import TICK, VmThreads
from harness.model.counters import HostCounts, KvmCounts, MemberCounts, QemuCounts, Transferred
from harness.untrusted import finite, reading

_SECTOR = 512  # the unit of /sys/block/*/stat, independent of the device's sectors

# One program reads all files, because on an emulated host the start of a program costs more than the reading. The
# counters of a block device, a process or a thread are a line of numbers. Of other files, only some lines are needed.
_READ = ("grep", "-sHE", "^ *[0-9]|^cpu|^ctxt |ctxt_switches")
# `udevadm settle` is in the same command, because a separate login would cost more than the wait.
_SETTLED = ("sh", "-c", 'udevadm settle --timeout=10 2>/dev/null; exec "$@"', "sh")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Ticks of all CPUs of a machine together, since its boot."""

    busy: int
    total: int

    def busy_since(self, earlier: CpuTime) -> float:
        """The share of the time since `earlier` in which the CPUs were busy, 0 to 1."""
        return (self.busy - earlier.busy) / max(self.total - earlier.total, 1)


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The host's counters at one moment, counted from some start."""

    disk: Transferred | None
    """The sum of all disks; None if no disk was requested."""
    cpu: CpuTime
    host: HostCounts
    qemu: QemuCounts | None
    kvm: KvmCounts | None
    members: Mapping[str, MemberCounts]
    """The counters of each disk by its kernel name, if there are several."""


def read_counters(
    runner: Runner, disks: Sequence[str], vm: VmThreads | None = None, *, settled: bool = False
) -> HostCounters:
    """The counters of the disks with these kernel names (`nvme0n1`, `dm-3`), of the CPUs, and of a guest's QEMU.

    If there are several disks, the result also has each of them, as a member of an array. With `settled`, this first
    waits up to 10 s until udev, if there is one, has processed its queue. HostError if a device or the guest is gone.
    Source: the kernel's Documentation/block/stat.rst and Documentation/filesystems/proc.rst.
    """
    stats = {disk: f"/sys/class/block/{disk}/stat" for disk in disks}
    files = ["/proc/stat", "/proc/uptime", *stats.values(), *(vm.files if vm else ())]
    # The exit status is not checked: if a file is missing, its lines are missing.
    printed = runner.run([*(_SETTLED if settled else ()), *_READ, *files], deadline=30, check=False).stdout.splitlines()
    lines: dict[str, list[str]] = {}
    for line in printed:
        file, _, text = line.partition(":")
        lines.setdefault(file, []).append(text)
    for file in stats.values():
        if file not in lines:
            raise HostError(f"{runner.name}: {file} cannot be read: the device is gone")
    with reading(f"{runner.name}: its counters ({printed[:3]})"):
        members = {disk: _disk(lines[file][0]) for disk, file in stats.items()}
        moved = [Transferred(member.read, member.written) for member in members.values()]
        return HostCounters(
            disk=sum(moved, Transferred(0, 0)) if moved else None,
            cpu=cpu_time(lines["/proc/stat"][0]),
            host=_host_counts(lines),
            qemu=vm.counts(lines) if vm else None,
            kvm=vm.exits(lines) if vm else None,
            members=members if len(members) > 1 else {},
        )


def _disk(line: str) -> MemberCounts:
    stat = [int(field) for field in line.split()]
    return MemberCounts(stat[2] * _SECTOR, stat[6] * _SECTOR, stat[9] / 1000, stat[10] / 1000)


def _host_counts(lines: Mapping[str, list[str]]) -> HostCounts:
    """The work of all CPUs together.

    Busy time is all time that is neither idle nor stolen. The kernel counts idle time exactly, but short work only by
    the ticks that happen to fall into it.
    """
    cpus = [line for line in lines["/proc/stat"] if line.startswith("cpu")]
    switches = next(line for line in lines["/proc/stat"] if line.startswith("ctxt "))
    _, _, _, idle, iowait, _, _, steal = (int(field) for field in cpus[0].split()[1:9])
    elapsed = finite(lines["/proc/uptime"][0].split()[0])
    return HostCounts(
        busy_s=elapsed * (len(cpus) - 1) - (idle + iowait + steal) * TICK,
        switches=finite(switches.split()[1]),
    )


def cpu_time(line: str) -> CpuTime:
    """The first line of /proc/stat, `cpu  user nice system idle iowait irq softirq steal guest guest_nice`."""
    # `user` and `nice` already include the time of guests.
    ticks = [int(field) for field in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return CpuTime(sum(ticks) - idle, sum(ticks))
