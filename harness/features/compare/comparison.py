"""The comparison of runs: what changed in each arm, what else differs, and what was left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from statistics import geometric_mean

from harness.analysis import (
    MARGIN,
    METRICS,
    Better,
    Change,
    Correlation,
    Samples,
    estimate_change,
    find_shown_changes,
    find_shown_equal,
    pool_correlations,
)
from harness.config.names import choices
from harness.errors import ConfigError, ResultsError
from harness.features.compare.matching import NO_SCENARIO, Matched, list_differences, match, pair_names
from harness.features.compare.records import (
    COMPARISON_SCHEMA,
    ArmChange,
    ComparedRun,
    Comparison,
    Finding,
    LeftOut,
    MetricChange,
    Outcome,
    OverallChange,
    ScenarioChange,
    Side,
)
from harness.model.mode import Place
from harness.results.cells import CellRecord
from harness.results.contrasts import pair_blocks_of_cells
from harness.results.records import Run


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
        return all(metric in cell.metrics and list_values(cell, self.place, metric) for cell in self.cells)

    def is_of(self, cell: CellRecord) -> bool:
        """Whether the cell, which is of one of the runs, has this arm."""
        if self.place is Place.HOST:
            return True
        same_name = cell.mode in (self.before.mode, self.after.mode)
        return same_name and cell.mode_detail == self.before.mode_detail


def list_values(cell: CellRecord, place: Place, metric: str) -> tuple[float, ...]:
    """The values of an arm of the cell; empty if the cell does not have the arm. KeyError without the metric."""
    samples: tuple[float, ...] = getattr(cell.metrics[metric], str(place))
    return samples


def compare_arms(arms: Sequence[ArmPair], margin: float) -> Iterator[ArmChange]:
    """The changes of the arms of one job, without findings yet. ResultsError for values that are not positive.

    The blocks of a run's arms show together how strongly neighbours are correlated, as in the evaluation of a run.
    """
    before = _estimate_correlation((arm.place, arm.before) for arm in arms)
    after = _estimate_correlation((arm.place, arm.after) for arm in arms)
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
            metrics={name: _compare_metric(name, arm, before, after, margin) for name in METRICS if arm.has(name)},
        )


def compare_overall(arms: Sequence[ArmPair], cells: Sequence[CellRecord], margin: float) -> Iterator[OverallChange]:
    """The throughput of each arm over its jobs, if there are at least two, without findings yet.

    `cells` are all cells of the compared scenarios. At a fixed rate, an arm has no throughput of its own.
    """
    by_arm: dict[tuple[str, str], list[ArmPair]] = {}
    for arm in arms:
        if arm.before.job.rate is None:
            by_arm.setdefault(arm.ids, []).append(arm)
    several = [of_arm for of_arm in by_arm.values() if len(of_arm) > 1]
    before = [_average_jobs(of_arm[0].place, [arm.before for arm in of_arm]) for of_arm in several]
    after = [_average_jobs(of_arm[0].place, [arm.after for arm in of_arm]) for of_arm in several]
    correlations = [
        pool_correlations(dict(enumerate(_take_logs(series.values))) for series in run) for run in (before, after)
    ]
    for of_arm, series_before, series_after in zip(several, before, after, strict=True):
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
                series_before.values,
                series_after.values,
                confidence=confidence,
                margin=margin,
                samples_before=Samples(series_before.boots, correlations[0]),
                samples_after=Samples(series_after.boots, correlations[1]),
            ),
            finding=Finding.UNDECIDED,
        )


@dataclass(frozen=True, slots=True)
class _Series:
    values: tuple[float, ...]
    boots: tuple[int, ...]


def _average_jobs(place: Place, cells: Sequence[CellRecord]) -> _Series:
    """The throughput over all jobs: each sample is the geometric mean of one block of each job (`paired_blocks`)."""
    blocks = pair_blocks_of_cells(cells)
    of_jobs = [list_values(cell, place, cell.job.headline) for cell in cells]
    means = [geometric_mean(samples[at] for samples, at in zip(of_jobs, block, strict=True)) for block in blocks]
    boots = cells[0].boots
    return _Series(tuple(means), tuple(boots[block[0]] for block in blocks) if boots else ())


def _compare_metric(name: str, arm: ArmPair, before: Correlation, after: Correlation, margin: float) -> MetricChange:
    samples, others = (list_values(cell, arm.place, name) for cell in arm.cells)
    batches = [cell.metrics[name].batches for cell in arm.cells]
    with _explain_errors(arm.cells):
        change = estimate_change(
            samples,
            others,
            confidence=arm.confidence,
            margin=margin,
            samples_before=Samples(arm.before.boots, before).in_batches(batches[0]),
            samples_after=Samples(arm.after.boots, after).in_batches(batches[1]),
        )
        means = geometric_mean(samples), geometric_mean(others)
    metric = METRICS[name]
    return MetricChange(metric.unit, metric.better, *means, change, Finding.UNDECIDED)


def _estimate_correlation(arms: Iterable[tuple[Place, CellRecord]]) -> Correlation:
    """The correlation of neighbouring blocks that the arms of a job have in common, by the job's headline metric."""
    series = []
    for place, cell in arms:
        with _explain_errors([cell]):
            logs = _take_logs(list_values(cell, place, cell.job.headline))
            series.append(dict(zip(cell.samples, logs, strict=True)))
    return pool_correlations(series)


