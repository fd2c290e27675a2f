"""What a scenario may ask of a search for the highest load, and what the search costs in a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from harness.analysis import CONFIDENCE, METRICS
from harness.config.names import choices
from harness.config.problems import shown
from harness.feature import CPU_TIME, cost_per_io
from harness.features.search.curve import FEWEST_SAMPLES, LimitedBy, Load, SearchLimits, load_curve, sustained
from harness.model.base import NONE
from harness.model.job import Job, Workload
from harness.model.layout import amplification
from harness.model.mode import Arm, Cell, MetricName, Place
from harness.model.values import (
    Amount,
    ArmName,
    Confidence,
    Counted,
    Figure,
    FileValue,
    Iodepth,
    Measured,
    Name,
    RecordValue,
    SomeSeconds,
)
from harness.model.workloads import OneWorkload
from harness.scenario.load import ModeName
from harness.scenario.plan import FollowUp
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group

if TYPE_CHECKING:
    from harness.results import CellRecord, Measurement

MOST_ROUNDS = 16
"""Rounds of a search. The simulated searches of the tests end earlier."""
USUAL_ROUNDS = 8
MOST_RATES = 2 * MOST_ROUNDS + 2
"""Rates that a search measures on an arm: four in its first round, then at most two in each round."""
LONGEST_SLICE = 10.0
"""Seconds. A slice of a search is long enough for the percentile of its I/Os."""
_MARGIN = 1.1
"""A slice has so many times the I/Os that the percentile needs, because an arm may be slower than its rate."""
_FEWEST_IOS = 100
"""The fewest I/Os in a slice."""


def _latency_of_ios(name: str) -> str:
    names = [metric.name for metric in METRICS.values() if metric.is_latency and metric.of == "ios"]
    if name not in names:
        raise ValueError(f"not a latency of I/Os; {choices(name, names)}")
    return name


@dataclass(frozen=True, slots=True)
class Search(FileValue):
    """Searches the highest load at which the latency `metric` stays below `bound` seconds.

    `workload` gives the I/O pattern, and `iodepth` limits the I/Os in flight. Rates above `highest` I/Os per second are
    not measured. If `modes` is None, all modes of the scenario are searched. No round of the search begins after
    `time_limit` seconds.
    """

    workload: OneWorkload
    """One of `workloads`: a pattern and block size without a rate."""
    bound: SomeSeconds
    """The latency that must not be exceeded."""
    metric: Annotated[str, AfterValidator(_latency_of_ios)] = "clat_p99"
    """The latency: `lat_mean`, `clat_mean`, or a percentile of clat."""
    iodepth: Iodepth = 32
    """The I/Os in flight of each process, at most; a depth that at least one profile measures."""
    highest: Annotated[int, Field(strict=True, ge=1)] | None = None
    """The highest rate to measure, in I/Os per second; without it, up to full speed."""
    modes: Annotated[tuple[ModeName, ...], Field(min_length=1)] | None = None
    """Names from `modes`; without them, every mode."""
    time_limit: SomeSeconds = 600.0
    """The time for the search in each group. A round that would end later does not begin."""

    def covers(self, cell: Cell) -> bool:
        """Whether the arms of this cell are searched."""
        same = cell.job.workload == self.workload and cell.job.iodepth == self.iodepth
        if cell.mode.runs_with_others or cell.mode.cached:
            return False
        return same and (self.modes is None or any(name in self.modes for name in cell.mode.names))


@dataclass(frozen=True, kw_only=True)
class PlannedSearch(FollowUp):
    """A search on the arms of `cells`, which have the workload at full speed.

    `blocks` is the number of blocks of each rate in a round.
    """

    name: str
    search: Search
    blocks: int

    kind = "search"
    title = "highest load"
    description = "the search for the highest load"

    @property
    def job(self) -> Job:
        """The workload at full speed."""
        return self.cells[0].job

    @property
    def writes(self) -> bool:
        """Whether its jobs write."""
        return self.job.writes

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms that are searched. The reference of an array only shows how far the array scales."""
        arms = (arm for cell in self.cells for arm in cell.arms if arm.place is not Place.REFERENCE)
        return tuple(dict.fromkeys(arms))

    def job_at(self, rate: int | None, speed: float, *, ramp: float) -> Job:
        """The job at this rate, or at full speed, about `speed` I/Os per second. Its slices have enough I/Os."""
        iops = rate if rate is not None else speed
        seconds = max(self.job.seconds, min(round(_ios(self.search) / iops, 3), LONGEST_SLICE))
        return replace(self.job, rate=rate, ramp=ramp, seconds=seconds)

    def limits(self, speed: float) -> SearchLimits:
        """The rates that can be measured on an arm with this full speed, in I/Os per second."""
        step = self.job.numjobs
        return SearchLimits(speed, lowest_rate(self.search, step), self.search.highest, step)

    @property
    def usual_seconds(self) -> float:
        """fio seconds of a search in which a slice at each rate has enough I/Os."""
        return USUAL_ROUNDS * self.blocks * len(self.arms) * self.job.wall

    @property
    def most_seconds(self) -> float:
        """The longest time of the search."""
        return self.search.time_limit

    def bytes_written(self, write_rate: int, place: int | None = None) -> float:
        """The bytes that the search writes at most to disks that write `write_rate` bytes per second.

        With `place`, only to the disk at this place of the scenario's disks.
        """
        if not self.job.writes:
            return 0.0
        places = [at for arm in self.arms for at in arm.places if place in (None, at)]
        return MOST_RATES * self.blocks * len(places) * max(self.job.wall * write_rate, _ios(self.search) * self.job.bs)


