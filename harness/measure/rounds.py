"""The ordinary policy: rounds of a group until all of its jobs are decided, then those of jobs to measure again."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol

from harness.analysis import Reason
from harness.errors import Unsupported
from harness.events import Note
from harness.measure.interim_analysis import (
    GroupProgress,
    InterimAnalysis,
    find_overlapped,
    find_short_slices,
    warn_out_of_reach,
)
from harness.measure.phases import MEASURE, Pauses, Phases
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier
from harness.measure.series import (
    CampaignSpec,
    LimitReached,
    Measurer,
    OpenSession,
    Policy,
    PreparedGroup,
    Round,
    SpecialStep,
    Step,
    StepLimit,
)
from harness.model.job import Job
from harness.model.mode import Arm
from harness.results import CellRecord, Measurement, RunStore
from harness.results.journal import Length, RoundEvent
from harness.results.records import CarryOverRecord
from harness.results.validity import find_longer_slices, split_by_length
from harness.scenario.plan import FIO_SHARE, Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, timetables
from harness.units import format_duration, format_size

_FIRST_TOGETHER = 2
"""The most rounds that are measured before it is known whether slices are long enough."""


class Cause(StrEnum):
    """Why jobs are measured again."""

    SHORT = "slices were short for their I/Os"
    CARRY_OVER = "carry-over between the arms"
    OVERLAP = "slices overlapped"


@dataclass(frozen=True, slots=True)
class Again:
    """Jobs that are measured again, with what their slices then have beyond the plan's.

    If slices overlapped, only the `cells` with these ids are measured, which have too few blocks, for so many `rounds`.
    """

    cause: Cause
    lengths: Mapping[Job, Length]
    cells: frozenset[str] | None = None
    rounds: int | None = None

    def arms(self, group: Group, job: Job) -> frozenset[str]:
        cells = (cell for cell in group.cells if cell.job == job and (self.cells is None or cell.id in self.cells))
        return frozenset(arm.id for cell in cells for arm in cell.arms)

    @property
    def what(self) -> str:
        lengths = self.lengths.items()
        match self.cause:
            case Cause.SHORT:
                jobs = ", ".join(f"{job.id} ({length.longer_s:g} s)" for job, length in lengths)
                return f"{self.cause}, which took longer than a slice: measured again in slices longer by: {jobs}"
            case Cause.CARRY_OVER:
                jobs = ", ".join(f"{job.id} ({length.discarded_s:g} s)" for job, length in lengths)
                return f"{self.cause}: measured again without the beginning of each slice: {jobs}"
            case Cause.OVERLAP:
                number, jobs = len(self.cells or ()), ", ".join(job.id for job in self.lengths)
                return f"{self.cause}: {number} {'cell' if number == 1 else 'cells'} measured again: {jobs}"


def find_jobs_again(
    plan: Plan,
    group: Group,
    carry_over: Sequence[CarryOverRecord],
    records: Mapping[str, CellRecord],
    measured: Sequence[Measurement],
    *,
    without: Collection[Job] = (),
) -> Again | None:
    """The jobs of the next series: those that need longer slices, else those of which too few blocks count.

    `carry_over` and `measured` are those of the group. `records` is by cell id. The jobs `without` are left out.
    """
    jobs = [job for job in group.jobs if job not in without]
    if short := find_short_slices(measured, jobs):
        return Again(Cause.SHORT, short)
    longest = {
        job: max((measurement.length for measurement in measured if measurement.job == job.id), default=Length())
        for job in jobs
    }
    if longer := find_longer_slices(carry_over, measured, jobs):
        lengths = {job: longest[job]._replace(discarded_s=seconds) for job, seconds in longer.items()}
        return Again(Cause.CARRY_OVER, lengths)
    few = {job: cells for job in jobs if (cells := find_overlapped(plan, group, job, records, measured))}
    if not few:
        return None
    lost = max(lost for cells in few.values() for lost in cells.values())
    ids = frozenset(cell for cells in few.values() for cell in cells)
    return Again(
        Cause.OVERLAP,
        {job: longest[job] for job in few},
        cells=ids,
        rounds=min(math.ceil(lost / group.blocks), plan.rounds),
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """The bytes that measuring writes to the disks, and its time in seconds. Also what is left of the two."""

    bytes: float
    seconds: float

    def less(self, other: Cost) -> Cost:
        return Cost(self.bytes - other.bytes, self.seconds - other.seconds)


def written(measurements: Iterable[Measurement], span: int) -> float:
    """The bytes that these slices wrote to the disks: by the host's counters, else by fio.

    What is in the host's cache when a slice ends is written later. It counts, and is at most `span`, the size of a
    region.
    """
    total = 0
    for measurement in measurements:
        fio, disk = measurement.counters.fio.written, measurement.counters.disk
        total += fio if disk is None else max(disk.written, min(fio, disk.written + span))
    return total


def compute_bytes_left(
    plan: Plan, group: Group, ran: Mapping[str, Iterable[Measurement]], ended: Collection[str]
) -> float:
    """The bytes that further series of `group` may write, so that the run writes at most `plan.write_bytes`.

    `ran` has everything that ran of each group of the plan, by the group's id, also in rounds that do not count.
    `ended` are the ids of the groups that are not measured further. For all others, their part of the promise is
    reserved. The part for conditioning is spent.
    """
    left = 0.0
    for other in plan.groups:
        used = written(ran[other.id], plan.span)
        left += (
            plan.bytes_of(other) - used if other == group or other.id in ended else min(plan.bytes_of(other) - used, 0)
        )
    return left


def keep_promises(
    again: Again, plan: Plan, group: Group, measured: Sequence[Measurement], *, left: Cost, begun: Collection[str]
) -> tuple[Again, dict[Job, str]]:
    """The jobs of `again`, in order, whose fewest rounds fit into what is `left`. For each other job, the reason.

    `measured` are the measurements of the group that count. The jobs are expected to write as much per second of fio
    as in their last series. `begun` are the ids of the jobs that an earlier part of the run has begun to measure again.
    """
    kept, left_out = {}, {}
    for job, length in again.lengths.items():
        cost = _estimate_cost(again, plan, group, job, measured)
        if job.id not in begun and (why := _explain_excess(again, plan, job, cost, left)):
            left_out[job] = why
        else:
            kept[job] = length
            left = left.less(cost)
    return replace(again, lengths=kept), left_out


def _estimate_cost(again: Again, plan: Plan, group: Group, job: Job, measured: Iterable[Measurement]) -> Cost:
    """The cost of the rounds in which the job is measured again, on those of the arms that it was measured on."""
    by_arm: dict[str, list[Measurement]] = {}
    arms = again.arms(group, job)
    for measurement in split_by_length(of_job for of_job in measured if of_job.job == job.id)[0]:
        if measurement.arm in arms:
            by_arm.setdefault(measurement.arm, []).append(measurement)
    rounds = plan.rounds if again.rounds is None else again.rounds
    seconds = rounds * group.blocks * (job.wall + sum(again.lengths[job]))
    ran = ((written(of_arm, plan.span), add_fio_seconds(group, of_arm)) for of_arm in by_arm.values())
    rate = sum(moved / took for moved, took in ran if took > 0)
    writes = any(cell.writes for cell in group.cells if cell.job.id == job.id)
    return Cost(rate * seconds if writes else 0.0, len(by_arm) * seconds / FIO_SHARE)


def _explain_excess(again: Again, plan: Plan, job: Job, cost: Cost, left: Cost) -> str | None:
    """Why the job is not measured again, with the remedy; None if its cost is within what is left."""
    what = f"{again.cause}: not measured again"
    if cost.bytes > max(left.bytes, 0):
        length, remedy = again.lengths[job], "use --rounds"
        if again.cause is Cause.SHORT:
            remedy = f'set runtime = "{job.seconds + length.longer_s:g} s" in the profile'
        elif again.cause is Cause.CARRY_OVER:
            remedy = f'set ramp = "{job.ramp + length.discarded_s:g} s" in the profile'
        return (
            f"{what}, because this would write {format_size(cost.bytes)} or more: of the "
            f"{format_size(plan.write_bytes)} that the plan promised to write at most, "
            f"{format_size(max(left.bytes, 0))} are left; {remedy}, which the plan then counts"
        )
    if cost.seconds > left.seconds:
        return (
            f"{what}, because this would take {format_duration(cost.seconds)} or more: of the time limit of its group, "
            f"{format_duration(max(left.seconds, 0))} are left; use a longer --time, or time_limit in the profile"
        )
    return None


def add_fio_seconds(group: Group, measurements: Sequence[Measurement]) -> float:
    """Seconds in which fio ran, including ramps. Time in which several slices ran counts once."""
    ramps = {job.id: job.ramp for job in group.jobs}
    seconds, ended = 0.0, 0.0
    for slice_ in sorted(measurements, key=lambda measurement: measurement.started):
        before = ramps[slice_.job] + slice_.discarded_s
        together = max(ended - (slice_.started - before), 0.0) if slice_.overlap is not None else 0.0
        seconds += max(before + slice_.seconds - together, 0.0)
        ended = max(ended, slice_.started + slice_.seconds)
    return seconds


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the limits and the policies of a run on one host work with.

    `earlier` has the rounds of an earlier part of the run that count, `measured` the ids of the groups that are not
    measured further, so far.
    """

    spec: CampaignSpec
    store: RunStore
    recorder: Recorder
    phases: Phases
    earlier: Earlier
    measurer: Measurer
    measured: Collection[str]

    def of_group(self, plan: Plan, group: Group) -> SeriesContext:
        return SeriesContext(
            **{field.name: getattr(self, field.name) for field in fields(self)}, plan=plan, group=group
        )


