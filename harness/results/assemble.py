"""From measurements to cell records: pairs the arms of each block, estimates, and gives the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from harness.analysis import CONFIDENCE, METRICS, Look, Sequential, Verdict
from harness.errors import ResultsError
from harness.feature import Feature, features, features_of_cell
from harness.model.attach import Attach
from harness.model.base import Amplification, Kind, find_widest
from harness.model.disk import DiskRecord
from harness.model.job import Job
from harness.model.mode import Arm, Budget, Cell, Mode, Place, find_setting_changes
from harness.model.option import NOTHING, Effective
from harness.results.byte_counts import ReadAhead, check_bytes
from harness.results.cells import ArmName, CellRecord, LongerSlices, ValidityCheck
from harness.results.contrasts import (
    AdjustedValues,
    Blocks,
    CellSlices,
    Contrast,
    adjust_job,
    contrast,
    make_samples,
    tabulate,
)
from harness.results.journal import CLOCK_CHANGED, Measurement
from harness.results.judging import compute_better_p, find_gravest, judge_budgets
from harness.results.metric_records import (
    count_calls,
    make_metric_records,
    merge_histograms,
    note_change_in_time,
    note_missing_syncs,
    note_stalls,
    note_too_few_ios,
    reduce_histograms,
)
from harness.results.records import CarryOverRecord
from harness.results.validity import (
    clock_checks,
    configuration_checks,
    differences,
    late_counter_notes,
    note_carry_over,
    note_longer,
    others_notes,
    rate_checks,
    saturation_notes,
    split_by_length,
)
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group

Account = TypeVar("Account")
Check = Callable[[Cell, Sequence[Measurement]], Iterable[ValidityCheck]]
"""Checks the measurements of one cell, in the order of time."""


def no_check(_cell: Cell, _measurements: Sequence[Measurement]) -> Iterable[ValidityCheck]:
    return ()


@dataclass(frozen=True, slots=True)
class CellContext:
    """What measurements do not contain about a cell: where it ran, its budgets, and what was checked.

    `sequential` plans the looks at the rounds; None means one look at all of them. `final` means that no round will
    follow, for a reason that does not depend on the data: the time is spent, or the run was interrupted.
    """

    host: str
    """Name of the host in the lab file."""
    group: str
    """The group that the cell's measurements belong to."""
    span_bytes: int
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    sequential: Sequential | None = None
    final: bool = True
    validity: tuple[ValidityCheck, ...] = ()
    effective: Effective = NOTHING
    against: Effective = NOTHING
    """What was read back of the guest of the reference variant."""
    others: tuple[Effective, ...] = ()
    """What was read back of the further guests that run at the same time."""
    carried: tuple[CarryOverRecord, ...] = ()
    """What the cell's job shows about carry-over, the shortest slices first."""
    notes: tuple[str, ...] = ()
    journal: Callable[[float], float] | None = None
    """The bytes that file systems in the disks of its group may move in so many seconds, in slices of any mode."""
    skipped: str | None = None
    check: Check = no_check
    """Further checks of the cell's measurements."""


@dataclass(frozen=True, slots=True)
class AssembledRun:
    """What the records of features are made from. `records` is by cell id."""

    cells: Sequence[Cell]
    """In the order of the plan."""
    records: Mapping[str, CellRecord]
    measurements: Sequence[Measurement]
    disks: Sequence[DiskRecord] = ()
    scenarios: Sequence[Scenario] = ()
    groups: Sequence[Group] = ()

    def account_arms(
        self, layout: type[Kind], account: Callable[[Iterable[Measurement]], Account | None]
    ) -> Iterator[tuple[str, dict[ArmName, Account]]]:
        """What `account` makes of the slices of each arm that overlapped no other, for each cell on such a layout.

        The id of the cell, and the accounts by arm. Arms without an account are left out, and cells without any.
        """
        groups = {cell.id: group.id for group in self.groups for cell in group.cells}
        cells = [cell for cell in self.cells if isinstance(cell.mode.layout, layout) and cell.id in groups]
        table = tabulate(cells, groups, (slice_ for slice_ in self.measurements if slice_.overlap is None))
        for cell, slices in table.items():
            arms: dict[ArmName, Account] = {
                place.value: made
                for place, of_arm in slices.arms.items()
                if place.value in ("host", "twin", "guest") and (made := account(of_arm.values())) is not None
            }
            if arms:
                yield cell, arms


