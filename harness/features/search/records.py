"""What results.json has of a search for the highest load, and how it is made from measurements. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.features.search.curve import LimitedBy, Load, load_curve, sustained
from harness.features.search.request import PlannedSearch
from harness.model.base import NONE
from harness.model.cell import Arm, Place
from harness.model.layout import amplification
from harness.model.values import STRICT
from harness.results.byte_accounting import byte_checks
from harness.results.cells import CellRecord
from harness.results.contrasts import CONFIDENCE
from harness.results.io_costs import TOTAL, costs_per_io
from harness.results.journal import Measurement
from harness.results.records import Run
from harness.scenario.plan import Plan


@dataclass(frozen=True, slots=True)
class SearchedRate:
    """One rate on one arm: a point of the curve of latency over load."""

    __pydantic_config__ = STRICT

    rate: int | None
    """I/Os per second requested; null for as many as possible."""
    iops: tuple[float, ...]
    """I/Os per second by block."""
    latencies: tuple[float, ...]
    """The metric in seconds, by block. Blocks with too few I/Os are left out."""
    reached: bool
    """Whether the arm completed at least 95 % of the rate. If not, the rate counts as above the bound."""
    latency: float | None
    """The curve at this rate, in seconds; null if the rate was not reached, or has fewer than two values."""
    low: float | None
    """The lower end of the curve's interval; null as for `latency`."""
    high: float | None
    """The upper end of the curve's interval; null as for `latency`."""
    cpu: float | None
    """CPU time of the host for an I/O in seconds, without fio's own; null if it was not counted."""


@dataclass(frozen=True, slots=True)
class SearchArm:
    """The result of a search on one arm."""

    __pydantic_config__ = STRICT

    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    limited_by: LimitedBy | None
    """What ends the loads that keep the bound; null if too little was measured."""
    iops: float | None
    """The highest load that keeps the bound; null if no measured load does, or if too little was measured."""
    low: float | None
    """The lower end of the interval of `iops`; null if not even the lowest rate surely keeps the bound."""
    high: float | None
    """The upper end of the interval of `iops`; null if no higher rate was measured."""
    rates: tuple[SearchedRate, ...]
    """The rates in the order of the load; empty if the arm was not measured."""
    doubt: str
    """The failed checks because of which this is not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """A search for the highest load at which a latency stays below a bound, on the arms of one group."""

    __pydantic_config__ = STRICT

    id: str
    """`GROUP-search-NAME`: the group of its measurements in the journal."""
    name: str
    """Name of the search in the scenario."""
    scenario: str
    """Name of the scenario."""
    host: str
    """Name of the host in the lab file."""
    disk: str
    """Name of the disk under test."""
    job: str
    """The id of the job at full speed."""
    metric: str
    """The latency: `clat_p99`, ..."""
    bound: float
    """The bound in seconds."""
    highest: int | None
    """The highest rate that may be measured; null for no limit."""
    confidence: float
    """The confidence of each interval alone."""
    rounds: int
    """Rounds of the search."""
    stopped: str | None
    """Why no further round was measured; null if the run ended before."""
    arms: tuple[SearchArm, ...]
    """One entry per arm, the host first."""


def are_finished(plan: Plan, run: Run) -> bool:
    """Whether a stored run has all of the plan's searches, or skipped their cells."""
    skipped = {cell.id: cell.skipped is not None for cell in run.cells}
    ended = {record.id for record in run.of(SearchRecord) if record.stopped is not None}
    searches = (follow_up for follow_up in plan.follow_ups if isinstance(follow_up, PlannedSearch))
    return all(search.id in ended or all(skipped.get(cell.id) for cell in search.cells) for search in searches)


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
        name=planned.name,
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
        tuple(measurement.metrics["iops"] for measurement in own),
        tuple(each.metrics[metric] for each in own if each.metrics.get(metric, 0.0) > 0),
    )


def _cpu(own: Sequence[Measurement], arm: Arm) -> float | None:
    """The mean CPU time of an I/O in seconds."""
    in_guest = arm.place is Place.GUEST
    costs = [costs_per_io(measurement.counters, in_guest=in_guest).get(TOTAL) for measurement in own]
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
    slices = [measurement for measurements in by_rate.values() for measurement in measurements]
    yield from (check.check for check in byte_checks(slices, job.depth * job.bs, layout) if not check.ok)
    for cell in planned.cells:
        if cell.mode == arm.mode and cell.id in records and (why := records[cell.id].doubt_about(arm)):
            yield f"{why} of {cell.id}"
