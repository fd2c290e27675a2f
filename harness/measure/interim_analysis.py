"""The interim analysis of a group: makes its records after each round, and decides which cells need another one."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import fmean, median
from typing import get_args

from harness.analysis import CONFIDENCE, METRICS, Calls, Limit, Metric, Reason, Samples, Sequential, Verdict, decided
from harness.feature import FeatureTables, list_brought
from harness.measure.phases import Pauses
from harness.measure.recorder import Recorder
from harness.measure.series import CampaignSpec, Measurer, PreparedGroup
from harness.model.job import Job
from harness.model.mode import Budget, Cell, Place
from harness.model.option import NOTHING
from harness.results import (
    DRIFT,
    CellContext,
    CellRecord,
    GroupRecord,
    Measurement,
    drift_checks,
    drift_notes,
    host_drift,
)
from harness.results.contrasts import make_samples
from harness.results.journal import Length
from harness.results.metric_records import FEWEST_SAMPLES, count_rounds_needed, fewest_rounds, read_histogram
from harness.results.validity import find_carry_overs, find_longer_slices, split_by_length
from harness.scenario.plan import MOST_ROUNDS, Plan
from harness.scenario.setups import Group
from harness.units import format_size


@dataclass(slots=True)
class GroupProgress:
    """The progress of one series of rounds of a group.

    A group has one series. Another one follows for jobs that need longer slices, or whose blocks were void.

    `started` is on the monotonic clock. `earlier` is the time in seconds for which an earlier part of the run measured
    the series, `before` that of the series before it. `lengths` has the jobs whose slices are longer than planned. Of
    `bytes_left`, the bytes that the series may write, it has `written` so many. `no_room` is true if another round
    would exceed the limit of a disk. `last_look` is true if the time or the bytes were spent at the last look at the
    rounds. `left_out` says of jobs why they are not measured again. `pauses` are those of all series of the group.
    """

    group: Group
    plan: Plan
    started: float
    before: float = 0.0
    lengths: Mapping[Job, Length] = field(default_factory=dict)
    bytes_left: float = math.inf
    left_out: dict[Job, str] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    earlier: float = 0.0
    written: float = 0.0
    rounds: int = 0
    stopped: str | None = None
    last_look: bool = False
    no_room: bool = False
    needed: int | None = None
    """The number of rounds, if only blocks that were lost are measured again; None for the plan's."""
    _settled: set[str] = field(default_factory=set)
    _ended: set[str] = field(default_factory=set)

    def make_next(
        self,
        lengths: Mapping[Job, Length],
        bytes_left: float,
        *,
        cells: Collection[str] | None = None,
        rounds: int | None = None,
    ) -> GroupProgress:
        """The next series: only these jobs, in slices of these lengths.

        With `cells`, only these cells of them, for so many `rounds`.
        """
        others = {
            cell.id
            for cell in self.group.cells
            if cell.job not in lengths or (cells is not None and cell.id not in cells)
        }
        looked = {cell.id for cell in self.open_cells} if self.last_look else set()
        return GroupProgress(
            self.group,
            self.plan,
            time.monotonic(),
            self.elapsed + self.before,
            lengths,
            bytes_left if any(cell.writes for cell in self.group.cells if cell.job in lengths) else math.inf,
            self.left_out,
            self.pauses,
            needed=rounds,
            _settled=others,
            _ended=others & (self._ended | looked),
        )

    def lengthen(self, job: Job) -> Job:
        longer, discarded = self.lengths.get(job, Length())
        return replace(job, ramp=job.ramp + discarded, seconds=job.seconds + longer)

    def has(self, measurements: Sequence[Measurement]) -> bool:
        """Whether a stored round is one of this series: whether its slices are as long."""
        lengths = {job.id: length for job, length in self.lengths.items()}
        return all(measurement.length == lengths.get(measurement.job, Length()) for measurement in measurements)

    @property
    def elapsed(self) -> float:
        return self.earlier + time.monotonic() - self.started

    @property
    def open_cells(self) -> list[Cell]:
        return [cell for cell in self.group.cells if cell.id not in self._settled]

    def is_open(self, cell: Cell) -> bool:
        """Whether further rounds measure the cell. The rounds of other cells are no look at it."""
        return cell.id not in self._settled

    def ended_before(self, cell: Cell) -> bool:
        """Whether the cell was measured until the time or the bytes were spent, and others are still measured."""
        return cell.id in self._ended

    def settle(self, cells: Iterable[str]) -> None:
        """No further round measures the cells with these ids, unless that would leave no cell."""
        settled = self._settled | set(cells)
        if any(cell.id not in settled for cell in self.group.cells):
            self._settled = settled

    def end(self, cells: Iterable[str]) -> None:
        """No further round measures the cells with these ids, for a reason that is not in the data."""
        ended = set(cells)
        self._ended = self._ended | ended
        self.settle(ended)

    @property
    def fewest(self) -> int:
        return self.plan.rounds if self.needed is None else self.needed

    @property
    def most(self) -> int:
        return self.plan.most_rounds_of(self.group) if self.needed is None else self.needed

    @property
    def further(self) -> int | None:
        """How many rounds surely follow the next one; None if that is not known."""
        return max(self.fewest - self.rounds - 1, 0) if self.rounds < self.fewest else None

    @property
    def sequential(self) -> Sequential:
        return Sequential(self.plan.rounds, self.plan.most_rounds_of(self.group), CONFIDENCE)

    @property
    def spent(self) -> Reason | None:
        """What another round would exceed: the limit of a disk, the plan's time limit, or the bytes of the series."""
        if self.rounds == 0:
            return None
        if self.no_room:
            return Reason.WRITES
        with_another = (self.rounds + 1) / self.rounds
        return next((what for what, used, limit in self._limits if used * with_another > limit), None)

    @property
    def reachable(self) -> int | None:
        """The number of rounds for which there are time and bytes; None if neither is limited."""
        fitting = [limit * self.rounds / used for _, used, limit in self._limits if used > 0 and not math.isinf(limit)]
        return max(int(min(fitting)), self.rounds) if fitting else None

    @property
    def seconds_left(self) -> float:
        """The time that is left of the plan's time limit for the group; infinite without a limit."""
        return self.plan.limit_of(self.group) - self.before - self.elapsed

    @property
    def _limits(self) -> tuple[tuple[Reason, float, float], ...]:
        """What this series has used of the time and of the bytes, and may use."""
        time_limit = self.plan.limit_of(self.group) - self.before
        return (Reason.TIME, self.elapsed, time_limit), (Reason.BYTES, self.written, self.bytes_left)