def assemble(
    cells: Sequence[Cell], measurements: Iterable[Measurement], contexts: Mapping[str, CellContext]
) -> list[CellRecord]:
    """One record per cell, in order. `contexts` is by cell id and holds every cell.

    The group of the cell's context, its job's id and the ids of its arms select the cell's measurements. Only blocks in
    which every arm of the cell was measured count, in which none of its slices overlapped another, and in which an
    array that should be rebuilding was. So host, twin and guest values are pairs and triples of one block. All arms of
    the job that have slices in these blocks say what its moments were like (`adjust_job`). Of a job whose slices became
    longer, only the longest count. ResultsError for an unknown metric.
    """
    counted, replaced = split_by_length(measurements)
    for measurement in counted:
        unknown = measurement.metrics.keys() - METRICS.keys()
        if unknown:
            raise ResultsError(
                f"{measurement.raw}: unknown metric {', '.join(sorted(unknown))}",
                hint=f"this virt-overhead knows {', '.join(METRICS)}; use a newer one if it wrote this run",
            )
    groups = {cell.id: contexts[cell.id].group for cell in cells}
    tables = [tabulate(cells, groups, slices) for slices in (counted, replaced)]
    slices, shorter = ({cell.id: _CellBlocks.of(cell, table[cell.id]) for cell in cells} for table in tables)
    records = []
    jobs: dict[Hashable, AdjustedValues] = {}
    for cell in cells:
        longest, context = slices[cell.id], contexts[cell.id]
        # Cells of one job with the same blocks share the adjusted values of its arms.
        key = context.group, cell.job.id, longest.blocks.keys
        if key not in jobs:
            jobs[key] = adjust_job(longest.slices.job, longest.blocks.keys)
        longer = _describe_longer_slices(longest, shorter[cell.id])
        records.append(_make_cell_record(context, longest, jobs[key], longer))
    notes: dict[str, list[str]] = {}
    for feature in features():
        for cell_id, note in feature.annotate(records):
            notes.setdefault(cell_id, []).append(note)
    return [replace(record, notes=(*record.notes, *notes.get(record.id, ()))) for record in records]


@dataclass(frozen=True, slots=True)
class _CellBlocks:
    """A cell with all its slices, and its blocks that count."""

    cell: Cell
    features: tuple[Feature, ...]
    """Those that may have something of the cell."""
    slices: CellSlices
    blocks: Blocks

    @classmethod
    def of(cls, cell: Cell, slices: CellSlices) -> _CellBlocks:
        asked = features_of_cell(cell, slices.all)
        return cls(cell, asked, slices, slices.complete_blocks(lambda slice_: _is_sample(slice_, cell, asked)))

    @property
    def separate(self) -> list[Measurement]:
        """The slices that overlapped no other one, in the order of time."""
        return sorted(
            (slice_ for slice_ in self.slices.all if slice_.overlap is None), key=lambda slice_: slice_.started
        )

    @property
    def overhead(self) -> Contrast | None:
        """In the headline metric; None without a guest, complete blocks or possible values."""
        name = self.cell.job.headline
        if not self.blocks.has(name) or _find_impossible_values(self.slices.all):
            return None
        arms = (self.blocks.series(name, arm) for arm in (Place.HOST, Place.GUEST))
        return contrast(*arms)


