"""The measurers on a host: they prepare its layouts and its guests, and measure timetables on them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import TypeVar

from harness.config.names import RunId
from harness.errors import GuestError, HarnessError, HostError
from harness.events import Note
from harness.feature import features
from harness.guest import open_hypervisor
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog, Processes, read_log
from harness.lab.facts import require_fio
from harness.lab.guard import serial_of
from harness.lab.hosts import Host, open_host
from harness.lab.inventory import HostSpec
from harness.lab.lease import Lease, lease
from harness.lab.pin import MARK
from harness.lab.transport.base import Runner
from harness.measure.fio import reports_start
from harness.measure.phases import Phases
from harness.measure.platform import LINUX
from harness.measure.prepare import SetupRequest, open_session_with_reference
from harness.measure.ran_slices import make_measurements
from harness.measure.reap import reap, split_by_disks
from harness.measure.recorder import DiskRecords, describe_disks, describe_guests, examine
from harness.measure.series import CampaignSpec, LabFound, OpenSession, PreparedGroup, RoundSegment
from harness.measure.session import Session, SessionFor, find_cached_engine
from harness.measure.slices import run_timetable
from harness.model.counters import subtract_counts
from harness.model.job import Job
from harness.model.mode import Arm, Place
from harness.results import Measurement, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Slice, stays_in_cache
from harness.signals import cleaning_up

STARTED_AGAIN = "the lab host was started again"
KEPT_RUNNING = "the lab host kept running; its layouts and guest were created again"


class Restarts:
    """The failures of a simulated lab. Whether its host was restarted is known only when the host is open again."""

    def __init__(self) -> None:
        self._sentences: list[str] = []
        self._failed: str | None = None
        self._boot: str | None = None

    @property
    def sentences(self) -> Sequence[str]:
        return [*self._sentences, *([self._failed] if self._failed else [])]

    def failed(self, what: str) -> None:
        self._failed = what

    def opened(self, boot: str) -> str | None:
        """Record that the host is open, with this boot id. Returns what was done after a failure, else None."""
        done = KEPT_RUNNING if boot == self._boot else STARTED_AGAIN
        self._boot = boot
        if self._failed is None:
            return None
        self._sentences.append(f"{self._failed}; {done}")
        self._failed = None
        return done


LEASE_WAIT_SECONDS = 900.0
MOST_RESTARTS = 2
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def measure_timetable(
    at: SessionFor,
    session: Session,
    store: RunStore,
    group: Group,
    segment: RoundSegment,
    *,
    seed: int,
    began: Callable[[Slice], None],
) -> list[Measurement]:
    """Run a segment of a round, and append its measurements to the journal. `began` is called when a block begins.

    Raises MeasurementError, HostError, GuestError and SafetyError.
    """
    table = segment.table
    arms = list(dict.fromkeys(slice_.arm for slice_ in table.slices))
    name = f"{group.id}-round{segment.number}" + (f"-{segment.index}" if segment.index > 1 else "")
    fio_seed = random.Random(f"fio {seed} {name}").getrandbits(31)
    with session.holding(arms[0]), session.rebuilding(arms[0], table.seconds):
        if segment.index == 1 or len(arms) == 1:
            session.warm(arms, buffered=any(slice_.job.buffered for slice_ in table.slices))
        before = session.transferred(arms)
        zero = time.time() - time.monotonic()
        ran = run_timetable(at, session, store, table, name=name, seed=fio_seed, began=began)
        by_qemu = {arm: subtract_counts(moved, before[arm]) for arm, moved in session.transferred(arms).items()}
        for arm in arms:
            if any(stays_in_cache(arm, slice_.job) for slice_ in table.slices if slice_.arm == arm):
                session.settle(arm)
    measurements = make_measurements(at, group, segment, ran, by_qemu, zero=zero)
    store.append(*measurements)
    return measurements


_T = TypeVar("_T")


class SessionMeasurer:
    """Measures on one host, with one session at a time: a `Measurer` without `prepare`, which a subclass has.

    Host and session are opened at the first request, and closed in reverse order. `disks` are the names of the disks
    under test of this run. What killed runs left behind is removed only from these.
    """

    def __init__(
        self,
        spec: HostSpec,
        run_id: RunId,
        disks: Collection[str],
        *,
        store: RunStore,
        seed: int,
        images: ImageSet,
        phases: Phases,
    ) -> None:
        self._spec = spec
        self._run_id = run_id
        self._disks = frozenset(serial_of(disk) for disk in spec.measured if disk.name in disks)
        self._store = store
        self._seed = seed
        self._images = images
        self._phases = phases
        self._events = phases.events
        self._restarts = Restarts()
        self._in_a_row = 0
        self._lease: Lease | None = None
        self._opened: tuple[Host, Hypervisor, CreationLog] | None = None
        self._session: Session | None = None
        self._key: Hashable = None
        self._host_stack = ExitStack()
        self._disk_stack = ExitStack()

    @property
    def restarts(self) -> Sequence[str]:
        return self._restarts.sentences

    @property
    def host(self) -> Host:
        """The host. It is opened at the first request, and again after a restart."""
        return self._open()[0]

    @property
    def runner(self) -> Runner | None:
        return self.host.runner if self._opened is not None else None

    @property
    def session(self) -> Session:
        if self._session is None:
            raise RuntimeError("no session was opened")
        return self._session

    def _has(self, key: Hashable) -> bool:
        return self._session is not None and self._key == key

    def session_for(
        self, key: Hashable, make: Callable[[Host, Hypervisor, CreationLog], AbstractContextManager[Session]]
    ) -> Session:
        """The session with this `key`. If it is not the open one, the open one is closed and `make` opens a new one."""
        opened = self._open()
        if not self._has(key):
            self.close_session()
            self._session = self._disk_stack.enter_context(make(*opened))
            self._key = key
        return self.session

    def boot_again(self) -> None:
        self.session.boot_again()

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        session = self.session
        try:
            return measure_timetable(
                self._find_session, session, self._store, group, segment, seed=self._seed, began=began
            )
        finally:
            if session.guests is not None:
                session.guests.measured()

    def use_session(self, work: Callable[[OpenSession], _T]) -> _T:
        return work(OpenSession(self._find_session, self.session, self._store, self._open()[2], self._seed))

    def _find_session(self, turn: ScheduledArm) -> Session:
        return self.session.of(turn.arm)

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take down the guest and layouts of a simulated lab after `what` failed. The next request opens new ones.

        In a simulated lab, the emulator causes such failures, so they say nothing about the disks. On a real host, a
        failure is a finding, so `error` is raised. It is also raised after MOST_RESTARTS without a round in between
        (see `round_measured`).
        """
        if self._opened is None or self._opened[0].spec.simulated is None or self._in_a_row == MOST_RESTARTS:
            raise error
        self._in_a_row += 1
        self._restarts.failed(what)
        self._events(Note(f"{what}: {error.message}"))
        # The end of the machine removes everything else.
        with suppress(HarnessError):
            self.close()

    def round_measured(self) -> None:
        """Note that a round was measured. A later failure is then a new one."""
        self._in_a_row = 0

    def close(self) -> None:
        """Take down the disk's layouts and guest, then close the host, also after an error."""
        self._opened = self._lease = None
        with cleaning_up(), self._host_stack:
            self.close_session()

    def _open(self) -> tuple[Host, Hypervisor, CreationLog]:
        """The leased host, its hypervisor, and the log of what the run creates there.

        Removes what killed runs left behind on the disks of this run. What they left on other disks is only reported.
        """
        if self._lease is not None:
            self._lease.require_held()
        if self._opened is None:
            with self._phases.timed("lab"):
                stack = self._host_stack
                host = stack.enter_context(open_host(self._spec, self._images, self._events))
                require_fio(host.facts, host.name, host.spec.fio)
                held = lease(host.runner, host.name, self._run_id, self._events, wait=LEASE_WAIT_SECONDS)
                self._lease = stack.enter_context(held)
                host = replace(host, runner=self._lease.runner)
                hypervisor = stack.enter_context(open_hypervisor(host, self._events))
                self._clean(host, hypervisor)
                log = CreationLog(host.runner, self._run_id)
                stack.enter_context(log.making_here(Processes(mark=MARK)))
            self._opened = host, hypervisor, log
            if host.spec.simulated is not None:
                boot = host.runner.run(["cat", BOOT_ID], deadline=20).stdout.strip()
                if done := self._restarts.opened(boot):
                    self._events(Note(done))
        return self._opened

    def _clean(self, host: Host, hypervisor: Hypervisor) -> None:
        entries = read_log(host.runner)
        mine, others = split_by_disks(entries, self._disks)
        for what in reap(host.runner, hypervisor, mine):
            self._events(Note(f"host {host.name}: {what}"))
        if others:
            runs = ", ".join(dict.fromkeys(entry.run_id for entry in others))
            self._events(
                Note(
                    f"host {host.name}: killed runs left something behind on other disks ({runs}). This run does not "
                    "touch it. `virt-overhead reap` lists it"
                )
            )

    def close_session(self) -> None:
        """Take down the guest and the layouts, if there are any."""
        if self._session is not None:
            self._session = None
            with cleaning_up(), self._phases.timed("teardown"):
                self._disk_stack.close()


