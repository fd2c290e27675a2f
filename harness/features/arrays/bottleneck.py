"""What limits an array below the throughput that its RAID level can give, from the counters of its job."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean

from harness.model.attach import Attach
from harness.model.cell import Cell
from harness.model.counters import Counters
from harness.model.job import Job
from harness.results.journal import Measurement

ENOUGH = 0.9
"""An array that reaches this share of what is possible has no bottleneck."""
SATURATED = 0.95
"""CPUs, or a member, that are busy for more than this share of the time count as always busy."""
UNEVEN = 1.25
"""The load is uneven if one member moves more than this many times the mean of all members."""
CACHED = 1.25
"""An array that delivers more than this share of what its disks can deliver has a cache that answered."""
EXPLAINS = 0.75
"""A limit explains the result only if the array reaches at least this share of what the limit allows."""


@dataclass(frozen=True, slots=True)
class Member:
    """One disk of the array during the job. `moved` is in bytes per second, both directions. None: not counted."""

    name: str
    moved: float
    busy: float | None = None
    """Share of the time with at least one I/O in flight. A disk that serves many I/Os at once can be busy all the time
    and still have capacity."""
    in_flight: float | None = None
    """I/Os in flight on average."""
    path: str | None = None
    """The controller that it hangs from."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread that all I/O of the job goes through. `busy` is the share of the time in which it had a CPU."""

    name: str
    busy: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about an array's job. I/Os in flight are IOPS x mean latency (Little 1961). None: not known."""

    ideal: float
    """The throughput that the level can give, as a multiple of the single disk's."""
    of_ideal: float
    """The measured throughput as a share of the ideal."""
    in_flight: float | None
    """I/Os in flight at the array."""
    single_in_flight: float | None
    """I/Os in flight at the single disk in the same job."""
    single: Sequence[tuple[float, float]] = ()
    """The single disk at each depth of the run, with this job's: I/Os in flight, and throughput in any one unit."""
    cpu_busy: float | None = None
    """Share of the host's CPU time that was busy."""
    members: Sequence[Member] = ()
    threads: Sequence[Thread] = ()
    spread: float = 1.0
    """The number of members that one I/O keeps busy at once, because it is larger than a chunk."""
    hidden: bool = False
    """Whether the host does not show the members, because a controller or another machine has them."""
    path: str = ""
    """The figures that show that the array reaches the limit of a path (`path_limits`); empty if nothing shows it."""

    @property
    def offered(self) -> float | None:
        """I/Os in flight for each member, if all I/Os of the array were at its members."""
        # One I/O of the array keeps disks / ideal of them busy, a mirrored write two.
        return None if self.in_flight is None else self.in_flight * self.spread / self.ideal

    @property
    def allowed(self) -> float | None:
        """The throughput of the single disk with as few I/Os as a member has, as a share of its own in this job."""
        if self.offered is None or self.single_in_flight is None:
            return None
        now = _throughput_at(self.single_in_flight, self.single)
        then = _throughput_at(self.offered, self.single)
        return None if now is None or then is None else min(1.0, then / now)


class Bottleneck(StrEnum):
    """What limits an array."""

    NONE = "none"
    PATH = "path"
    CPU = "CPU"
    THREAD = "one thread"
    MEMBER = "one member"
    QUEUE = "queue not deep enough"
    SHARED = "something that the members share"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class BottleneckFinding:
    """The bottleneck, and the figures that show it."""

    bottleneck: Bottleneck
    words: str