def _describe_longer_slices(longest: _CellBlocks, shorter: _CellBlocks) -> LongerSlices | None:
    """What the cell's shorter slices gave; None if there are none, or if no block of them is complete."""
    first = next(iter(longest.slices.all), None)
    if first is None or (naive := shorter.overhead) is None:
        return None
    return LongerSlices(first.discarded_s, naive.loss, first.longer_s)


def _make_cell_record(
    context: CellContext, of_cell: _CellBlocks, adjusted_job: AdjustedValues, longer: LongerSlices | None
) -> CellRecord:
    cell, blocks, asked = of_cell.cell, of_cell.blocks, of_cell.features
    slices = of_cell.separate
    look = _look(context, len(set(blocks.rounds)))
    confidence = look.confidence if look else CONFIDENCE
    samples = make_samples(blocks.rounds, blocks.boots)
    impossible = _find_impossible_values(slices)
    job = cell.job
    validity = _check_cell(context, of_cell, impossible)
    counts, whole = count_calls(blocks), merge_histograms(blocks)
    adjusted = {
        name: {role: by_arm[arm.id] for role, arm in cell.by_role.items() if arm.id in by_arm}
        for name, by_arm in adjusted_job.items()
    }
    metrics = {} if impossible else make_metric_records(blocks, counts, whole, adjusted, confidence=confidence)
    measured = {
        key: value
        for feature in (() if impossible else asked)
        for key, value in feature.measure(cell, blocks, samples, confidence, context.span_bytes).items()
    }
    budgets = judge_budgets(context.budgets, metrics, look, samples) if context.skipped is None else ()
    headline = metrics.get(job.headline)
    return CellRecord(
        id=cell.id,
        scenario=cell.scenario,
        host=context.host,
        disk=cell.disk,
        mode=cell.mode.name,
        mode_detail=cell.mode.detail,
        job=cell.job,
        rounds=blocks.rounds,
        blocks=tuple(block for _, block in blocks.keys),
        boots=blocks.boots,
        metrics=metrics,
        confidence=confidence,
        verdict=Verdict.VOID if not all(check.ok for check in validity) else find_gravest(budgets),
        budget=budgets,
        validity=validity,
        effective=context.effective,
        raw=tuple(
            dict.fromkeys(raw for slice_ in slices for raw in (slice_.raw, *(part.raw for part in slice_.parts)))
        ),
        span_bytes=context.span_bytes,
        longer_slices=longer,
        notes=(
            *context.notes,
            *note_carry_over(context.carried, longer),
            *note_longer(job, longer),
            *_note_slices(of_cell),
            *note_stalls(headline),
            *note_change_in_time(headline, samples),
            *others_notes(slices),
            *late_counter_notes(slices),
            *saturation_notes(slices, depth=job.depth if job.is_saturating else None),
            *note_missing_syncs(blocks.compared, counts),
            *(() if impossible else note_too_few_ios(context.budgets.values(), metrics, counts)),
        ),
        skipped=context.skipped,
        accounting={
            name: cost for feature in asked for name, cost in feature.account_blocks(blocks, confidence).items()
        },
        ios=counts["ios"],
        times=blocks.times,
        histograms=reduce_histograms(whole),
        against=f"{cell.scenario}-{cell.mode.against.name}-{job.id}" if cell.mode.against is not None else None,
        differs=_list_differences(cell.mode, context),
        better_p=compute_better_p(headline, cell.mode.detail, look, samples) if _can_be_better(cell) else None,
        **measured,
    )


def _check_cell(
    context: CellContext, of_cell: _CellBlocks, impossible: Iterable[ValidityCheck]
) -> tuple[ValidityCheck, ...]:
    cell, slices = of_cell.cell, of_cell.separate
    counting = [slice_ for slice_ in slices if _is_sample(slice_, cell, of_cell.features)]
    inside = cell.mode.filesystem
    return (
        *context.validity,
        *configuration_checks(cell.mode, context.effective, context.against, context.others),
        *impossible,
        *check_bytes(
            counting,
            *_read_in_flight(cell),
            cached=cell.mode.cached,
            contained=f"guest:{cell.mode.name}" if cell.mode.in_container else "",
            buffered=cell.job.buffered,
            ahead=_find_read_ahead(cell.job, context),
            inside=None if inside is None else inside.amplification(cell.job),
            journal=context.journal,
        ),
        *rate_checks(slices, cell.job),
        *clock_checks(slices),
        *(check for feature in of_cell.features for check in feature.find_checks(slices, cell)),
        *context.check(cell, slices),
    )


