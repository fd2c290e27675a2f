"""From cells to decompositions: the values of each arm in the rounds that all arms share. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis import Correlation, Samples, decompose
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results.cells import BlockKey, CellRecord
from harness.results.comparisons import DecompositionRecord, StepRecord
from harness.results.dependence import correlation_of, samples_of
from harness.scenario.decompose import Step, steps_of
from harness.scenario.plan import Group
from harness.scenario.scenario import Decomposition, Scenario

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
    found = []
    for scenario in scenarios:
        if not scenario.decompositions:
            continue
        by_job = _by_job((group for group in groups if group.scenario == scenario.name), records)
        for decomposition in scenario.decompositions:
            steps = steps_of(scenario, decomposition)
            for job, by_mode in by_job.items():
                if not decomposition.covers(job):
                    continue
                arms, cells = max(((_arms(steps, each), each) for each in by_mode), key=lambda each: _measured(each[0]))
                if _measured(arms):
                    correlation = correlation_of(cells.values())
                    found.append(_record(scenario, decomposition, job, arms, correlation))
    return tuple(found)


def doubt(cell: CellRecord, *arms: Arm) -> str:
    """The failed checks that concern these arms of the cell: a check of another arm's bytes does not concern them."""
    failed = [check.check for check in cell.validity if not check.ok]
    own = {f"bytes {arm.id}" for arm in arms}
    return ", ".join(check for check in failed if not check.startswith("bytes ") or check in own)


@dataclass(frozen=True, slots=True)
class _StepValues:
    """One step's arm, the cell that has its values, and the values by round and block."""

    step: Step
    cell: CellRecord | None
    by_block: Mapping[BlockKey, float]

    @property
    def missing(self) -> str:
        """Why there is no value; empty if there is one."""
        if self.by_block:
            return ""
        if self.cell is None:
            return f"{self.step.arm.id} was not measured, or was measured in another setup"
        return f"{self.step.arm.id}: {self.cell.skipped or f'no block has {METRIC}'}"


def _by_job(groups: Iterable[Group], records: Mapping[str, CellRecord]) -> dict[Job, list[dict[str, CellRecord]]]:
    """For each job, the cells of each group that has it, by the name of the mode."""
    found: dict[Job, list[dict[str, CellRecord]]] = {}
    for group in groups:
        of_group: dict[Job, dict[str, CellRecord]] = {}
        for cell in group.cells:
            own = of_group.setdefault(cell.job, {})
            if cell.id in records:
                own[cell.mode.name] = records[cell.id]
                own.setdefault(cell.mode.twin.name, records[cell.id])
        for job, by_mode in of_group.items():
            found.setdefault(job, []).append(by_mode)
    return found


def _measured(arms: Sequence[_StepValues]) -> int:
    """How many of the arms have a cell."""
    return sum(arm.cell is not None for arm in arms)


def _arms(steps: Sequence[Step], cells: Mapping[str, CellRecord]) -> list[_StepValues]:
    """The arms with their values. `cells` are those of the job, by the name of the mode.

    Every cell has the host's values; they come from the cell with the most blocks.
    """
    own = {step.arm.mode.name: cells.get(step.arm.mode.name) for step in steps if step.arm.mode is not None}
    measured = [cell for cell in own.values() if cell is not None]
    any_cell = max(measured, key=lambda cell: len(cell.rounds), default=None)
    found = []
    for step in steps:
        cell = own[step.arm.mode.name] if step.arm.mode is not None else any_cell
        found.append(_StepValues(step, cell, _values(cell, step.arm) if cell is not None else {}))
    return found


def _values(cell: CellRecord, arm: Arm) -> Mapping[BlockKey, float]:
    metric = cell.metrics.get(METRIC)
    if metric is None or cell.skipped is not None:
        return {}
    values: tuple[float, ...] = getattr(metric, str(arm.place))
    return dict(zip(cell.samples, values, strict=True)) if values else {}


def _record(
    scenario: Scenario,
    decomposition: Decomposition,
    job: Job,
    arms: Sequence[_StepValues],
    correlation: Correlation | None,
) -> DecompositionRecord:
    skipped = "; ".join(arm.missing for arm in arms if arm.missing) or None
    blocks = sorted(set.intersection(*(set(arm.by_block) for arm in arms)))
    if skipped is None and not blocks:
        skipped = "no block has every arm"
    cells = [arm.cell for arm in arms if arm.cell is not None]
    record = DecompositionRecord(
        id=f"{scenario.name}-{decomposition.name}-{job.id}",
        scenario=scenario.name,
        name=decomposition.name,
        host=cells[0].host,
        disk=scenario.disk,
        job=job.id,
        metric=METRIC,
        rounds=tuple(number for number, _ in blocks),
        left_out=tuple(sorted({number for arm in arms for number, _ in arm.by_block.keys() - set(blocks)})),
        # Cells may differ in their looks. The waterfall uses the look of the strictest cell.
        confidence=max(cell.confidence for cell in cells),
        steps=(),
        added=None,
        overhead=None,
        skipped=skipped,
    )
    if skipped is not None:
        return record
    boots = dict(pair for cell in cells for pair in zip(cell.samples, cell.boots, strict=False))
    samples = samples_of(record.rounds, [boots[block] for block in blocks] if boots else (), correlation)
    return _estimated(record, arms, blocks, samples)


def _estimated(
    record: DecompositionRecord, arms: Sequence[_StepValues], blocks: Sequence[BlockKey], samples: Samples
) -> DecompositionRecord:
    values = [tuple(arm.by_block[block] for block in blocks) for arm in arms]
    costs = decompose(values, confidence=record.confidence, samples=samples)
    return replace(
        record,
        steps=tuple(
            StepRecord(
                arm=arm.step.arm.id,
                change=arm.step.change,
                values=own,
                added=cost.added if cost else None,
                overhead=cost.overhead if cost else None,
                so_far=cost.so_far if cost else None,
                p_value=cost.p_value if cost else None,
                shown=cost is not None and cost.shown,
                doubt=doubt(arm.cell, arm.step.arm) if arm.cell is not None else "",
            )
            for arm, own, cost in zip(arms, values, (None, *costs.steps), strict=True)
        ),
        added=costs.added,
        overhead=costs.overhead,
    )