class HostMeasurer(SessionMeasurer):
    """Measures on one host. Its disks have the layouts of one request at a time."""

    def __init__(self, spec: CampaignSpec, store: RunStore, images: ImageSet, phases: Phases) -> None:
        super().__init__(spec.host, spec.run_id, spec.disks, store=store, seed=spec.seed, images=images, phases=phases)
        self._disk_records = DiskRecords(phases.events)

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        host = self.host
        request = SetupRequest.of(plan, group)
        examined(replace(examine(host, self._images), builds=not self._has(request)))
        at = self._open_session_of(request)
        sessions = [session for session in (at, at.reference) if session is not None]
        for session in sessions:
            if session.layouts.shared is not None:
                # Others may have filled it since the last group. The end of the run frees the space of its volumes.
                session.layouts.shared.room.require(0)
        disks = self._disk_records.of(at)
        return PreparedGroup(
            span=at.layouts.span,
            conditioning=at.conditioning,
            skipped=at.skipped,
            unable=_find_unable(group, at),
            effective=at.effective,
            notes={arm.id: _find_notes(arm, at) for arm in group.arms},
            provenance=describe_guests(at.guests) | describe_disks(at, disks, request.disks[0]),
            rotational=at.rotates,
            block=at.block,
            disks=disks,
            disks_afterwards=self._disk_records.afterwards,
            devices={name: device for session in sessions for device, name in session.names.items()},
            uncounted=_find_uncounted(group.arms, at),
        )

    def _open_session_of(self, request: SetupRequest) -> Session:
        """The session for `request`: the current one if the request is unchanged, else a new one."""

        def make(host: Host, hypervisor: Hypervisor, log: CreationLog) -> AbstractContextManager[Session]:
            return open_session_with_reference(host, hypervisor, request, log=log, seed=self._seed, phases=self._phases)

        return self.session_for(request, make)


