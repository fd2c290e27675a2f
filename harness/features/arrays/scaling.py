"""How arrays scale, from cells: the array on the host against the single disk of the same blocks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import METRICS
from harness.features.arrays.bottleneck import (
    Bottleneck,
    Evidence,
    Member,
    find_bottleneck,
    fio_threads,
    guest_threads,
    md_threads,
    saturated,
)
from harness.features.arrays.paths import MeasuredArray, limits_of
from harness.features.arrays.records import MemberRecord, PathLimitRecord, ScalingMetric, ScalingRecord
from harness.model.base import Md, Shape
from harness.model.cell import Arm, Cell, Place
from harness.model.counters import MemberCounts
from harness.model.disk import ArrayFacts
from harness.model.job import Job, Workload
from harness.results.assemble import AssembledRun
from harness.results.cells import CellRecord
from harness.results.contrasts import contrast
from harness.results.journal import Measurement

THROUGHPUTS = tuple(metric.name for metric in METRICS.values() if not metric.is_latency)

LINK_FULL = 0.8
"""A link is full at this share of what it transfers: headers of packets take up to 16 % of a PCIe link."""

_Curve = Sequence[tuple[float, float]]
_CurveKey = tuple[str, str, Workload]
"""Scenario, mode and workload."""


def scale_arrays(run: AssembledRun) -> tuple[ScalingRecord, ...]:
    """One record per measured cell on an array with a single disk to compare with, in the order of the cells.

    The run builds an array of md on the first disk of the scenario and others: the host arm is this disk. An array that
    was there already is the disk of the cell, and the lab file names the single disk, the reference. The facts of the
    disks then say what the array is. Jobs that do not keep the queue full are left out: an array does no more of them.
    So are jobs without a known share of reads, because what an array can deliver depends on it, and arrays with a
    missing member (`cost_of_states`).
    """
    cells, records = run.cells, run.records
    of_arm: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        of_arm.setdefault((measurement.arm, measurement.job), []).append(measurement)
    facts = {disk.name: disk.facts for disk in run.disks}
    arrays = []
    for cell in cells:
        record = records.get(cell.id)
        disk = facts.get(cell.disk)
        array = _compared(cell, disk.array if disk is not None else None) if _is_compared(cell.job) else None
        if array is not None and record is not None and _has_both(record, array):
            on_host, guests = (_of_arm(place, cell, record, of_arm) for place in (array.place, Place.GUEST))
            link = disk.narrowest_link if disk is not None and cell.reference else None
            arrays.append(
                MeasuredArray(cell, array.shape, array.chunk, record, array.place, array.single, on_host, guests, link)
            )
    limits = limits_of([array for array in arrays if not _doubt(array)])
    curves = _curves(arrays)
    return tuple(_record(array, curves[_curve_of(array.cell)], limits.get(array.cell.id)) for array in arrays)


def _is_compared(job: Job) -> bool:
    return job.is_saturating and job.share_of_reads is not None


@dataclass(frozen=True, slots=True)
class _Compared:
    """An array, and the places of a cell to compare: the array on the host, and the single disk."""

    shape: Shape
    chunk: int | None
    place: Place
    single: Place


def _compared(cell: Cell, existing: ArrayFacts | None) -> _Compared | None:
    """The array of the cell and its single disk; None without one of them. `existing` is what the cell's disk is."""
    if cell.mode.runs_with_others:
        return None
    base = cell.mode.layout.base
    if isinstance(base, Md):
        return _Compared(base.shape, base.chunk, Place.TWIN, Place.HOST) if base.is_optimal else None
    shape = existing.shape if existing is not None else None
    if existing is None or shape is None or not cell.reference:
        return None
    place = Place.TWIN if cell.mode.has_twin else Place.HOST
    return _Compared(shape, existing.chunk_bytes, place, Place.REFERENCE)


def in_full_stripes(job: Job, shape: Shape, chunk: int | None) -> bool:
    """Whether the job's writes fill whole stripes: sequential writes do, because they are merged, and large aligned
    writes do."""
    return not job.is_random or (chunk is not None and job.bs % (chunk * shape.data_disks) == 0)


