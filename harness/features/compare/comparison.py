"""The comparison of runs: what changed in each arm, what else differs, and what was left out. Pure.

Cells belong together if their modes have the same layout and attachment, and their jobs the same id. Names of
scenarios, disks and modes may differ. The bare host belongs together by its job alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import geometric_mean

from pydantic import JsonValue

from harness.analysis import MARGIN, METRICS, Better, Change, Verdict, benjamini_hochberg, find_shown_changes
from harness.config.names import choices
from harness.errors import ConfigError, ResultsError
from harness.features.compare.comparability import (
    Effect,
    judge_effect,
    list_different_facts,
    read_run_facts,
    read_scenario_facts,
)
from harness.features.compare.records import (
    COMPARISON_SCHEMA,
    ArmChange,
    ChangeFinding,
    ComparedRun,
    ComparisonOutcome,
    MetricChange,
    OverallChange,
    RunComparison,
    RunDifference,
    ScenarioChange,
    Side,
    UncomparedCell,
)
from harness.model.base import Device
from harness.model.mode import ModeDetail, Place
from harness.model.option import DEFINITIONS
from harness.results import Run
from harness.results.cells import CellRecord
from harness.results.contrasts import Series, average_over_jobs, compare_series

CellPair = tuple[CellRecord, CellRecord]
"""A cell of the run before, and its counterpart afterwards."""

NO_SCENARIO = "no counterpart: the other run does not have this scenario, and more than one is left to choose from"
NO_MODE = "no counterpart: the other run has no mode with this layout and attachment"
NO_JOB = "no counterpart: the other run does not have this job in this mode"
NO_HOST_JOB = "no counterpart: the other run has no usable values of its host in this job"
SEVERAL_MODES = "no counterpart: several modes have this layout and attachment, but no two of them the same name"
BETTER = "its guest is better than its host by more than 5 %, which needs an explanation"
_NO_VALUES = "no block in which every arm was measured"


@dataclass(frozen=True, slots=True)
class Matched:
    """The cells of two scenarios that belong together and have usable values."""

    hosts: tuple[CellPair, ...]
    """For each job, the cells that have the values of the bare host."""
    cells: tuple[CellPair, ...]
    """Cells with a twin or a guest."""
    left_out: tuple[UncomparedCell, ...]
    doubtful: tuple[UncomparedCell, ...]
    """Cells of `cells` with a figure that needs an explanation."""


def pair_names(before: Iterable[str], after: Iterable[str]) -> list[tuple[str, str]]:
    """The names that belong together: equal ones, and the last one of each side if only one is left on both."""
    names, others = list(before), list(after)
    pairs = [(name, name) for name in names if name in others]
    left = [name for name in names if name not in others]
    other_left = [name for name in others if name not in names]
    return [*pairs, (left[0], other_left[0])] if len(left) == len(other_left) == 1 else pairs


def match(before: Sequence[CellRecord], after: Sequence[CellRecord]) -> Matched:
    """The pairs of cells of two scenarios, in the order of `before`, and the cells that are left out."""
    jobs = dict.fromkeys(cell.job.id for cell in before)
    hosts = [(one, other) for job in jobs if (one := _choose_host(before, job)) if (other := _choose_host(after, job))]
    counterparts = _find_counterparts(before, after)
    pairs = [(cell, counterparts[cell.id]) for cell in before if cell.id in counterparts]
    compared = {one.job.id for one, _ in hosts}
    left_out = [
        *_list_unmatched("before", before, after, {one.id for one, _ in pairs}, compared),
        *_list_unmatched("after", after, before, {other.id for _, other in pairs}, compared),
    ]
    usable: list[CellPair] = []
    doubtful: list[UncomparedCell] = []
    for pair in pairs:
        sides: tuple[tuple[Side, CellRecord], ...] = ("before", pair[0]), ("after", pair[1])
        doubts = [UncomparedCell(side, cell.id, why) for side, cell in sides if (why := explain_unusable(cell))]
        left_out += doubts
        if not doubts:
            usable.append(pair)
            doubtful += [UncomparedCell(side, cell.id, BETTER) for side, cell in sides if cell.better_than_host]
    return Matched(tuple(hosts), tuple(usable), tuple(left_out), tuple(doubtful))


def explain_unusable(cell: CellRecord) -> str | None:
    """Why no value of the cell is compared; None if they can be."""
    if cell.skipped is not None:
        return f"skipped: {cell.skipped}"
    if cell.verdict is Verdict.VOID:
        return f"void: {'; '.join(f'{check.check}: {check.detail}' for check in cell.validity if not check.ok)}"
    return None if cell.job.headline in cell.metrics else _NO_VALUES


def _find_counterparts(before: Sequence[CellRecord], after: Sequence[CellRecord]) -> dict[str, CellRecord]:
    """The counterpart of each cell with a twin or a guest, by the cell's id."""
    of_after = _group_by_mode(after)
    counterparts: dict[str, CellRecord] = {}
    for detail, modes in _group_by_mode(before).items():
        others = of_after.get(detail, {})
        for mode, other in pair_names(modes, others):
            jobs = others[other]
            counterparts |= {cell.id: jobs[job] for job, cell in modes[mode].items() if job in jobs}
    return counterparts


