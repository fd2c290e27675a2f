"""What ran in a timetable: its slices, which of them overlapped, and what was counted meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.guest.protocol import Guest
from harness.lab.counters import ArrayStatus, Cycles, MdDevice, Sample
from harness.measure.fio import JobResult
from harness.measure.series import RoundSegment
from harness.measure.session import Session, SessionFor
from harness.model.base import ArrayState
from harness.model.counters import (
    ArmBytes,
    ArrayCounts,
    Background,
    Counters,
    FioCounts,
    MemberCounts,
    QemuCounts,
    Transferred,
    add_counts,
    subtract_counts,
)
from harness.model.mode import Arm, ConcurrentJob, Place
from harness.model.option import NOTHING
from harness.results import Measurement
from harness.results.byte_counts import PROBED
from harness.results.journal import BackupCounts, PartRecord
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice

TOLERANCE = 0.001
"""Seconds by which a reading of the counters may overlap a slice: fio reports starts and times in milliseconds."""


@dataclass(frozen=True, slots=True)
class Times:
    """From when to when a slice ran, with its ramp, or counters were read. Moments of one clock, in seconds."""

    first: float
    ended: float


def find_overlapping(slices: Sequence[Times], number: int) -> int | None:
    """The number of the first slice that ran at the same time as the one with this number; None if none did."""
    times = slices[number]
    return next(
        (
            other
            for other, other_times in enumerate(slices)
            if other != number and other_times.first < times.ended and times.first < other_times.ended
        ),
        None,
    )


def alone_between(slices: Sequence[Times], number: int, before: Times, after: Times) -> bool:
    """Whether between these readings, and during them, the slice with this number ran from start to end, and no other.

    Only then is what the counters show of this slice alone.
    """
    times = slices[number]
    inside = before.ended <= times.first + TOLERANCE and times.ended - TOLERANCE <= after.first
    return inside and all(
        other_times.ended <= before.first + TOLERANCE or after.ended - TOLERANCE <= other_times.first
        for other, other_times in enumerate(slices)
        if other != number
    )


@dataclass(frozen=True, slots=True)
class RanPart:
    """One of the jobs of a slice as it ran. The moments are as in RanSlice, of this job alone."""

    planned: ConcurrentJob
    result: JobResult
    first: float
    begun: float
    ended: float
    raw: str


@dataclass(frozen=True, slots=True)
class RanSlice:
    """One slice as it ran. `result` has all jobs that the arm's figures are about. `begun` and `ended` are moments of
    this process's monotonic clock, without the ramp. At `first`, its ramp began, if there is one. If several jobs ran
    at the same time, these are the first start and the last end, and `begun` is that of the first job.

    `before` and `after` are the host's counters around it; None if one of them was read while a slice ran. `raw` is the
    path of fio's output. `overlap` names a slice that ran at the same time, else it is empty.
    """

    planned: Slice
    result: JobResult
    first: float
    begun: float
    ended: float
    before: Sample | None
    after: Sample | None
    cycles: Cycles
    raw: str
    overlap: str = ""
    backup: BackupCounts | None = None
    """The backup that ran during it; None if none was to run."""
    parts: tuple[RanPart, ...] = ()
    """Each of its jobs, the arm's own guest first."""

    @property
    def together(self) -> float:
        """The share of the time of its first job in which all its jobs ran, 0 to 1."""
        first = self.parts[0]
        begun, ended = max(part.begun for part in self.parts), min(part.ended for part in self.parts)
        return max(ended - begun, 0.0) / max(first.ended - first.begun, 1e-9)


PROBE_SECONDS = 3.0
"""How long after a program has closed a disk udev may still read from it, also on an emulated host."""