def find_bottleneck(evidence: Evidence) -> BottleneckFinding:
    """What limits the array: the first limit that the evidence shows. A limit that would hide others comes first.

    The order: the array reaches the level's ideal; it reaches the limit of a path, which other arrays of the run show,
    so nothing above the path limits it; the host's CPUs are always busy; one thread is; one member works more than the
    others; members get too few I/Os at once; members have enough I/Os and the CPUs have time, so something that they
    share limits them. If evidence is missing or shows nothing, the result is `UNKNOWN`.
    """
    checks = (
        (Bottleneck.NONE, _as_ideal),
        (Bottleneck.PATH, _path),
        (Bottleneck.CPU, _cpu),
        (Bottleneck.THREAD, _thread),
        (Bottleneck.MEMBER, _one_member),
        (Bottleneck.QUEUE, _queue),
        (Bottleneck.SHARED, _shared),
    )
    for bottleneck, check in checks:
        words = check(evidence)
        if words:
            return BottleneckFinding(bottleneck, words)
    return BottleneckFinding(Bottleneck.UNKNOWN, "the counters show no limit")


def saturated(threads: Sequence[Thread]) -> str:
    """For example "the iothread was 98% busy", for the busiest thread. Empty if none is always busy."""
    busiest = max(threads, key=lambda thread: thread.busy, default=None)
    if busiest is None or busiest.busy <= SATURATED:
        return ""
    return f"{busiest.name} was {busiest.busy:.0%} busy"


def _as_ideal(evidence: Evidence) -> str:
    if evidence.of_ideal < ENOUGH:
        return ""
    words = f"it delivers {evidence.of_ideal:.0%} of what its level can deliver"
    return f"{words}, so a cache answered" if evidence.hidden and evidence.of_ideal > CACHED else words


def _cpu(evidence: Evidence) -> str:
    if evidence.cpu_busy is None or evidence.cpu_busy <= SATURATED:
        return ""
    return f"the host's CPUs were {evidence.cpu_busy:.0%} busy"


def _path(evidence: Evidence) -> str:
    return evidence.path


def _thread(evidence: Evidence) -> str:
    return saturated(evidence.threads)


def _one_member(evidence: Evidence) -> str:
    if len(evidence.members) < 2:
        return ""
    fullest = max(evidence.members, key=lambda member: member.moved)
    mean = fmean(member.moved for member in evidence.members)
    if fullest.moved > UNEVEN * mean:
        return f"{fullest.name} moved {fullest.moved / mean:.2f} times the mean of the members"
    busy = sorted((member.busy, member.name) for member in evidence.members if member.busy is not None)
    if len(busy) < len(evidence.members):
        return ""
    most, name = busy[-1]
    others = fmean(share for share, _ in busy[:-1])
    if most > SATURATED and others < EXPLAINS * most:
        return f"{name} was busy {most:.0%} of the time, the others {others:.0%}"
    return ""


def _queue(evidence: Evidence) -> str:
    offered, allowed = evidence.offered, evidence.allowed
    if offered is None:
        return ""
    if offered < 1:
        return f"with {evidence.in_flight:.3g} I/Os in flight, a member has {offered:.2g}: it is idle part of the time"
    if allowed is None or allowed >= ENOUGH or evidence.of_ideal < EXPLAINS * allowed:
        return ""
    return (
        f"a member has {offered:.3g} I/Os in flight, the single disk had {evidence.single_in_flight:.3g}; "
        f"with {offered:.3g}, the single disk delivers {allowed:.0%} of its throughput"
    )


def _shared(evidence: Evidence) -> str:
    """Members with enough I/Os deliver less than a disk alone: something between them and the user limits them."""
    if evidence.cpu_busy is None or not (evidence.members or evidence.hidden) or evidence.offered is None:
        return ""
    cpu = f"the CPUs were {evidence.cpu_busy:.0%} busy"
    at_members = [member.in_flight for member in evidence.members if member.in_flight is not None]
    expected = evidence.offered * len(evidence.members)
    if len(at_members) == len(evidence.members) and math.fsum(at_members) < expected / 2:
        return (
            f"of {expected:.3g} I/Os in flight, {math.fsum(at_members):.3g} were at the members, "
            f"the others waited above them; {cpu}"
        )
    busy = [member.busy for member in evidence.members if member.busy is not None]
    if busy and len(busy) == len(evidence.members) and fmean(busy) < ENOUGH and evidence.offered >= 2:
        return f"members were busy {fmean(busy):.0%} of the time, with {evidence.offered:.3g} I/Os for each; {cpu}"
    if evidence.allowed is not None and evidence.of_ideal < EXPLAINS * evidence.allowed:
        return (
            f"each member has enough I/Os for {evidence.allowed:.0%} of the single disk's throughput, and delivers "
            f"{evidence.of_ideal:.0%} of it; {cpu}"
        )
    return ""