def _note_slices(of_cell: _CellBlocks) -> Iterator[str]:
    """What the slices themselves say, which slices do not count, and what features say of them."""
    slices = of_cell.separate
    yield from dict.fromkeys(note for slice_ in slices for note in slice_.notes)
    yield from _note_overlaps(of_cell.slices.all)
    for feature in of_cell.features:
        yield from feature.find_notes(slices, of_cell.cell)


def _is_sample(slice_: Measurement, cell: Cell, asked: Iterable[Feature]) -> bool:
    """Whether the slice is a sample of the cell: no other arm ran, and what should run beside it did."""
    return slice_.overlap is None and all(feature.counts(slice_, cell) for feature in asked)


def _can_be_better(cell: Cell) -> bool:
    """At a fixed rate, only latencies can be better. What memory serves is not compared with the disk."""
    return not cell.mode.cached and (cell.job.rate is None or METRICS[cell.job.headline].is_latency)


def _read_in_flight(cell: Cell) -> tuple[int, Amplification]:
    """The bytes in flight of all jobs at the same time, and what the layout may make of their bytes."""
    arm = cell.by_role.get(Place.GUEST, Arm(Place.HOST))
    jobs = [part.job for part in arm.parts(cell.job)]
    moved = find_widest(cell.mode.amplification(job) for job in dict.fromkeys(jobs))
    drops_trims = isinstance(cell.mode.attach, Attach) and cell.mode.attach.discard == "ignore"
    return sum(job.depth * job.bs for job in jobs), replace(moved, fewest_trimmed=0.0) if drops_trims else moved


def _find_read_ahead(job: Job, context: CellContext) -> ReadAhead | None:
    if not job.reads_ahead:
        return None
    bare, volume = (job.count_ahead(size) for size in context.effective.read_ahead)
    return ReadAhead(bare, volume, job.count_used(context.span_bytes))


def _list_differences(mode: Mode, context: CellContext) -> tuple[str, ...]:
    """In what the stack of a variant differs from that of the reference: what is set, and what was read back."""
    if mode.against is None:
        return ()
    settings = (words for _, words in find_setting_changes(mode.against, mode))
    return (*settings, *differences(context.against, context.effective))


def _look(context: CellContext, rounds: int) -> Look | None:
    """The look at which these rounds are judged. Between two planned looks, it is a final look."""
    if rounds == 0:
        return None
    plan = (context.sequential or Sequential(rounds, rounds, CONFIDENCE)).reaching(rounds)
    return plan.look(rounds, final=context.final) or plan.look(rounds, final=True)


def _note_overlaps(measurements: Sequence[Measurement]) -> list[str]:
    void = {(measurement.round, measurement.block) for measurement in measurements if measurement.overlap is not None}
    if not void:
        return []
    of = len({(measurement.round, measurement.block) for measurement in measurements})
    why = "slices of two arms overlapped"
    if any(measurement.overlap == CLOCK_CHANGED for measurement in measurements):
        why += ", or may have: a guest's clock stopped or was set (was the guest paused?)"
    return [f"{len(void)} of {of} blocks do not count, because {why}"]


def _find_impossible_values(measurements: Iterable[Measurement]) -> tuple[ValidityCheck, ...]:
    return tuple(
        ValidityCheck("positive", ok=False, detail=f"{name} is {value} in {measurement.raw}")
        for measurement in measurements
        for name, value in measurement.metrics.items()
        if value <= 0 or not math.isfinite(value)
    )
