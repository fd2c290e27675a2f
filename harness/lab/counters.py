"""Reads a host's counters of block devices, md arrays, CPUs, and of the QEMU process of each guest.

Those of devices and CPUs include the activity of all programs.

One program reads them at the planned times of a whole timetable: no login for each reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from harness.errors import HostError
from harness.files import read_script
from harness.lab.pin import MARK
from harness.lab.transport.base import Runner
from harness.model.counters import CycleCounts, HostCounts, KvmCounts, MemberCounts, MemoryCounts, QemuCounts
from harness.untrusted import finite, reading

Role = Literal["vcpu", "iothread", "main"]

TICK = 0.01
"""The length of a tick in /proc in seconds: 1 / USER_HZ, which is 100 on every architecture with KVM."""

EXITS = tuple(field.name for field in fields(KvmCounts))
"""The KVM counters of a vCPU that are recorded, by KVM's names."""

_DEBUGFS = "/sys/kernel/debug/kvm"

_LIST_THREADS = read_script("harness.lab", "list_vm_threads.sh", DEBUGFS=_DEBUGFS)


@dataclass(frozen=True, slots=True)
class CycleCounting:
    """Whether a host's cycles can be counted, and with which perf, or why not."""

    counted: bool
    why: str


NOT_PROBED = CycleCounting(False, "it was not tried whether the host can count cycles")


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of all CPUs of a host together over some time; None if none were counted.

    `note` says why nothing was counted, or that the CPUs had too few counters. In the second case, programs took turns,
    and perf scaled the counts up to the whole time. It is empty if there was no problem.
    """

    counts: CycleCounts | None = None
    note: str = ""


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
        values = {name: finite(text[0]) for name, text in read.items() if text}
        return KvmCounts(**values) if values else None


def find_threads(runner: Runner, pid_file: str) -> VmThreads:
    """The threads of the QEMU process whose id is in `pid_file`. HostError if there is no such process."""
    printed = runner.run(["sh", "-s", "--", pid_file], stdin=_LIST_THREADS, deadline=30).stdout.splitlines()
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


MDSTAT = "/proc/mdstat"
_KIB = 1024

_NAME = re.compile(r"(md\S+) : ")
_MEMBERS = re.compile(r" blocks .*\[(\d+)/(\d+)\]")
_RECOVERY = re.compile(r" *\[[=>.]*\] +recovery = *[0-9.]+% \((\d+)/(\d+)\)")


@dataclass(frozen=True, slots=True)
class ArrayStatus:
    """One array at one moment. `missing` members are not there or not yet rebuilt.

    `rebuilt` is the number of bytes of each member that a running recovery has completed; None without one. md/degraded
    and md/sync_action have the same facts, but md/sync_completed advances in steps of a sixteenth of a member.
    """

    missing: int = 0
    rebuilt: int | None = None


def parse_mdstat(lines: Iterable[str]) -> dict[str, ArrayStatus]:
    """The arrays in these lines of /proc/mdstat, by kernel name. Source: status_resync and md_seq_show in md.c."""
    arrays: dict[str, ArrayStatus] = {}
    name = ""
    for line in lines:
        if match := _NAME.match(line):
            name = match[1]
            arrays[name] = ArrayStatus()
        elif name and (match := _MEMBERS.search(line)):
            arrays[name] = ArrayStatus(int(match[1]) - int(match[2]))
        elif name and (match := _RECOVERY.match(line)):
            arrays[name] = ArrayStatus(arrays[name].missing, int(match[1]) * _KIB)
    return arrays


_SECTOR = 512  # the unit of /sys/block/*/stat, independent of the device's sectors

LINES = (
    r" *[0-9]|cpu|ctxt |voluntary_ctxt_switches|nonvoluntary_ctxt_switches|md| *\[|Mem[TA]|[a-z_-]+$"
    r"|device \S+ mounted on \S+ with fstype nfs|\tbytes:"
)
"""How needed lines begin, as a pattern of perl. Counters of a device, a process or a thread are a line of numbers. Two
are of arrays in /proc/mdstat: the line with its name, and the one with its progress. Then a clock source, and the name
and the bytes of an NFS mount."""
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
"""The file with the clock source that the kernel uses. The kernel changes it if it finds that it is not exact."""


MEMINFO = "/proc/meminfo"
MOUNTS = "/proc/self/mountstats"
NFS = "nfs:"
"""Before the mount point of an NFS server, whose bytes are counted as those of a disk."""


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
    memory: MemoryCounts | None = None
    """None if it was not read."""

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
    memory: bool = False
    """Whether the host's memory is read as well."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The disks come first, because their counters must be read before the next slice starts. Then come the arrays:
        what a recovery does between the two readings is not in both."""
        arrays = (MDSTAT, *map(_name_limit, self.arrays)) if self.arrays else ()
        guests = (file for vm in (self.vm, *self.others.values()) if vm is not None for file in vm.files)
        return (
            *map(_name_stat, self.disks),
            *arrays,
            "/proc/stat",
            "/proc/uptime",
            CLOCK,
            *([MEMINFO] if self.memory else []),
            *guests,
            *map(_name_task, self.tasks),
        )

    def parse(self, printed: Iterable[str], name: str) -> HostCounters:
        """The counters in lines `PATH:LINE`, for each line of the files that matches LINES. `name` is the host's.

        Raises HostError if a device or the guest is gone.
        """
        lines: dict[str, list[str]] = {}
        for line in printed:
            file, _, text = line.partition(":")
            lines.setdefault(file, []).append(text)
        for file in map(_name_stat, self.disks):
            if file not in lines:
                raise HostError(f"{name}: {file} cannot be read: the device is gone")
        with reading(f"{name}: its counters"):
            return HostCounters(
                disks={disk: _parse_disk(disk, lines[_name_stat(disk)]) for disk in self.disks},
                cpu=parse_cpu_time(lines["/proc/stat"][0]),
                host=_parse_host_counts(lines),
                qemu=self.vm.counts(lines) if self.vm else None,
                kvm=self.vm.exits(lines) if self.vm else None,
                arrays=parse_mdstat(lines.get(MDSTAT, ())),
                # A line such as "200000 (system)", in KiB. RAID 0 has no such file.
                limits={
                    array: int(lines[_name_limit(array)][0].split()[0]) * _KIB
                    for array in self.arrays
                    if _name_limit(array) in lines
                },
                tasks={
                    task: cpu_seconds(lines[_name_task(task)][0]) for task in self.tasks if _name_task(task) in lines
                },
                others={
                    variant: GuestCounters(vm.counts(lines), vm.exits(lines)) for variant, vm in self.others.items()
                },
                clock=lines[CLOCK][0] if CLOCK in lines else None,
                memory=_parse_memory(lines[MEMINFO]) if MEMINFO in lines else None,
            )


def _name_stat(disk: str) -> str:
    return MOUNTS if disk.startswith(NFS) else f"/sys/class/block/{disk}/stat"


def _name_task(process: int) -> str:
    return f"/proc/{process}/stat"


def _name_limit(array: str) -> str:
    return f"/sys/class/block/{array}/md/sync_speed_max"


def _parse_disk(disk: str, lines: Sequence[str]) -> MemberCounts:
    if disk.startswith(NFS):
        return _parse_mount(disk.removeprefix(NFS), lines)
    stat = [int(field) for field in lines[0].split()]
    # Linux 4.18 and later also count discards.
    discards, _, discarded = stat[11:14] if len(stat) >= 14 else (0, 0, 0)
    return MemberCounts(
        stat[2] * _SECTOR,
        stat[6] * _SECTOR,
        stat[9] / 1000,
        stat[10] / 1000,
        ios=stat[0] + stat[4] + discards,
        trimmed=discarded * _SECTOR,
    )


def _parse_mount(mount: str, lines: Sequence[str]) -> MemberCounts:
    """The bytes that NFS moved for one mount: after the line with its name, the fifth and the sixth number of `bytes:`.

    Source: nfs_show_stats in the kernel's fs/nfs/super.c, and include/linux/nfs_iostat.h. Of several mounts at the same
    place, the last one is visible.
    """
    named = [number for number, line in enumerate(lines) if f" mounted on {mount} with " in line]
    if not named:
        raise HostError(f"no NFS server is mounted on {mount}", hint=f"see findmnt {mount} and dmesg on the host")
    counted = next(line for line in lines[named[-1] + 1 :] if "bytes:" in line).split()
    return MemberCounts(read=int(counted[5]), written=int(counted[6]))


def _parse_memory(lines: Iterable[str]) -> MemoryCounts:
    """Lines such as "MemAvailable:   12345 kB"."""
    sizes = {name: int(rest.split()[0]) * _KIB for name, _, rest in (line.partition(":") for line in lines)}
    return MemoryCounts(total=sizes["MemTotal"], available=sizes["MemAvailable"])


def _parse_host_counts(lines: Mapping[str, list[str]]) -> HostCounts:
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


def parse_cpu_time(line: str) -> CpuTime:
    """The first line of /proc/stat, `cpu  user nice system idle iowait irq softirq steal guest guest_nice`."""
    # `user` and `nice` already include the time of guests.
    ticks = [int(field) for field in line.split()[1:9]]
    idle = ticks[3] + ticks[4]
    return CpuTime(sum(ticks) - idle, sum(ticks))


_FIND = read_script("harness.lab", "find_md_threads.sh")


@dataclass(frozen=True, slots=True)
class MdDevice:
    """One md device. `thread` is the process id of the kernel's thread that handles its writes; None without one."""

    name: str
    thread: int | None = None


