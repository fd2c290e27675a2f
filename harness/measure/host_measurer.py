"""The measurers on a host: they prepare its layouts and its guests, and measure timetables on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from harness.errors import GuestError, HostError
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.measure.blocks import measure_timetable
from harness.measure.environment import Environment
from harness.measure.fio import reports_start
from harness.measure.phases import Phases
from harness.measure.platform import LINUX
from harness.measure.prepare import SetupRequest, session_with_reference
from harness.measure.provenance import DiskRecords, disk_provenance, examine, guest_provenance
from harness.measure.series import LabFound, PreparedGroup, RoundSegment
from harness.measure.session import Session
from harness.measure.spec import CampaignSpec
from harness.measure.traced_slices import TracingRequest, traced_blocks
from harness.model.cell import Arm, Place
from harness.results import Measurement, RunStore, TracedBlock
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import ScheduledArm, Slice


class SessionMeasurer:
    """A `Measurer` without `ready`: a subclass decides which session is opened."""

    def __init__(self, environment: Environment, store: RunStore, *, seed: int) -> None:
        self._environment = environment
        self._store = store
        self._seed = seed

    @property
    def restarts(self) -> Sequence[str]:
        return self._environment.restarts

    @property
    def runner(self) -> Runner | None:
        return self._environment.opened().runner if self._environment.is_open else None

    def boot_again(self) -> None:
        self._environment.current.boot_again()

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        session = self._environment.current
        try:
            return measure_timetable(self._at, session, self._store, group, segment, seed=self._seed, began=began)
        finally:
            if session.guests is not None:
                session.guests.measured()

    def trace(self, group: Group, request: TracingRequest) -> Sequence[TracedBlock]:  # noqa: ARG002
        environment, session = self._environment, self._environment.current
        log = environment.log
        with session.holding(request.guest):
            return traced_blocks(self._at, session, self._store, log, request, seed=self._seed)

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        self._environment.start_again(error, what)

    def round_measured(self) -> None:
        self._environment.round_measured()

    def close_session(self) -> None:
        self._environment.close_session()

    def close(self) -> None:
        self._environment.close()

    def _at(self, turn: ScheduledArm) -> Session:
        """The session with the disks of this turn."""
        return self._environment.current.of(turn.arm)


class HostMeasurer(SessionMeasurer):
    """Measures on one host. Its disks have the layouts of one request at a time."""

    def __init__(self, spec: CampaignSpec, store: RunStore, images: ImageSet, phases: Phases) -> None:
        environment = Environment(spec.host, spec.run_id, spec.disks, images=images, phases=phases)
        super().__init__(environment, store, seed=spec.seed)
        self._images = images
        self._phases = phases
        self._disks = DiskRecords(phases.events)

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        host = self._environment.opened()
        request = SetupRequest.of(plan, group)
        examined(replace(examine(host, self._images), builds=not self._environment.has(request)))
        at = self._session(request)
        sessions = [session for session in (at, at.reference) if session is not None]
        for session in sessions:
            if session.layouts.shared is not None:
                # Others may have filled it since the last group. The end of the run frees the space of its volumes.
                session.layouts.shared.room.require(0)
        disks = self._disks.of(at)
        return PreparedGroup(
            span=at.layouts.span,
            conditioning=at.conditioning,
            skipped=at.skipped,
            unable=_unable(group, at),
            effective=at.effective,
            notes={arm.id: _notes(arm, at) for arm in group.arms},
            provenance=guest_provenance(at.guests) | disk_provenance(at, disks, request.disks[0]),
            rotational=at.rotates,
            block=at.block,
            disks=disks,
            disks_afterwards=self._disks.afterwards,
            devices={name: device for session in sessions for device, name in session.names.items()},
            uncounted=frozenset(arm.id for arm in group.arms if not at.of(arm).counted_disks(arm)),
        )

    def _session(self, request: SetupRequest) -> Session:
        """The session for `request`: the current one if the request is unchanged, else a new one."""

        def make(host: Host, hypervisor: Hypervisor, log: CreationLog) -> AbstractContextManager[Session]:
            return session_with_reference(host, hypervisor, request, log=log, seed=self._seed, phases=self._phases)

        return self._environment.session_for(request, make)


def _unable(group: Group, at: Session) -> dict[str, str]:
    """Why fio cannot run the job of a cell in its guest, by the cell's id."""
    reasons = {}
    for cell in group.cells:
        if cell.mode.name in at.skipped:
            continue
        if why := next(filter(None, (at.platform(arm).why_unsupported(cell.job) for arm in cell.arms)), None):
            reasons[cell.id] = f"host {at.host.name}: {why}"
    return reasons


def _notes(arm: Arm, at: Session) -> list[str]:
    """Other differences between the arms of a cell, and what is not exclusive to them."""
    notes = _of_storage(arm, at)
    if arm.place is Place.REFERENCE:
        return notes
    fio = {variant: evidence.get("fio", "") for variant, evidence in at.guests.evidence.items()} if at.guests else {}
    if arm.mode is None and (others := set(fio.values()) - {at.host.facts["fio"]}):
        notes.append(f"fio differs: {at.host.facts['fio']} on the host, {', '.join(sorted(others))} in the guest")
    of_machine = fio.get(arm.mode.variant_name, "") if arm.in_guest and arm.mode is not None else at.host.facts["fio"]
    if of_machine and not reports_start(of_machine):  # there is none if the guest could not start
        notes.append(
            f"{arm.id}: {of_machine} does not report when a job starts, so overlapping slices cannot be recognised"
        )
    if (engine := at.platform(arm).engine) != LINUX.engine:
        notes.append(f"fio's engine differs: {LINUX.engine} on the host, {engine} in the guest")
        notes += at.platform(arm).notes(at.guest_evidence(arm))
    attach = arm.mode.attach if arm.mode else None
    if arm.place is Place.TWIN and attach and not attach.direct:
        notes.append("the host twin runs with direct=0, so libaio is synchronous and its effective iodepth is 1")
    return notes


def _of_storage(arm: Arm, at: Session) -> list[str]:
    layouts = at.reference.layouts if arm.place is Place.REFERENCE and at.reference is not None else at.layouts
    shared = layouts.shared
    if shared is None:
        return []
    if arm.mode is None:
        how = shared.how_counted(layouts.device)
        what = "reference" if arm.place is Place.REFERENCE else "baseline"
        return [f"the {what} is a volume on {shared.words}, which is in use; its bytes are {how}"]
    stored = arm.mode.stored.name
    return [f"{arm.mode.name}: {shared.notes[stored]}"] if stored in shared.notes else []
