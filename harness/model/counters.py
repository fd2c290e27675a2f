"""The counters of fio, of the host's disks, of QEMU, of KVM and of the CPUs while a job ran. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, TypeVar

from pydantic import Field

from harness.model.base import ArrayState
from harness.model.job import Job
from harness.model.values import Amount, Counted, RecordValue, names_of

# A journal has only trims that there were.
Trimmed = Annotated[Counted, Field(exclude_if=lambda size: size == 0)]


@dataclass(frozen=True, slots=True)
class Transferred(RecordValue):
    """Bytes that went to and from a block device."""

    read: Counted = 0
    """Bytes read."""
    written: Counted = 0
    """Bytes written."""
    trimmed: Trimmed = 0
    """Bytes trimmed."""

    def __add__(self, other: Transferred) -> Transferred:
        return Transferred(self.read + other.read, self.written + other.written, self.trimmed + other.trimmed)

    def of(self, job: Job) -> Transferred:
        """Only the directions of the job. Its process may have a second job with the other direction."""
        return Transferred(
            self.read if job.reads else 0, self.written if job.writes else 0, self.trimmed if job.trims else 0
        )


@dataclass(frozen=True, slots=True)
class ArmBytes(RecordValue):
    """The bytes of all slices of an arm in one timetable together. QEMU is queried once before and once after it."""

    qemu: Transferred
    """By QEMU's block layer."""
    fio: Transferred
    """By fio."""
    ahead: Annotated[int, Field(exclude_if=lambda value: not value)] = 0
    """The most bytes that the guest's kernel read ahead of buffered jobs; left out without any."""


