"""From measurements to the records of searches for the highest load. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis import Load, load_curve, sustained
from harness.model.amplification import NONE
from harness.model.cell import Arm, Place
from harness.model.layout import amplification
from harness.results.assemble import CONFIDENCE
from harness.results.byte_accounting import byte_checks
from harness.results.cells import CellRecord
from harness.results.decomposition import doubt
from harness.results.io_costs import TOTAL, costs_per_io
from harness.results.journal_records import Measurement
from harness.results.search_records import SearchArm, SearchedRate, SearchRecord
from harness.scenario.searches import PlannedSearch


def loads_of(planned: PlannedSearch, measurements: Iterable[Measurement], arm: Arm) -> tuple[Load, ...]:
    """What was measured of the search on this arm, by rate. Slices that overlapped others are left out."""
    by_rate = _by_rate(planned, measurements, arm)
    return tuple(_load(planned, rate, own) for rate, own in by_rate.items())


def search_record(
    planned: PlannedSearch,
    measurements: Sequence[Measurement],
    records: Mapping[str, CellRecord],
    *,
    host: str,
    stopped: str | None,
) -> SearchRecord:
    """The record of a search so far. `measurements` are its own, `records` has the cells of its group by id."""
    search, cell = planned.search, planned.cells[0]
    return SearchRecord(
        id=planned.id,
        name=search.name,
        scenario=cell.scenario,
        host=host,
        disk=cell.disk,
        job=planned.job.id,
        metric=search.metric,
        bound=search.bound,
        highest=search.highest,
        confidence=CONFIDENCE,
        rounds=len({measurement.round for measurement in measurements}),
        stopped=stopped,
        arms=tuple(_arm(planned, measurements, arm, records) for arm in planned.arms),
    )


def _arm(
    planned: PlannedSearch, measurements: Sequence[Measurement], arm: Arm, records: Mapping[str, CellRecord]
) -> SearchArm:
    by_rate = _by_rate(planned, measurements, arm)
    loads = [_load(planned, rate, own) for rate, own in by_rate.items()]
    bound = planned.search.bound
    found = sustained(loads, bound, confidence=CONFIDENCE)
    curve = {point.rate: point for point in load_curve(loads, bound, confidence=CONFIDENCE)}
    rates = []
    for load in sorted(loads, key=lambda load: load.achieved):
        point = curve.get(load.rate)
        rates.append(
            SearchedRate(
                rate=load.rate,
                iops=load.iops,
                latencies=load.latencies,
                reached=load.reached,
                latency=point.latency if point else None,
                low=point.low if point else None,
                high=point.high if point else None,
                cpu=_cpu(by_rate[load.rate], arm),
            )
        )
    return SearchArm(
        arm=arm.id,
        limited_by=found.limited_by if found else None,
        iops=found.point if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        rates=tuple(rates),
        doubt=", ".join(_doubts(planned, by_rate, arm, records)),
    )


def _by_rate(
    planned: PlannedSearch, measurements: Iterable[Measurement], arm: Arm
) -> dict[int | None, list[Measurement]]:
    """The arm's slices of this search by rate. Those of another workload, from before a resumed run, are left out."""
    found: dict[int | None, list[Measurement]] = {}
    for measurement in measurements:
        own = measurement.arm == arm.id and measurement.job == replace(planned.job, rate=measurement.rate).id
        if own and measurement.overlap is None and measurement.metrics.get("iops", 0.0) > 0:
            found.setdefault(measurement.rate, []).append(measurement)
    return found


def _load(planned: PlannedSearch, rate: int | None, own: Sequence[Measurement]) -> Load:
    metric = planned.search.metric
    return Load(
        rate,
        tuple(each.metrics["iops"] for each in own),
        tuple(each.metrics[metric] for each in own if each.metrics.get(metric, 0.0) > 0),
    )


def _cpu(own: Sequence[Measurement], arm: Arm) -> float | None:
    """The mean CPU time of an I/O in seconds."""
    in_guest = arm.place is Place.GUEST
    costs = [costs_per_io(each.counters, in_guest=in_guest).get(TOTAL) for each in own]
    known = [cost for cost in costs if cost is not None]
    return fmean(known) if known else None


def _doubts(
    planned: PlannedSearch,
    by_rate: Mapping[int | None, Sequence[Measurement]],
    arm: Arm,
    records: Mapping[str, CellRecord],
) -> Iterator[str]:
    """The failed checks of the arm's bytes in the search, and those of its cell."""
    job = planned.job
    layout = NONE if arm.mode is None else amplification(arm.mode.layout, job)
    slices = [each for own in by_rate.values() for each in own]
    yield from (check.check for check in byte_checks(slices, job.depth * job.bs, layout) if not check.ok)
    for cell in planned.cells:
        if cell.mode == arm.mode and cell.id in records and (why := doubt(records[cell.id], arm)):
            yield f"{why} of {cell.id}"