def md_devices(runner: Runner, arrays: Sequence[str]) -> dict[str, tuple[MdDevice, ...]]:
    """The md devices of these arrays by the kernel's name of the array, itself first. Raises HostError."""
    if not arrays:
        return {}
    printed = runner.run(["sh", "-s", "--", *arrays], stdin=_FIND, deadline=60).stdout
    with reading(f"{runner.name}: the threads of arrays"):
        return parse_devices(printed.splitlines())


def parse_devices(lines: Iterable[str]) -> dict[str, tuple[MdDevice, ...]]:
    """The devices in lines `ARRAY DEVICE THREAD`."""
    devices: dict[str, tuple[MdDevice, ...]] = {}
    for line in lines:
        array, device, thread = line.split()
        md_device = MdDevice(device, None if thread == "-" else int(thread))
        devices[array] = (*devices.get(array, ()), md_device)
    return devices


_PROGRAM = read_script("harness.lab", "sample_files.pl", PATTERN=LINES)


@dataclass(frozen=True, slots=True)
class Sample:
    """The host's counters. Those of disks were read between two moments of its uptime, in seconds."""

    begun: float
    ended: float
    counters: HostCounters


def make_sampling_command(files: CounterFiles) -> tuple[str, ...]:
    """The command that reads the files at the times on its standard input, see `planned`."""
    return ("env", MARK, "perl", "-e", _PROGRAM, str(len(files.disks)), *files.paths)