def lowest_rate(search: Search, numjobs: int) -> float:
    """The lowest rate at which a slice has enough I/Os, in I/Os per second of all processes together."""
    return max(_ios(search) / LONGEST_SLICE, 10.0 * numjobs)


def _ios(search: Search) -> float:
    """The I/Os of a slice."""
    return _MARGIN * max(METRICS[search.metric].fewest_ios, _FEWEST_IOS)


def plan_searches(scenario: Scenario, group: Group) -> Iterator[PlannedSearch]:
    """The searches on the cells of this group."""
    for name, search in scenario.requests_of(Search).items():
        if covered := tuple(cell for cell in group.cells if search.covers(cell)):
            blocks = max(group.blocks, FEWEST_SAMPLES)
            yield PlannedSearch(group=group.id, cells=covered, name=name, search=search, blocks=blocks)


def find_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each search that cannot be measured, in the form of the schema's messages."""
    modes = {mode.name: mode for mode in scenario.modes}
    depths = sorted({depth for profile in scenario.profiles for depth in profile.iodepth})
    for name, search in scenario.requests_of(Search).items():
        key = f"search.{name}"
        yield from _find_workload_problems(f"{key}.workload", search.workload, scenario)
        fewest = math.ceil(lowest_rate(search, search.workload.numjobs))
        if search.highest is not None and search.highest < fewest:
            yield (
                f"{key}.highest = {search.highest}: too few I/Os per second for {search.metric}, which needs "
                f"{METRICS[search.metric].fewest_ios} I/Os in a slice; allowed: {fewest} or more"
            )
        if search.iodepth not in depths:
            allowed = ", ".join(map(str, depths))
            yield f"{key}.iodepth = {search.iodepth}: no profile measures at this depth; allowed: {allowed}"
        for number, mode in enumerate(search.modes or ()):
            if mode not in modes:
                yield f"{key}.modes[{number}] = {shown(mode)}: not a mode of this scenario; {choices(mode, modes)}"
            elif modes[mode].cached:
                yield f"{key}.modes[{number}] = {shown(mode)}: memory serves it; allowed: modes without cached = true"
            elif modes[mode].runs_with_others:
                yield (
                    f"{key}.modes[{number}] = {shown(mode)}: others do I/O beside it; allowed: modes "
                    "with one guest, without a neighbour and without a backup"
                )


def _find_workload_problems(key: str, workload: Workload, scenario: Scenario) -> Iterator[str]:
    at = f"{key} = {shown(workload.name)}"
    measured = [known.name for known in scenario.workloads]
    if workload.label is not None:
        yield f"{at}: has times and rates of its own; allowed: a pattern with a block size, for example randread-4k"
    elif workload.rate is not None:
        free = replace(workload, rate=None).name
        yield f"{at}: has a fixed rate, but a search sets the rates; allowed: {shown(free)}"
    elif workload.name not in measured:
        yield f"{at}: not a workload of this scenario; {choices(workload.name, measured)}"