def make_measurements(
    at: SessionFor,
    group: Group,
    segment: RoundSegment,
    ran: Sequence[RanSlice],
    by_qemu: Mapping[Arm, Transferred | None],
    *,
    zero: float,
) -> list[Measurement]:
    """The measurements of the slices of a segment. `by_qemu` has the bytes of each arm by QEMU's own counters.

    `zero` is the time of day at which this process's monotonic clock was 0, in seconds.
    """
    by_arm = {arm: _count_bytes(at, arm, ran, by_qemu) for arm in by_qemu}
    may_move = [
        Background(
            probed=_count_probed(number, ran),
            earlier=_count_in_flight(ran[number - 1], at(ran[number - 1].planned.turn)) if number else Transferred(),
        )
        for number in range(len(ran))
    ]
    planned = {job.id: job for job in group.jobs}
    return [
        Measurement(
            group=group.id,
            round=round_number,
            block=block,
            boot=segment.boot,
            arm=ran_slice.planned.arm.id,
            repeat=ran_slice.planned.turn.again,
            job=ran_slice.result.job,
            rate=ran_slice.planned.job.rate,
            started=zero + ran_slice.begun,
            seconds=ran_slice.result.seconds,
            wall=ran_slice.planned.job.wall,
            metrics=dict(ran_slice.result.metrics),
            io_bytes=ran_slice.result.io_bytes,
            raw=ran_slice.raw,
            counters=_read_counters(at(ran_slice.planned.turn), ran_slice, by_arm[ran_slice.planned.arm], others),
            histogram=dict(ran_slice.result.histogram),
            sync_histogram=dict(ran_slice.result.sync_histogram),
            notes=(ran_slice.cycles.note,) if ran_slice.cycles.note else (),
            overlap=ran_slice.overlap or None,
            discarded_s=round(ran_slice.planned.job.ramp - planned[ran_slice.result.job].ramp, 6),
            longer_s=round(ran_slice.planned.job.seconds - planned[ran_slice.result.job].seconds, 6),
            write_limit=ran_slice.planned.write_limit,
            parts=tuple(_make_part(part) for part in ran_slice.parts) if len(ran_slice.parts) > 1 else (),
            together=round(ran_slice.together, 4) if len(ran_slice.parts) > 1 else None,
            backup=ran_slice.backup,
        )
        for ran_slice, others in zip(ran, may_move, strict=True)
        for round_number, block in (segment.place_of(ran_slice.planned),)
    ]


def _make_part(part: RanPart) -> PartRecord:
    result = part.result
    return PartRecord(
        number=part.planned.number,
        neighbour=part.planned.neighbour,
        job=result.job,
        seconds=result.seconds,
        metrics=dict(result.metrics),
        io_bytes=result.io_bytes,
        raw=part.raw,
        histogram=dict(result.histogram),
    )


def _count_bytes(
    at: SessionFor, arm: Arm, ran: Sequence[RanSlice], by_qemu: Mapping[Arm, Transferred | None]
) -> ArmBytes | None:
    """The bytes of all slices on the disks of the arm together; None if QEMU did not count.

    An arm with a neighbour uses the same disk as the arm without, so the slices of both count.
    """
    sharing = [other for other in by_qemu if _same_disk(arm, other)]
    # The arm with the most disks has all that the others use.
    qemu = by_qemu[max(sharing, key=lambda other: len(other.mode.volumes) if other.mode else 0)]
    if qemu is None:
        return None
    of_disk = [ran_slice for ran_slice in ran if ran_slice.planned.arm in sharing]
    by_fio = (part.result.transferred for ran_slice in of_disk for part in ran_slice.parts)
    ahead = sum(_count_ahead(at(ran_slice.planned.turn), ran_slice) for ran_slice in of_disk)
    return ArmBytes(qemu=qemu, fio=sum(by_fio, Transferred()), ahead=ahead)


def _find_read_ahead(at: Session) -> int:
    """The longest read-ahead of a machine of the session, in bytes."""
    return max(size for effective in (NOTHING, *at.effective.values()) for size in effective.read_ahead)