@dataclass(frozen=True, slots=True)
class Looking:
    """What decides whether a cell needs another round.

    `budgets` (by their keys) are by cell id. `family` is the number of budgets that the run judges. No round follows if
    the time or the bytes are `spent`. `reachable` is the number of rounds that the two allow, if they are limited.
    """

    plan: Plan
    sequential: Sequential
    budgets: Mapping[str, Mapping[str, Budget]]
    family: int
    spent: Reason | None
    reachable: int | None


def find_reasons_to_stop(
    cells: Sequence[Cell], records: Mapping[str, CellRecord], looking: Looking
) -> dict[str, list[Reason]]:
    """Why each cell needs no further round, by cell id. Cells that need one are not in it. `records` is by cell id, and
    has all cells of the group, whether they need a further round or not.

    A cell with budgets is decided when all its budgets are decided. A cell without a budget is decided when the
    interval of its headline metric is as narrow as the plan's target. Void cells and cells without a guest need no
    further round, because more rounds cannot change them.
    """
    reasons_by_cell: dict[str, list[Reason]] = {}
    for cell in cells:
        record = records[cell.id]
        if record.verdict is Verdict.VOID or record.skipped is not None or cell.mode.attach is None:
            reasons_by_cell[cell.id] = []
            continue
        samples = make_samples(record.rounds, record.boots)
        reasons = [
            _find_reason(question, cell, record, samples, looking)
            for question in _list_questions(cell, looking.budgets[cell.id])
            if question.metric in record.metrics or METRICS[question.metric].quantile is not None
        ]
        if all(reasons):
            reasons_by_cell[cell.id] = [reason for reason in reasons if reason]
    return reasons_by_cell