@dataclass(frozen=True, slots=True)
class SearchedRate(RecordValue):
    """One rate on one arm: a point of the curve of latency over load."""

    rate: Counted | None
    """I/Os per second requested; null for as many as possible."""
    iops: tuple[Measured, ...]
    """I/Os per second by block."""
    latencies: tuple[Measured, ...]
    """The metric in seconds, by block. Blocks with too few I/Os are left out."""
    reached: bool
    """Whether the arm completed at least 95 % of the rate. If not, the rate counts as above the bound."""
    latency: Measured | None
    """The curve at this rate, in seconds; null if the rate was not reached, or has fewer than two values."""
    low: Amount | None
    """The lower end of the curve's interval; null as for `latency`."""
    high: Amount | None
    """The upper end of the curve's interval; null as for `latency`."""
    cpu: Figure | None
    """CPU time of the host for an I/O in seconds, without fio's own; null if it was not counted."""


@dataclass(frozen=True, slots=True)
class SearchArm(RecordValue):
    """The result of a search on one arm."""

    arm: ArmName
    """`host`, `twin:MODE` or `guest:MODE`."""
    limited_by: LimitedBy | None
    """What ends the loads that keep the bound; null if too little was measured."""
    iops: Measured | None
    """The highest load that keeps the bound; null if no measured load does, or if too little was measured."""
    low: Amount | None
    """The lower end of the interval of `iops`; null if not even the lowest rate surely keeps the bound."""
    high: Amount | None
    """The upper end of the interval of `iops`; null if no higher rate was measured."""
    rates: tuple[SearchedRate, ...]
    """The rates in the order of the load; empty if the arm was not measured."""
    doubt: str
    """The failed checks because of which this is not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class SearchRecord(RecordValue):
    """A search for the highest load at which a latency stays below a bound, on the arms of one group."""

    id: str
    """`GROUP-search-NAME`: the group of its measurements in the journal."""
    name: str
    """Name of the search in the scenario."""
    scenario: Name
    """Name of the scenario."""
    host: Name
    """Name of the host in the lab file."""
    disk: Name
    """Name of the disk under test."""
    job: Name
    """The id of the job at full speed."""
    metric: MetricName
    """The latency: `clat_p99`, ..."""
    bound: Measured
    """The bound in seconds."""
    highest: Counted | None
    """The highest rate that may be measured; null for no limit."""
    confidence: Confidence
    """The confidence of each interval alone."""
    rounds: Counted
    """Rounds of the search."""
    stopped: str | None
    """Why no further round was measured; null if the run ended before."""
    arms: tuple[SearchArm, ...]
    """One entry per arm, the host first."""


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
    by_rate: dict[int | None, list[Measurement]] = {}
    for measurement in measurements:
        is_own = measurement.arm == arm.id and measurement.job == replace(planned.job, rate=measurement.rate).id
        if is_own and measurement.overlap is None and measurement.metrics.get("iops", 0.0) > 0:
            by_rate.setdefault(measurement.rate, []).append(measurement)
    return by_rate


def _load(planned: PlannedSearch, rate: int | None, measurements: Sequence[Measurement]) -> Load:
    metric = planned.search.metric
    return Load(
        rate,
        tuple(measurement.metrics["iops"] for measurement in measurements),
        tuple(each.metrics[metric] for each in measurements if each.metrics.get(metric, 0.0) > 0),
    )


def _cpu(measurements: Sequence[Measurement], arm: Arm) -> float | None:
    """The mean CPU time of an I/O in seconds."""
    in_guest = arm.place is Place.GUEST
    costs = [cost_per_io(measurement.counters, in_guest=in_guest).get(CPU_TIME) for measurement in measurements]
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
    from harness.results.byte_counts import check_bytes  # noqa: PLC0415 - nothing that reads a scenario waits for it

    yield from (check.check for check in check_bytes(slices, job.depth * job.bs, layout) if not check.ok)
    for cell in planned.cells:
        if cell.mode == arm.mode and cell.id in records and (why := records[cell.id].doubt_about(arm)):
            yield f"{why} of {cell.id}"
