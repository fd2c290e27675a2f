"""What limits an array below the throughput that its RAID level can give, from the counters of its job."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from harness.analysis import IN_ORDER, Estimate, Samples, mean_interval
from harness.features.arrays.records import Bottleneck, MemberRecord, PathLimitRecord
from harness.model.attach import Attach
from harness.model.base import Shape
from harness.model.counters import Counters
from harness.model.disk import PcieLink, SerialLink
from harness.model.job import Job
from harness.model.mode import Cell, Place
from harness.results.cells import CellRecord
from harness.results.contrasts import BlockKey
from harness.results.journal import Measurement

FLAT = 0.25
"""More disks add nothing if they add less than this share of their number. A second path helps if it adds more."""
MORE = 1.5
"""An array is larger than another one if it has this many times its disks."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """An array in one job. `disks` has the number of its disks on each path.

    `throughput` has a value for each sample, in any one unit. All arrays have the same samples. `shares` says what the
    disks on a path do together for each unit of the array's throughput: 1 if all of it goes over that path, more if
    each block is written twice.
    """

    array: str
    disks: Mapping[str, int]
    throughput: Sequence[float]
    shares: Mapping[str, float]

    def over(self, path: str) -> list[float]:
        """What goes over the path, sample by sample."""
        return [value * self.shares[path] for value in self.throughput]


@dataclass(frozen=True, slots=True)
class PathLimit:
    """A path that limits arrays in one job."""

    array: str
    """The largest array on this path alone."""
    record: PathLimitRecord
    """What shows it: that of this array, without I/Os per second."""


def find_path_limits(
    loads: Sequence[PathLoad], *, confidence: float = 0.95, samples: Samples = IN_ORDER
) -> dict[str, PathLimit]:
    """The paths that limit these arrays in one job, by path. The arrays differ only in their disks; their throughput is
    in bytes per second.

    A path is a limit only if two things are shown, each by an interval of paired samples: an array on this path alone
    does not do more with `MORE` times the disks, and an array with no more disks on this and other paths does. Disks,
    CPUs, threads or a short queue as the limit fail the second. `samples` as for `estimate_overhead`.
    ValueError for values that are not positive and finite.
    """
    paths = sorted({path for load in loads for path in load.disks})
    limits = {path: _find_limit(path, loads, confidence, samples) for path in paths}
    return {path: limit for path, limit in limits.items() if limit is not None}


def _find_limit(path: str, loads: Sequence[PathLoad], confidence: float, samples: Samples) -> PathLimit | None:
    alone = sorted((load for load in loads if set(load.disks) == {path}), key=lambda load: load.disks[path])
    if not alone:
        return None
    more = alone[-1]
    smaller = [load for load in alone if load.disks[path] * MORE <= more.disks[path]]
    wider = [load for load in loads if path in load.disks and _is_wider(load, more)]
    if not smaller or not wider:
        return None
    fewer, wide = smaller[-1], max(wider, key=lambda load: sum(load.disks.values()))

    def estimate(values: Sequence[float]) -> Estimate:
        return mean_interval(values, confidence=confidence, samples=samples)

    growth = estimate([one / other for one, other in zip(more.over(path), fewer.over(path), strict=True)])
    gain = estimate([one / other for one, other in zip(wide.throughput, more.throughput, strict=True)])
    if growth.high is None or growth.high >= 1 + FLAT * (more.disks[path] / fewer.disks[path] - 1):
        return None
    if gain.low is None or gain.low <= 1 + FLAT * (len(wide.disks) - 1):
        return None
    record = PathLimitRecord(
        path=path,
        disks=more.disks[path],
        bw=estimate(more.over(path)),
        iops=None,
        fewer=fewer.disks[path],
        more=more.disks[path],
        growth=growth,
        paths=len(wide.disks),
        gain=gain,
    )
    return PathLimit(more.array, record)


def _is_wider(load: PathLoad, than: PathLoad) -> bool:
    return len(load.disks) > len(than.disks) and sum(load.disks.values()) <= sum(than.disks.values())


REACHES = 0.9
"""An array is at the limit of a path if it does this share of it there."""


@dataclass(frozen=True, slots=True)
class MeasuredArray:
    """A cell on an array, its record, and the measurements on the array in the blocks that count.

    `on_host` are those of the arm `place`, on the host, and `guests` those of the guest. `single` is the arm of the
    single disk. `chunk` in bytes is None if it is not known.
    """

    cell: Cell
    shape: Shape
    chunk: int | None
    record: CellRecord
    place: Place
    single: Place
    on_host: Sequence[Measurement] = ()
    guests: Sequence[Measurement] = ()
    link: PcieLink | SerialLink | None = None
    """The link that all its I/O goes over, of an array that was there already; None if it is not known."""

    @property
    def counted(self) -> list[Measurement]:
        """The measurements on the host whose bytes it counted. In the others, the reading came too late."""
        return [measurement for measurement in self.on_host if measurement.counters.members]

    def values(self, metric: str) -> tuple[float, ...]:
        """The values of the array on the host."""
        return self.record.values(metric, self.place)

    @property
    def of(self) -> tuple[object, ...]:
        """Arrays with the same value can be compared: they differ only in their disks."""
        layout = self.cell.mode.layout
        return (self.cell.scenario, self.record.host, self.cell.job, layout.kind, self.shape.level, self.chunk)

    @property
    def disks_by_path(self) -> dict[str, int]:
        """The number of its disks on each path. Empty if the path of a disk is not known."""
        paths = [member.path for member in self.counted[0].counters.members.values()] if self.counted else []
        known = [path for path in paths if path is not None]
        return {path: known.count(path) for path in known} if len(known) == len(paths) == self.shape.disks else {}


def limits_of(arrays: Sequence[MeasuredArray]) -> dict[str, PathLimitRecord]:
    """The limit of a path that an array reaches, by cell id. Arrays that reach none are left out."""
    alike: dict[tuple[object, ...], list[MeasuredArray]] = {}
    for array in arrays:
        if array.disks_by_path:
            alike.setdefault(array.of, []).append(array)
    path_limits: dict[str, PathLimitRecord] = {}
    for group in alike.values():
        path_limits |= _reached_limits(group)
    return path_limits


def _reached_limits(arrays: Sequence[MeasuredArray]) -> dict[str, PathLimitRecord]:
    """Compares bytes: the same job has requests of another size on the disks of another array, but not more bytes."""
    common = set.intersection(*(set(array.record.samples) for array in arrays))
    path_loads = {array.cell.id: _load(array, "bw", common) for array in arrays}
    loads = {name: load for name, load in path_loads.items() if load is not None}
    if not common or not loads:
        return {}
    first = arrays[0].record
    boots = tuple(boot for key, boot in zip(first.samples, first.boots, strict=False) if key in common)
    samples, confidence = Samples(boots), first.confidence
    limits = find_path_limits(list(loads.values()), confidence=confidence, samples=samples)
    records = {}
    for array in arrays:
        load = loads.get(array.cell.id)
        reached = [path for path in limits if load is not None and _reaches(load, limits[path].record)]
        if reached and load is not None:
            path, limit = reached[0], limits[reached[0]]
            largest = _load(next(one for one in arrays if one.cell.id == limit.array), "iops", common)
            over = largest.over(path) if largest is not None else []
            iops = mean_interval(over, confidence=confidence, samples=samples) if over else None
            records[array.cell.id] = replace(limit.record, disks=load.disks[path], iops=iops)
    return records


def _reaches(load: PathLoad, limit: PathLimitRecord) -> bool:
    over = load.over(limit.path) if limit.path in load.disks else []
    return bool(over) and mean_interval(over).point >= REACHES * limit.bw.point


def _load(measured: MeasuredArray, metric: str, common: set[BlockKey]) -> PathLoad | None:
    """What the array does, with the share of each path from the counters of fio and of the disks."""
    shares = _shares(measured, metric)
    if shares is None:
        return None
    record = measured.record
    values = zip(record.samples, measured.values(metric), strict=True)
    return PathLoad(measured.cell.id, measured.disks_by_path, [value for key, value in values if key in common], shares)


def _shares(measured: MeasuredArray, metric: str) -> dict[str, float] | None:
    """What the disks on each path did for each I/O (`iops`) or byte (`bw`) of fio. None if it was not counted."""
    by_path = dict.fromkeys(measured.disks_by_path, 0.0)
    of_fio = 0.0
    for measurement in measured.counted:
        fio = measurement.counters.fio
        by_fio = fio.ios if metric == "iops" else fio.read + fio.written
        if by_fio is None:
            return None
        of_fio += by_fio
        for member in measurement.counters.members.values():
            done = member.ios if metric == "iops" else member.read + member.written
            if done is None or member.path not in by_path:
                return None
            by_path[member.path] += done
    if of_fio <= 0 or not all(by_path.values()):
        return None
    return {path: done / of_fio for path, done in by_path.items()}


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
    members: Sequence[MemberRecord] = ()
    """A disk that serves many I/Os at once can be busy all the time and still have capacity."""
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
    checks: tuple[tuple[Bottleneck, Callable[[Evidence], str]], ...] = (
        (Bottleneck.NONE, _as_ideal),
        (Bottleneck.PATH, lambda evidence: evidence.path),
        (Bottleneck.CPU, _cpu),
        (Bottleneck.THREAD, lambda evidence: saturated(evidence.threads)),
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