@dataclass(frozen=True, slots=True)
class _Question:
    """What a cell is measured for: a metric, its limit, and whether the guest is compared with the reference."""

    metric: str
    limit: Limit
    difference: bool


def _find_reason(
    question: _Question, cell: Cell, record: CellRecord, samples: Samples, looking: Looking
) -> Reason | None:
    name = question.metric
    metric = record.metrics.get(name)
    if metric is None or len(metric.samples(Place.HOST)) < FEWEST_SAMPLES:
        needed = count_rounds_needed(record, name, reboot=looking.plan.reboot or cell.mode.alternating)
        most = looking.sequential.most if looking.reachable is None else looking.reachable
        if METRICS[name].quantile is not None and (needed is None or needed > min(most, looking.sequential.most)):
            return Reason.FEW_IOS
    if metric is None:
        return Reason.FEW_IOS if looking.spent else None
    reason = decided(
        metric.samples(Place.AGAINST if question.difference else Place.HOST),
        metric.samples(Place.GUEST),
        looking.sequential,
        higher_is_better=METRICS[name].higher_is_better,
        budget=question.limit,
        target=looking.plan.target,
        cells=max(looking.family, 1),
        time_spent=looking.spent is not None,
        samples=replace(samples, resolution=METRICS[name].resolution),
        reachable=looking.reachable,
    )
    return looking.spent if reason is Reason.TIME else reason


def reason_to_stop(cells: Sequence[Cell], records: Mapping[str, CellRecord], looking: Looking) -> str | None:
    """Why no further round is necessary for any of these cells, in words. None to continue."""
    reasons_by_cell = find_reasons_to_stop(cells, records, looking)
    if len(reasons_by_cell) < len(cells):
        return None
    if reasons := dict.fromkeys(reason for of_cell in reasons_by_cell.values() for reason in of_cell):
        return ", ".join(reasons)
    return _explain_no_questions(looking.sequential, records, cells, looking.spent)


def find_settled(cells: Sequence[Cell], records: Mapping[str, CellRecord], decided: Collection[str]) -> list[str]:
    """The ids of the cells that no further round measures: those with the ids `decided`, and void ones.

    A drift may end, so it alone does not settle a cell. Every cell measures the host, so the cells of the mode `host`
    follow the others.
    """
    settled = {cell.id for cell in cells if cell.id in decided or _stays_void(records[cell.id])}
    needed = {cell.job for cell in cells if cell.mode.attach is not None and cell.id not in settled}
    return [
        cell.id
        for cell in cells
        if (cell.id in settled if cell.mode.attach is not None else bool(needed) and cell.job not in needed)
    ]


def _stays_void(record: CellRecord) -> bool:
    return any(not check.ok and check.check != DRIFT for check in record.validity)


def _list_questions(cell: Cell, rules: Mapping[str, Budget]) -> list[_Question]:
    """The budgets; without any, how narrow the interval of the overhead is, or of the difference between variants."""
    if not rules:
        return [_Question(cell.job.headline, Limit(), difference=cell.mode.against is not None)]
    return [_Question(rule.metric, rule.limit, rule.difference is not None) for rule in rules.values()]


def _explain_no_questions(
    sequential: Sequential, records: Mapping[str, CellRecord], cells: Sequence[Cell], spent: Reason | None
) -> str | None:
    """A group with nothing to decide (only the host, or only void cells) gets the minimum number of rounds.

    Cells that the host does not support get no rounds.
    """
    measured = [len(set(records[cell.id].rounds)) for cell in cells if records[cell.id].skipped is None]
    if max(measured, default=sequential.first) >= sequential.first:
        return "nothing to decide"
    return spent


