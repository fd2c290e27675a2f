"""All measuring on one host in one run: group after group, each in rounds over its arms in random order."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.analysis import Reason, Sequential
from harness.errors import GuestError, HostError, NotTried
from harness.events import Events, MeasurementFinished, MeasurementStarted, Note
from harness.image import ImageSet
from harness.measure.environment import Environment
from harness.measure.ledger import Ledger, Order
from harness.measure.phases import MEASURE, Phases
from harness.measure.provenance import disk_provenance, guest_provenance, lab_info, provenance
from harness.measure.resume import Earlier, asked, evaluation
from harness.measure.session import Demand, NothingToCompare, Session, require_guest
from harness.measure.stopping import reason_to_stop
from harness.measure.visit import visit
from harness.model.effective import NOTHING
from harness.model.mode import Arm, Cell
from harness.results import (
    CONFIDENCE,
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

    After a failure nothing is tried again on this host: every later cell gets the first cause.
    """

    def __init__(
        self, order: Order, store: RunStore, images: ImageSet, events: Events, earlier: Earlier | None = None
    ) -> None:
        self.order = order
        self.store = store
        self._earlier = earlier or Earlier()
        self._images = images
        self._events = events
        self._phases = Phases(events)
        self._environment = Environment(
            order.host, order.run_id, order.disks, seed=order.seed, images=images, phases=self._phases
        )
        self._ledger = Ledger(order, store, self._phases, self._earlier.journal)
        self._ledger.provenance = {"asked": asked(order), "evaluation": evaluation(order)}
        self._broken: Exception | None = None
        self._measured: set[str] = set()
        self._reached = False
        self._finished = self._earlier.run if self._earlier.finished(order) else None
        self._groups = {cell.id: (group, plan) for plan in order.plans for group in plan.groups for cell in group.cells}

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record. Raises what stopped the measuring; NotTried with the first cause for later cells."""
        if self._finished is not None:
            return self._finished.cell(cell.id)
        group, plan = self._groups[cell.id]
        if group.id not in self._measured:
            if self._broken is not None:
                cause = str(self._broken).partition("\n")[0]
                raise NotTried(f"not tried: host {self.order.host.name} failed before: {cause}")
            try:
                self._measure(group, plan)
            except Exception as error:
                self._broken = error
                raise
            finally:
                self._write("running")
        return self._ledger.records[cell.id]

    def close(self, *, interrupted: bool) -> Run:
        """Take everything down that was built, and write the final results. The run as it was stored."""
        groups = {group.id for plan in self.order.plans for group in plan.groups}
        status: RunStatus = "complete" if self._broken is None and self._measured == groups else "failed"
        ended: RunStatus = "interrupted" if interrupted else status
        try:
            self._environment.close()
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
        return self._ledger.write(status) if stored is None or self._reached else stored

    def _measure(self, group: Group, plan: Plan) -> None:
        self._earlier.require_same(self._ledger.provenance)
        self._write("running")  # What --resume goes by is stored before anything is built,
        try:
            at = self._ready_or_again(group, plan)
            require_guest([cell.mode for cell in group.cells], at.skipped)
        except NothingToCompare as nothing:
            self._resume()
            self._skip(group, plan, nothing)
            return
        self._resume()
        self._write("running")  # and where it is measured before anything is measured.
        progress = _Progress(group, plan, started=time.monotonic())
        try:
            stored = deque(self._earlier.rounds(group, visited(round_order(group, self.order.seed, 1), at)))
            with self._phases.step(MEASURE, f"measure {group.id}"):
                while progress.stopped is None:
                    if new := not stored:
                        at = self._round_or_again(at, group, plan)
                    else:
                        self._ledger.add(stored.popleft(), fio_seconds=0.0)
                    progress.rounds += 1
                    progress.stopped = self._reason_to_stop(progress, at)
                    if new:
                        self._write("running")
            self._measured.add(group.id)
        finally:
            self._assemble(progress, at, final=progress.stopped is None or progress.last_look)

    def _skip(self, group: Group, plan: Plan, nothing: NothingToCompare) -> None:
        """Every cell of the group has its reason, and nothing is measured."""
        contexts = {
            cell.id: CellContext(self.order.host.name, group.id, plan.span, skipped=nothing.reason(cell.mode))
            for cell in group.cells
        }
        self._ledger.assemble(group.cells, contexts)
        self._measured.add(group.id)

    def _reason_to_stop(self, progress: _Progress, at: Session) -> str | None:
        plan, group = progress.plan, progress.group
        time_spent = progress.time_spent
        # The records keep the look that the cells are decided by, whatever else is a reason to stop.
        progress.last_look = time_spent
        records = self._assemble(progress, at, final=time_spent)
        if progress.rounds < plan.rounds:
            return None
        if progress.rounds >= plan.most_rounds:
            time_spent = True
        budgets = {cell.id: self.order.budgets(cell, at.host.lab_kind) for cell in group.cells}
        reason = reason_to_stop(
            group.cells,
            records,
            budgets,
            plan,
            progress.sequential,
            family=self._ledger.family,
            time_spent=time_spent,
        )
        return reason or (Reason.MOST if progress.rounds >= plan.most_rounds else None)

    def _assemble(self, progress: _Progress, at: Session, *, final: bool) -> dict[str, CellRecord]:
        """The group's records as things stand; `final` says that no round follows, for no reason in the data."""
        group = progress.group
        measured = self._ledger.of_group(group.id)
        drift = host_drift(measured)
        orders = _orders(measured)
        self._ledger.groups[group.id] = GroupRecord(
            id=group.id,
            disk=group.disk,
            orders=tuple(orders.values()),
            looks=progress.sequential.looks,
            stopped=progress.stopped,
            conditioning=at.conditioning,
            drift=drift,
            rounds=tuple(orders),
            abandoned=tuple(sorted(self._ledger.abandoned(group.id))),
        )
        contexts = {cell.id: self._context(cell, progress, at, drift, final=final) for cell in group.cells}
        return self._ledger.assemble(group.cells, contexts)

    def _ready(self, group: Group, plan: Plan) -> Session:
        """The session of the group's sitting, with all its modes; a resumed run is refused before anything is built."""
        host = self._environment.opened()
        found = provenance(host, self._images)
        self._earlier.require_same(found)
        self._ledger.lab = lab_info(host)
        self._ledger.provenance |= found
        self._ledger.family = self.order.family(host.lab_kind)
        demand = Demand.of(plan, group)
        at = self._environment.ready(demand)
        self._ledger.provenance |= guest_provenance(at.guest) | disk_provenance(at, demand.disks)
        return at

    def _ready_or_again(self, group: Group, plan: Plan) -> Session:
        """The session of the group's sitting; a simulated lab that fails while it is made is started again."""
        while True:
            try:
                return self._ready(group, plan)
            except (HostError, GuestError) as error:
                note = f"the lab failed before {group.id} was measured and was started again"
                self._environment.start_again(error, note)

    def _resume(self) -> None:
        """The first time that the lab was found to be the same: what an earlier part stored is ours from now on."""
        if self._earlier.run is not None and not self._reached:
            for note in self._earlier.journal.notes:
                self._events(Note(note))
            self._ledger.resume(self._earlier.run)
        self._reached = True

    def _round_or_again(self, at: Session, group: Group, plan: Plan) -> Session:
        """Measure a round; in a simulated lab that fails, start the lab again and measure another one."""
        while True:
            number = self._ledger.next_round(group.id)
            whole = sum(len(group.jobs_of(arm)) for arm in visited(round_order(group, self.order.seed, number), at))
            try:
                with self._ledger.round(group.id, number, whole):
                    self._round(at, group, plan, number)
            except (HostError, GuestError) as error:
                note = f"the lab failed in round {number} of {group.id} and was started again; the round does not count"
                self._environment.start_again(error, note)
                at = self._ready_or_again(group, plan)
            else:
                self._environment.went_well()
                return at

    def _round(self, at: Session, group: Group, plan: Plan, number: int) -> None:
        seen: Counter[Arm] = Counter()
        nth = len({each.round for each in self._ledger.of_group(group.id)}) + 1
        for arm in visited(round_order(group, self.order.seed, number), at):
            seen[arm] += 1
            jobs = group.jobs_of(arm)
            self._events(MeasurementStarted(group.id, nth, plan.rounds, arm.id, len(jobs), self._seconds_left()))
            measurements = visit(at, self.store, group, arm, seed=self.order.seed, number=number, again=seen[arm])
            seconds = sum(each.seconds for each in measurements) + sum(job.ramp for job in jobs)
            self._ledger.add(measurements, fio_seconds=seconds)
            self._events(MeasurementFinished(group.id, nth, arm.id, seconds))

    def _context(
        self, cell: Cell, progress: _Progress, at: Session, drift: Sequence[DriftRecord], *, final: bool
    ) -> CellContext:
        checks = (drift_check(each) for each in drift if each.job == cell.job.id)
        return CellContext(
            host=self.order.host.name,
            group=progress.group.id,
            span_bytes=at.layouts.span,
            budgets=self.order.budgets(cell, at.host.lab_kind),
            sequential=progress.sequential,
            final=final,
            validity=tuple(check for check in checks if check),
            effective=at.effective.get(cell.mode.name, NOTHING),
            notes=(*self._environment.restarts, *(note for arm in cell.arms for note in _notes(arm, at))),
            skipped=at.skipped.get(cell.mode.name),
        )

    def _seconds_left(self) -> float:
        planned = sum(plan.fio_seconds for plan in self.order.plans)
        return max(planned - self._ledger.fio_seconds, 0.0) / FIO_SHARE


