"""Records of decompositions: each arm against the arm before it, in the blocks that all arms share. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.analysis import Correlation, Estimate, holm
from harness.features.decompose.request import Decomposition, list_steps
from harness.model.job import Job
from harness.model.mode import Arm
from harness.model.values import STRICT
from harness.results.assemble import AssembledRun
from harness.results.cells import CellRecord
from harness.results.contrasts import Contrast, Series, contrast, correlation_of
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group

METRIC = "lat_mean"
"""From the call to completion. `clat_mean` leaves out the cost of submitting, which includes a guest's exit to the
host."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One arm of a decomposition, against the arm before it."""

    __pydantic_config__ = STRICT

    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    change: str
    """The one thing that it changes against the arm before, in words; empty for the first arm."""
    values: tuple[float, ...]
    """Its values in the order of the decomposition's rounds, in seconds."""
    added: Estimate | None
    """What the step adds, in seconds. These values add up over the steps. Null for the first arm."""
    overhead: Estimate | None
    """What the step adds, as a share of the arm before. The values of 1 + overhead multiply. Null for the first arm."""
    so_far: Estimate | None
    """What this step and all steps before it add, as a share of the host. Null for the first arm."""
    p_value: float | None
    """The p value of "the step changes nothing", not corrected; null for the first arm and after one round."""
    shown: bool
    """Whether the step changes anything at all, corrected for the number of steps (Holm)."""
    doubt: str
    """The failed checks because of which the arm's values are not a result; empty if no check failed."""


@dataclass(frozen=True, slots=True)
class DecompositionRecord:
    """The latency of one job from the bare host to another arm, step by step."""

    __pydantic_config__ = STRICT

    id: str
    """`SCENARIO-NAME-JOB`, for example `decompose-attach-randread-4k-qd1`."""
    scenario: str
    """Name of the scenario."""
    name: str
    """Name of the decomposition in the scenario."""
    host: str
    """Name of the host in the lab file; empty if nothing was measured."""
    disk: str
    """Name of the disk under test."""
    job: str
    """The job's id."""
    metric: str
    """The metric of all values: `lat_mean`."""
    rounds: tuple[int, ...]
    """The rounds in which every arm of the decomposition was measured. The estimates use only these."""
    left_out: tuple[int, ...]
    """Rounds that have only some of the arms. They are not used."""
    confidence: float
    """The confidence of each interval alone."""
    steps: tuple[StepRecord, ...]
    """One entry per arm, beginning with the bare host; empty if the decomposition was skipped."""
    added: Estimate | None
    """The last arm minus the first, in seconds, from the same rounds. Its point is the sum of the steps' points."""
    overhead: Estimate | None
    """The last arm against the first, as a share of the host."""
    skipped: str | None
    """Why there is no decomposition, or null."""


def decompose_run(run: AssembledRun) -> Iterator[DecompositionRecord]:
    """One record per decomposition and job with any measurement, in the order of the scenarios and groups.

    Only rounds in which every arm was measured count, so the steps add up in each of them. All arms must be measured in
    one group, because they share its rounds. If an arm is missing there, no step replaces it: the record names the
    missing arm and the reason.
    """
    for scenario in run.scenarios:
        decompositions = scenario.requests_of(Decomposition)
        groups = [group for group in run.groups if group.scenario == scenario.name]
        by_job = _group_by_job(groups, run.records) if decompositions else {}
        for name, decomposition in decompositions.items():
            steps = list_steps(scenario, decomposition)
            for job, by_mode in by_job.items():
                if not decomposition.covers(job):
                    continue
                arms, correlation = max(
                    ((_find_values(steps, cells), correlation_of(cells.values())) for cells in by_mode),
                    key=lambda choice: _count_cells(choice[0]),
                )
                if _count_cells(arms):
                    yield _make_record(scenario, name, job, arms, correlation)


@dataclass(frozen=True, slots=True)
class _StepValues:
    """One step's arm, what it changes, the cell that has its values, and the values."""

    arm: Arm
    change: str
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
            return f"{self.arm.id} was not measured, or was measured in another setup"
        return f"{self.arm.id}: {self.cell.skipped or f'no block has {METRIC}'}"


def _group_by_job(groups: Iterable[Group], records: Mapping[str, CellRecord]) -> dict[Job, list[dict[str, CellRecord]]]:
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


def _find_values(steps: Sequence[tuple[Arm, str]], cells: Mapping[str, CellRecord]) -> list[_StepValues]:
    """The arms with their values. `cells` are those of the job, by the name of the mode.

    Every cell has the host's values; they come from the cell with the most blocks.
    """
    modes = [arm.mode.name for arm, _ in steps if arm.mode is not None]
    any_cell = max((cells[mode] for mode in modes if mode in cells), key=lambda cell: len(cell.rounds), default=None)
    values = []
    for arm, change in steps:
        cell = cells.get(arm.mode.name) if arm.mode is not None else any_cell
        series = cell.series(METRIC, arm.place) if cell is not None and cell.skipped is None else None
        values.append(_StepValues(arm, change, cell, series))
    return values


def _make_record(
    scenario: Scenario,
    name: str,
    job: Job,
    steps: Sequence[_StepValues],
    correlation: Correlation | None,
) -> DecompositionRecord:
    skipped = "; ".join(filter(None, (step.missing for step in steps))) or None
    cells = [step.cell for step in steps if step.cell is not None]
    every = {key for cell in cells for key in cell.samples}
    blocks = sorted(key for key in every if all(key in step.keys for step in steps))
    measured = sorted(key for key in every if any(key in step.keys for step in steps))
    if skipped is None and not blocks:
        skipped = "no block has every arm"
    record = DecompositionRecord(
        id=f"{scenario.name}-{name}-{job.id}",
        scenario=scenario.name,
        name=name,
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
    series = [step.series.only(blocks) for step in steps if step.series is not None]
    if skipped is not None:
        return record
    waterfall = decompose(series, confidence=record.confidence, correlation=correlation)
    costs, so_far, shown = [None, *waterfall.steps], [None, *waterfall.so_far], [False, *waterfall.shown]
    return replace(
        record,
        steps=tuple(
            StepRecord(
                arm=step.arm.id,
                change=step.change,
                values=of_arm.values,
                added=cost.added if cost else None,
                overhead=cost.loss if cost else None,
                so_far=total.loss if total else None,
                p_value=cost.p_value if cost else None,
                shown=is_shown,
                doubt=step.cell.doubt_about(step.arm) if step.cell is not None else "",
            )
            for step, of_arm, cost, total, is_shown in zip(steps, series, costs, so_far, shown, strict=True)
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
        contrast_ = contrast(left, right, confidence=confidence, correlation=correlation)
        assert contrast_ is not None
        return contrast_

    steps = tuple(against(left, right) for left, right in pairwise(arms))
    shown = holm([step.p_value for step in steps], 1 - confidence)
    return Waterfall(steps, tuple(against(arms[0], arm) for arm in arms[1:]), tuple(shown))
