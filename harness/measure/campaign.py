"""All measuring on one host in one run: group after group, each in rounds over its arms in random order."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis import Reason, Sequential
from harness.errors import GuestError, HostError, NotTried
from harness.events import Events, MeasurementFinished, MeasurementStarted
from harness.image import ImageSet
from harness.measure.environment import Environment
from harness.measure.ledger import Ledger, Order
from harness.measure.phases import MEASURE, Phases
from harness.measure.provenance import guest_provenance, lab_info, provenance
from harness.measure.resume import Earlier, asked
from harness.measure.session import Demand, NothingToCompare, Session, require_guest
from harness.measure.stopping import reason_to_stop
from harness.measure.visit import visit
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
from harness.scenario.model import Arm, Cell
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
        self._environment = Environment(order.host, order.run_id, order.seed, images, self._phases)
        self._ledger = Ledger(order, store, self._phases)
        self._broken: Exception | None = None
        self._measured: set[str] = set()
        self._groups = {cell.id: (group, plan) for plan in order.plans for group in plan.groups for cell in group.cells}

    def record(self, cell: Cell) -> CellRecord:
        """The cell's record. Raises what stopped the measuring; NotTried with the first cause for later cells."""
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
                self._ledger.write("running")
        return self._ledger.records[cell.id]

    def close(self, *, interrupted: bool) -> Run:
        """Take everything down that was built, and write the final results. The run as it was stored."""
        groups = {group.id for plan in self.order.plans for group in plan.groups}
        status: RunStatus = "complete" if self._broken is None and self._measured == groups else "failed"
        try:
            self._environment.close()
        finally:
            run = self._ledger.write("interrupted" if interrupted else status)
        return run

    def _measure(self, group: Group, plan: Plan) -> None:
        try:
            at = self._ready_or_again(group, plan)
            require_guest([cell.mode for cell in group.cells], at.skipped)
        except NothingToCompare as nothing:
            self._skip(group, plan, nothing)
            return
        progress = _Progress(group, plan, started=time.monotonic())
        try:
            kept = self._earlier.rounds(group, visited(round_order(group, self.order.seed, 1), at))
            with self._phases.step(MEASURE, f"measure {group.id}"):
                while progress.stopped is None:
                    number = progress.rounds + 1
                    if number in kept:
                        self._ledger.add(kept[number], fio_seconds=0.0)
                    else:
                        at = self._round_or_again(at, group, plan, number)
                    progress.rounds = number
                    progress.stopped = self._reason_to_stop(progress, at)
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
        self._ledger.groups[group.id] = GroupRecord(
            id=group.id,
            disk=group.disk,
            orders=_orders(measured),
            looks=progress.sequential.looks,
            stopped=progress.stopped,
            conditioning=at.conditioning,
            drift=drift,
        )
        contexts = {cell.id: self._context(cell, progress, at, drift, final=final) for cell in group.cells}
        return self._ledger.assemble(group.cells, contexts)

    def _ready(self, group: Group, plan: Plan) -> Session:
        """The session of the group's sitting, with all its modes; a resumed run is refused before anything is built."""
        host = self._environment.opened()
        found = {**provenance(host, self._images), "asked": asked(self.order)}
        self._earlier.require_same(found)
        self._ledger.lab = lab_info(host)
        self._ledger.provenance |= found
        self._ledger.family = self.order.family(host.lab_kind)
        at = self._environment.ready(Demand.of(plan, group))
        self._ledger.provenance |= guest_provenance(at.guest)
        return at

    def _ready_or_again(self, group: Group, plan: Plan) -> Session:
        """The session of the group's sitting; a simulated lab that fails while it is made is started again."""
        while True:
            try:
                return self._ready(group, plan)
            except (HostError, GuestError) as error:
                note = f"the lab failed before {group.id} was measured and was started again"
                self._environment.start_again(error, note)

    def _round_or_again(self, at: Session, group: Group, plan: Plan, number: int) -> Session:
        """Measure the round; in a simulated lab that fails, start the lab again and measure the whole round anew."""
        while True:
            try:
                self._round(at, group, plan, number)
            except (HostError, GuestError) as error:
                note = f"the lab failed in round {number} of {group.id} and was started again; the round is new"
                self._environment.start_again(error, note)
                self._ledger.drop(group.id, number)
                at = self._ready_or_again(group, plan)
            else:
                self._environment.went_well()
                return at

    def _round(self, at: Session, group: Group, plan: Plan, number: int) -> None:
        seen: Counter[Arm] = Counter()
        for arm in visited(round_order(group, self.order.seed, number), at):
            seen[arm] += 1
            jobs = group.jobs_of(arm)
            self._events(MeasurementStarted(group.id, number, plan.rounds, arm.id, len(jobs), self._seconds_left()))
            measurements = visit(at, self.store, group, arm, seed=self.order.seed, number=number, again=seen[arm])
            seconds = sum(each.seconds for each in measurements) + sum(job.ramp for job in jobs)
            self._ledger.add(measurements, fio_seconds=seconds)
            self._events(MeasurementFinished(group.id, number, arm.id, seconds))

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
            effective=at.effective.get(cell.mode.name, {}),
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


def _orders(measurements: Sequence[Measurement]) -> tuple[tuple[str, ...], ...]:
    """For each round, the arms in the order in which they were measured."""
    rounds: dict[int, dict[tuple[str, int], None]] = {}
    for each in measurements:
        rounds.setdefault(each.round, {})[each.arm, each.visit] = None
    return tuple(tuple(arm for arm, _ in rounds[number]) for number in sorted(rounds))


def _notes(arm: Arm, at: Session) -> list[str]:
    """What differs between the arms of a cell beside the arm itself."""
    notes = []
    if arm.mode is None and at.guest is not None and at.guest.evidence.get("fio") != at.host.facts["fio"]:
        notes.append(f"fio differs: {at.host.facts['fio']} on the host, {at.guest.evidence.get('fio')} in the guest")
    attach = arm.mode.attach if arm.mode else None
    if arm.place == "twin" and attach and not attach.direct:
        notes.append("the host twin runs with direct=0: libaio is synchronous there, whatever the iodepth")
    return notes
