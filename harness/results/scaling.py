"""How arrays scale, from cells: the array's twin against the single disk of the same blocks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from harness.analysis import (
    METRICS,
    Bottleneck,
    Evidence,
    Member,
    Samples,
    Shape,
    find_bottleneck,
    ideal_speedup,
    saturated,
    scaling,
)
from harness.model.base import Md
from harness.model.counters import MemberCounts
from harness.model.job import Job, Workload
from harness.model.mode import Arm, Cell, Place
from harness.results.cells import CellRecord
from harness.results.comparisons import MemberRecord, PathLimitRecord, ScalingMetric, ScalingRecord
from harness.results.decomposition import doubt
from harness.results.paths import MeasuredArray, limits_of
from harness.results.records import Measurement
from harness.results.threads import fio_threads, guest_threads

THROUGHPUTS = tuple(metric.name for metric in METRICS.values() if not metric.is_latency)

_Curve = Sequence[tuple[float, float]]
_CurveKey = tuple[str, str, Workload]
"""Scenario, mode and workload."""


def scalings(
    cells: Sequence[Cell], records: Mapping[str, CellRecord], measurements: Iterable[Measurement]
) -> tuple[ScalingRecord, ...]:
    """One record per measured cell with a layout that is an array or lies on one, in the order of `cells`.

    `records` is by cell id. Jobs that do not keep the queue full are left out: an array does no more of them. So are
    jobs without a known share of reads, because what an array can deliver depends on it, and arrays with a missing
    member (`array_costs`).
    """
    of_arm: dict[tuple[str, str], list[Measurement]] = {}
    for each in measurements:
        of_arm.setdefault((each.arm, each.job), []).append(each)
    arrays = []
    for cell in cells:
        array = cell.mode.layout.base
        record = records.get(cell.id)
        is_whole = isinstance(array, Md) and array.is_optimal
        if isinstance(array, Md) and is_whole and record is not None and _is_compared(cell.job) and _has_both(record):
            own = [_of_arm(place, cell, record, of_arm) for place in (Place.TWIN, Place.GUEST)]
            arrays.append(MeasuredArray(cell, array, record, *own))
    limits = limits_of([each for each in arrays if not _doubt(each)])
    curves = _curves(cells, records) if arrays else {}
    return tuple(_record(each, curves[_curve_of(each.cell)], limits.get(each.cell.id)) for each in arrays)


def _is_compared(job: Job) -> bool:
    return job.is_saturating and job.share_of_reads is not None


def in_full_stripes(job: Job, array: Md) -> bool:
    """Whether the job's writes fill whole stripes: sequential writes do, because they are merged, and large aligned
    writes do."""
    shape = array.shape
    return not job.is_random or job.bs % (array.chunk * shape.data_disks) == 0


def _record(measured: MeasuredArray, curve: _Curve, limit: PathLimitRecord | None) -> ScalingRecord:
    cell, array, record, twins = measured.cell, measured.array, measured.record, measured.twins
    shape, job = array.shape, cell.job
    read_share = job.share_of_reads
    assert read_share is not None
    full_stripe = in_full_stripes(job, array)
    ideal = ideal_speedup(shape, read_share=read_share, full_stripe=full_stripe)
    metrics = {}
    samples = Samples(record.boots)
    for name in THROUGHPUTS:
        values = record.metrics[name]
        each = scaling(
            values.host, values.twin, disks=array.disks, ideal=ideal, confidence=record.confidence, samples=samples
        )
        metrics[name] = ScalingMetric(each.speedup, each.efficiency, each.of_ideal)
    members = _members(twins, job)
    evidence = Evidence(
        ideal=ideal,
        of_ideal=metrics["iops"].of_ideal.point,
        in_flight=_in_flight(record, Place.TWIN),
        single_in_flight=_in_flight(record, Place.HOST),
        single=curve,
        cpu_busy=_cpu_busy(twins),
        members=members,
        threads=fio_threads(twins, job),
        spread=max(1.0, min(array.disks, _mean_size(record) / array.chunk)),
        path=limit.words if limit is not None else "",
    )
    finding = find_bottleneck(evidence)
    return ScalingRecord(
        cell=cell.id,
        level=array.level,
        disks=array.disks,
        legs=array.legs,
        ideal=ideal,
        why_ideal=_why(shape, read_share, full_stripe=full_stripe),
        metrics=metrics,
        members=tuple(MemberRecord(each.name, each.moved, each.busy, each.in_flight, each.path) for each in members),
        bottleneck=finding.bottleneck,
        evidence=finding.words,
        doubt=_doubt(measured),
        path_limit=limit if finding.bottleneck is Bottleneck.PATH else None,
        guest_limit=saturated(guest_threads(measured.guests, cell)),
    )


def _doubt(measured: MeasuredArray) -> str:
    return doubt(measured.record, Arm(Place.HOST), Arm(Place.TWIN, measured.cell.mode))


def _has_both(record: CellRecord) -> bool:
    return record.skipped is None and all(name in record.metrics and record.metrics[name].twin for name in THROUGHPUTS)


def _of_arm(
    place: Place, cell: Cell, record: CellRecord, of_arm: Mapping[tuple[str, str], Sequence[Measurement]]
) -> list[Measurement]:
    """The measurements of the cell's twin or guest in the blocks that count."""
    arm, blocks, raw = Arm(place, cell.mode).id, set(record.samples), set(record.raw)
    found = of_arm.get((arm, cell.job.id), ())
    return [each for each in found if each.raw in raw and (each.round, each.block) in blocks]


