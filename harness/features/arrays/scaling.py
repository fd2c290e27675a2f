"""How arrays scale, from cells: the array on the host against the single disk of the same blocks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis import METRICS, Estimate
from harness.features.arrays.bottleneck import (
    Evidence,
    MeasuredArray,
    find_bottleneck,
    fio_threads,
    guest_threads,
    limits_of,
    md_threads,
    saturated,
)
from harness.features.arrays.records import (
    ArrayStateMetric,
    ArrayStateRecord,
    Bottleneck,
    MemberRecord,
    PathLimitRecord,
    ScalingMetric,
    ScalingRecord,
)
from harness.model.base import Md, Shape
from harness.model.counters import MemberCounts
from harness.model.disk import ArrayFacts, DiskFacts, PcieLink, SerialLink
from harness.model.job import Job, Workload
from harness.model.layout import Layer, Layout
from harness.model.mode import Arm, Cell, Place
from harness.results.assemble import AssembledRun
from harness.results.cells import CellRecord, ValidityCheck
from harness.results.contrasts import contrast
from harness.results.journal import Measurement

THROUGHPUTS = tuple(metric.name for metric in METRICS.values() if not metric.is_latency)

LINK_FULL = 0.8
"""A link is full at this share of what it transfers: headers of packets take up to 16 % of a PCIe link."""

_Curve = Sequence[tuple[float, float]]
_CurveKey = tuple[str, str, Workload]
"""Scenario, mode and workload."""
_ByArm = Mapping[tuple[str, str], Sequence[Measurement]]
"""By the ids of arm and job."""


def scale_arrays(run: AssembledRun) -> tuple[ScalingRecord, ...]:
    """One record per measured cell on an array with a single disk to compare with, in the order of the cells.

    The run builds an array of md on the first disk of the scenario and others: the host arm is this disk. An array that
    was there already is the disk of the cell, and the lab file names the single disk, the reference. The facts of the
    disks then say what the array is. Jobs that do not keep the queue full are left out: an array does no more of them.
    So are jobs without a known share of reads, because what an array can deliver depends on it, and arrays with a
    missing member (`cost_of_states`).
    """
    cells, records = run.cells, run.records
    of_arm = _group_by_arm(run.measurements)
    facts = {disk.name: disk.facts for disk in run.disks}
    arrays = []
    for cell in cells:
        record = records.get(cell.id)
        disk = facts.get(cell.disk)
        if record is None or not _is_compared(cell.job):
            continue
        array = _find_array(cell, record, disk.array if disk is not None else None)
        if array is not None and _has_both(array):
            on_host, guests = (_of_arm(place, cell, record, of_arm) for place in (array.place, Place.GUEST))
            link = _find_narrowest_link(disk) if disk is not None and cell.reference else None
            arrays.append(replace(array, on_host=on_host, guests=guests, link=link))
    limits = limits_of([array for array in arrays if not _doubt(array)])
    curves = _curves(arrays)
    return tuple(_record(array, curves[_curve_of(array.cell)], limits.get(array.cell.id)) for array in arrays)


def _group_by_arm(measurements: Iterable[Measurement]) -> _ByArm:
    by_arm: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in measurements:
        by_arm.setdefault((measurement.arm, measurement.job), []).append(measurement)
    return by_arm


def _find_narrowest_link(disk: DiskFacts) -> PcieLink | SerialLink | None:
    """The slower of the disk's own link and that of its controller; None if none is known."""
    links = [link for link in (disk.link, disk.controller.link if disk.controller else None) if link is not None]
    return min(links, key=lambda link: link.bytes_per_s, default=None)


def _is_compared(job: Job) -> bool:
    return job.is_saturating and job.share_of_reads is not None


def _find_array(cell: Cell, record: CellRecord, existing: ArrayFacts | None) -> MeasuredArray | None:
    """The array of the cell with its single disk, without measurements yet; None without one of them.

    `existing` is what the cell's disk is.
    """
    if cell.mode.runs_with_others:
        return None
    base = cell.mode.layout.base
    if isinstance(base, Md):
        return MeasuredArray(cell, base.shape, base.chunk, record, Place.TWIN, Place.HOST) if base.is_optimal else None
    shape = existing.shape if existing is not None else None
    if existing is None or shape is None or not cell.reference:
        return None
    place = Place.TWIN if cell.mode.has_twin else Place.HOST
    return MeasuredArray(cell, shape, existing.chunk_bytes, record, place, Place.REFERENCE)


def in_full_stripes(job: Job, shape: Shape, chunk: int | None) -> bool:
    """Whether the job's writes fill whole stripes: sequential writes do, because they are merged, and large aligned
    writes do."""
    return not job.is_random or (chunk is not None and job.bs % (chunk * shape.data_disks) == 0)