def _count_ahead(at: Session, ran: RanSlice) -> int:
    """The most bytes that are read ahead of a slice's buffered jobs, which begin again at the end of their region."""
    passes = ((part.planned.job, part.result.transferred.read) for part in ran.parts)
    return sum(
        round(job.count_ahead(_find_read_ahead(at)) * (1 + read / job.count_used(at.layouts.span)))
        for job, read in passes
        if job.reads_ahead
    )


def _same_disk(arm: Arm, other: Arm) -> bool:
    if arm == other or arm.mode is None or other.mode is None:
        return arm == other
    return arm.place is other.place and arm.mode.attached == other.mode.attached


def _count_probed(number: int, ran: Sequence[RanSlice]) -> int:
    """Bytes that udev may read in this slice: it looks for signatures when a program closes a disk after writing, on
    each of the volumes that were used at the same time.

    fio on the host does so at the end of each slice that writes, and when it starts, for all of its jobs.
    """
    writes = [ran_slice.planned.arm.place is not Place.GUEST and ran_slice.planned.job.writes for ran_slice in ran]
    closed = [(ran[earlier].ended, len(ran[earlier].parts)) for earlier in range(number + 1) if writes[earlier]]
    if any(writes):
        closed.append((ran[0].first, max(len(ran_slice.parts) for ran_slice in ran)))
    recent = (disks for moment, disks in closed if ran[number].first <= moment + PROBE_SECONDS)
    return PROBED * max(recent, default=0)


def _count_in_flight(ran: RanSlice, at: Session) -> Transferred:
    """The most bytes that the jobs of this slice have in flight at the same time, or are read ahead of them."""
    jobs = [part.planned.job for part in ran.parts]
    flying = ((job, job.depth * job.bs + job.count_ahead(_find_read_ahead(at))) for job in jobs)
    return sum((Transferred(size, size, size).of(job) for job, size in flying), Transferred())


def _read_counters(at: Session, ran: RanSlice, arm: ArmBytes | None, others: Background) -> Counters:
    result = ran.result
    # The disks also move the bytes of a neighbour or a backup. What an I/O costs the host cannot be told then.
    moved = sum((part.result.transferred for part in ran.parts), Transferred())
    alone = ran.backup is None and not any(part.planned.neighbour for part in ran.parts)
    counted = Counters(
        fio=FioCounts(
            read=moved.read,
            written=moved.written,
            trimmed=moved.trimmed,
            ios=result.ios if alone else None,
            user_s=result.user_seconds,
            system_s=result.system_seconds,
            switches=result.switches,
        ),
        arm=arm,
        cycles=ran.cycles.counts,
    )
    if ran.before is None or ran.after is None:
        return counted
    counters = _add_host_counters(counted, ran.before, ran.after, at, ran.planned)
    if ran.backup is not None:
        # How much of the disk's bytes is the backup's is not known: fio is only compared with QEMU.
        return replace(counters, disk=None, disk_requests=None, storage=None, background=None, members={})
    if counters.background is None:
        return counters
    return replace(counters, background=replace(counters.background, probed=others.probed, earlier=others.earlier))