def _curves(cells: Sequence[Cell], records: Mapping[str, CellRecord]) -> dict[_CurveKey, _Curve]:
    """The single disk at each depth of the run: I/Os in flight, and IOPS. By what all cells of a curve have in common.

    In the order of `cells`.
    """
    curves: dict[_CurveKey, list[tuple[float, float]]] = {}
    for cell in cells:
        points = curves.setdefault(_curve_of(cell), [])
        record = records.get(cell.id)
        if record is not None and _has_both(record):
            in_flight = _in_flight(record, Place.HOST)
            if in_flight is not None:
                points.append((in_flight, fmean(record.metrics["iops"].host)))
    return dict(curves)


def _curve_of(cell: Cell) -> _CurveKey:
    return cell.scenario, cell.mode.name, cell.job.workload


def _in_flight(record: CellRecord, place: Place) -> float | None:
    """IOPS x mean latency, the mean over the rounds."""
    iops, latency = record.metrics["iops"], record.metrics.get("lat_mean")
    if latency is None:
        return None
    values: tuple[tuple[float, ...], tuple[float, ...]] = (getattr(iops, str(place)), getattr(latency, str(place)))
    return fmean(rate * seconds for rate, seconds in zip(*values, strict=True))


def _mean_size(record: CellRecord) -> float:
    """Bytes of an I/O of the twin, on average."""
    return fmean(record.metrics["bw"].twin) / fmean(record.metrics["iops"].twin)


def _cpu_busy(twins: Sequence[Measurement]) -> float | None:
    """The busy share of the host's CPUs while fio ran."""
    found = [(each.counters.cpu_busy, each.counters.host_cpu_busy) for each in twins]
    shares = [share for pair in found if (share := pair[1] if pair[0] is None else pair[0]) is not None]
    return fmean(shares) if shares else None


def _members(twins: Sequence[Measurement], job: Job) -> tuple[Member, ...]:
    """Each disk of the array, with its mean rates over the rounds that counted it."""
    counted: dict[str, list[tuple[MemberCounts, float]]] = {}
    for each in twins:
        for name, of_member in each.counters.members.items():
            counted.setdefault(name, []).append((of_member, job.ramp + each.seconds))

    def rate(name: str, of: Callable[[MemberCounts], float | None]) -> float | None:
        found = [(of(own), seconds) for own, seconds in counted[name]]
        known = [count / seconds for count, seconds in found if count is not None]
        return fmean(known) if len(known) == len(found) else None

    return tuple(
        Member(
            name,
            moved=rate(name, lambda own: own.read + own.written) or 0.0,
            busy=None if (busy := rate(name, lambda own: own.busy_s)) is None else min(1.0, busy),
            in_flight=rate(name, lambda own: own.queue_s),
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
