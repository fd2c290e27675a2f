"""The comparison of runs: what changed in each arm, what else differs, and what was left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from harness.analysis import MARGIN
from harness.config.names import choices
from harness.errors import ConfigError
from harness.model.cell import Place
from harness.results.cells import CellRecord
from harness.results.compare_arms import ArmPair, arm_changes, overall_changes
from harness.results.compare_differences import differences
from harness.results.compare_findings import arms_of, outcome, with_findings
from harness.results.compare_matching import NO_SCENARIO, Matched, match, same_or_last
from harness.results.compare_records import (
    COMPARISON_SCHEMA,
    ComparedRun,
    Comparison,
    LeftOut,
    Outcome,
    ScenarioChange,
    Side,
)
from harness.results.records import Run


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
    compared = [_compared(before, other, margin, same_machine=same_machine) for other in after]
    first, *others = (
        replace(with_finding, outcome=outcome(with_finding, metric)) for with_finding in with_findings(compared, margin)
    )
    if metric is not None and not any(metric in arm.metrics for each in compared for arm in arms_of(each)):
        raise ConfigError(
            f'metric "{metric}": no compared cell has it in both runs',
            hint="choose another metric; a percentile needs enough I/Os in both runs",
        )
    return replace(first, further=tuple(others))


def _compared(before: Run, after: Run, margin: float, *, same_machine: bool) -> Comparison:
    """Two runs, without findings yet."""
    own, others = _by_scenario(before), _by_scenario(after)
    names = same_or_last(own, others)
    if before.run.id == after.run.id and any(one == other for one, other in names):
        raise ConfigError(
            f"both are run {before.run.id}: there is nothing to compare",
            hint="give two runs; or two scenarios of one run, with --before-scenario and --after-scenario",
        )
    matched = [match(own[one], others[other]) for one, other in names]
    changes = [
        _scenario_change(own[one], others[other], found, margin)
        for (one, other), found in zip(names, matched, strict=True)
    ]
    compared = [change for change in changes if change.arms]
    left_out = (
        *_unmatched("before", before, [one for one, _ in names]),
        *_unmatched("after", after, [other for _, other in names]),
        *chain.from_iterable(found.left_out for found in matched),
    )
    if not compared:
        raise _nothing_in_common(before, after, left_out)
    pairs = [pair for found in matched for pair in (*found.hosts, *found.cells)]
    scenarios = [(each.scenario_before, each.scenario_after) for each in compared]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        before=_compared_run(before),
        after=_compared_run(after),
        scenarios=tuple(compared),
        differences=differences(before, after, scenarios, pairs, same_machine=same_machine),
        left_out=left_out,
        doubtful=tuple(chain.from_iterable(found.doubtful for found in matched)),
        margin=margin,
        outcome=Outcome.UNDECIDED,
    )


def _nothing_in_common(before: Run, after: Run, left_out: Sequence[LeftOut]) -> ConfigError:
    why = f"; for example {left_out[0].cell} of the run {left_out[0].run}: {left_out[0].why}" if left_out else ""
    return ConfigError(
        f"run {before.run.id} and run {after.run.id} have no cell that can be compared{why}",
        hint="cells belong together if layout, attachment and job are the same; choose scenarios with "
        "--before-scenario and --after-scenario, or measure the same modes and jobs",
    )


def _by_scenario(run: Run) -> dict[str, list[CellRecord]]:
    found: dict[str, list[CellRecord]] = {}
    for cell in run.cells:
        found.setdefault(cell.scenario, []).append(cell)
    return found


def _unmatched(side: Side, run: Run, compared: Sequence[str]) -> Iterator[LeftOut]:
    yield from (LeftOut(side, cell.id, NO_SCENARIO) for cell in run.cells if cell.scenario not in compared)


def _compared_run(run: Run) -> ComparedRun:
    return ComparedRun(run.run.id, run.run.started, run.run.status, run.lab)


def _scenario_change(
    before: Sequence[CellRecord], after: Sequence[CellRecord], matched: Matched, margin: float
) -> ScenarioChange:
    by_job: dict[str, list[ArmPair]] = {cell.job.id: [] for cell in before}
    for pair in matched.hosts:
        by_job[pair[0].job.id].append(ArmPair(Place.HOST, *pair))
    for pair in matched.cells:
        found = (ArmPair(place, *pair) for place in (Place.TWIN, Place.GUEST))
        by_job[pair[0].job.id] += [each for each in found if _is_compared(each)]
    arms = tuple(chain.from_iterable(arm_changes(own, margin) for own in by_job.values()))
    return ScenarioChange(
        scenario_before=before[0].scenario,
        scenario_after=after[0].scenario,
        disk_before=before[0].disk,
        disk_after=after[0].disk,
        overall=tuple(overall_changes(list(chain.from_iterable(by_job.values())), (*before, *after), margin)),
        arms=arms,
    )


def _is_compared(arm: ArmPair) -> bool:
    return arm.has(arm.before.job.headline)
