"""Which budgets a cell is judged by, and what is told of names and budgets that lead to no cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from harness.analysis.metrics import METRICS
from harness.config.names import choices
from harness.config.problems import shown
from harness.model.budget import Budget, LabKind
from harness.model.mode import Cell
from harness.scenario.plan import expand
from harness.scenario.scenario import Scenario

LAB_KINDS: tuple[LabKind, ...] = get_args(LabKind)


def budgets_for(scenario: Scenario, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
    """The budgets of `cell` in a lab of this kind, by metric; empty where it is not judged.

    Of several rules for one metric the last counts.
    """
    return {rule.metric: rule for rule in scenario.budgets if rule.covers(cell, lab_kind)}


def reference_problems(scenario: Scenario) -> Iterator[str]:
    """One line per name in `budget` and `expect_void` that is not measured, and per budget that judges no cell.

    The lines are as those of the schema: `budget[0].modes[1] = "lmv": ...; allowed: ...`.
    """
    modes = [mode.name for mode in scenario.modes if mode.attach is not None]
    workloads = [workload.name for workload in scenario.workloads]
    depths = sorted({depth for profile in scenario.profiles for depth in profile.iodepth})
    unknown = [*_unknown("expect_void", scenario.expect_void, modes, "no mode measured here beside the host")]
    for index, rule in enumerate(scenario.budgets):
        key = f"budget[{index}]"
        named = [workload.name for workload in rule.workloads or ()]
        unknown += _unknown(f"{key}.modes", rule.modes or (), modes, "no mode measured here beside the host")
        unknown += _unknown(f"{key}.workloads", named, workloads, "no workload measured here")
        unknown += [
            f"{key}.iodepth[{at}] = {depth}: no profile measures at this depth; allowed: {', '.join(map(str, depths))}"
            for at, depth in enumerate(rule.iodepth or ())
            if depth not in depths
        ]
    yield from unknown or [*_of_a_fixed_rate(scenario), *_judging_nothing(scenario)]


def _unknown(key: str, names: Sequence[str], allowed: Sequence[str], what: str) -> Iterator[str]:
    for index, name in enumerate(names):
        if name not in allowed:
            known = choices(name, allowed or ["nothing, for the host is measured alone"])
            yield f"{key}[{index}] = {shown(name)}: {what}; {known}"


def _of_a_fixed_rate(scenario: Scenario) -> Iterator[str]:
    """Budgets of a throughput that is the same on every arm, for it was asked for: they could never be exceeded."""
    latencies = [name for name, metric in METRICS.items() if metric.is_latency]
    for index, rule in enumerate(scenario.budgets):
        workloads = rule.workloads or scenario.workloads
        if METRICS[rule.metric].higher_is_better and all(workload.rate is not None for workload in workloads):
            key = f"budget[{index}].workloads" if rule.workloads else "workloads"
            yield (
                f'budget[{index}].metric = "{rule.metric}": does not go with {key}[0] = "{workloads[0].name}", whose '
                f"rate is fixed; allowed: {', '.join(latencies)}"
            )


def _judging_nothing(scenario: Scenario) -> Iterator[str]:
    """Budgets that cover no cell of any profile, or whose every cell a later one covers, too."""
    covering: set[int] = set()
    counting: set[int] = set()
    for cell in {cell for profile in scenario.profiles for cell in expand(scenario, profile.name)}:
        for lab_kind in LAB_KINDS:
            indices = [index for index, rule in enumerate(scenario.budgets) if rule.covers(cell, lab_kind)]
            covering.update(indices)
            counting.update({scenario.budgets[index].metric: index for index in indices}.values())
    for index, rule in enumerate(scenario.budgets):
        if index not in covering:
            yield f"budget[{index}]: matches no cell, for the host is measured alone; add a mode to modes or remove it"
        elif index not in counting:
            yield (
                f"budget[{index}]: never counts, as later budgets of {rule.metric} match all its cells; "
                "allowed: the general one first, exceptions after it"
            )