@dataclass(frozen=True, slots=True)
class SeriesContext(RunContext):
    plan: Plan
    group: Group


class FollowingSeries(Policy, Protocol):
    """A series that follows the rounds of a group. `title` describes it to the user, its time counts for `phase`."""

    phase: str
    title: str


@dataclass(kw_only=True)
class OneStepSeries(FollowingSeries):
    """A series whose only step is to `measure` something in the session of the group. Its record has this `id`.

    `skip` makes the record of what was not measured, `tell_problem` says of a record what the user must know at once.
    `writes` is as in `SpecialStep`.
    """

    context: SeriesContext
    id: str
    title: str
    measure: Callable[[OpenSession], Any]
    skip: Callable[[str], Any]
    tell_problem: Callable[[Any], str | None] = lambda record: record.problem
    phase: str = MEASURE
    writes: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False

    def next_step(self, prepared: PreparedGroup) -> Step | None:  # noqa: ARG002 - a Policy
        if self.ended:
            return None
        failure = f"the lab failed while {self.id} was measured"
        plan, group = self.context.plan, self.context.group
        return SpecialStep(plan, group, failure, self._run, title=self.id, writes=self.writes)

    def handle_refusal(self, refusal: Unsupported) -> None:
        self._record(self.skip(refusal.with_hint))

    def _run(self) -> None:
        self._record(self.context.measurer.use_session(self.measure))

    def _record(self, record: Any) -> None:
        if problem := self.tell_problem(record):
            self.context.phases.events(Note(f"{self.id}: {problem}"))
        self.context.recorder.add_record(record)
        self.ended = True


