"""The comparison of two runs: what changed in each arm, what else differs, and what was left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from harness.analysis import METRICS, Better, Change, changes_shown
from harness.config.names import choices
from harness.errors import ConfigError
from harness.model.mode import Place
from harness.results.cells import CellRecord
from harness.results.compare_arms import ArmPair, arm_changes, overall_changes
from harness.results.compare_differences import cell_differences, run_differences
from harness.results.compare_matching import NO_SCENARIO, Matched, is_faster, match, same_or_last
from harness.results.compare_records import (
    COMPARISON_SCHEMA,
    ComparedRun,
    Comparison,
    Finding,
    LeftOut,
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


def compare(before: Run, after: Run) -> Comparison:
    """The change of each arm from `before` to `after`, what else differs, and what was left out.

    Scenarios of the same name belong together, and if one scenario is left in each run, these two. Void and skipped
    cells are left out, and guests that are better than their host. ConfigError if both are the same scenario of the
    same run, or if no cell can be compared; ResultsError for values that no measurement has.
    """
    own, others = _by_scenario(before), _by_scenario(after)
    names = same_or_last(own, others)
    if before.run.id == after.run.id and any(one == other for one, other in names):
        raise ConfigError(
            f"both are run {before.run.id}: there is nothing to compare",
            hint="give two runs; or two scenarios of one run, with --before-scenario and --after-scenario",
        )
    matched = [match(own[one], others[other]) for one, other in names]
    changes = [
        _scenario_change(own[one], others[other], found) for (one, other), found in zip(names, matched, strict=True)
    ]
    compared = [each for each in changes if each.arms]
    left_out = (
        *_unmatched("before", before, [one for one, _ in names]),
        *_unmatched("after", after, [other for _, other in names]),
        *chain.from_iterable(found.left_out for found in matched),
    )
    if not compared:
        raise _nothing_in_common(before, after, left_out)
    pairs = [pair for found in matched for pair in (*found.hosts, *found.cells)]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        before=_compared_run(before),
        after=_compared_run(after),
        scenarios=tuple(_with_findings(compared)),
        differences=(
            *run_differences(before, after, [(each.scenario_before, each.scenario_after) for each in compared]),
            *cell_differences(pairs),
        ),
        left_out=left_out,
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


def _scenario_change(before: Sequence[CellRecord], after: Sequence[CellRecord], matched: Matched) -> ScenarioChange:
    by_job: dict[str, list[ArmPair]] = {cell.job.id: [] for cell in before}
    for pair in matched.hosts:
        by_job[pair[0].job.id].append(ArmPair(Place.HOST, *pair))
    for pair in matched.cells:
        found = (ArmPair(place, *pair) for place in (Place.TWIN, Place.GUEST))
        by_job[pair[0].job.id] += [each for each in found if _is_compared(each)]
    arms = tuple(chain.from_iterable(map(arm_changes, by_job.values())))
    return ScenarioChange(
        scenario_before=before[0].scenario,
        scenario_after=after[0].scenario,
        disk_before=before[0].disk,
        disk_after=after[0].disk,
        overall=tuple(overall_changes(list(chain.from_iterable(by_job.values())), (*before, *after))),
        arms=arms,
    )


def _is_compared(arm: ArmPair) -> bool:
    faster = arm.place is Place.GUEST and (is_faster(arm.before) or is_faster(arm.after))
    return not faster and arm.has(arm.before.job.headline)


def _with_findings(scenarios: Sequence[ScenarioChange]) -> Iterator[ScenarioChange]:
    """The scenarios with the direction of each change that is more than chance among all changes of its metric."""
    arms = [arm for each in scenarios for arm in each.arms]
    shown: dict[str, Iterator[bool]] = {
        name: iter(changes_shown([arm.metrics[name].change for arm in arms if name in arm.metrics])) for name in METRICS
    }
    overall = iter(changes_shown([each.change for scenario in scenarios for each in scenario.overall]))
    for scenario in scenarios:
        found = []
        for arm in scenario.arms:
            metrics = {
                name: replace(own, finding=_finding(own.change, own.better, shown=next(shown[name])))
                for name, own in arm.metrics.items()
            }
            found.append(replace(arm, metrics=metrics))
        yield replace(
            scenario,
            arms=tuple(found),
            overall=tuple(
                replace(each, finding=_finding(each.change, "higher", shown=next(overall))) for each in scenario.overall
            ),
        )


def _finding(change: Change, better: Better, *, shown: bool) -> Finding:
    if not shown:
        return Finding.NONE_SHOWN
    return Finding.BETTER if (change.ratio > 1) == (better == "higher") else Finding.WORSE