def _list_unmatched(
    side: Side, cells: Sequence[CellRecord], others: Sequence[CellRecord], known: set[str], hosts: set[str]
) -> Iterator[UncomparedCell]:
    """The cells of one side without a counterpart. `known` are the ids of the others, `hosts` the jobs of the host."""
    modes, of_others = _group_by_mode(cells), _group_by_mode(others)
    for cell in cells:
        if _is_bare_host(cell):
            if cell.job.id not in hosts:
                yield UncomparedCell(side, cell.id, explain_unusable(cell) or NO_HOST_JOB)
        elif cell.id not in known:
            yield UncomparedCell(side, cell.id, _explain_alone(cell, modes, of_others))


_ByMode = Mapping[ModeDetail, Mapping[str, Mapping[str, CellRecord]]]


def _explain_alone(cell: CellRecord, modes: _ByMode, others: _ByMode) -> str:
    candidates = others.get(cell.mode_detail, {})
    if not candidates:
        return NO_MODE
    paired = [one for one, _ in pair_names(modes[cell.mode_detail], candidates)]
    return NO_JOB if cell.mode in paired else SEVERAL_MODES


def _group_by_mode(cells: Iterable[CellRecord]) -> _ByMode:
    """Cells with a twin or a guest by layout and attachment, then by the mode's name, then by job."""
    by_mode: dict[ModeDetail, dict[str, dict[str, CellRecord]]] = {}
    for cell in cells:
        if not _is_bare_host(cell):
            by_mode.setdefault(cell.mode_detail, {}).setdefault(cell.mode, {})[cell.job.id] = cell
    return by_mode


def _choose_host(cells: Iterable[CellRecord], job: str) -> CellRecord | None:
    """The cell with the bare host's values in this job: that of the mode `host`, or the one with the most blocks.

    None if no cell has usable values.
    """
    candidates = [cell for cell in cells if cell.job.id == job and cell.mode_detail.has_bare_host]
    usable = [cell for cell in candidates if explain_unusable(cell) is None]
    return max(usable, key=lambda cell: (_is_bare_host(cell), len(cell.rounds)), default=None)


def _is_bare_host(cell: CellRecord) -> bool:
    return cell.mode_detail.attach is None and isinstance(cell.mode_detail.layout, Device)


def list_differences(
    before: Run,
    after: Run,
    scenarios: Sequence[tuple[str, str]],
    pairs: Iterable[CellPair],
    *,
    same_machine: bool,
) -> tuple[RunDifference, ...]:
    """What differs: first what matters most. `scenarios` are the names that are compared, `pairs` their cells.

    With `same_machine`, another CPU or disk rules the comparison out.
    """
    unjudged = [*_compare_run_facts(before, after, scenarios), *_compare_cell_facts(pairs)]
    judged = [
        replace(difference, effect=judge_effect(difference.what, same_machine=same_machine)) for difference in unjudged
    ]
    gravest = list(Effect)
    return tuple(sorted(judged, key=lambda difference: gravest.index(difference.effect)))


def _compare_run_facts(before: Run, after: Run, scenarios: Sequence[tuple[str, str]]) -> Iterator[RunDifference]:
    yield from _list_fact_differences(read_run_facts(before), read_run_facts(after))
    for one, other in scenarios:
        yield from _list_fact_differences(
            read_scenario_facts(before, one), read_scenario_facts(after, other), prefix=f"{one}."
        )


