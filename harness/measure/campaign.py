"""All measuring on one host in one run: group after group, each in rounds over its arms in random order."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import GuestError, HarnessError, HostError, NotTried
from harness.events import Events, MeasurementFinished, MeasurementStarted, Note
from harness.image import ImageSet
from harness.measure.environment import Environment
from harness.measure.ledger import Ledger, Order
from harness.measure.phases import MEASURE, Phases
from harness.measure.provenance import lab_info, provenance
from harness.measure.resume import Earlier
from harness.measure.session import Session
from harness.measure.visit import visit
from harness.results import CellContext, CellRecord, Run, RunStatus, RunStore
from harness.scenario.model import Arm, Cell
from harness.scenario.plan import FIO_SHARE, Group, Plan, round_order

MOST_RESTARTS = 2


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
        self._environment = self._new_environment()
        self._restarts: list[str] = []
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
        at = self._ready(group)
        try:
            kept = self._earlier.rounds(group, _arms(group, at))
            with self._phases.step(MEASURE, f"measure {group.id}"):
                for number in range(1, plan.rounds + 1):
                    if number in kept:
                        self._ledger.add(kept[number], fio_seconds=0.0)
                    else:
                        at = self._round_or_again(at, group, plan, number)
            self._measured.add(group.id)
        finally:
            self._ledger.assemble(group.cells, {cell.id: self._context(cell, group, at) for cell in group.cells})

    def _ready(self, group: Group) -> Session:
        """The session of the group's disk, with the modes of every plan on it, so that it serves them all."""
        plans = [plan for plan in self.order.plans if plan.disk == group.disk]
        modes = tuple(dict.fromkeys(cell.mode for plan in plans for cell in plan.cells))
        at = self._environment.ready(group.disk, modes, max(plan.span for plan in plans))
        self._ledger.lab = lab_info(at.host)
        self._ledger.provenance = provenance(at, self._images)
        self._earlier.require_same(self._ledger.provenance)
        return at

    def _round_or_again(self, at: Session, group: Group, plan: Plan, number: int) -> Session:
        """Measure the round; in a simulated lab that hangs, start the lab again and measure the whole round anew.

        There a hang is the emulator's, and tells nothing of what is measured. On a real host it is a finding.
        """
        while True:
            try:
                self._round(at, group, plan, number)
            except (HostError, GuestError) as error:
                if at.host.spec.simulated is None or len(self._restarts) == MOST_RESTARTS:
                    raise
                note = f"the simulated lab hung in round {number} of {group.id} and was started again; the round is new"
                self._restarts.append(note)
                self._events(Note(f"{error.message}; {note}"))
                self._ledger.drop(group.id, number)
                # What cannot be taken down there goes with the machine.
                with suppress(HarnessError):
                    self._environment.close()
                self._environment = self._new_environment()
                at = self._ready(group)
            else:
                return at

    def _new_environment(self) -> Environment:
        return Environment(self.order.host, self.order.run_id, self._images, self._phases, self._events)

    def _round(self, at: Session, group: Group, plan: Plan, number: int) -> None:
        arms = _arms(group, at)
        for arm in round_order(group, self.order.seed, number):
            if arm not in arms:
                continue
            jobs = group.jobs_of(arm)
            self._events(MeasurementStarted(group.id, number, plan.rounds, arm.id, len(jobs), self._seconds_left()))
            measurements = visit(at, self.store, group, arm, seed=self.order.seed, number=number)
            seconds = sum(each.seconds for each in measurements) + sum(job.ramp for job in jobs)
            self._ledger.add(measurements, fio_seconds=seconds)
            self._events(MeasurementFinished(group.id, number, arm.id, seconds))

    def _context(self, cell: Cell, group: Group, at: Session) -> CellContext:
        return CellContext(
            host=self.order.host.name,
            group=group.id,
            span_bytes=at.layouts.span,
            effective=at.effective.get(cell.mode.name, {}),
            notes=(*self._restarts, *(note for arm in cell.arms for note in _notes(arm, at))),
            skipped=at.skipped.get(cell.mode.name),
        )

    def _seconds_left(self) -> float:
        planned = sum(plan.fio_seconds for plan in self.order.plans)
        return max(planned - self._ledger.fio_seconds, 0.0) / FIO_SHARE


def _arms(group: Group, at: Session) -> list[Arm]:
    """The group's arms without those of modes that this host cannot have."""
    return [arm for arm in group.arms if arm.mode is None or arm.mode.name not in at.skipped]


def _notes(arm: Arm, at: Session) -> list[str]:
    """What differs between the arms of a cell beside the arm itself."""
    notes = []
    if arm.mode is None and at.guest is not None and at.guest.evidence.get("fio") != at.host.facts["fio"]:
        notes.append(f"fio differs: {at.host.facts['fio']} on the host, {at.guest.evidence.get('fio')} in the guest")
    attach = arm.mode.attach if arm.mode else None
    if arm.place == "twin" and attach and not attach.direct:
        notes.append("the host twin runs with direct=0: libaio is synchronous there, whatever the iodepth")
    return notes