class InterimAnalysis:
    """Looks at the measurements of a group on one host. The results are in `recorder`."""

    def __init__(self, spec: CampaignSpec, recorder: Recorder, measurer: Measurer) -> None:
        self._spec = spec
        self._recorder = recorder
        self._measurer = measurer

    def reason_to_stop(self, progress: GroupProgress, at: PreparedGroup) -> str | None:
        """Look at the rounds so far. Returns why no further round follows, in words; None to continue.

        Cells that need no further round are settled in `progress`.
        """
        plan, group = progress.plan, progress.group
        spent = progress.spent
        # Set before the records are made: they contain the look that decides the cells.
        progress.last_look = spent is not None
        records = self.assemble(progress, at, final=progress.last_look)
        progress.settle(find_settled(group.cells, records, ()))
        if progress.rounds < progress.fewest:
            return spent if spent in (Reason.BYTES, Reason.WRITES) else None
        most = progress.most
        if progress.rounds >= most:
            spent = spent or Reason.TIME
        looking = Looking(
            plan,
            progress.sequential,
            {cell.id: self._recorder.budgets(cell) for cell in group.cells},
            self._recorder.family,
            spent,
            progress.reachable,
        )
        cells = progress.open_cells
        longer = self._find_longer_slices(progress)
        if all(cell.job in longer for cell in cells):
            return Reason.CARRY_OVER
        reason = reason_to_stop(cells, records, looking)
        scenario = self._spec.scenarios[group.scenario]
        shares_rounds = any(of.shares_rounds and scenario.requests_of(of.table) for of in list_brought(FeatureTables))
        if reason is None and not shares_rounds:
            enough = [cell.id for cell in cells if cell.job in longer]
            enough += find_reasons_to_stop(cells, records, looking)
            progress.settle(find_settled(group.cells, records, enough))
        return reason or (Reason.MOST if progress.rounds >= most else None)

    def _find_longer_slices(self, progress: GroupProgress) -> dict[Job, float]:
        """The jobs that need longer slices. Between two looks there are none, because carry-over is tested at looks."""
        if progress.sequential.reaching(progress.rounds).look(progress.rounds, final=progress.last_look) is None:
            return {}
        group = progress.group
        return find_longer_slices(self._recorder.carry_over(group.id), self._recorder.of_group(group.id), group.jobs)

    def assemble(self, progress: GroupProgress, at: PreparedGroup, *, final: bool) -> dict[str, CellRecord]:
        """Record the group and its cells as measured so far. Returns the cells by id, without the correction.

        `final` means that no round follows for a reason that is not in the data.
        """
        group = progress.group
        measured = self._recorder.of_group(group.id)
        counted, _ = split_by_length(measured)
        orders = _list_orders(measured)
        record = GroupRecord(
            id=group.id,
            disk=group.disk,
            orders=tuple(orders.values()),
            looks=progress.sequential.looks,
            stopped=progress.stopped,
            conditioning=at.conditioning,
            drift=host_drift(counted),
            rounds=tuple(orders),
            abandoned=tuple(sorted(self._recorder.abandoned(group.id))),
            carry_over=find_carry_overs(
                measured, group.jobs, target=progress.plan.target, looks=len(progress.sequential.looks)
            ),
        )
        self._recorder.group(record)
        contexts = {cell.id: self._make_context(cell, progress, at, record, final=final) for cell in group.cells}
        return self._recorder.assemble(group.cells, contexts)

    def _make_context(
        self, cell: Cell, progress: GroupProgress, at: PreparedGroup, group: GroupRecord, *, final: bool
    ) -> CellContext:
        modes, reference = [other.mode for other in progress.group.cells], cell.mode.against
        measured, baseline = self._recorder.of_group(group.id), cell.by_role[Place.HOST].id
        bare = cell.mode.detail.has_bare_host
        drift = group.drift if bare else host_drift(split_by_length(measured)[0], baseline)
        return CellContext(
            host=self._spec.host.name,
            group=group.id,
            span_bytes=at.span,
            budgets=self._recorder.budgets(cell),
            sequential=progress.sequential,
            final=(final and progress.is_open(cell)) or progress.ended_before(cell),
            validity=tuple(drift_checks(drift, cell, modes)),
            effective=at.effective.get(cell.mode.name, NOTHING),
            against=at.effective.get(reference.name, NOTHING) if reference is not None else NOTHING,
            others=tuple(at.effective.get(volume.name, NOTHING) for volume in cell.mode.volumes[1:]),
            carried=tuple(carried for carried in group.carry_over if carried.job == cell.job.id),
            notes=(
                *self._measurer.restarts,
                *_describe_rounding(cell.job, at.block),
                *(why for job, why in progress.left_out.items() if job == cell.job),
                *drift_notes(drift, cell, modes),
                *(note for arm in cell.arms for note in at.notes.get(arm.id, ())),
            ),
            journal=next((mode.filesystem.count_journal for mode in modes if mode.filesystem is not None), None),
            skipped=at.why_skipped(cell),
            check=self._spec.check,
        )


