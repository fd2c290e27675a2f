"""What a host counts of a block device and of its CPUs, whoever uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import TICK, VmThreads
from harness.model.counters import HostCounts, KvmCounts, MemberCounts, QemuCounts, Transferred
from harness.untrusted import finite, reading

_SECTOR = 512  # of /sys/block/*/stat, whatever the device's own sectors are

# One program reads all of it: on an emulated host, each that is started costs more than the reading. The figures of a
# block device, a process or a thread are a line of numbers; of other files only what is counted here is wanted.
_READ = ("grep", "-sHE", "^ *[0-9]|^cpu|^ctxt |ctxt_switches")
# A login of its own would cost more than the waiting.
_SETTLED = ("sh", "-c", 'udevadm settle --timeout=10 2>/dev/null; exec "$@"', "sh")


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Ticks of all CPUs of a machine together since its start."""

    busy: int
    total: int

    def busy_since(self, earlier: CpuTime) -> float:
        """The share of the time in between that the CPUs were busy, 0 to 1."""
        return (self.busy - earlier.busy) / max(self.total - earlier.total, 1)


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What the host had counted at one moment, since some start."""

    disk: Transferred | None
    """Of all disks together; None if none was requested."""
    cpu: CpuTime
    host: HostCounts
    qemu: QemuCounts | None
    kvm: KvmCounts | None
    members: Mapping[str, MemberCounts]
    """Of each disk by its kernel name, where there are several."""


def read_counters(
    runner: Runner, disks: Sequence[str], vm: VmThreads | None = None, *, settled: bool = False
) -> HostCounters:
    """The counters of the disks with these kernel names (`nvme0n1`, `dm-3`), of the CPUs, and of a guest's QEMU.

    Of several disks each is also counted by its own name, as a member of an array. With `settled`, udev has first done
    what it has to do, where there is one, or has had 10 s for it. HostError if a device or the guest is gone.
    Source: the kernel's Documentation/block/stat.rst and Documentation/filesystems/proc.rst.
    """
    stats = {disk: f"/sys/class/block/{disk}/stat" for disk in disks}
    files = ["/proc/stat", "/proc/uptime", *stats.values(), *(vm.files if vm else ())]
    # Its status says no more than the lines do: what is not there is missing among them.
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
    """What the CPUs did, all together.

    Busy is what is neither idle nor stolen: idle time is counted exactly, the time of short work only by the ticks
    that happen to hit it.
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
    # The guests' time is counted in user and nice already.
    ticks = [int(field) for field in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return CpuTime(sum(ticks) - idle, sum(ticks))
