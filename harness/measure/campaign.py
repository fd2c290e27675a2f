"""Measures everything of one run on one host: group after group, each in rounds of alternating slices."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis import Reason
from harness.errors import MeasurementError, NotTried, Unsupported
from harness.events import Note
from harness.measure.group_progress import GroupProgress
from harness.measure.looks import Looks
from harness.measure.measurer import LabFound, Measurer, Prepared
from harness.measure.pauses import pause_after
from harness.measure.phases import MEASURE, Phases
from harness.measure.reach import out_of_reach
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier, evaluation, requested
from harness.measure.rounds import Round, Rounds, fio_seconds
from harness.measure.session import NothingToCompare, require_guest
from harness.measure.spec import CampaignSpec
from harness.measure.stopping import jobs_to_repeat
from harness.model.job import Job
from harness.model.mode import Arm, Cell
from harness.results import CellContext, CellRecord, Measurement, Run, RunStatus, RunStore
from harness.results.carried import longer_slices
from harness.scenario.plan import FIO_SHARE, Group, Plan
from harness.scenario.timetable import Turn, timetables


class Campaign:
    """Measures on request. The first cell of a group starts the measurement of the group. The others read the results.

    Cells that the host does not support are skipped. If fio fails, the scenario's other cells get the first cause.
    After any other failure, all later cells on this host get it.
    """

    def __init__(
        self,
        spec: CampaignSpec,
        store: RunStore,
        measurer: Measurer,
        phases: Phases,
        earlier: Earlier | None = None,
    ) -> None:
        self.spec = spec
        self.store = store
        self._measurer = measurer
        self._phases = phases
        self._events = phases.events
        self._earlier = earlier or Earlier()
        self._rounds = Rounds(measurer, self._events, self._examined)
        self._recorder = Recorder(spec, store, phases, self._earlier.journal)
        self._looks = Looks(spec, self._recorder, measurer)
        self._recorder.describe({"asked": requested(spec), "evaluation": evaluation(spec)})
        self._broken: Exception | None = None
        self._failed: dict[str, Exception] = {}
        """The failure of each scenario that concerns only this scenario."""
        self._refused: dict[tuple[str, int], Unsupported] = {}
        """Why the host does not support a setup, by scenario and number of the setup."""
        self._measured: set[str] = set()
        self._reached = False
        self._finished = self._earlier.run if self._earlier.finished(spec) else None
        self._groups = {cell.id: (group, plan) for plan in spec.plans for group in plan.groups for cell in group.cells}

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record. Raises the error that stopped measuring, and NotTried with this cause for later cells."""
        if self._finished is not None:
            return self._finished.cell(cell.id)
        group, plan = self._groups[cell.id]
        if group.id not in self._measured:
            self._require_no_failure(group)
            try:
                self._measure(group, plan)
            except MeasurementError as error:
                self._failed[group.scenario] = error
                self._recorder.failed(error)
                raise
            except Exception as error:
                self._broken = error
                self._recorder.failed(error)
                raise
            finally:
                self._write("running")
        return self._recorder.records[cell.id]

    def _require_no_failure(self, group: Group) -> None:
        """Raise NotTried if an earlier failure prevents the measurement of the group."""
        scenario = self._failed.get(group.scenario)
        if cause := self._broken or scenario:
            what = f"host {self.spec.host.name}" if self._broken else f"scenario {group.scenario}"
            raise NotTried(f"not tried: {what} failed before: {str(cause).partition(chr(10))[0]}")

    def close(self, *, interrupted: bool) -> Run:
        """Take down everything that was built, and write the final results. Returns the stored run."""
        groups = {group.id for plan in self.spec.plans for group in plan.groups}
        whole = self._broken is None and not self._failed and self._measured == groups
        status: RunStatus = "complete" if whole else "failed"
        ended: RunStatus = "interrupted" if interrupted else status
        try:
            self._measurer.close()
        finally:
            run = self._complete(self._finished) if self._finished else self._write(ended)
        return run

    def _complete(self, finished: Run) -> Run:
        """A completely measured run, with the status `complete` also if it was killed before it could write that."""
        if finished.run.status != "complete":
            finished = replace(finished, run=replace(finished.run, status="complete", finished=time.time()))
            self.store.write_results(finished)
        return finished

    def _write(self, status: RunStatus) -> Run:
        """Store the current state. Keeps the results of an earlier part until the lab is known to be the same."""
        stored = self._earlier.run
        return self._recorder.write(status) if stored is None or self._reached else stored

    def _measure(self, group: Group, plan: Plan) -> None:
        self._earlier.require_same(self._recorder.provenance)
        self._write("running")  # --resume needs this from the moment when something is built.
        try:
            self._measure_rounds(group, plan, self._ready(group, plan))
        except Unsupported as refused:
            self._resume()
            self._skip(group, plan, refused)

    def _ready(self, group: Group, plan: Plan) -> Prepared:
        """Prepare the group. Raises Unsupported, also if the host refused a group of the same setup before."""
        setup = group.scenario, group.setup
        if refused := self._refused.get(setup):
            raise refused
        try:
            at = self._rounds.ready(plan, group)
        except Unsupported as error:
            self._refused[setup] = error
            raise
        require_guest([cell.mode for cell in group.cells], at.skipped)
        return at

    def _measure_rounds(self, group: Group, plan: Plan, at: Prepared) -> None:
        self._resume()
        self._recorder.describe(at.provenance)
        self._write("running")  # The provenance is stored before anything is measured.
        stored = deque(self._earlier.rounds(group.id))
        progress = GroupProgress(group, plan, started=time.monotonic())
        self._warn_of_few_ios(progress)
        with self._phases.step(MEASURE, f"measure {group.id}"):
            at = self._measure_series(progress, at, stored)
            while following := self._next_series(progress):
                progress = following
                at = self._measure_series(progress, at, stored)
        self._measured.add(group.id)

    def _next_series(self, progress: GroupProgress) -> GroupProgress | None:
        """What is measured again: jobs with carry-over in longer slices, then jobs of which too few blocks count."""
        group = progress.group
        measured = self._recorder.of_group(group.id)
        if discarded := longer_slices(self._recorder.carry_over(group.id), measured, group.jobs):
            self._events(Note(_longer(discarded)))
            return progress.followed_by(discarded)
        records = {cell.id: self._recorder.records[cell.id] for cell in group.cells}
        jobs = jobs_to_repeat(progress.plan, group, records, measured)
        if not jobs:
            return None
        self._events(Note(f"slices of {', '.join(job.id for job in jobs)} overlapped: measured again"))
        return progress.followed_by({job: progress.discarded.get(job, 0.0) for job in jobs})

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
                    self._recorder.add(earlier, fio_seconds=0.0)
                    until = earlier[0].round if stored else None
                    progress.earlier = max(self._earlier.seconds(group.id, until) - progress.before, 0.0)
                progress.rounds += 1
                if progress.rounds == 1:
                    self._warn_of_few_ios(progress)
                progress.stopped = self._looks.reason_to_stop(progress, at)
                if new:
                    self._write("running")
        finally:
            self._looks.assemble(progress, at, final=progress.stopped is None or progress.last_look)
        return at

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
        group = progress.group
        number = self._recorder.next_round(group.id)
        measured = self._recorder.of_group(group.id)
        tables = timetables(
            self._turns(progress, at),
            group.blocks,
            chance=random.Random(f"round {self.spec.seed} {group.id} {number}"),
            pause=lambda job: pause_after(job, measured, rotational=at.rotational),
        )

        def record(measurements: Sequence[Measurement]) -> None:
            self._recorder.add(measurements, fio_seconds=fio_seconds(group, measurements))

        return Round(
            number=number,
            nth=len({each.round for each in measured}) + 1,
            tables=tables,
            record=record,
            seconds_left=self._seconds_left,
            recorded=self._recorder.round(group.id, number, sum(len(table.slices) for table in tables)),
        )

    def _turns(self, progress: GroupProgress, at: Prepared) -> dict[Job, list[Turn]]:
        """The arms of each job that a further round needs: those of cells that are not settled.

        Modes that this host does not support have no arms.
        """
        turns: dict[Job, list[Turn]] = {}
        for cell in progress.open_cells:
            for arm in cell.arms:
                turn = Turn(arm)
                if _is_supported(arm, at) and turn not in (own := turns.setdefault(progress.as_run(cell.job), [])):
                    own.append(turn)
        return turns

    def _skip(self, group: Group, plan: Plan, refused: Unsupported) -> None:
        """Record the reason for every cell of the group. The group is not measured."""
        contexts = {
            cell.id: CellContext(self.spec.host.name, group.id, plan.span, skipped=_why_skipped(cell, refused))
            for cell in group.cells
        }
        self._recorder.assemble(group.cells, contexts)
        self._measured.add(group.id)

    def _examined(self, found: LabFound) -> None:
        """Record the properties of the host. Refuses a resumed run on another lab before anything is built."""
        self._earlier.require_same(found.provenance)
        self._recorder.examined(found)

    def _resume(self) -> None:
        """When the lab is first known to be the same, take over the results of the earlier part."""
        if self._earlier.run is not None and not self._reached:
            for note in self._earlier.journal.notes:
                self._events(Note(note))
            self._recorder.resume(self._earlier.run)
        self._reached = True

    def _seconds_left(self) -> float:
        planned = sum(plan.fio_seconds for plan in self.spec.plans)
        return max(planned - self._recorder.fio_seconds, 0.0) / FIO_SHARE


def _longer(discarded: Mapping[Job, float]) -> str:
    of_jobs = ", ".join(f"{job.id} ({seconds:g} s)" for job, seconds in discarded.items())
    return f"carry-over between the arms: measured again without the beginning of each slice: {of_jobs}"


def _is_supported(arm: Arm, at: Prepared) -> bool:
    """Whether the host supports the arm's mode."""
    return arm.mode is None or arm.mode.name not in at.skipped


def _why_skipped(cell: Cell, refused: Unsupported) -> str:
    if isinstance(refused, NothingToCompare):
        return refused.reason(cell.mode)
    return f"{refused.message}; {refused.hint}" if refused.hint else refused.message
