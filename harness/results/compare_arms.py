"""How much one arm changed between two runs: in each metric of a job, and in its throughput over all jobs. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import geometric_mean

from harness.analysis import METRICS, Correlation, Samples, estimate_change, pooled_correlation
from harness.errors import ResultsError
from harness.model.cell import Place
from harness.results.cells import CellRecord
from harness.results.compare_records import ArmChange, Finding, MetricChange, OverallChange
from harness.results.contrasts import paired_blocks


@dataclass(frozen=True, slots=True)
class ArmPair:
    """One arm in one job before and afterwards, with the cells that have its values."""

    place: Place
    before: CellRecord
    after: CellRecord

    @property
    def cells(self) -> tuple[CellRecord, CellRecord]:
        return self.before, self.after

    @property
    def ids(self) -> tuple[str, str]:
        """The ids of the arms, with the names of the mode before and afterwards."""
        if self.place is Place.HOST:
            return str(self.place), str(self.place)
        return f"{self.place}:{self.before.mode}", f"{self.place}:{self.after.mode}"

    @property
    def confidence(self) -> float:
        return max(self.before.confidence, self.after.confidence)

    def has(self, metric: str) -> bool:
        """Whether both cells have values of the metric for this arm."""
        return all(metric in cell.metrics and values(cell, self.place, metric) for cell in self.cells)

    def is_of(self, cell: CellRecord) -> bool:
        """Whether the cell, which is of one of the runs, has this arm."""
        if self.place is Place.HOST:
            return True
        same_name = cell.mode in (self.before.mode, self.after.mode)
        return same_name and cell.mode_detail == self.before.mode_detail


def values(cell: CellRecord, place: Place, metric: str) -> tuple[float, ...]:
    """The values of an arm of the cell; empty if the cell does not have the arm. KeyError without the metric."""
    found: tuple[float, ...] = getattr(cell.metrics[metric], str(place))
    return found


def arm_changes(arms: Sequence[ArmPair], margin: float) -> Iterator[ArmChange]:
    """The changes of the arms of one job, without findings yet. ResultsError for values that are not positive.

    The blocks of a run's arms show together how strongly neighbours are correlated, as in the evaluation of a run.
    """
    before = _correlation((arm.place, arm.before) for arm in arms)
    after = _correlation((arm.place, arm.after) for arm in arms)
    for arm in arms:
        one, other = arm.ids
        yield ArmChange(
            place=arm.place,
            arm_before=one,
            arm_after=other,
            mode=None if arm.place is Place.HOST else arm.before.mode_detail,
            job=arm.before.job.id,
            headline=arm.before.job.headline,
            cell_before=arm.before.id,
            cell_after=arm.after.id,
            confidence=arm.confidence,
            metrics={name: _metric_change(name, arm, before, after, margin) for name in METRICS if arm.has(name)},
        )


def overall_changes(arms: Sequence[ArmPair], cells: Sequence[CellRecord], margin: float) -> Iterator[OverallChange]:
    """The throughput of each arm over its jobs, if there are at least two, without findings yet.

    `cells` are all cells of the compared scenarios. At a fixed rate, an arm has no throughput of its own.
    """
    by_arm: dict[tuple[str, str], list[ArmPair]] = {}
    for arm in arms:
        if arm.before.job.rate is None:
            by_arm.setdefault(arm.ids, []).append(arm)
    several = [of_arm for of_arm in by_arm.values() if len(of_arm) > 1]
    before = [_over_jobs(of_arm[0].place, [arm.before for arm in of_arm]) for of_arm in several]
    after = [_over_jobs(of_arm[0].place, [arm.after for arm in of_arm]) for of_arm in several]
    correlations = [pooled_correlation(dict(enumerate(_logs(each.values))) for each in run) for run in (before, after)]
    for of_arm, own, other in zip(several, before, after, strict=True):
        jobs = tuple(arm.before.job.id for arm in of_arm)
        planned = (cell.job.id for cell in cells if cell.job.rate is None and of_arm[0].is_of(cell))
        confidence = max(arm.confidence for arm in of_arm)
        yield OverallChange(
            place=of_arm[0].place,
            arm_before=of_arm[0].ids[0],
            arm_after=of_arm[0].ids[1],
            jobs=jobs,
            missing=tuple(job for job in dict.fromkeys(planned) if job not in jobs),
            confidence=confidence,
            change=estimate_change(
                own.values,
                other.values,
                confidence=confidence,
                margin=margin,
                samples_before=Samples(own.boots, correlations[0]),
                samples_after=Samples(other.boots, correlations[1]),
            ),
            finding=Finding.UNDECIDED,
        )


@dataclass(frozen=True, slots=True)
class _Series:
    values: tuple[float, ...]
    boots: tuple[int, ...]


def _over_jobs(place: Place, cells: Sequence[CellRecord]) -> _Series:
    """The throughput over all jobs: each sample is the geometric mean of one block of each job (`paired_blocks`)."""
    blocks = paired_blocks(cells)
    of_jobs = [values(cell, place, cell.job.headline) for cell in cells]
    means = [geometric_mean(own[at] for own, at in zip(of_jobs, block, strict=True)) for block in blocks]
    boots = cells[0].boots
    return _Series(tuple(means), tuple(boots[block[0]] for block in blocks) if boots else ())


def _metric_change(name: str, arm: ArmPair, before: Correlation, after: Correlation, margin: float) -> MetricChange:
    own, other = (values(cell, arm.place, name) for cell in arm.cells)
    batches = [cell.metrics[name].batches for cell in arm.cells]
    with _explained(arm.cells):
        change = estimate_change(
            own,
            other,
            confidence=arm.confidence,
            margin=margin,
            samples_before=Samples(arm.before.boots, before).in_batches(batches[0]),
            samples_after=Samples(arm.after.boots, after).in_batches(batches[1]),
        )
        means = geometric_mean(own), geometric_mean(other)
    metric = METRICS[name]
    return MetricChange(metric.unit, metric.better, *means, change, Finding.UNDECIDED)


def _correlation(arms: Iterable[tuple[Place, CellRecord]]) -> Correlation:
    """The correlation of neighbouring blocks that the arms of a job have in common, by the job's headline metric."""
    series = []
    for place, cell in arms:
        with _explained([cell]):
            logs = _logs(values(cell, place, cell.job.headline))
            series.append(dict(zip(cell.samples, logs, strict=True)))
    return pooled_correlation(series)


def _logs(of: Iterable[float]) -> list[float]:
    return [math.log(each) for each in of]


@contextmanager
def _explained(cells: Iterable[CellRecord]) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ResultsError(
            f"{' and '.join(dict.fromkeys(cell.id for cell in cells))} cannot be compared: {error}",
            hint="results.json of a run was changed or damaged; measure again",
        ) from error
