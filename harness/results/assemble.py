"""From measurements to cell records: pairs the arms of each round, estimates, and gives the verdict."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from pydantic import JsonValue

from harness.analysis import METRICS, Budget, Estimate, Metric, Verdict, estimate_added, estimate_overhead, judge
from harness.errors import ResultsError
from harness.results.records import (
    BudgetRecord,
    CellRecord,
    JobRecord,
    Measurement,
    MetricRecord,
    ModeDetail,
    ValidityCheck,
)
from harness.scenario.model import Cell, Job, Mode, Place

_Rounds = Mapping[int, Sequence[Measurement]]
_ByArm = Mapping[Place, _Rounds]


@dataclass(frozen=True, slots=True)
class CellContext:
    """What measurements do not say of a cell: where it ran, what it was asked to hold, and what was checked."""

    host: str
    """Name of the host in the lab file."""
    group: str
    """The group whose measurements are the cell's."""
    span_bytes: int
    budget: BudgetRecord | None = None
    validity: tuple[ValidityCheck, ...] = ()
    effective: Mapping[str, JsonValue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    skipped: str | None = None


def assemble(
    cells: Sequence[Cell], measurements: Iterable[Measurement], contexts: Mapping[str, CellContext]
) -> list[CellRecord]:
    """One record per cell, in order. `contexts` is by cell id and holds every cell.

    Measurements belong to a cell by its context's group, its job's id and the ids of its arms. Only rounds in which
    every arm of the cell was measured count, so that host, twin and guest values are pairs and triples of one round.
    A metric that any measurement of these rounds lacks (too few I/Os for a percentile) is left out of the cell:
    keeping the rounds that have it would keep the fast ones. An arm measured more than once in a round (a bracket
    around other layouts) counts with the geometric mean of its values. ResultsError for an unknown metric.
    """
    index: dict[tuple[str, str, str], dict[int, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for measurement in sorted(measurements, key=lambda each: each.started):
        unknown = measurement.metrics.keys() - METRICS.keys()
        if unknown:
            raise ResultsError(
                f"{measurement.raw}: unknown metric {', '.join(sorted(unknown))}",
                hint=f"known metrics are {', '.join(METRICS)}; a newer virt-overhead may know more",
            )
        index[measurement.group, measurement.job, measurement.arm][measurement.round].append(measurement)
    return [
        _cell_record(
            cell,
            contexts[cell.id],
            {arm.place: index.get((contexts[cell.id].group, cell.job.id, arm.id), {}) for arm in cell.arms},
        )
        for cell in cells
    ]


def _cell_record(cell: Cell, context: CellContext, by_arm: _ByArm) -> CellRecord:
    if cell.mode.attach is None:
        # The baseline has no overhead, so a scenario's budget does not speak of it.
        context = replace(context, budget=None)
    rounds = _complete_rounds(by_arm)
    own = sorted((m for arm in by_arm.values() for again in arm.values() for m in again), key=lambda each: each.started)
    impossible = _impossible_values(own)
    validity = context.validity + impossible
    metrics = {} if impossible else _metrics(by_arm, rounds)
    return CellRecord(
        id=cell.id,
        scenario=cell.scenario,
        host=context.host,
        disk=cell.disk,
        mode=cell.mode.name,
        mode_detail=_mode_detail(cell.mode),
        job=_job_record(cell.job),
        rounds=rounds,
        metrics=metrics,
        verdict=_verdict(context, validity, metrics),
        budget=context.budget,
        validity=validity,
        effective=dict(context.effective),
        raw=tuple(measurement.raw for measurement in own),
        span_bytes=context.span_bytes,
        notes=context.notes + tuple(dict.fromkeys(note for measurement in own for note in measurement.notes)),
        skipped=context.skipped,
    )


def _complete_rounds(by_arm: _ByArm) -> tuple[int, ...]:
    return tuple(sorted(set.intersection(*(set(rounds) for rounds in by_arm.values()))))


def _impossible_values(measurements: Iterable[Measurement]) -> tuple[ValidityCheck, ...]:
    return tuple(
        ValidityCheck("positive", ok=False, detail=f"{name} is {value} in {measurement.raw}")
        for measurement in measurements
        for name, value in measurement.metrics.items()
        if value <= 0 or not math.isfinite(value)
    )


def _metrics(by_arm: _ByArm, rounds: Sequence[int]) -> dict[str, MetricRecord]:
    paired = [m.metrics.keys() for arm in by_arm.values() for number in rounds for m in arm[number]]
    return {
        metric.name: _metric_record(metric, by_arm, rounds)
        for metric in METRICS.values()
        if paired and all(metric.name in names for names in paired)
    }


def _metric_record(metric: Metric, by_arm: _ByArm, rounds: Sequence[int]) -> MetricRecord:
    def values(place: Place) -> tuple[float, ...]:
        if place not in by_arm:
            return ()
        return tuple(_one_value(m.metrics[metric.name] for m in by_arm[place][number]) for number in rounds)

    def worse(of: Sequence[float], than: Sequence[float]) -> Estimate | None:
        return estimate_overhead(than, of, higher_is_better=metric.higher_is_better) if of and than else None

    host, twin, guest = values(Place.HOST), values(Place.TWIN), values(Place.GUEST)
    return MetricRecord(
        unit=metric.unit,
        better=metric.better,
        host=host,
        twin=twin,
        guest=guest,
        overhead=worse(guest, than=host),
        layer=worse(twin, than=host),
        virtualisation=worse(guest, than=twin or host),
        added=estimate_added(host, guest) if guest and metric.is_latency else None,
    )


def _one_value(values: Iterable[float]) -> float:
    """The value itself, or the geometric mean of repeats."""
    several = list(values)
    if len(several) == 1:
        return several[0]
    return math.exp(math.fsum(math.log(value) for value in several) / len(several))


def _verdict(context: CellContext, validity: Sequence[ValidityCheck], metrics: Mapping[str, MetricRecord]) -> Verdict:
    if context.skipped is not None:
        return Verdict.UNJUDGED
    if not all(check.ok for check in validity):
        return Verdict.VOID
    if context.budget is None:
        return Verdict.UNJUDGED
    judged = metrics.get(context.budget.metric)
    return judge(judged.overhead if judged else None, Budget(context.budget.share))


def _mode_detail(mode: Mode) -> ModeDetail:
    return ModeDetail(asdict(mode.layout), asdict(mode.attach) if mode.attach else None)


def _job_record(job: Job) -> JobRecord:
    return JobRecord(
        id=job.id,
        pattern=job.pattern,
        rw=job.rw,
        bs=job.bs,
        iodepth=job.iodepth,
        numjobs=job.numjobs,
        read_share=job.read_share,
        seconds=job.seconds,
        ramp=job.ramp,
    )