@dataclass(frozen=True, slots=True)
class MemberCounts(RecordValue):
    """The counters of one disk of an array. Source: the kernel's Documentation/block/stat.rst."""

    read: Counted = 0
    """Bytes read."""
    written: Counted = 0
    """Bytes written."""
    busy_s: Amount | None = None
    """Seconds with an I/O in flight: io_ticks."""
    queue_s: Amount | None = None
    """Seconds that all I/Os together were in flight: time_in_queue."""
    ios: Counted | None = None
    """I/Os completed."""
    path: str | None = None
    """The PCI address of its controller on the host; null if the kernel shows none."""
    trimmed: Trimmed = 0
    """Bytes trimmed."""

    def of(self, job: Job) -> MemberCounts:
        """Only the directions of the job, for a process with two jobs. Its times and I/Os belong to neither job."""
        moved = Transferred(self.read, self.written, self.trimmed).of(job)
        return MemberCounts(moved.read, moved.written, path=self.path, trimmed=moved.trimmed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FioCounts(RecordValue):
    """fio's counters of the job, including the ramp."""

    read: Counted = 0
    """Bytes read."""
    written: Counted = 0
    """Bytes written."""
    trimmed: Trimmed = 0
    """Bytes trimmed."""
    ios: Counted | None = None
    """I/Os."""
    user_s: Amount | None = None
    """Seconds of CPU time in user mode."""
    system_s: Amount | None = None
    """Seconds of CPU time in the kernel."""
    switches: Counted | None = None
    """Context switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCounts(RecordValue):
    """The counters of all CPUs of the host together."""

    busy_s: float
    """Seconds in which they were neither idle nor stolen."""
    switches: float | None = None
    """Context switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QemuCounts(RecordValue):
    """The counters of QEMU's process. Source: the kernel's Documentation/filesystems/proc.rst."""

    guest_s: float
    """Seconds of the vCPUs in guest mode."""
    vcpu_s: float
    """Other seconds of the vCPUs' threads."""
    iothread_s: float
    """Seconds of the iothreads."""
    main_s: float
    """Seconds of the main thread."""
    worker_s: float
    """Seconds of all other threads."""
    waits: float = 0.0
    """Voluntary context switches."""
    preemptions: float = 0.0
    """Involuntary context switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvmCounts(RecordValue):
    """KVM's counters of all vCPUs together, with KVM's names. None for a counter that this KVM does not have."""

    exits: float | None = None
    """All exits from guest mode."""
    halt_exits: float | None = None
    """Exits by HLT."""
    io_exits: float | None = None
    """Exits to port I/O."""
    mmio_exits: float | None = None
    """Exits to MMIO."""
    irq_injections: float | None = None
    """Interrupts injected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCounts(RecordValue):
    """Cycles in which the host's CPUs were not halted. All CPUs together."""

    guest_user: float
    """In guest mode, in the guest's user mode."""
    guest_kernel: float
    """In guest mode, in the guest's kernel."""
    host_user: float
    """Outside of guest mode, in user mode."""
    host_kernel: float
    """Outside of guest mode, in the kernel."""
    share: float
    """Share of the time in which the CPUs' counters were on, 0 to 1. Below 1, perf scaled the counts up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCounts(RecordValue):
    """The md array below the layout, from the reading before the slice to the one after it."""

    state: ArrayState | None
    """Its state at both readings; null if it changed."""
    missing: int
    """Members that were missing or not yet rebuilt at the second reading."""
    rebuilt: int = 0
    """Bytes of each member that the recovery completed between the readings."""
    seconds: float = 0.0
    """Seconds between the readings."""
    limit: int | None = None
    """Bytes per second and member at most: sync_speed_max; null if no recovery ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCounts(RecordValue):
    """The host's memory at one moment. Source: the kernel's Documentation/filesystems/proc.rst, meminfo."""

    total: Counted
    """Bytes of memory that the kernel can use: MemTotal."""
    available: Counted
    """Bytes that could be used without swapping, with those of the page cache: MemAvailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background(RecordValue):
    """What the disks may have moved for others during the measurement: for other programs, and for the slice before."""

    probed: Counted = 0
    """Bytes that udev may have read, because fio on the host closed a disk after writing."""
    expected: Amount = 0.0
    """Bytes that other programs read in as many seconds while nothing was measured."""
    burst: Counted = 0
    """The most bytes that they read at once then."""
    earlier: Transferred = Transferred()
    """The most bytes that the slice before had in flight at its end. A slow disk completes them afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters(RecordValue):
    """All counters of one measurement.

    A value that cannot be assigned to one job is None. For example, CPU time is None if a fio process had two jobs.
    """

    fio: FioCounts = FioCounts()
    """By fio."""
    disk: Transferred | None = None
    """By the host's block layer: all disks below the layout together. On a storage in use, the volume of the arm; null
    if that is a file."""
    disk_requests: Counted | None = None
    """Requests that these disks completed: the I/Os as the kernel merged and split them."""
    storage: Transferred | None = None
    """By all disks below a storage in use together, with the bytes of others; null on disks that only the run uses."""
    background: Background | None = None
    """What other programs may have added to `disk`; null if the disk's counts are missing."""
    qemu: Transferred | None = None
    """Null: `arm` has the bytes of QEMU's block layer."""
    arm: ArmBytes | None = None
    """By QEMU's block layer and by fio, of all slices of the arm together; null on the host."""
    cpu_busy: Amount | None = None
    """How busy the CPUs of fio's machine were, 0 to 1."""
    host_cpu_busy: Amount | None = None
    """How busy the CPUs of the host were, 0 to 1."""
    host: HostCounts | None = None
    """Of the host's CPUs."""
    threads: QemuCounts | None = None
    """Of QEMU's process."""
    kvm: KvmCounts | None = None
    """Of KVM."""
    cycles: CycleCounts | None = None
    """Of the host's CPUs, by perf."""
    members: dict[str, MemberCounts] = field(default_factory=dict)
    """Of each disk of an array, by its kernel name."""
    array: ArrayCounts | None = None
    """Of the array; null without one."""
    md_s: float | None = None
    """CPU seconds of the kernel's thread of the array, the busiest one of a stripe over arrays; null without one."""
    clock: str | None = None
    """The clock source of the host's kernel at the end of the slice."""
    memory: MemoryCounts | None = None
    """Of the host's memory at the end of the slice; null unless the timetable has an arm of a cached mode."""


T = TypeVar("T")


def subtract_counts(now: T | None, earlier: T | None) -> T | None:
    """The difference of two readings of the same kind. None if one is missing, also of a counter, or bytes fell."""
    if now is None or earlier is None:
        return None
    pairs = {name: (getattr(now, name), getattr(earlier, name)) for name in names_of(now)}
    change = {name: None if None in pair else pair[0] - pair[1] for name, pair in pairs.items()}
    if isinstance(now, Transferred | MemberCounts) and any(
        value is not None and value < 0 for value in change.values()
    ):
        return None
    return replace(now, **change)  # type: ignore[type-var]


def add_counts(counts: Sequence[T | None]) -> T | None:
    """The sum of several counts of the same kind. None if one is missing, also for each single counter."""
    first, *others = counts
    if first is None:
        return None
    for other in others:
        if other is None:
            return None
        pairs = {name: (getattr(first, name), getattr(other, name)) for name in names_of(first)}
        sums = {name: None if None in pair else pair[0] + pair[1] for name, pair in pairs.items()}
        first = replace(first, **sums)  # type: ignore[type-var]
    return first
