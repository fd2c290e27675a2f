"""From cells to decompositions: each arm against the arm before it, in the blocks that all arms share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.analysis import Correlation, holm
from harness.model.job import Job
from harness.results.cells import CellRecord
from harness.results.comparisons import DecompositionRecord, StepRecord
from harness.results.contrasts import Contrast, Series, contrast, correlation_of
from harness.scenario.decompose import Step, steps_of
from harness.scenario.scenario import Decomposition, Scenario
from harness.scenario.setups import Group

METRIC = "lat_mean"
"""From the call to completion. `clat_mean` leaves out the cost of submitting, which includes a guest's exit to the
host."""


def decompositions(
    scenarios: Iterable[Scenario], groups: Sequence[Group], records: Mapping[str, CellRecord]
) -> tuple[DecompositionRecord, ...]:
    """One record per decomposition and job with any measurement, in the order of the scenarios and `groups`.

    `records` is by cell id. Only rounds in which every arm was measured count, so the steps add up in each of them. All
    arms must be measured in one group, because they share its rounds. If an arm is missing there, no step replaces it:
    the record names the missing arm and the reason.
    """
    records_made = []
    for scenario in scenarios:
        if not scenario.decompositions:
            continue
        by_job = _by_job((group for group in groups if group.scenario == scenario.name), records)
        for decomposition in scenario.decompositions:
            steps = steps_of(scenario, decomposition)
            for job, by_mode in by_job.items():
                if not decomposition.covers(job):
                    continue
                arms, correlation = max(
                    ((_arms(steps, cells), correlation_of(cells.values())) for cells in by_mode),
                    key=lambda choice: _count_cells(choice[0]),
                )
                if _count_cells(arms):
                    records_made.append(_record(scenario, decomposition, job, arms, correlation))
    return tuple(records_made)


@dataclass(frozen=True, slots=True)
class _StepValues:
    """One step's arm, the cell that has its values, and the values."""

    step: Step
    cell: CellRecord | None
    series: Series | None

    @property
    def keys(self) -> Collection[object]:
        """The blocks that have a value."""
        return self.series.keys if self.series is not None else ()

    @property
    def missing(self) -> str:
        """Why there is no value; empty if there is one."""
        if self.series is not None:
            return ""
        if self.cell is None:
            return f"{self.step.arm.id} was not measured, or was measured in another setup"
        return f"{self.step.arm.id}: {self.cell.skipped or f'no block has {METRIC}'}"


def _by_job(groups: Iterable[Group], records: Mapping[str, CellRecord]) -> dict[Job, list[dict[str, CellRecord]]]:
    """For each job, the cells of each group that has it, by the name of the mode."""
    jobs: dict[Job, list[dict[str, CellRecord]]] = {}
    for group in groups:
        of_group: dict[Job, dict[str, CellRecord]] = {}
        for cell in group.cells:
            by_mode = of_group.setdefault(cell.job, {})
            if cell.id in records:
                by_mode[cell.mode.name] = records[cell.id]
                by_mode.setdefault(cell.mode.twin.name, records[cell.id])
        for job, by_mode in of_group.items():
            jobs.setdefault(job, []).append(by_mode)
    return jobs


def _count_cells(arms: Sequence[_StepValues]) -> int:
    """How many of the arms have a cell."""
    return sum(arm.cell is not None for arm in arms)


def _arms(steps: Sequence[Step], cells: Mapping[str, CellRecord]) -> list[_StepValues]:
    """The arms with their values. `cells` are those of the job, by the name of the mode.

    Every cell has the host's values; they come from the cell with the most blocks.
    """
    modes = [step.arm.mode.name for step in steps if step.arm.mode is not None]
    any_cell = max((cells[mode] for mode in modes if mode in cells), key=lambda cell: len(cell.rounds), default=None)
    arms = []
    for step in steps:
        cell = cells.get(step.arm.mode.name) if step.arm.mode is not None else any_cell
        is_measured = cell is not None and cell.skipped is None
        arms.append(_StepValues(step, cell, cell.series(METRIC, step.arm.place) if cell and is_measured else None))
    return arms


def _record(
    scenario: Scenario,
    decomposition: Decomposition,
    job: Job,
    arms: Sequence[_StepValues],
    correlation: Correlation | None,
) -> DecompositionRecord:
    skipped = "; ".join(arm.missing for arm in arms if arm.missing) or None
    cells = [arm.cell for arm in arms if arm.cell is not None]
    every = {key for cell in cells for key in cell.samples}
    blocks = sorted(key for key in every if all(key in arm.keys for arm in arms))
    measured = sorted(key for key in every if any(key in arm.keys for arm in arms))
    if skipped is None and not blocks:
        skipped = "no block has every arm"
    record = DecompositionRecord(
        id=f"{scenario.name}-{decomposition.name}-{job.id}",
        scenario=scenario.name,
        name=decomposition.name,
        host=cells[0].host,
        disk=scenario.disk,
        job=job.id,
        metric=METRIC,
        rounds=tuple(number for number, _ in blocks),
        left_out=tuple(sorted({key[0] for key in measured if key not in blocks})),
        # Cells may differ in their looks. The waterfall uses the look of the strictest cell.
        confidence=max(cell.confidence for cell in cells),
        steps=(),
        added=None,
        overhead=None,
        skipped=skipped,
    )
    series = [arm.series.only(blocks) for arm in arms if arm.series is not None]
    if skipped is not None:
        return record
    waterfall = decompose(series, confidence=record.confidence, correlation=correlation)
    costs = [None, *waterfall.steps]
    so_far = [None, *waterfall.so_far]
    shown = [False, *waterfall.shown]
    return replace(
        record,
        steps=tuple(
            StepRecord(
                arm=arm.step.arm.id,
                change=arm.step.change,
                values=own.values,
                added=cost.added if cost else None,
                overhead=cost.loss if cost else None,
                so_far=total.loss if total else None,
                p_value=cost.p_value if cost else None,
                shown=is_shown,
                doubt=arm.cell.doubt_about(arm.step.arm) if arm.cell is not None else "",
            )
            for arm, own, cost, total, is_shown in zip(arms, series, costs, so_far, shown, strict=True)
        ),
        added=waterfall.so_far[-1].added,
        overhead=waterfall.so_far[-1].loss,
    )


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Each arm but the first against the arm before it (`steps`), and against the first (`so_far`).

    Differences add up over the steps, and 1 + loss multiplies. `shown` says of each step whether "it changes nothing"
    is rejected, corrected for the number of steps (Holm).
    """

    steps: tuple[Contrast, ...]
    so_far: tuple[Contrast, ...]
    shown: tuple[bool, ...]


def decompose(arms: Sequence[Series], *, confidence: float, correlation: Correlation | None = None) -> Waterfall:
    """The difference between the first arm and the last, step by step. All arms have the same blocks.

    So within each block the differences telescope, and their means add up to the mean of last minus first, whatever
    the values. The interval of the total is not the sum of the steps' intervals, because errors cancel.
    """

    def against(left: Series, right: Series) -> Contrast:
        found = contrast(left, right, confidence=confidence, correlation=correlation)
        assert found is not None
        return found

    steps = tuple(against(left, right) for left, right in pairwise(arms))
    shown = holm([step.p_value for step in steps], 1 - confidence)
    return Waterfall(steps, tuple(against(arms[0], arm) for arm in arms[1:]), tuple(shown))