def _compare_cell_facts(pairs: Iterable[CellPair]) -> Iterator[RunDifference]:
    """Each difference once, with the cells that have it."""
    differences_found: dict[tuple[str, str, str], RunDifference] = {}
    for before, after in pairs:
        for difference in _list_fact_differences(_read_cell_facts(before), _read_cell_facts(after)):
            key = difference.what, repr(difference.before), repr(difference.after)
            cells = differences_found[key].cells if key in differences_found else ()
            differences_found[key] = replace(difference, cells=tuple(dict.fromkeys((*cells, before.id))))
    yield from differences_found.values()


def _read_cell_facts(cell: CellRecord) -> dict[str, JsonValue]:
    """What a cell was measured with, by name."""
    facts: dict[str, JsonValue] = {"span_bytes": cell.span_bytes, "boots": len(set(cell.boots)) or 1}
    facts |= {f"job.{key}": value for key, value in asdict(cell.job).items() if key != "from_file"}
    if cell.job.from_file is not None:
        facts |= {f"job.[{section.name}]": section.text for section in cell.job.from_file.sections}
    if cell.longer_slices is not None:
        facts |= {"discarded_s": cell.longer_slices.discarded_s, "longer_s": cell.longer_slices.longer_s}
    settings = {name: value for name, value in cell.effective.settings() if name not in DEFINITIONS}
    return facts | {f"effective.{name}": value for name, value in settings.items()}


def _list_fact_differences(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue], prefix: str = ""
) -> Iterator[RunDifference]:
    for what, one, other in list_different_facts(before, after):
        yield RunDifference(f"{prefix}{what}", one, other, (), Effect.CAUSE)


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

    def series(self, metric: str) -> tuple[Series, Series]:
        """The arm before and afterwards, in a metric that both cells have."""
        before, after = (cell.series(metric, self.place) for cell in self.cells)
        assert before is not None
        assert after is not None
        return before, after

    def has(self, metric: str) -> bool:
        """Whether both cells have values of the metric for this arm."""
        return all(cell.series(metric, self.place) is not None for cell in self.cells)

    def is_of(self, cell: CellRecord) -> bool:
        """Whether the cell, which is of one of the runs, has this arm."""
        if self.place is Place.HOST:
            return True
        same_name = cell.mode in (self.before.mode, self.after.mode)
        return same_name and cell.mode_detail == self.before.mode_detail


def compare_arms(arms: Sequence[ArmPair], margin: float) -> Iterator[ArmChange]:
    """The changes of the arms of one job, without findings yet. ResultsError for values that are not positive."""
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
            metrics={name: _compare_metric(name, arm, margin) for name in METRICS if arm.has(name)},
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
    before, after = (
        [average_over_jobs([arm.series(arm.before.job.headline)[side] for arm in of_arm]) for of_arm in several]
        for side in (0, 1)
    )
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
            change=compare_series(series_before, series_after, confidence=confidence, margin=margin),
            finding=ChangeFinding.UNDECIDED,
        )


def _compare_metric(name: str, arm: ArmPair, margin: float) -> MetricChange:
    series = arm.series(name)
    with _explain_errors(arm.cells):
        change = compare_series(*series, confidence=arm.confidence, margin=margin)
        means = [geometric_mean(side.values) for side in series]
    metric = METRICS[name]
    return MetricChange(metric.unit, metric.better, means[0], means[1], change, ChangeFinding.UNDECIDED)


@contextmanager
def _explain_errors(cells: Iterable[CellRecord]) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ResultsError(
            f"{' and '.join(dict.fromkeys(cell.id for cell in cells))} cannot be compared: {error}",
            hint="results.json of a run was changed or damaged; measure again",
        ) from error


def judge_findings(comparisons: Sequence[RunComparison], margin: float) -> list[RunComparison]:
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


def decide_outcome(comparison: RunComparison, metric: str | None) -> ComparisonOutcome:
    """What the findings in `metric`, or in the main metric of each job, and over all jobs show together."""
    if comparison.ruled_out_by:
        return ComparisonOutcome.NOT_COMPARABLE
    shown = [
        arm.metrics[name].finding for arm in list_arms(comparison) if (name := metric or arm.headline) in arm.metrics
    ]
    overall: list[OverallChange] = [change for scenario in comparison.scenarios for change in scenario.overall]
    # The throughput over all jobs is not that of the chosen metric.
    findings = {*shown, *(change.finding for change in overall if metric is None)}
    if ChangeFinding.WORSE in findings:
        return ComparisonOutcome.MIXED if ChangeFinding.BETTER in findings else ComparisonOutcome.WORSE
    if ChangeFinding.BETTER in findings:
        return ComparisonOutcome.BETTER
    return ComparisonOutcome.EQUAL if set(shown) == {ChangeFinding.EQUAL} else ComparisonOutcome.UNDECIDED