def format_times(times: Sequence[float]) -> str:
    """The standard input for these moments of the host's uptime, in seconds."""
    return " ".join(f"{time:.4f}" for time in times) + "\n"


def parse_samples(printed: str, files: CounterFiles, name: str, *, expected: int) -> list[Sample]:
    """The samples in the command's output, in order, as many as `expected`.

    HostError if there are fewer, if they cannot be read, or if a device is gone. Without counters, nothing would check
    what fio reports.
    """
    readings: list[tuple[float, float, list[str]]] = []
    for line in printed.splitlines():
        moments = re.fullmatch(r"@ ([0-9.]+) ([0-9.]+)", line)
        if moments is not None:
            with reading(f"{name}: the times of its counters"):
                readings.append((finite(moments[1]), finite(moments[2]), []))
        elif readings:
            readings[-1][2].append(line)
    if len(readings) != expected:
        raise HostError(f"{name}: its counters were read {len(readings)} times instead of {expected}")
    return [Sample(begun, ended, files.parse(lines, name)) for begun, ended, lines in readings]


def read_samples(runner: Runner, files: CounterFiles, times: Sequence[float], *, deadline: float) -> str:
    """Read the files at these moments of the host's uptime. Returns what `parse_samples` reads. Raises HostError."""
    done = runner.run(make_sampling_command(files), stdin=format_times(times), deadline=deadline, check=False)
    if done.status != 0:
        raise HostError(f"{runner.name}: its counters cannot be read: {done.stderr.strip()[-300:]}")
    return done.stdout