def _take_logs(samples: Iterable[float]) -> list[float]:
    return [math.log(value) for value in samples]


@contextmanager
def _explain_errors(cells: Iterable[CellRecord]) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ResultsError(
            f"{' and '.join(dict.fromkeys(cell.id for cell in cells))} cannot be compared: {error}",
            hint="results.json of a run was changed or damaged; measure again",
        ) from error


def judge_findings(comparisons: Sequence[Comparison], margin: float) -> list[Comparison]:
    """The comparisons with what is shown of each change, among all changes of its metric in all comparisons."""
    arms = [arm for comparison in comparisons for arm in list_arms(comparison)]
    findings = {
        name: iter(
            _judge_changes([arm.metrics[name].change for arm in arms if name in arm.metrics], metric.better, margin)
        )
        for name, metric in METRICS.items()
    }
    overall = [
        change.change for comparison in comparisons for scenario in comparison.scenarios for change in scenario.overall
    ]
    overall_findings = iter(_judge_changes(overall, "higher", margin))

    def with_own(scenario: ScenarioChange) -> ScenarioChange:
        return replace(
            scenario,
            arms=tuple(_add_findings(arm, findings) for arm in scenario.arms),
            overall=tuple(replace(change, finding=next(overall_findings)) for change in scenario.overall),
        )

    return [replace(comparison, scenarios=tuple(map(with_own, comparison.scenarios))) for comparison in comparisons]


def decide_outcome(comparison: Comparison, metric: str | None) -> Outcome:
    """What the findings in `metric`, or in the main metric of each job, and over all jobs show together."""
    if comparison.ruled_out_by:
        return Outcome.NOT_COMPARABLE
    shown = [
        arm.metrics[name].finding for arm in list_arms(comparison) if (name := metric or arm.headline) in arm.metrics
    ]
    overall: list[OverallChange] = [change for scenario in comparison.scenarios for change in scenario.overall]
    # The throughput over all jobs is not that of the chosen metric.
    findings = {*shown, *(change.finding for change in overall if metric is None)}
    if Finding.WORSE in findings:
        return Outcome.MIXED if Finding.BETTER in findings else Outcome.WORSE
    if Finding.BETTER in findings:
        return Outcome.BETTER
    return Outcome.EQUAL if set(shown) == {Finding.EQUAL} else Outcome.UNDECIDED


def list_arms(comparison: Comparison) -> Iterator[ArmChange]:
    """All arms of the comparison, in their order."""
    for scenario in comparison.scenarios:
        yield from scenario.arms


def _add_findings(arm: ArmChange, findings: dict[str, Iterator[Finding]]) -> ArmChange:
    return replace(
        arm, metrics={name: replace(change, finding=next(findings[name])) for name, change in arm.metrics.items()}
    )


def _judge_changes(changes: Sequence[Change], better: Better, margin: float) -> Iterator[Finding]:
    """A change that is more than chance but within the margin is `equal`: it is too small to matter."""
    shown, equal = find_shown_changes(changes), find_shown_equal(changes, margin)
    for change, is_shown, is_equal in zip(changes, shown, equal, strict=True):
        if is_equal:
            yield Finding.EQUAL
        elif is_shown:
            yield Finding.BETTER if (change.ratio > 1) == (better == "higher") else Finding.WORSE
        else:
            yield Finding.UNDECIDED


def only_scenario(run: Run, name: str) -> Run:
    """The run with the cells of this scenario only. ConfigError if it has no cell of it."""
    names = dict.fromkeys(cell.scenario for cell in run.cells)
    if name not in names:
        raise ConfigError(f'run {run.run.id}: no scenario "{name}"; {choices(name, names)}')
    return replace(run, cells=tuple(cell for cell in run.cells if cell.scenario == name))