def _describe_rounding(job: Job, block: int) -> Iterator[str]:
    """Which block sizes of the job the disk cannot do. Patterns with one size are not rounded up."""
    several = job.block_sizes if job.sizes or job.from_file else ()
    smaller = [format_size(size) for size in several if size % block]
    if smaller:
        yield f"blocks of {', '.join(smaller)} are rounded up to {format_size(block)}, the disk's logical block size"


def _list_orders(measurements: Sequence[Measurement]) -> dict[int, tuple[str, ...]]:
    rounds: dict[int, dict[str, None]] = {}
    for measurement in measurements:
        rounds.setdefault(measurement.round, {})[measurement.arm] = None
    return {number: tuple(rounds[number]) for number in sorted(rounds)}


_PERCENTILES: Mapping[Calls, Sequence[Metric]] = {
    of: [metric for metric in METRICS.values() if metric.quantile is not None and metric.of == of]
    for of in get_args(Calls)
}
"""From the lowest to the highest."""
_MEANS: Mapping[Calls, str] = {"ios": "clat_mean", "syncs": "sync_mean"}


def warn_out_of_reach(
    plan: Plan, group: Group, budgets: Mapping[str, Iterable[Budget]], measured: Sequence[Measurement]
) -> Iterator[str]:
    """One sentence with the remedy for each job and percentile with a budget that gets too few I/Os for an interval.

    `budgets` are by cell id. The I/Os of a block are those in `measured`, the measurements of the group so far. Without
    any, the job's fixed rate gives them, and jobs at full speed are left out.
    """
    rounds = plan.most_rounds_of(group)
    for (job, of_job), (of, percentiles) in product(_group_by_job(group.cells).items(), _PERCENTILES.items()):
        slowest = _find_slowest(
            job, {arm.id for cell in of_job for arm in cell.arms if arm.place is not Place.REFERENCE}, measured, of
        )
        if slowest is None:
            continue
        arm, ios = slowest
        needed = {
            metric: fewest_rounds(ios, metric.fewest_ios, group.blocks, reboot=plan.reboots(group))
            for metric in percentiles
        }
        reached = [metric.name for metric, least in needed.items() if least is not None and least <= rounds]
        judged = {rule.metric for cell in of_job for rule in budgets.get(cell.id, ())}
        for metric, least in needed.items():
            if metric.name in judged and metric.name not in reached:
                yield (
                    f"{group.id}: {job.id} has a budget for {metric.name} that cannot be judged: {arm} completes about "
                    f"{ios:.0f} I/Os in a block, so the {metric.fewest_ios} I/Os that it needs take "
                    f"{least or 'too many'} rounds, and the plan has at most {rounds}; "
                    f"{_suggest_remedy(plan, least)}, or set the budget for {reached[-1] if reached else _MEANS[of]}"
                )


def _group_by_job(cells: Iterable[Cell]) -> dict[Job, list[Cell]]:
    by_job: dict[Job, list[Cell]] = {}
    for cell in cells:
        by_job.setdefault(cell.job, []).append(cell)
    return by_job