def _record(measured: MeasuredArray, curve: _Curve, limit: PathLimitRecord | None) -> ScalingRecord:
    cell, shape, record, own = measured.cell, measured.shape, measured.record, measured.on_host
    job = cell.job
    read_share = job.share_of_reads
    assert read_share is not None
    full_stripe = in_full_stripes(job, shape, measured.chunk)
    ideal = ideal_speedup(shape, read_share=read_share, full_stripe=full_stripe)
    metrics = {}
    for name in THROUGHPUTS:
        single, array = (record.series(name, arm) for arm in (measured.single, measured.place))
        against_single = contrast(single, array, confidence=record.confidence)
        assert against_single is not None  # `_has_both`
        metrics[name] = ScalingMetric.of(against_single.times, disks=shape.disks, ideal=ideal)
    members = _members(own, job)
    evidence = Evidence(
        ideal=ideal,
        of_ideal=metrics["iops"].of_ideal.point,
        in_flight=_in_flight(record, measured.place),
        single_in_flight=_in_flight(record, measured.single),
        single=curve,
        cpu_busy=_cpu_busy(own),
        members=members,
        threads=(*fio_threads(own, job), *md_threads(own, job)),
        spread=_spread(measured),
        hidden=bool(cell.reference) and not members,
        path=limit.words if limit is not None else _link_words(measured),
    )
    finding = find_bottleneck(evidence)
    return ScalingRecord(
        cell=cell.id,
        level=shape.level,
        disks=shape.disks,
        legs=shape.legs,
        ideal=ideal,
        why_ideal=_why(shape, read_share, full_stripe=full_stripe),
        metrics=metrics,
        members=tuple(
            MemberRecord(member.name, member.moved, member.busy, member.in_flight, member.path) for member in members
        ),
        bottleneck=finding.bottleneck,
        evidence=finding.words,
        doubt=_doubt(measured),
        path_limit=limit if finding.bottleneck is Bottleneck.PATH else None,
        guest_limit=saturated(guest_threads(measured.guests, cell)),
        reference=cell.reference,
    )


def _link_words(measured: MeasuredArray) -> str:
    """The figures that show that an array which was there already is at the limit of its link; else empty."""
    link = measured.link
    if link is None:
        return ""
    moved = fmean(measured.values("bw"))
    if moved < LINK_FULL * link.bytes_per_s:
        return ""
    share = moved / link.bytes_per_s
    return f"its {moved / 1e6:.0f} MB/s are {share:.0%} of what its link ({link}) transfers"


def _doubt(measured: MeasuredArray) -> str:
    return measured.record.doubt_about(Arm(measured.single), _arm(measured.place, measured.cell))


def _arm(place: Place, cell: Cell) -> Arm:
    return cell.by_role.get(place, Arm(place))


def _has_both(record: CellRecord, array: _Compared) -> bool:
    arms = (array.place, array.single)
    return record.skipped is None and all(record.values(name, place) for place in arms for name in THROUGHPUTS)


def _of_arm(
    place: Place, cell: Cell, record: CellRecord, of_arm: Mapping[tuple[str, str], Sequence[Measurement]]
) -> list[Measurement]:
    """The measurements of the cell's arm in the blocks that count."""
    arm, blocks, raw = _arm(place, cell).id, set(record.samples), set(record.raw)
    found = of_arm.get((arm, cell.job.id), ())
    return [each for each in found if each.raw in raw and (each.round, each.block) in blocks]


def _curves(arrays: Sequence[MeasuredArray]) -> dict[_CurveKey, _Curve]:
    """The single disk at each depth of the run: I/Os in flight, and IOPS. By what all cells of a curve have in common.

    In the order of `arrays`.
    """
    curves: dict[_CurveKey, list[tuple[float, float]]] = {}
    for array in arrays:
        points = curves.setdefault(_curve_of(array.cell), [])
        in_flight = _in_flight(array.record, array.single)
        if in_flight is not None:
            points.append((in_flight, fmean(array.record.values("iops", array.single))))
    return dict(curves)