def _throughput_at(in_flight: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """The throughput, interpolated between the measured depths on logarithmic scales; constant above the largest depth.

    Below the smallest depth, it is proportional if that depth is one I/O at a time, because a disk that waits for
    requests serves each request in the same time. Otherwise it is not known.
    """
    points = sorted(curve)
    if not points:
        return None
    first, last = points[0], points[-1]
    if in_flight >= last[0]:
        return last[1]
    if in_flight < first[0]:
        return first[1] * in_flight / first[0] if first[0] <= 1.5 else None
    for (left, low), (right, high) in pairwise(points):
        if left <= in_flight <= right:
            along = math.log(in_flight / left) / math.log(right / left) if right > left else 0.0
            return math.exp(math.log(low) + along * (math.log(high) - math.log(low)))
    return None


def fio_threads(measurements: Sequence[Measurement], job: Job) -> tuple[Thread, ...]:
    """The processes of fio: each has this share of a CPU, on average. Empty if it was not counted."""

    def spent(counters: Counters) -> float | None:
        user, system = counters.fio.user_s, counters.fio.system_s
        return None if user is None or system is None else (user + system) / job.numjobs

    return _measured_thread("fio" if job.numjobs == 1 else "each process of fio", measurements, job, spent)


def md_threads(measurements: Sequence[Measurement], job: Job) -> tuple[Thread, ...]:
    """The kernel's thread of the array, which handles the stripes of RAID 5 and 6. Empty if there is none."""
    return _measured_thread("md's thread of the array", measurements, job, lambda counters: counters.md_s)


def guest_threads(measurements: Sequence[Measurement], cell: Cell) -> tuple[Thread, ...]:
    """The same in the guest: fio, the vCPUs, QEMU's thread that serves the disk, and that of the array on the host.

    Those that were not counted are left out.

    `measurements` are of the guest. The host counts the vCPUs together, so one of several may hide among idle ones.
    """
    attach, job = cell.mode.attach, cell.job
    vcpus = [measurement.counters.cpu_busy for measurement in measurements]
    known = [busy for busy in vcpus if busy is not None]
    threads = list(fio_threads(measurements, job))
    if known and len(known) == len(vcpus):
        threads.append(Thread("the vCPUs", fmean(known)))
    if isinstance(attach, Attach):
        threads += _serving(measurements, job, attach)
    threads += md_threads(measurements, job)
    return tuple(threads)


def _serving(measurements: Sequence[Measurement], job: Job, attach: Attach) -> tuple[Thread, ...]:
    """The thread that serves the disk: an iothread or QEMU's main thread. With several, each on average."""
    several = attach.threads

    def spent(counters: Counters) -> float | None:
        if counters.threads is None:
            return None
        return counters.threads.iothread_s / several if several else counters.threads.main_s

    names = {0: "QEMU's main thread", 1: "the iothread"}
    return _measured_thread(names.get(several, "each iothread"), measurements, job, spent)


def _measured_thread(
    name: str, measurements: Sequence[Measurement], job: Job, spent: Callable[[Counters], float | None]
) -> tuple[Thread, ...]:
    """The thread with the share of the time, of ramp and job, for which it had a CPU. Empty if it was not counted."""
    shares = []
    for measurement in measurements:
        seconds = spent(measurement.counters)
        if seconds is None:
            return ()
        shares.append(seconds / (job.ramp + measurement.seconds))
    return (Thread(name, fmean(shares)),) if shares else ()