def _find_slowest(job: Job, arms: set[str], measured: Sequence[Measurement], of: Calls) -> tuple[str, float] | None:
    """The arm of the job that completes the fewest I/Os in a block, and their mean number; None if it is not known."""
    counted: dict[str, list[int]] = {}
    for measurement in measured:
        if measurement.job == job.id and measurement.arm in arms:
            counted.setdefault(measurement.arm, []).append(sum(read_histogram(measurement, of).values()))
    if counted:
        return min(((arm, fmean(ios)) for arm, ios in counted.items()), key=lambda arm_ios: arm_ios[1])
    return None if job.rate is None or of != "ios" else ("every arm", job.rate * job.seconds)


def _suggest_remedy(plan: Plan, rounds: int | None) -> str:
    if rounds is None or rounds > MOST_ROUNDS:
        return "use longer slices (runtime)"
    minutes = math.ceil(plan.seconds_of(rounds) / 60)
    return f"measure {rounds} rounds (--rounds={rounds}, or --time={minutes}min)"


FULL_QUEUES = 1.5
"""The fewest I/Os of a slice for each I/O in flight. In shorter slices, the queue mostly fills and drains, and a
submission that stalls once ends a slice with its first I/O."""
_FULL_QUEUES_OF_LONGER = 5
"""The time of longer slices, in that of an I/O behind a full queue. Mean latencies are then a twelfth too low."""
_LONGEST_SECONDS = 5.0


def find_short_slices(measured: Sequence[Measurement], jobs: Iterable[Job]) -> dict[Job, Length]:
    """The jobs with an arm whose I/Os are too slow for its slices, and what these must have beyond the plan's.

    `measured` is that of a group. Its first round decides, so that a resumed run finds the same. A job's slices become
    longer once, and have a whole multiple of the planned seconds. Behind a full queue, an I/O takes depth / IOPS: at
    most twice the mean latency of a queue that only fills and drains. Slices that stalled have few I/Os, so both count.
    """
    first = min((measurement.round for measurement in measured), default=0)
    longer = {}
    for job in jobs:
        of_job = [measurement for measurement in measured if measurement.job == job.id]
        if not job.is_saturating or any(measurement.longer_s for measurement in of_job):
            continue
        by_arm: dict[str, list[tuple[float, ...]]] = {}
        for measurement in of_job:
            iops, latency = measurement.metrics.get("iops"), measurement.metrics.get("lat_mean")
            if measurement.round == first and iops and latency:
                figures = iops * measurement.seconds, min(job.depth / iops, 2 * latency)
                by_arm.setdefault(measurement.arm, []).append(figures)
        medians = [tuple(map(median, zip(*slices, strict=True))) for slices in by_arm.values()]
        full = max((seconds for ios, seconds in medians if ios < FULL_QUEUES * job.depth), default=0.0)
        times = math.ceil(min(_FULL_QUEUES_OF_LONGER * full, _LONGEST_SECONDS) / job.seconds)
        if times > 1:
            longer[job] = Length(longer_s=round((times - 1) * job.seconds, 6))
    return longer


def find_overlapped(
    plan: Plan, group: Group, job: Job, records: Mapping[str, CellRecord], measured: Sequence[Measurement]
) -> dict[str, int]:
    """The cells of the job that have fewer than two blocks that count, although more were measured: slices overlapped.

    By the cell's id, how many of its blocks were lost. A cell that is void for another reason does not count: it would
    be void again. Once a job was measured for twice the plan's fewest rounds, it is not measured again.
    """
    blocks = {(measurement.round, measurement.block) for measurement in measured if measurement.job == job.id}
    void = {
        (measurement.round, measurement.block)
        for measurement in measured
        if measurement.job == job.id and measurement.overlap is not None
    }
    cells = [records[cell.id] for cell in group.cells if cell.job == job]
    usable = [record for record in cells if record.skipped is None and record.verdict is not Verdict.VOID]
    enough = min(FEWEST_SAMPLES, len(blocks))
    if not void or len(blocks) >= 2 * plan.rounds * group.blocks:
        return {}
    return {record.id: len(blocks) - len(record.rounds) for record in usable if len(record.rounds) < enough}