@dataclass(slots=True)
class _Progress:
    """How far the measuring of a group has come; `started` is on the monotonic clock.

    `last_look` says that the time was spent when the rounds were last looked at.
    """

    group: Group
    plan: Plan
    started: float
    rounds: int = 0
    stopped: str | None = None
    last_look: bool = False

    @property
    def sequential(self) -> Sequential:
        return Sequential(self.plan.rounds, self.plan.most_rounds, CONFIDENCE)

    @property
    def time_spent(self) -> bool:
        """Whether another round, as long as those before, would end after the plan's time limit."""
        if self.plan.time_limit is None or self.rounds == 0:
            return False
        elapsed = time.monotonic() - self.started
        return elapsed * (self.rounds + 1) / self.rounds > self.plan.time_limit


def visited(order: Sequence[Arm], at: Session) -> list[Arm]:
    """The order without the arms of modes that this host cannot have."""
    return [arm for arm in order if arm.mode is None or arm.mode.name not in at.skipped]


def _orders(measurements: Sequence[Measurement]) -> dict[int, tuple[str, ...]]:
    """By number of the round, the arms in the order in which they were measured."""
    rounds: dict[int, dict[tuple[str, int], None]] = {}
    for each in measurements:
        rounds.setdefault(each.round, {})[each.arm, each.visit] = None
    return {number: tuple(arm for arm, _ in rounds[number]) for number in sorted(rounds)}


def _notes(arm: Arm, at: Session) -> list[str]:
    """What differs between the arms of a cell beside the arm itself."""
    notes = []
    if arm.mode is None and at.guest is not None and at.guest.evidence.get("fio") != at.host.facts["fio"]:
        notes.append(f"fio differs: {at.host.facts['fio']} on the host, {at.guest.evidence.get('fio')} in the guest")
    attach = arm.mode.attach if arm.mode else None
    if arm.place == "twin" and attach and not attach.direct:
        notes.append("the host twin runs with direct=0: libaio is synchronous there, whatever the iodepth")
    return notes