def _add_host_counters(counted: Counters, before: Sample, after: Sample, at: Session, planned: Slice) -> Counters:
    """Adds what the host counted between the two samples."""
    arm, parts = planned.arm, [part for part in planned.parts if not part.neighbour]
    then, now = before.counters, after.counters
    members = {
        disk: replace(change, path=at.paths.get(disk))
        for disk in at.counted_disks(arm)
        if (change := subtract_counts(now.disks[disk], then.disks[disk])) is not None
    }
    shared = [subtract_counts(now.disks[disk], then.disks[disk]) for disk in at.shared_disks]
    busy = now.cpu.busy_since(then.cpu)
    guests = list(dict.fromkeys(part.guest for part in parts)) if arm.in_guest else [parts[0].guest]
    of_guests = [(now.of_guest(guest), then.of_guest(guest)) for guest in guests]
    threads = add_counts([subtract_counts(later.qemu, earlier.qemu) for later, earlier in of_guests])
    seconds = after.begun - before.begun
    idle = at.idle.of(list(members))
    background = Background(expected=idle.rate * seconds, burst=idle.burst)
    return replace(
        counted,
        disk=_sum_bytes(members.values()),
        disk_requests=_sum_requests(members.values()),
        storage=_sum_bytes([change for change in shared if change is not None]),
        background=background if members else None,
        cpu_busy=_compute_guest_busy(threads, [at.guest(part.arm) for part in parts], seconds)
        if arm.in_guest
        else busy,
        host_cpu_busy=busy,
        host=subtract_counts(now.host, then.host),
        threads=threads,
        kvm=add_counts([subtract_counts(later.kvm, earlier.kvm) for later, earlier in of_guests]),
        members=members if len(members) > 1 else {},
        array=count_array(before, after, [device.name for device in at.arrays(arm)]),
        md_s=_find_busiest(before, after, at.arrays(arm)),
        clock=now.clock,
        memory=now.memory,
    )


def count_array(before: Sample, after: Sample, names: Sequence[str]) -> ArrayCounts | None:
    """An array and those below it between two samples; None without one. A stripe has the members of its legs."""
    then, now = (_combine_arrays([sample.counters.arrays.get(name) for name in names]) for sample in (before, after))
    if then is None or now is None:
        return None
    went_back = then.rebuilt is not None and now.rebuilt is not None and now.rebuilt < then.rebuilt
    return ArrayCounts(
        state=_state(now) if then.missing == now.missing and _state(then) == _state(now) and not went_back else None,
        missing=now.missing,
        rebuilt=max((now.rebuilt or 0) - (then.rebuilt or 0), 0),
        seconds=after.begun - before.begun,
        limit=max((after.counters.limits[name] for name in names if name in after.counters.limits), default=None)
        if now.rebuilt is not None
        else None,
    )


def _combine_arrays(statuses: Sequence[ArrayStatus | None]) -> ArrayStatus | None:
    known = [status for status in statuses if status is not None]
    if not known or len(known) < len(statuses):
        return None
    rebuilt = [status.rebuilt for status in known if status.rebuilt is not None]
    return ArrayStatus(sum(status.missing for status in known), sum(rebuilt) if rebuilt else None)


def _find_busiest(before: Sample, after: Sample, devices: Sequence[MdDevice]) -> float | None:
    """The CPU seconds of the busiest of the arrays' threads between two samples; None without one."""
    then, now = before.counters.tasks, after.counters.tasks
    tasks = [device.thread for device in devices if device.thread in then and device.thread in now]
    return max((now[task] - then[task] for task in tasks if task is not None), default=None)


def _state(array: ArrayStatus) -> ArrayState:
    if not array.missing:
        return "optimal"
    return "degraded" if array.rebuilt is None else "rebuilding"


def _sum_bytes(counts: Collection[MemberCounts]) -> Transferred | None:
    """The bytes of several disks together; None without disks."""
    moved = (Transferred(count.read, count.written, count.trimmed) for count in counts)
    return sum(moved, Transferred()) if counts else None


def _sum_requests(counts: Collection[MemberCounts]) -> int | None:
    """The requests of several disks together; None without disks, or if one of them does not count them."""
    numbers = [count.ios for count in counts if count.ios is not None]
    return sum(numbers) if counts and len(numbers) == len(counts) else None


def _compute_guest_busy(threads: QemuCounts | None, guests: Sequence[Guest | None], seconds: float) -> float | None:
    """How busy the guests' CPUs were, 0 to 1: the time for which their threads ran on the host."""
    vcpus = sum(guest.threads.vcpus for guest in guests if guest is not None and guest.threads is not None)
    if threads is None or not vcpus or seconds <= 0:
        return None
    return min((threads.guest_s + threads.vcpu_s) / (seconds * vcpus), 1.0)
