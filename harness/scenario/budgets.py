"""Finds the budgets of a cell, and reports names and budgets that match no cell. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

from harness.analysis.metrics import METRICS
from harness.config.names import choices
from harness.config.problems import shown
from harness.model.budget import Budget, LabKind
from harness.model.cell import Cell
from harness.scenario.planning import expand
from harness.scenario.scenario import Scenario

LAB_KINDS: tuple[LabKind, ...] = get_args(LabKind)

_NOT_A_GUEST_MODE = "not a mode with a guest in this scenario"


def budgets_for(scenario: Scenario, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
    """The budgets of `cell` in a lab of this kind, by their keys. Empty if the cell is not judged.

    If several budgets of one metric match, the last one counts. Those of a difference between variants count apart.
    """
    return {rule.key: rule for rule in scenario.budgets if rule.covers(cell, lab_kind)}


def reference_problems(scenario: Scenario) -> Iterator[str]:
    """One line for each name in `budget` and `expect_void` that is not measured, and for each budget without effect.

    The lines have the form of the schema's messages: `budget[0].modes[1] = "lmv": ...; allowed: ...`.
    """
    modes = list(dict.fromkeys(name for mode in scenario.modes if mode.attach is not None for name in mode.names))
    workloads = [workload.name for workload in scenario.workloads]
    depths = sorted({depth for profile in scenario.profiles for depth in profile.iodepth})
    unknown = [*_unknown("expect_void", scenario.expect_void, modes, _NOT_A_GUEST_MODE)]
    for index, rule in enumerate(scenario.budgets):
        key = f"budget[{index}]"
        named = [workload.name for workload in rule.workloads or ()]
        unknown += _unknown(f"{key}.modes", rule.modes or (), modes, _NOT_A_GUEST_MODE)
        unknown += _unknown(f"{key}.workloads", named, workloads, "not a workload of this scenario")
        unknown += [
            f"{key}.iodepth[{at}] = {depth}: no profile measures at this depth; allowed: {', '.join(map(str, depths))}"
            for at, depth in enumerate(rule.iodepth or ())
            if depth not in depths
        ]
    yield from unknown or [
        *_throughput_budgets_of_fixed_rates(scenario),
        *_budgets_of_syncs_without_any(scenario),
        *_budgets_without_effect(scenario),
    ]


def _unknown(key: str, names: Sequence[str], allowed: Sequence[str], what: str) -> Iterator[str]:
    for index, name in enumerate(names):
        if name not in allowed:
            known = choices(name, allowed or ["nothing, because only the host is measured"])
            yield f"{key}[{index}] = {shown(name)}: {what}; {known}"


def _throughput_budgets_of_fixed_rates(scenario: Scenario) -> Iterator[str]:
    """Budgets of throughput for jobs with a fixed rate. Every arm has this throughput, so nothing can exceed them."""
    latencies = [name for name, metric in METRICS.items() if metric.is_latency]
    for index, rule in enumerate(scenario.budgets):
        workloads = rule.workloads or scenario.workloads
        if METRICS[rule.metric].higher_is_better and all(workload.rate is not None for workload in workloads):
            key = f"budget[{index}].workloads" if rule.workloads else "workloads"
            yield (
                f'budget[{index}].metric = "{rule.metric}": conflicts with {key}[0] = "{workloads[0].name}", which '
                f"has a fixed rate; allowed: {', '.join(latencies)}"
            )


def _budgets_of_syncs_without_any(scenario: Scenario) -> Iterator[str]:
    """Budgets for fdatasync where no job calls it."""
    for index, rule in enumerate(scenario.budgets):
        if METRICS[rule.metric].of == "syncs" and not any(
            workload.flushes for workload in rule.workloads or scenario.workloads
        ):
            yield (
                f'budget[{index}].metric = "{rule.metric}": none of its workloads calls fdatasync; '
                "allowed: a workload that does, for example wal, or another metric"
            )


def _budgets_without_effect(scenario: Scenario) -> Iterator[str]:
    """Budgets that cover no cell of any profile, or only cells that later budgets cover as well."""
    covering: set[int] = set()
    counting: set[int] = set()
    # Budgets do not depend on times, so profiles with the same depths have the same cells.
    profiles = {profile.iodepth: profile.name for profile in scenario.profiles}
    for cell in (cell for name in profiles.values() for cell in expand(scenario, name)):
        for lab_kind in LAB_KINDS:
            indices = [index for index, rule in enumerate(scenario.budgets) if rule.covers(cell, lab_kind)]
            covering.update(indices)
            counting.update({scenario.budgets[index].key: index for index in indices}.values())
    for index, rule in enumerate(scenario.budgets):
        compared = any(mode.against is not None for mode in scenario.modes)
        if rule.difference is not None and not compared:
            continue  # The lab file may have the variants.
        if index not in covering and rule.difference is not None:
            yield (
                f"budget[{index}]: matches no cell, because its modes are compared with no other; "
                "allowed: a variant that is not the reference, or a mode with a neighbour"
            )
        elif index not in covering:
            yield (
                f"budget[{index}]: matches no cell, because only the host is measured; "
                "add a mode to modes, or remove the budget"
            )
        elif index not in counting:
            yield (
                f"budget[{index}]: has no effect, because later budgets of {rule.key} match all its cells; "
                "allowed: general budgets first, exceptions after them"
            )