def compare(
    before: Run,
    *after: Run,
    margin: float = MARGIN,
    metric: str | None = None,
    same_machine: bool = False,
) -> Comparison:
    """The change of each arm from `before` to each run of `after`, what else differs, and what was left out.

    Scenarios of the same name belong together, and if one scenario is left in each run, these two. Void and skipped
    cells are left out; guests that are better than their host are compared and named. The outcome is that of `metric`,
    or of the main metric of each job. With `same_machine`, another CPU or disk rules the comparison out. ConfigError if
    both are the same scenario of the same run, or if no cell can be compared or has the metric; ResultsError for values
    that no measurement has.
    """
    compared = [_compare_two(before, other, margin, same_machine=same_machine) for other in after]
    first, *others = (
        replace(with_finding, outcome=decide_outcome(with_finding, metric))
        for with_finding in judge_findings(compared, margin)
    )
    if metric is not None and not any(
        metric in arm.metrics for comparison in compared for arm in list_arms(comparison)
    ):
        raise ConfigError(
            f'metric "{metric}": no compared cell has it in both runs',
            hint="choose another metric; a percentile needs enough I/Os in both runs",
        )
    return replace(first, further=tuple(others))


def _compare_two(before: Run, after: Run, margin: float, *, same_machine: bool) -> Comparison:
    """Two runs, without findings yet."""
    cells_before, cells_after = _group_by_scenario(before), _group_by_scenario(after)
    names = pair_names(cells_before, cells_after)
    if before.run.id == after.run.id and any(one == other for one, other in names):
        raise ConfigError(
            f"both are run {before.run.id}: there is nothing to compare",
            hint="give two runs; or two scenarios of one run, with --before-scenario and --after-scenario",
        )
    matched = [match(cells_before[one], cells_after[other]) for one, other in names]
    changes = [
        _compare_scenarios(cells_before[one], cells_after[other], scenario_match, margin)
        for (one, other), scenario_match in zip(names, matched, strict=True)
    ]
    compared = [change for change in changes if change.arms]
    left_out = (
        *_list_other_scenarios("before", before, [one for one, _ in names]),
        *_list_other_scenarios("after", after, [other for _, other in names]),
        *chain.from_iterable(scenario_match.left_out for scenario_match in matched),
    )
    if not compared:
        raise _refuse_nothing_in_common(before, after, left_out)
    pairs = [pair for scenario_match in matched for pair in (*scenario_match.hosts, *scenario_match.cells)]
    scenarios = [(change.scenario_before, change.scenario_after) for change in compared]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        before=_to_compared_run(before),
        after=_to_compared_run(after),
        scenarios=tuple(compared),
        differences=list_differences(before, after, scenarios, pairs, same_machine=same_machine),
        left_out=left_out,
        doubtful=tuple(chain.from_iterable(scenario_match.doubtful for scenario_match in matched)),
        margin=margin,
        outcome=Outcome.UNDECIDED,
    )


def _refuse_nothing_in_common(before: Run, after: Run, left_out: Sequence[LeftOut]) -> ConfigError:
    why = f"; for example {left_out[0].cell} of the run {left_out[0].run}: {left_out[0].why}" if left_out else ""
    return ConfigError(
        f"run {before.run.id} and run {after.run.id} have no cell that can be compared{why}",
        hint="cells belong together if layout, attachment and job are the same; choose scenarios with "
        "--before-scenario and --after-scenario, or measure the same modes and jobs",
    )


def _group_by_scenario(run: Run) -> dict[str, list[CellRecord]]:
    cells: dict[str, list[CellRecord]] = {}
    for cell in run.cells:
        cells.setdefault(cell.scenario, []).append(cell)
    return cells


def _list_other_scenarios(side: Side, run: Run, compared: Sequence[str]) -> Iterator[LeftOut]:
    yield from (LeftOut(side, cell.id, NO_SCENARIO) for cell in run.cells if cell.scenario not in compared)


def _to_compared_run(run: Run) -> ComparedRun:
    return ComparedRun(run.run.id, run.run.started, run.run.status, run.lab)


def _compare_scenarios(
    before: Sequence[CellRecord], after: Sequence[CellRecord], matched: Matched, margin: float
) -> ScenarioChange:
    by_job: dict[str, list[ArmPair]] = {cell.job.id: [] for cell in before}
    for pair in matched.hosts:
        by_job[pair[0].job.id].append(ArmPair(Place.HOST, *pair))
    for pair in matched.cells:
        arms_of_pair = (ArmPair(place, *pair) for place in (Place.TWIN, Place.GUEST))
        by_job[pair[0].job.id] += [arm for arm in arms_of_pair if _is_compared(arm)]
    arms = tuple(chain.from_iterable(compare_arms(pairs, margin) for pairs in by_job.values()))
    return ScenarioChange(
        scenario_before=before[0].scenario,
        scenario_after=after[0].scenario,
        disk_before=before[0].disk,
        disk_after=after[0].disk,
        overall=tuple(compare_overall(list(chain.from_iterable(by_job.values())), (*before, *after), margin)),
        arms=arms,
    )


def _is_compared(arm: ArmPair) -> bool:
    return arm.has(arm.before.job.headline)
