"""The ordinary policy: rounds of a group until all of its jobs are decided, then those of jobs to measure again."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from harness.analysis import Reason
from harness.errors import Unsupported
from harness.events import Note
from harness.measure.interim_analysis import GroupProgress, InterimAnalysis, out_of_reach
from harness.measure.pauses import Pauses
from harness.measure.phases import Phases
from harness.measure.recorder import Recorder
from harness.measure.reruns import Again, Cost, bytes_left, fio_seconds, jobs_again, within_promises, written
from harness.measure.resume import Earlier
from harness.measure.series import LimitReached, Measurer, Policy, PreparedGroup, Round, StepLimit
from harness.measure.spec import CampaignSpec
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import Measurement, RunStore
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import ScheduledArm, timetables


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
        """The same for a series of this group."""
        return SeriesContext(
            **{field.name: getattr(self, field.name) for field in fields(self)}, plan=plan, group=group
        )


@dataclass(frozen=True, slots=True)
class SeriesContext(RunContext):
    """What the policies of a group work with."""

    plan: Plan
    group: Group


class FollowingSeries(Policy, Protocol):
    """A series that follows the rounds of a group. `title` describes it to the user, its time counts for `phase`."""

    phase: str
    title: str


def planned_round(
    context: SeriesContext,
    arms: Mapping[Job, Sequence[ScheduledArm]],
    pauses: Pauses,
    *,
    rotational: bool,
    measured: Callable[[Sequence[Measurement]], None] = lambda _measurements: None,
    further: int | None = None,
    seconds_left: Callable[[], float] = lambda: 0.0,
) -> Round:
    """The next round of the group with these arms of each job. It is in the journal from its beginning to its end.

    The recorder gets the measurements of each timetable, `pauses` learns from them, and `measured` is called with them.
    """
    recorder, group = context.recorder, context.group
    number = recorder.next_round(group.id)
    before = recorder.of_group(group.id)

    def pause(job: Job, arm: Arm) -> float:
        return pauses.after(job, in_guest=arm.in_guest, rotational=rotational, arm=arm)

    def record(measurements: Sequence[Measurement]) -> None:
        recorder.add(measurements, fio_seconds=fio_seconds(group, measurements))
        pauses.learn(measurements)
        measured(measurements)

    chance = random.Random(f"round {context.spec.seed} {group.id} {number}")
    tables = timetables(
        arms, group.blocks, chance=chance, pause=pause, backup_tail=pauses.after_backup, short_first=not before
    )
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
        recorded=recorder.round(group.id, number, sum(len(table.slices) for table in tables)),
        backup_tail=lambda: pauses.after_backup,
        quiet=lambda: pauses.jitter,
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
        limits: Sequence[StepLimit],
        seconds_after: Callable[[], float],
    ) -> None:
        self._context = context
        self._recorder = context.recorder
        self._analysis = InterimAnalysis(context.spec, context.recorder, context.measurer)
        self._limits = limits
        self._seconds_after = seconds_after
        self._stored = deque(context.earlier.rounds(context.group.id))
        self._progress = GroupProgress(context.group, context.plan, started=time.monotonic())
        self._first_ended: float | None = None
        """When the first series ended, on the monotonic clock."""
        self._complete = False
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
        self._count_round(prepared)
        for limit in self._limits:
            limit.record()
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
            self._count_round(prepared)

    def _count_round(self, prepared: PreparedGroup) -> None:
        """Count a round, and decide whether another one follows."""
        progress = self._progress
        progress.rounds += 1
        refused = None if self._stored else self._find_refusal(prepared)
        if refused is not None and self._continue_with_reads(*refused):
            refused = None
        progress.no_room = refused is not None
        if progress.rounds == 1:
            self._warn_of_few_ios()
        progress.stopped = self._analysis.reason_to_stop(progress, prepared)
        if refused is not None and Reason.WRITES in (progress.stopped or ""):
            limit, refusal = refused
            limit.note_refusal(refusal)

    def _find_refusal(self, prepared: PreparedGroup) -> tuple[StepLimit, LimitReached] | None:
        """The first limit that does not allow another round, and why."""
        progress = self._progress
        for limit in self._limits:
            refusal = limit.find_refusal(progress.plan, progress.group, _open_arms(progress, prepared))
            if refusal is not None:
                return limit, refusal
        return None

    def _continue_with_reads(self, limit: StepLimit, refusal: LimitReached) -> bool:
        """End the jobs that write, and continue with those that only read. False if none can continue."""
        progress = self._progress
        writing = [cell for cell in progress.open_cells if cell.writes]
        last = progress.rounds >= progress.plan.most_rounds_of(progress.group)
        if last or len(writing) == len(progress.open_cells):
            return False
        limit.note_refusal(refusal)
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
        while wanted := jobs_again(plan, group, carry_over, records, measured, without=progress.left_out):
            begun = _find_begun(wanted, self._stored)
            left = Cost(self._compute_bytes_left(begun), progress.seconds_left)
            again, left_out = within_promises(
                wanted, plan, group, measured, left=left, begun={measurement.job for measurement in begun}
            )
            for job, why in left_out.items():
                self._context.phases.events(Note(f"{group.id}: {job.id}: {why}"))
            progress.left_out.update(left_out)
            if again.discarded:
                self._context.phases.events(Note(again.what))
                return progress.followed_by(again.discarded, left.bytes, cells=again.cells, rounds=again.rounds)
        return None

    def _compute_bytes_left(self, begun: Sequence[Measurement]) -> float:
        """The bytes that the next series may write. If it was begun earlier, this round is its first one."""
        plan, group = self._context.plan, self._context.group
        ran = {other.id: self._recorder.ran(other.id) for other in plan.groups}
        if begun:
            ran[group.id] = self._recorder.ran(group.id, before=begun[0].round)
        return bytes_left(plan, group, ran, self._context.measured)

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
        for warning in out_of_reach(self._context.plan, group, budgets, measured):
            self._context.phases.events(Note(warning))

    def _plan_round(self, prepared: PreparedGroup) -> Round:
        """The next round of the group. It is in the journal from its beginning to its end."""
        progress = self._progress

        def count_bytes(measurements: Sequence[Measurement]) -> None:
            progress.written += written(measurements, progress.plan.span)

        return planned_round(
            self._context,
            _open_arms(progress, prepared),
            progress.pauses,
            rotational=prepared.rotational,
            measured=count_bytes,
            further=progress.further,
            seconds_left=self._seconds_after,
        )


def _find_begun(again: Again, stored: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """What an earlier part of the run measured of these jobs in the first round of their series; empty without one."""
    jobs = {(job.id, discarded) for job, discarded in again.discarded.items()}
    of_jobs = (
        [measurement for measurement in measurements if (measurement.job, measurement.discarded_s) in jobs]
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
            if prepared.supports(arm) and scheduled not in (of_job := arms.setdefault(progress.as_run(cell.job), [])):
                of_job.append(scheduled)
    return arms
