"""Reads a host's counters of block devices and CPUs. They include the activity of all programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.errors import HostError
from harness.lab.md_status import MDSTAT, ArrayStatus, parse_mdstat
from harness.lab.vm_threads import TICK, VmThreads, cpu_seconds
from harness.model.counters import HostCounts, KvmCounts, MemberCounts, QemuCounts
from harness.untrusted import finite, reading

_SECTOR = 512  # the unit of /sys/block/*/stat, independent of the device's sectors

LINES = r" *[0-9]|cpu|ctxt |voluntary_ctxt_switches|nonvoluntary_ctxt_switches|md| *\[|[a-z_-]+$"
"""How needed lines begin, as a pattern of perl. Counters of a device, a process or a thread are a line of numbers. Two
are of arrays in /proc/mdstat: the line with its name, and the one with its progress. The last is a clock source."""
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
"""The file with the clock source that the kernel uses. The kernel changes it if it finds that it is not exact."""
_KIB = 1024


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Ticks of all CPUs of a machine together, since its boot."""

    busy: int
    total: int

    def busy_since(self, earlier: CpuTime) -> float:
        """The share of the time since `earlier` in which the CPUs were busy, 0 to 1."""
        return (self.busy - earlier.busy) / max(self.total - earlier.total, 1)


@dataclass(frozen=True, slots=True)
class GuestCounters:
    """What the host counts of a guest: of its QEMU, and of KVM."""

    qemu: QemuCounts | None = None
    kvm: KvmCounts | None = None


@dataclass(frozen=True, slots=True)
class HostCounters:
    """The host's counters at one moment, counted from some start."""

    disks: Mapping[str, MemberCounts]
    """The counters of each disk by its kernel name."""
    cpu: CpuTime
    host: HostCounts
    qemu: QemuCounts | None
    kvm: KvmCounts | None
    arrays: Mapping[str, ArrayStatus] = field(default_factory=dict)
    """The state of each array by its kernel name."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The limit of each array's recovery in bytes per second and member, by its kernel name."""
    tasks: Mapping[int, float] = field(default_factory=dict)
    """The CPU seconds of each of the kernel's threads, by process id. Without those that ended."""
    others: Mapping[str, GuestCounters] = field(default_factory=dict)
    """Of further guests, by variant."""
    clock: str | None = None
    """The clock source of the host's kernel: `tsc`, `hpet`, ..."""

    def of_guest(self, variant: str) -> GuestCounters:
        """The counters of the guest of this variant; those of the first guest if there is only one."""
        return self.others.get(variant, GuestCounters(self.qemu, self.kvm))


@dataclass(frozen=True, slots=True)
class CounterFiles:
    """The files with the counters of some disks by kernel name (`nvme0n1`, `dm-3`), of the CPUs and of a guest's QEMU,
    and with the state of arrays.

    Source: the kernel's Documentation/block/stat.rst and Documentation/filesystems/proc.rst.
    """

    disks: tuple[str, ...]
    vm: VmThreads | None = None
    arrays: tuple[str, ...] = ()
    """The kernel's names of arrays."""
    tasks: tuple[int, ...] = ()
    """The process ids of the kernel's threads that work for arrays."""
    others: Mapping[str, VmThreads] = field(default_factory=dict)
    """Further guests, by variant."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The disks come first, because their counters must be read before the next slice starts. Then come the arrays:
        what a recovery does between the two readings is not in both."""
        arrays = (MDSTAT, *map(_limit, self.arrays)) if self.arrays else ()
        guests = (file for vm in (self.vm, *self.others.values()) if vm is not None for file in vm.files)
        return (*map(_stat, self.disks), *arrays, "/proc/stat", "/proc/uptime", CLOCK, *guests, *map(_task, self.tasks))

    def parse(self, printed: Iterable[str], name: str) -> HostCounters:
        """The counters in lines `PATH:LINE`, for each line of the files that matches LINES. `name` is the host's.

        Raises HostError if a device or the guest is gone.
        """
        lines: dict[str, list[str]] = {}
        for line in printed:
            file, _, text = line.partition(":")
            lines.setdefault(file, []).append(text)
        for file in map(_stat, self.disks):
            if file not in lines:
                raise HostError(f"{name}: {file} cannot be read: the device is gone")
        with reading(f"{name}: its counters"):
            return HostCounters(
                disks={disk: _disk(lines[_stat(disk)][0]) for disk in self.disks},
                cpu=cpu_time(lines["/proc/stat"][0]),
                host=_host_counts(lines),
                qemu=self.vm.counts(lines) if self.vm else None,
                kvm=self.vm.exits(lines) if self.vm else None,
                arrays=parse_mdstat(lines.get(MDSTAT, ())),
                # A line such as "200000 (system)", in KiB. RAID 0 has no such file.
                limits={
                    array: int(lines[_limit(array)][0].split()[0]) * _KIB
                    for array in self.arrays
                    if _limit(array) in lines
                },
                tasks={task: cpu_seconds(lines[_task(task)][0]) for task in self.tasks if _task(task) in lines},
                others={
                    variant: GuestCounters(vm.counts(lines), vm.exits(lines)) for variant, vm in self.others.items()
                },
                clock=lines[CLOCK][0] if CLOCK in lines else None,
            )


def _stat(disk: str) -> str:
    return f"/sys/class/block/{disk}/stat"


def _task(process: int) -> str:
    return f"/proc/{process}/stat"


def _limit(array: str) -> str:
    return f"/sys/class/block/{array}/md/sync_speed_max"


def _disk(line: str) -> MemberCounts:
    stat = [int(field) for field in line.split()]
    return MemberCounts(stat[2] * _SECTOR, stat[6] * _SECTOR, stat[9] / 1000, stat[10] / 1000, ios=stat[0] + stat[4])


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
