"""Measures a group in series of rounds: all its jobs until they are decided, those to measure again, and searches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from harness.analysis import Reason
from harness.events import Note
from harness.measure.again import Again, jobs_again
from harness.measure.breakdowns import Breakdowns
from harness.measure.group_progress import GroupProgress
from harness.measure.looks import Looks
from harness.measure.measurer import Measurer, Prepared
from harness.measure.phases import MEASURE, Phases
from harness.measure.promises import Cost, bytes_left, within_promises, written
from harness.measure.reach import out_of_reach
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier
from harness.measure.rounds import Round, Rounds, planned_round
from harness.measure.searching import Searches
from harness.measure.spec import CampaignSpec
from harness.measure.timing import Timing
from harness.measure.write_limit import WriteLimit, WritesSpent
from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import Turn


class GroupSeries:
    """Measures the groups of one host, each in one series of rounds or several. `earlier` has the rounds that count."""

    def __init__(
        self,
        spec: CampaignSpec,
        recorder: Recorder,
        rounds: Rounds,
        measurer: Measurer,
        *,
        phases: Phases,
        earlier: Earlier,
        limit: WriteLimit,
        timing: Timing,
    ) -> None:
        self._limit = limit
        self._timing = timing
        self.again_seconds = 0.0
        """The time for which jobs were measured again."""
        self._left_after: Callable[[], float] = lambda: 0.0
        """The time of everything after the group that is measured."""
        self._spec = spec
        self._recorder = recorder
        self._rounds = rounds
        self._looks = Looks(spec, recorder, measurer)
        self._phases = phases
        self._events = phases.events
        self._earlier = earlier
        self._searches = Searches(spec, recorder, rounds, phases=phases, earlier=earlier)
        self._breakdowns = Breakdowns(spec, recorder, rounds, measurer, phases=phases)

    def measure(self, group: Group, plan: Plan, at: Prepared, ended: Collection[str]) -> None:
        """Measure a group that is prepared. The recorder gets everything. Raises what the measurer raises.

        `ended` are the ids of the groups that are not measured further. What they left of the bytes that the plan
        promised may be used to measure jobs again.
        """
        stored = deque(self._earlier.rounds(group.id))
        progress = GroupProgress(group, plan, started=time.monotonic())
        self._warn_of_few_ios(progress)
        self._left_after = lambda: self._timing.after(group, ended)
        with self._phases.step(MEASURE, f"measure {group.id}"):
            at = self._measure_series(progress, at, stored)
            first = time.monotonic()
            while following := self._next_series(progress, stored, ended):
                progress = following
                while stored and not progress.has(stored[0]):
                    stored.popleft()  # The series before needs fewer rounds than when the run was interrupted.
                at = self._measure_series(progress, at, stored)
            if progress.left_out:
                self._looks.assemble(progress, at, final=progress.last_look)
            self.again_seconds += time.monotonic() - first
        self._searches.measure(group, plan, at)
        self._breakdowns.measure(group, plan, at)

    def _next_series(
        self, progress: GroupProgress, stored: deque[list[Measurement]], ended: Collection[str]
    ) -> GroupProgress | None:
        """The series for the jobs that must be measured again and keep the plan's promises. Other jobs are left out."""
        group, plan = progress.group, progress.plan
        measured = self._recorder.of_group(group.id)
        records = self._recorder.records_of(group.cells)
        found = self._recorder.carry_over(group.id)
        while wanted := jobs_again(plan, group, found, records, measured, without=progress.left_out):
            begun = _begun(wanted, stored)
            left = Cost(self._bytes_left(plan, group, begun, ended), progress.seconds_left)
            again, left_out = within_promises(
                wanted, plan, group, measured, left=left, begun={each.job for each in begun}
            )
            for job, why in left_out.items():
                self._events(Note(f"{group.id}: {job.id}: {why}"))
            progress.left_out.update(left_out)
            if again.discarded:
                self._events(Note(again.what))
                return progress.followed_by(again.discarded, left.bytes, cells=again.cells, rounds=again.rounds)
        return None

    def _bytes_left(self, plan: Plan, group: Group, begun: Sequence[Measurement], ended: Collection[str]) -> float:
        """The bytes that the next series may write. If it was begun earlier, this round is its first one."""
        ran = {each.id: self._recorder.ran(each.id) for each in plan.groups}
        if begun:
            ran[group.id] = self._recorder.ran(group.id, before=begun[0].round)
        return bytes_left(plan, group, ran, ended)

    def _measure_series(self, progress: GroupProgress, at: Prepared, stored: deque[list[Measurement]]) -> Prepared:
        """Measure rounds until no more are necessary. `stored` are the rounds of an earlier part that are left."""
        group, plan = progress.group, progress.plan
        try:
            while progress.stopped is None:
                if stored and not progress.has(stored[0]):
                    # Its time was spent, which the values do not show.
                    progress.stopped = Reason.TIME
                    break
                if new := not stored:
                    at = self._rounds.measure(plan, group, at, lambda at: self._next_round(progress, at))
                else:
                    earlier = stored.popleft()
                    self._recorder.take_over(earlier)
                    progress.written += written(earlier, plan.span)
                    progress.pauses.learn(earlier)
                    until = earlier[0].round if stored else None
                    progress.earlier = max(self._earlier.seconds(group.id, until) - progress.before, 0.0)
                progress.rounds += 1
                lacking = None if stored else self._limit.lacking(plan, group, _turns(progress, at))
                if lacking is not None and self._only_reads(progress, lacking):
                    lacking = None
                progress.no_room = lacking is not None
                if progress.rounds == 1:
                    self._warn_of_few_ios(progress)
                progress.stopped = self._looks.reason_to_stop(progress, at)
                if lacking is not None and Reason.WRITES in (progress.stopped or ""):
                    self._limit.ended(lacking)
                if new:
                    self._limit.record()
                    self._recorder.write_if_due()
        except WritesSpent as error:
            if not self._recorder.of_group(group.id):
                raise
            progress.stopped, progress.last_look = Reason.WRITES, True
            progress.left_out |= {cell.job: error.message for cell in progress.open_cells if cell.writes}
        finally:
            self._looks.assemble(progress, at, final=progress.stopped is None or progress.last_look)
        return at

    def _only_reads(self, progress: GroupProgress, lacking: WritesSpent) -> bool:
        """End the jobs that write, and continue with those that only read. False if none can continue."""
        writing = [cell for cell in progress.open_cells if cell.writes]
        last = progress.rounds >= progress.plan.most_rounds_of(progress.group)
        if last or len(writing) == len(progress.open_cells):
            return False
        self._limit.ended(lacking)
        progress.left_out.update({cell.job: lacking.message for cell in writing})
        progress.end(cell.id for cell in writing)
        return True

    def _warn_of_few_ios(self, progress: GroupProgress) -> None:
        """Name the percentiles with a budget that too few I/Os keep from being judged: at fixed rates before the first
        round, at full speed after it."""
        group = progress.group
        measured = self._recorder.of_group(group.id)
        budgets = {
            cell.id: tuple(self._recorder.budgets(cell).values())
            for cell in group.cells
            if (cell.job.rate is None) == bool(measured)
        }
        for warning in out_of_reach(progress.plan, group, budgets, measured):
            self._events(Note(warning))

    def _next_round(self, progress: GroupProgress, at: Prepared) -> Round:
        """The next round of the group. It is in the journal from its beginning to its end."""

        def measured(measurements: Sequence[Measurement]) -> None:
            progress.written += written(measurements, progress.plan.span)

        return planned_round(
            self._recorder,
            progress.group,
            _turns(progress, at),
            progress.pauses,
            seed=self._spec.seed,
            rotational=at.rotational,
            measured=measured,
            further=progress.further,
            seconds_left=self._left_after,
        )


def _begun(again: Again, stored: Iterable[Sequence[Measurement]]) -> list[Measurement]:
    """What an earlier part of the run measured of these jobs in the first round of their series; empty without one."""
    jobs = {(job.id, discarded) for job, discarded in again.discarded.items()}
    own = (
        [measurement for measurement in measurements if (measurement.job, measurement.discarded_s) in jobs]
        for measurements in stored
    )
    return next(filter(None, own), [])


def _turns(progress: GroupProgress, at: Prepared) -> dict[Job, list[Turn]]:
    """The arms of each job that a further round needs: those of cells that are not settled.

    Modes that this host does not support have no arms, and so have cells whose job their guest cannot run.
    """
    turns: dict[Job, list[Turn]] = {}
    for cell in progress.open_cells:
        for arm in cell.arms if cell.id not in at.unable else ():
            turn = Turn(arm)
            if at.supports(arm) and turn not in (own := turns.setdefault(progress.as_run(cell.job), [])):
                own.append(turn)
    return turns