def follow_once(
    recorder: Recorder, record: type, series: Iterable[tuple[OneStepSeries, str | None]]
) -> Iterator[FollowingSeries]:
    """Those of the series without a record of this class yet.

    A series that cannot be measured comes with the reason, which is recorded instead.
    """
    for one_step, why in series:
        if recorder.has_record(record, one_step.id):
            continue
        if why is None:
            yield one_step
        else:
            recorder.add_record(one_step.skip(why))
        recorder.write_if_due()


def plan_round(
    context: SeriesContext,
    arms: Mapping[Job, Sequence[ScheduledArm]],
    pauses: Pauses,
    *,
    rotational: bool,
    measured: Callable[[Sequence[Measurement]], None] = lambda _measurements: None,
    further: int | None = None,
    seconds_left: Callable[[], float] = lambda: 0.0,
    rounds: int = 1,
) -> Round:
    """The next round of the group with these arms of each job. It is in the journal from its beginning to its end.

    With several `rounds`, these are measured together.
    The recorder gets the measurements of each timetable, `pauses` learns from them, and `measured` is called with them.
    """
    recorder, group = context.recorder, context.group
    number = recorder.next_round(group.id)
    before = recorder.of_group(group.id)
    as_planned = {job.id: job for job in group.jobs}

    def pause(job: Job, arm: Arm) -> float:
        return pauses.after(as_planned[job.id], in_guest=arm.in_guest, rotational=rotational, arm=arm)

    def record(measurements: Sequence[Measurement]) -> None:
        recorder.add(measurements, fio_seconds=add_fio_seconds(group, measurements))
        pauses.learn(measurements)
        measured(measurements)

    chance = random.Random(f"round {context.spec.seed} {group.id} {number}")
    tables = timetables(
        arms, rounds * group.blocks, chance=chance, pause=pause, backup_tail=pauses.after_backup, short_first=not before
    )
    slices = sum(len(table.slices) for table in tables) // rounds
    by_job = {job.id: dict(Counter(turn.arm.id for turn in turns)) for job, turns in arms.items() if turns}
    begun = [RoundEvent("begun", group.id, nth, slices, None, by_job) for nth in range(number, number + rounds)]
    return Round(
        context.plan,
        group,
        number=number,
        nth=len({measurement.round for measurement in before}) + 1,
        tables=tables,
        pause=pause,
        record=record,
        seconds_left=seconds_left,
        further=further,
        recorded=recorder.rounds(begun),
        backup_tail=lambda: pauses.after_backup,
        quiet=lambda: pauses.jitter,
        rounds=rounds,
    )