def _curve_of(cell: Cell) -> _CurveKey:
    return cell.scenario, cell.mode.name, cell.job.workload


def _in_flight(record: CellRecord, place: Place) -> float | None:
    """IOPS x mean latency, the mean over the rounds."""
    iops, latency = (record.values(name, place) for name in ("iops", "lat_mean"))
    return fmean(rate * seconds for rate, seconds in zip(iops, latency, strict=True)) if latency else None


def _spread(measured: MeasuredArray) -> float:
    """The number of disks that one I/O keeps busy at once. Without a known chunk, it is 1."""
    if measured.chunk is None:
        return 1.0
    size = fmean(measured.values("bw")) / fmean(measured.values("iops"))
    return max(1.0, min(measured.shape.disks, size / measured.chunk))


def _cpu_busy(own: Sequence[Measurement]) -> float | None:
    """The busy share of the host's CPUs while fio ran."""
    found = [(each.counters.cpu_busy, each.counters.host_cpu_busy) for each in own]
    shares = [share for pair in found if (share := pair[1] if pair[0] is None else pair[0]) is not None]
    return fmean(shares) if shares else None


def _members(own: Sequence[Measurement], job: Job) -> tuple[Member, ...]:
    """Each disk of the array, with its mean rates over the rounds that counted it."""
    counted: dict[str, list[tuple[MemberCounts, float]]] = {}
    for each in own:
        for name, of_member in each.counters.members.items():
            counted.setdefault(name, []).append((of_member, job.ramp + each.seconds))

    def rate(name: str, of: Callable[[MemberCounts], float | None]) -> float | None:
        found = [(of(counts), seconds) for counts, seconds in counted[name]]
        known = [count / seconds for count, seconds in found if count is not None]
        return fmean(known) if len(known) == len(found) else None

    return tuple(
        Member(
            name,
            moved=rate(name, lambda counts: counts.read + counts.written) or 0.0,
            busy=None if (busy := rate(name, lambda counts: counts.busy_s)) is None else min(1.0, busy),
            in_flight=rate(name, lambda counts: counts.queue_s),
            path=counted[name][-1][0].path,
        )
        for name in sorted(counted)
    )


def _why(shape: Shape, read_share: float, *, full_stripe: bool) -> str:
    """For example "4 disks, each write needs 4 disk I/Os (2 reads of old data or parity, 2 writes)"."""
    disks = f"{shape.disks} disks"
    if read_share == 1:
        return f"{disks}, each read uses one of them"
    written, read = shape.written(full_stripe=full_stripe), shape.read_for_write(full_stripe=full_stripe)
    if shape.parity and full_stripe:
        return f"{disks}, {shape.data_disks * shape.legs} of them hold data when a whole stripe is written"
    cost = f"each write needs {written + read:g} disk I/Os"
    if read:
        cost += f" ({read:g} reads of old data or parity, {written:g} writes)"
    return f"{disks}, {cost}"


def ideal_speedup(shape: Shape, *, read_share: float, full_stripe: bool) -> float:
    """The throughput that the level can deliver, as a multiple of one disk's, if disks were the only limit.

    `read_share` is the share of reads among the I/Os. A read keeps one disk busy. A write keeps as many disks busy as
    its level writes and reads for it: one in RAID 0, the copies in RAID 1 and 10, data and parity in RAID 5 and 6. So
    reads scale with the number of disks at every level. `full_stripe` means that writes fill whole stripes, as
    sequential writes do; their parity needs no reads. ValueError for a share outside of 0 to 1.
    """
    if not 0 <= read_share <= 1:
        raise ValueError(f"the share of reads must be between 0 and 1, not {read_share}")
    per_write = shape.written(full_stripe=full_stripe) + shape.read_for_write(full_stripe=full_stripe)
    return shape.disks / (read_share + (1 - read_share) * per_write)