def list_arms(comparison: RunComparison) -> Iterator[ArmChange]:
    """All arms of the comparison, in their order."""
    for scenario in comparison.scenarios:
        yield from scenario.arms


def _add_findings(arm: ArmChange, findings: dict[str, Iterator[ChangeFinding]]) -> ArmChange:
    return replace(
        arm, metrics={name: replace(change, finding=next(findings[name])) for name, change in arm.metrics.items()}
    )


def find_shown_equal(changes: Sequence[Change], margin: float, *, error_rate: float = 0.05) -> list[bool]:
    """Which values are equal within the margin, in their order: the interval lies within it, also as one of many.

    Of the values that are shown to be equal, at most the share `error_rate` is expected to have changed by the margin
    or more. `margin` must be that of `estimate_change`.
    """
    rejected = benjamini_hochberg([change.equal_p_value for change in changes], error_rate)
    return [shown and change.is_within(margin) for shown, change in zip(rejected, changes, strict=True)]


def _judge_changes(changes: Sequence[Change], better: Better, margin: float) -> Iterator[ChangeFinding]:
    """A change that is more than chance but within the margin is `equal`: it is too small to matter."""
    shown, equal = find_shown_changes(changes), find_shown_equal(changes, margin)
    for change, is_shown, is_equal in zip(changes, shown, equal, strict=True):
        if is_equal:
            yield ChangeFinding.EQUAL
        elif is_shown:
            yield ChangeFinding.BETTER if (change.ratio > 1) == (better == "higher") else ChangeFinding.WORSE
        else:
            yield ChangeFinding.UNDECIDED


def select_scenario(run: Run, name: str) -> Run:
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
) -> RunComparison:
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


def _compare_two(before: Run, after: Run, margin: float, *, same_machine: bool) -> RunComparison:
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
    return RunComparison(
        schema=COMPARISON_SCHEMA,
        before=ComparedRun(before.run.id, before.run.started, before.run.status, before.lab),
        after=ComparedRun(after.run.id, after.run.started, after.run.status, after.lab),
        scenarios=tuple(compared),
        differences=list_differences(before, after, scenarios, pairs, same_machine=same_machine),
        left_out=left_out,
        doubtful=tuple(chain.from_iterable(scenario_match.doubtful for scenario_match in matched)),
        margin=margin,
        outcome=ComparisonOutcome.UNDECIDED,
    )


def _refuse_nothing_in_common(before: Run, after: Run, left_out: Sequence[UncomparedCell]) -> ConfigError:
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


def _list_other_scenarios(side: Side, run: Run, compared: Sequence[str]) -> Iterator[UncomparedCell]:
    yield from (UncomparedCell(side, cell.id, NO_SCENARIO) for cell in run.cells if cell.scenario not in compared)


def _compare_scenarios(
    before: Sequence[CellRecord], after: Sequence[CellRecord], matched: Matched, margin: float
) -> ScenarioChange:
    by_job: dict[str, list[ArmPair]] = {cell.job.id: [] for cell in before}
    for pair in matched.hosts:
        by_job[pair[0].job.id].append(ArmPair(Place.HOST, *pair))
    for pair in matched.cells:
        arms_of_pair = (ArmPair(place, *pair) for place in (Place.TWIN, Place.GUEST))
        by_job[pair[0].job.id] += [arm for arm in arms_of_pair if arm.has(arm.before.job.headline)]
    arms = tuple(chain.from_iterable(compare_arms(pairs, margin) for pairs in by_job.values()))
    return ScenarioChange(
        scenario_before=before[0].scenario,
        scenario_after=after[0].scenario,
        disk_before=before[0].disk,
        disk_after=after[0].disk,
        overall=tuple(compare_overall(list(chain.from_iterable(by_job.values())), (*before, *after), margin)),
        arms=arms,
    )