def _record(measured: MeasuredArray, curve: _Curve, limit: PathLimitRecord | None) -> ScalingRecord:
    cell, shape, record, measurements = measured.cell, measured.shape, measured.record, measured.on_host
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
    members = _members(measurements, job)
    evidence = Evidence(
        ideal=ideal,
        of_ideal=metrics["iops"].of_ideal.point,
        in_flight=_in_flight(record, measured.place),
        single_in_flight=_in_flight(record, measured.single),
        single=curve,
        cpu_busy=_cpu_busy(measurements),
        members=members,
        threads=(*fio_threads(measurements, job), *md_threads(measurements, job)),
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
        members=members,
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


def _has_both(array: MeasuredArray) -> bool:
    record, arms = array.record, (array.place, array.single)
    return record.skipped is None and all(record.values(name, place) for place in arms for name in THROUGHPUTS)


def _of_arm(place: Place, cell: Cell, record: CellRecord, of_arm: _ByArm) -> list[Measurement]:
    """The measurements of the cell's arm in the blocks that count."""
    arm, blocks, raw = _arm(place, cell).id, set(record.samples), set(record.raw)
    measurements = of_arm.get((arm, cell.job.id), ())
    return [
        measurement
        for measurement in measurements
        if measurement.raw in raw and (measurement.round, measurement.block) in blocks
    ]


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


def _cpu_busy(measurements: Sequence[Measurement]) -> float | None:
    """The busy share of the host's CPUs while fio ran."""
    found = [(measurement.counters.cpu_busy, measurement.counters.host_cpu_busy) for measurement in measurements]
    shares = [share for pair in found if (share := pair[1] if pair[0] is None else pair[0]) is not None]
    return fmean(shares) if shares else None


def _members(measurements: Sequence[Measurement], job: Job) -> tuple[MemberRecord, ...]:
    """Each disk of the array, with its mean rates over the rounds that counted it."""
    counted: dict[str, list[tuple[MemberCounts, float]]] = {}
    for measurement in measurements:
        for name, of_member in measurement.counters.members.items():
            counted.setdefault(name, []).append((of_member, job.ramp + measurement.seconds))

    def rate(name: str, of: Callable[[MemberCounts], float | None]) -> float | None:
        known_or_not = [(of(counts), seconds) for counts, seconds in counted[name]]
        known = [count / seconds for count, seconds in known_or_not if count is not None]
        return fmean(known) if len(known) == len(known_or_not) else None

    return tuple(
        MemberRecord(
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


CHECK = "array"
"""The name of the check."""
ENOUGH = 0.5
"""The smallest share of slices with a rebuilding array. With fewer, what is left says little about the mode."""
_MIB = 1024**2


def in_other_state(slice_: Measurement, md: Md) -> bool:
    """Whether the array was, in this slice, not in the state that its layout requests. False if that is not known."""
    array = slice_.counters.array
    if slice_.arm == Place.HOST or array is None:
        return False
    return array.state != md.state or array.missing != (0 if md.is_optimal else 1)


def is_rebuilding(slice_: Measurement, cell: Cell) -> bool:
    """Whether the slice counts: False if the array of its cell should have been rebuilding and was not."""
    md = cell.mode.layout.base
    return not (isinstance(md, Md) and md.spares and in_other_state(slice_, md))


def state_checks(measurements: Sequence[Measurement], cell: Cell) -> list[ValidityCheck]:
    """The check of the state of the cell's array; empty without one, or if the host reported no state.

    An array that should be optimal or degraded must be so in every slice. A recovery may begin late or end early: these
    slices do not count, and the check says how many, but it must have run in at least half of them.
    """
    md = cell.mode.layout.base
    known = [
        measurement
        for measurement in measurements
        if measurement.counters.array is not None and measurement.arm != Place.HOST
    ]
    if not isinstance(md, Md) or not known:
        return []
    other = [each for each in known if in_other_state(each, md)]
    right = len(known) - len(other)
    ok = right >= ENOUGH * len(known) if md.spares else not other
    detail = f"{md.state} in {right} of {len(known)} slices"
    if md.spares:
        detail += _rate([each for each in known if each not in other])
    if other:
        detail += f"; first in round {other[0].round} of {other[0].arm}: {_found(other[0])}"
    if not ok:
        detail += "; see /proc/mdstat and dmesg there, and whether a disk has failed"
    return [ValidityCheck(CHECK, ok=ok, detail=detail)]


def state_notes(measurements: Sequence[Measurement], cell: Cell) -> list[str]:
    """How many blocks do not count because no recovery ran in them. Of an array that was there already, its state."""
    md = cell.mode.layout.base
    if not isinstance(md, Md):
        return _of_existing(measurements)
    if not md.spares:
        return []
    lost = {(measurement.round, measurement.block) for measurement in measurements if in_other_state(measurement, md)}
    of = len({(measurement.round, measurement.block) for measurement in measurements})
    return [f"{len(lost)} of {of} blocks do not count, because the array was not rebuilding"] if lost else []


def _of_existing(measurements: Sequence[Measurement]) -> list[str]:
    """An array of md below the disk or the storage that was not optimal. The run neither requested nor changed that."""
    known = [measurement for measurement in measurements if measurement.counters.array is not None]
    other = [each for each in known if (array := each.counters.array) and array.state != "optimal"]
    if not other:
        return []
    return [f"the array below was not optimal in {len(other)} of {len(known)} slices; in the first: {_found(other[0])}"]


def rebuild_rate(slices: Sequence[Measurement]) -> float | None:
    """Bytes per second of each member that a recovery completed in these slices and the pauses around them."""
    counted = [array for slice_ in slices if (array := slice_.counters.array) and array.state == "rebuilding"]
    seconds = sum(array.seconds for array in counted)
    return sum(array.rebuilt for array in counted) / seconds if seconds else None


def _rate(slices: Sequence[Measurement]) -> str:
    """For example ", 0.8 MiB/s of each disk (sync_speed_max 1.0 MiB/s)"."""
    rate = rebuild_rate(slices)
    limits = {array.limit for slice_ in slices if (array := slice_.counters.array) and array.limit is not None}
    if rate is None:
        return ""
    limit = f" (sync_speed_max {max(limits) / _MIB:.3g} MiB/s)" if limits else ""
    return f", {rate / _MIB:.3g} MiB/s of each disk{limit}"


def _found(slice_: Measurement) -> str:
    array = slice_.counters.array
    state = array.state if array else None
    missing = array.missing if array else 0
    return f"{state or 'its state changed'}, {missing} missing"


COMPARED = ("iops", "bw", "lat_mean", "clat_p99")


def cost_of_states(run: AssembledRun) -> tuple[ArrayStateRecord, ...]:
    """One record per measured cell on an array that is not optimal, if the run has the optimal one, in their order.

    Only blocks count that count for both cells. The arms of a rebuilding array are in another
    timetable of the same round, so its pairs are up to a round apart.
    """
    cells, records, by_arm = run.cells, run.records, _group_by_arm(run.measurements)
    optimal = {_key(cell, records): cell for cell in cells if _is_measured(cell, records)}
    array_states = []
    for cell in cells:
        base = cell.mode.layout.base
        other = optimal.get(_key(cell, records))
        if isinstance(base, Md) and not base.is_optimal and other is not None and _has_values(records.get(cell.id)):
            record = _make_state_record(cell, base, other, records, by_arm)
            array_states += [record] if record else []
    return tuple(array_states)


def _key(cell: Cell, records: Mapping[str, CellRecord]) -> tuple[object, ...]:
    """Equal for cells that differ only in the state of their array."""
    record = records.get(cell.id)
    host = record.host if record else ""
    return (cell.scenario, host, cell.disk, cell.job, cell.mode.attach, _when_optimal(cell.mode.layout))


def _is_measured(cell: Cell, records: Mapping[str, CellRecord]) -> bool:
    base = cell.mode.layout.base
    return isinstance(base, Md) and base.is_optimal and _has_values(records.get(cell.id))


def _has_values(record: CellRecord | None) -> bool:
    return record is not None and record.skipped is None and "iops" in record.metrics


def _make_state_record(
    cell: Cell, base: Md, other: Cell, records: Mapping[str, CellRecord], by_arm: _ByArm
) -> ArrayStateRecord | None:
    own, optimal = records[cell.id], records[other.id]
    if not set(own.samples) & set(optimal.samples):
        return None
    metrics = {name: found for name in COMPARED if (found := _make_state_metric(name, own, optimal)) is not None}
    arms = [arm for each in (cell, other) for arm in (Arm(Place.TWIN, each.mode.twin), Arm(Place.GUEST, each.mode))]
    raw = set(own.raw)
    slices = [
        measurement
        for arm in arms[:2]
        for measurement in by_arm.get((arm.id, cell.job.id), ())
        if measurement.raw in raw and measurement.counters.array is not None
    ]
    right = [slice_ for slice_ in slices if not in_other_state(slice_, base)]
    rebuilding = base.state == "rebuilding"
    return ArrayStateRecord(
        cell=cell.id,
        optimal=other.id,
        state=base.state,
        metrics=metrics,
        confidence=max(own.confidence, optimal.confidence),
        rebuilding=len(right) / len(slices) if rebuilding and slices else None,
        rebuild_rate=rebuild_rate(right) if rebuilding else None,
        doubt=", ".join(dict.fromkeys(filter(None, (own.doubt_about(*arms[:2]), optimal.doubt_about(*arms[2:]))))),
    )


def _make_state_metric(name: str, degraded: CellRecord, optimal: CellRecord) -> ArrayStateMetric | None:
    """None if a cell lacks the metric."""
    if any(name not in cell.metrics for cell in (degraded, optimal)):
        return None
    twin, guest = (_cost(name, arm, degraded, optimal) for arm in (Place.TWIN, Place.GUEST))
    return ArrayStateMetric(twin, guest) if twin else None


def _cost(name: str, arm: Place, own: CellRecord, optimal: CellRecord) -> Estimate | None:
    confidence = max(own.confidence, optimal.confidence)
    cost = contrast(optimal.series(name, arm), own.series(name, arm), confidence=confidence)
    return None if cost is None else cost.loss


def _when_optimal(layout: Layout) -> Layout:
    """The same layout on an array with all its members. A layout that is on no array is returned as it is."""
    base = layout.base
    if not isinstance(base, Md):
        return layout
    whole = replace(base, state="optimal", spares=0)
    return replace(layout, on=whole) if isinstance(layout, Layer) else whole