class GroupRounds(Policy):
    """Chooses the rounds of a group: one series until all its jobs are decided, then others for jobs to measure again.

    Whole rounds of an earlier part of the run count first. What groups that are not measured further left of the bytes
    that the plan promised may be used to measure jobs again. `seconds_after` estimates the time of everything after the
    group.
    """

    def __init__(
        self,
        context: SeriesContext,
        *,
        limit: StepLimit,
        seconds_after: Callable[[], float],
    ) -> None:
        self._context = context
        self._recorder = context.recorder
        self._analysis = InterimAnalysis(context.spec, context.recorder, context.measurer)
        self._limit = limit
        self._seconds_after = seconds_after
        self._stored = deque(context.earlier.rounds(context.group.id))
        self._progress = GroupProgress(context.group, context.plan, started=time.monotonic())
        self._first_ended: float | None = None
        """When the first series ended, on the monotonic clock."""
        self._complete = False
        self._together = 1
        """The rounds that are measured next, or were measured last, without a decision between them."""
        self._warn_of_few_ios()

    @property
    def again_seconds(self) -> float:
        """The time since the first series, in which jobs were measured again."""
        return time.monotonic() - self._first_ended if self._first_ended is not None else 0.0

    def next_step(self, prepared: PreparedGroup) -> Round | None:
        while True:
            self._take_over_rounds(prepared)
            if self._progress.stopped is None:
                return self._plan_round(prepared)
            self._analysis.assemble(self._progress, prepared, final=self._progress.last_look)
            self._first_ended = self._first_ended or time.monotonic()
            following = self._plan_next_series()
            if following is None:
                break
            self._progress = following
            while self._stored and not following.has(self._stored[0]):
                self._stored.popleft()  # The series before needs fewer rounds than when the run was interrupted.
        if self._progress.left_out:
            self._analysis.assemble(self._progress, prepared, final=self._progress.last_look)
        self._complete = True
        return None

    def count_step(self, prepared: PreparedGroup) -> None:
        self._count_rounds(prepared, self._together)
        self._limit.record()
        self._recorder.write_if_due()

    def handle_refusal(self, refusal: Unsupported) -> None:
        progress = self._progress
        if not isinstance(refusal, LimitReached) or not self._recorder.of_group(progress.group.id):
            raise refusal
        progress.stopped, progress.last_look = Reason.WRITES, True
        progress.left_out |= {cell.job: refusal.message for cell in progress.open_cells if cell.writes}

    def end_series(self, prepared: PreparedGroup) -> None:
        progress = self._progress
        if not self._complete:
            self._analysis.assemble(progress, prepared, final=progress.stopped is None or progress.last_look)

    def _take_over_rounds(self, prepared: PreparedGroup) -> None:
        """Count the stored rounds of this series, until they decide it."""
        progress, group = self._progress, self._progress.group
        while self._stored and progress.stopped is None:
            if not progress.has(self._stored[0]):
                # Its time was spent, which the values do not show.
                progress.stopped = Reason.TIME
                return
            earlier = self._stored.popleft()
            self._recorder.take_over(earlier)
            progress.written += written(earlier, progress.plan.span)
            progress.pauses.learn(earlier)
            until = earlier[0].round if self._stored else None
            progress.earlier = max(self._context.earlier.seconds(group.id, until) - progress.before, 0.0)
            self._count_rounds(prepared, 1)

    def _count_rounds(self, prepared: PreparedGroup, number: int) -> None:
        progress = self._progress
        first = progress.rounds == 0
        progress.rounds += number
        refused = None
        if not self._stored:
            arms = _open_arms(progress, prepared)
            refused = self._limit.find_refusal(progress.plan, progress.group, arms)
        if refused is not None and self._continue_with_reads(refused):
            refused = None
        progress.no_room = refused is not None
        if first:
            self._warn_of_few_ios()
        progress.stopped = self._settle_short_slices() if first else None
        progress.stopped = progress.stopped or self._analysis.reason_to_stop(progress, prepared)
        if refused is not None and Reason.WRITES in (progress.stopped or ""):
            self._limit.note_refusal(refused)

    def _settle_short_slices(self) -> Reason | None:
        """Measure jobs no longer whose slices are short for their I/Os, if there is room for longer ones.

        Why to stop, if these are all jobs.
        """
        progress = self._progress
        open_jobs = {cell.job for cell in progress.open_cells}
        short = find_short_slices(self._recorder.of_group(progress.group.id), open_jobs)
        again, _ = self._keep_promises(Again(Cause.SHORT, short))
        progress.settle(cell.id for cell in progress.open_cells if cell.job in again.lengths)
        return Reason.CARRY_OVER if open_jobs == again.lengths.keys() else None

    def _keep_promises(self, wanted: Again) -> tuple[Again, Cost]:
        """The jobs that keep the plan's promises, and what is left for them. A note names each job that is left out."""
        progress = self._progress
        measured = self._recorder.of_group(progress.group.id)
        begun = _find_begun(wanted, self._stored)
        left = Cost(self._compute_bytes_left(begun), progress.seconds_left)
        ids = {measurement.job for measurement in begun}
        again, left_out = keep_promises(wanted, progress.plan, progress.group, measured, left=left, begun=ids)
        for job, why in left_out.items():
            self._context.phases.events(Note(f"{progress.group.id}: {job.id}: {why}"))
        progress.left_out.update(left_out)
        return again, left

    def _continue_with_reads(self, refusal: LimitReached) -> bool:
        """End the jobs that write, and continue with those that only read. False if none can continue."""
        progress = self._progress
        writing = [cell for cell in progress.open_cells if cell.writes]
        last = progress.rounds >= progress.plan.most_rounds_of(progress.group)
        if last or len(writing) == len(progress.open_cells):
            return False
        self._limit.note_refusal(refusal)
        progress.left_out.update({cell.job: refusal.message for cell in writing})
        progress.end(cell.id for cell in writing)
        return True

    def _plan_next_series(self) -> GroupProgress | None:
        """The series for the jobs that must be measured again and keep the plan's promises. Other jobs are left out."""
        progress = self._progress
        group, plan = progress.group, progress.plan
        measured = self._recorder.of_group(group.id)
        records = self._recorder.records_of(group.cells)
        carry_over = self._recorder.carry_over(group.id)
        while wanted := find_jobs_again(plan, group, carry_over, records, measured, without=progress.left_out):
            again, left = self._keep_promises(wanted)
            if again.lengths:
                self._context.phases.events(Note(again.what))
                return progress.make_next(again.lengths, left.bytes, cells=again.cells, rounds=again.rounds)
        return None

    def _compute_bytes_left(self, begun: Sequence[Measurement]) -> float:
        """The bytes that the next series may write. If it was begun earlier, this round is its first one."""
        plan, group = self._context.plan, self._context.group
        ran = {other.id: self._recorder.ran(other.id) for other in plan.groups}
        if begun:
            ran[group.id] = self._recorder.ran(group.id, before=begun[0].round)
        return compute_bytes_left(plan, group, ran, self._context.measured)

    def _warn_of_few_ios(self) -> None:
        """Name the percentiles with a budget that too few I/Os keep from being judged: at fixed rates before the first
        round, at full speed after it."""
        group = self._context.group
        measured = self._recorder.of_group(group.id)
        budgets = {
            cell.id: tuple(self._recorder.budgets(cell).values())
            for cell in group.cells
            if (cell.job.rate is None) == bool(measured)
        }
        for warning in warn_out_of_reach(self._context.plan, group, budgets, measured):
            self._context.phases.events(Note(warning))

    def _plan_round(self, prepared: PreparedGroup) -> Round:
        progress = self._progress
        left = progress.fewest - progress.rounds
        if not self._recorder.of_group(progress.group.id):
            left = min(left, _FIRST_TOGETHER)
        self._together = 1 if progress.lengths else progress.plan.count_together(progress.group, left)

        def count_bytes(measurements: Sequence[Measurement]) -> None:
            progress.written += written(measurements, progress.plan.span)

        return plan_round(
            self._context,
            _open_arms(progress, prepared),
            progress.pauses,
            rotational=prepared.rotational,
            measured=count_bytes,
            further=None if progress.further is None else progress.further + 1 - self._together,
            seconds_left=self._seconds_after,
            rounds=self._together,
        )


def _find_begun(again: Again, stored: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """What an earlier part of the run measured of these jobs in the first round of their series; empty without one."""
    jobs = {(job.id, length) for job, length in again.lengths.items()}
    of_jobs = (
        [measurement for measurement in measurements if (measurement.job, measurement.length) in jobs]
        for measurements in stored
    )
    return next(filter(None, of_jobs), [])


def _open_arms(progress: GroupProgress, prepared: PreparedGroup) -> dict[Job, list[ScheduledArm]]:
    """The arms of each job that a further round needs: those of cells that are not settled.

    Modes that this host does not support have no arms, and so have cells whose job their guest cannot run.
    """
    arms: dict[Job, list[ScheduledArm]] = {}
    for cell in progress.open_cells:
        for arm in cell.arms if cell.id not in prepared.unable else ():
            scheduled = ScheduledArm(arm)
            if prepared.supports(arm) and scheduled not in (of_job := arms.setdefault(progress.lengthen(cell.job), [])):
                of_job.append(scheduled)
    return arms