def _find_uncounted(arms: Sequence[Arm], at: Session) -> frozenset[str]:
    """The ids of the arms whose I/O no counter of a disk shows. Those of skipped modes have no volume, and no I/O."""
    measured = [arm for arm in arms if arm.mode is None or arm.mode.name not in at.skipped]
    return frozenset(arm.id for arm in measured if not at.of(arm).counted_disks(arm))


def _find_unable(group: Group, at: Session) -> dict[str, str]:
    """Why fio cannot run the job of a cell in its guest, by the cell's id."""
    reasons = {}
    for cell in group.cells:
        if cell.mode.name in at.skipped:
            continue
        if why := next(filter(None, (_refuse_job(at, arm, cell.job) for arm in cell.arms)), None):
            reasons[cell.id] = f"host {at.host.name}: {why}"
    return reasons


def _refuse_job(at: Session, arm: Arm, job: Job) -> str | None:
    refused = (feature.refuse_job(at, arm, job) for feature in features())
    return at.platform(arm).why_unsupported(job) or next(filter(None, refused), None)


def _find_notes(arm: Arm, at: Session) -> list[str]:
    """Other differences between the arms of a cell, and what is not exclusive to them."""
    notes = _find_storage_notes(arm, at)
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
    if engine := find_cached_engine(arm):
        notes.append(f"the host twin runs with direct=0 and fio's engine {engine}, as QEMU does for this disk")
    elif arm.place is Place.TWIN and arm.mode is not None and not arm.mode.is_direct:
        notes.append("the host twin runs with direct=0, so libaio is synchronous and its effective iodepth is 1")
    return notes


def _find_storage_notes(arm: Arm, at: Session) -> list[str]:
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
