"""All measuring on one host in one run: group after group, each in rounds over its arms in random order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from harness.analysis import Reason
from harness.errors import MeasurementError, NotTried, Unsupported
from harness.events import Note
from harness.measure.group_progress import GroupProgress
from harness.measure.measurer import LabFound, Measurer, Prepared, Turn
from harness.measure.phases import MEASURE, Phases
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier, asked, evaluation
from harness.measure.rounds import Round, Rounds, fio_seconds, turns_of
from harness.measure.session import NothingToCompare, require_guest
from harness.measure.spec import CampaignSpec
from harness.measure.stopping import reason_to_stop
from harness.model.budget import Budget, LabKind
from harness.model.effective import NOTHING
from harness.model.mode import Arm, Cell
from harness.results import (
    CellContext,
    CellRecord,
    DriftRecord,
    GroupRecord,
    Measurement,
    Run,
    RunStatus,
    RunStore,
    drift_check,
    host_drift,
)
from harness.scenario.order import round_order
from harness.scenario.plan import FIO_SHARE, Group, Plan


class Campaign:
    """Measures on demand: the first cell of a group has the whole group measured, the others read their part.

    What the host cannot have is skipped. After fio failed, the scenario's other cells get the first cause, and after
    any other failure all later cells on this host do.
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
        self._recorder.describe({"asked": asked(spec), "evaluation": evaluation(spec)})
        self._lab_kind: LabKind | None = None
        self._broken: Exception | None = None
        self._failed: dict[str, Exception] = {}
        """By scenario, what failed in a way that concerns no other one."""
        self._refused: dict[tuple[str, int], Unsupported] = {}
        """By scenario and number of the setup, why the host cannot have it."""
        self._measured: set[str] = set()
        self._reached = False
        self._finished = self._earlier.run if self._earlier.finished(spec) else None
        self._groups = {cell.id: (group, plan) for plan in spec.plans for group in plan.groups for cell in group.cells}

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record. Raises what stopped the measuring; NotTried with the first cause for later cells."""
        if self._finished is not None:
            return self._finished.cell(cell.id)
        group, plan = self._groups[cell.id]
        if group.id not in self._measured:
            self._require_whole(group)
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

    def _require_whole(self, group: Group) -> None:
        """Raise NotTried where a failure keeps the group from being measured."""
        scenario = self._failed.get(group.scenario)
        if cause := self._broken or scenario:
            what = f"host {self.spec.host.name}" if self._broken else f"scenario {group.scenario}"
            raise NotTried(f"not tried: {what} failed before: {str(cause).partition(chr(10))[0]}")

    def close(self, *, interrupted: bool) -> Run:
        """Take everything down that was built, and write the final results. The run as it was stored."""
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
        """The run that had been measured to its end, also where it was killed before it could say so."""
        if finished.run.status != "complete":
            finished = replace(finished, run=replace(finished.run, status="complete", finished=time.time()))
            self.store.write_results(finished)
        return finished

    def _write(self, status: RunStatus) -> Run:
        """Store the run as it stands. What an earlier part stored stays until the lab is found to be the same."""
        stored = self._earlier.run
        return self._recorder.write(status) if stored is None or self._reached else stored

    def _measure(self, group: Group, plan: Plan) -> None:
        self._earlier.require_same(self._recorder.provenance)
        self._write("running")  # What --resume goes by is stored before anything is built,
        try:
            self._measure_rounds(group, plan, self._ready(group, plan))
        except Unsupported as refused:
            self._resume()
            self._skip(group, plan, refused)

    def _ready(self, group: Group, plan: Plan) -> Prepared:
        """The group made ready. Raises Unsupported, also where the host refused a group of the same setup before."""
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
        self._write("running")  # and where it is measured before anything is measured.
        progress = GroupProgress(group, plan, started=time.monotonic())
        try:
            arms = [turn.arm for turn in self._turns(group, 1, at)]
            stored = deque(self._earlier.rounds(group, arms))
            with self._phases.step(MEASURE, f"measure {group.id}"):
                while progress.stopped is None:
                    if new := not stored:
                        at = self._rounds.measure(plan, group, at, lambda at: self._begun(group, at))
                    else:
                        kept = stored.popleft()
                        self._recorder.add(kept, fio_seconds=0.0)
                        progress.earlier = self._earlier.seconds(group.id, kept[0].round if stored else None)
                    progress.rounds += 1
                    progress.stopped = self._reason_to_stop(progress, at)
                    if new:
                        self._write("running")
            self._measured.add(group.id)
        finally:
            self._assemble(progress, at, final=progress.stopped is None or progress.last_look)

    def _begun(self, group: Group, at: Prepared) -> Round:
        """The next round of the group, in the journal from its begin to its end."""
        number = self._recorder.next_round(group.id)
        turns = self._turns(group, number, at)

        def keep(turn: Turn, measurements: Sequence[Measurement]) -> None:
            self._recorder.add(measurements, fio_seconds=fio_seconds(group, turn, measurements))

        return Round(
            number=number,
            nth=len({each.round for each in self._recorder.of_group(group.id)}) + 1,
            turns=turns,
            keep=keep,
            seconds_left=self._seconds_left,
            recorded=self._recorder.round(group.id, number, sum(len(group.jobs_of(turn.arm)) for turn in turns)),
        )

    def _turns(self, group: Group, number: int, at: Prepared) -> list[Turn]:
        """The turns of a round, without the arms of modes that this host cannot have."""
        return turns_of(arm for arm in round_order(group, self.spec.seed, number) if _possible(arm, at))

    def _skip(self, group: Group, plan: Plan, refused: Unsupported) -> None:
        """Every cell of the group has its reason, and nothing more is measured."""
        contexts = {
            cell.id: CellContext(self.spec.host.name, group.id, plan.span, skipped=_why_skipped(cell, refused))
            for cell in group.cells
        }
        self._recorder.assemble(group.cells, contexts)
        self._measured.add(group.id)

    def _reason_to_stop(self, progress: GroupProgress, at: Prepared) -> str | None:
        plan, group = progress.plan, progress.group
        time_spent = progress.time_spent
        # The records keep the look that the cells are decided by, whatever else is a reason to stop.
        progress.last_look = time_spent
        records = self._assemble(progress, at, final=time_spent)
        if progress.rounds < plan.rounds:
            return None
        if progress.rounds >= plan.most_rounds:
            time_spent = True
        budgets = {cell.id: self._budgets(cell) for cell in group.cells}
        reason = reason_to_stop(
            group.cells,
            records,
            budgets,
            plan,
            progress.sequential,
            family=self._recorder.family,
            time_spent=time_spent,
        )
        return reason or (Reason.MOST if progress.rounds >= plan.most_rounds else None)

    def _assemble(self, progress: GroupProgress, at: Prepared, *, final: bool) -> dict[str, CellRecord]:
        """The group's records as things stand; `final` says that no round follows, for no reason in the data."""
        group = progress.group
        measured = self._recorder.of_group(group.id)
        drift = host_drift(measured)
        orders = _orders(measured)
        record = GroupRecord(
            id=group.id,
            disk=group.disk,
            orders=tuple(orders.values()),
            looks=progress.sequential.looks,
            stopped=progress.stopped,
            conditioning=at.conditioning,
            drift=drift,
            rounds=tuple(orders),
            abandoned=tuple(sorted(self._recorder.abandoned(group.id))),
        )
        self._recorder.group(record)
        contexts = {cell.id: self._context(cell, progress, at, drift, final=final) for cell in group.cells}
        return self._recorder.assemble(group.cells, contexts)

    def _examined(self, found: LabFound) -> None:
        """Record what the host is; a resumed run is refused before anything is built."""
        self._earlier.require_same(found.provenance)
        self._recorder.examined(found)
        self._lab_kind = found.kind

    def _budgets(self, cell: Cell) -> dict[str, Budget]:
        return self.spec.budgets(cell, self._lab_kind) if self._lab_kind else {}

    def _resume(self) -> None:
        """The first time that the lab was found to be the same: what an earlier part stored is ours from now on."""
        if self._earlier.run is not None and not self._reached:
            for note in self._earlier.journal.notes:
                self._events(Note(note))
            self._recorder.resume(self._earlier.run)
        self._reached = True

    def _context(
        self, cell: Cell, progress: GroupProgress, at: Prepared, drift: Sequence[DriftRecord], *, final: bool
    ) -> CellContext:
        checks = (drift_check(each) for each in drift if each.job == cell.job.id)
        return CellContext(
            host=self.spec.host.name,
            group=progress.group.id,
            span_bytes=at.span,
            budgets=self._budgets(cell),
            sequential=progress.sequential,
            final=final,
            validity=tuple(check for check in checks if check),
            effective=at.effective.get(cell.mode.name, NOTHING),
            notes=(*self._measurer.restarts, *(note for arm in cell.arms for note in at.notes.get(arm.id, ()))),
            skipped=at.skipped.get(cell.mode.name),
            check=self.spec.check,
        )

    def _seconds_left(self) -> float:
        planned = sum(plan.fio_seconds for plan in self.spec.plans)
        return max(planned - self._recorder.fio_seconds, 0.0) / FIO_SHARE


def _possible(arm: Arm, at: Prepared) -> bool:
    """Whether the host can have the arm's mode."""
    return arm.mode is None or arm.mode.name not in at.skipped


def _why_skipped(cell: Cell, refused: Unsupported) -> str:
    if isinstance(refused, NothingToCompare):
        return refused.reason(cell.mode)
    return f"{refused.message}; {refused.hint}" if refused.hint else refused.message


def _orders(measurements: Sequence[Measurement]) -> dict[int, tuple[str, ...]]:
    """By number of the round, the arms in the order in which they were measured."""
    rounds: dict[int, dict[tuple[str, int], None]] = {}
    for each in measurements:
        rounds.setdefault(each.round, {})[each.arm, each.repeat] = None
    return {number: tuple(arm for arm, _ in rounds[number]) for number in sorted(rounds)}
