"""The series engine: measures what a policy chooses, step after step, until it chooses no more.

All measuring runs through `SeriesEngine.run_series`: the rounds of a group, those that are measured again, searches,
the trials of a calibration. They differ in their policies. Before it are the values that all of them work with: what a
campaign measures, the host, a prepared group, and the steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import JsonValue

from harness.config.names import RunId
from harness.errors import GuestError, HostError, Unsupported
from harness.events import BlockStarted, Events
from harness.lab.created import CreationLog
from harness.lab.inventory import HostSpec
from harness.lab.transport.base import Runner
from harness.measure.phases import Timing
from harness.model.disk import DiskRecord
from harness.model.job import Job
from harness.model.mode import Arm, Budget, Cell, LabKind, Mode
from harness.model.option import Effective
from harness.results import ConditioningRecord, LabInfo, Measurement, RunStore
from harness.results.assemble import Check, no_check
from harness.results.records import Planned, PlannedGroup
from harness.scenario.legality import budgets_for
from harness.scenario.plan import Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import BACKUP_TAIL, Pause, ScheduledArm, Slice, Timetable

if TYPE_CHECKING:
    from harness.measure.session import Session, SessionFor

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CampaignSpec:
    """What a campaign measures. `scenarios` has the scenarios of the plans, by name."""

    run_id: RunId
    host: HostSpec
    plans: tuple[Plan, ...]
    scenarios: Mapping[str, Scenario]
    profile: str
    seed: int
    command: str
    check: Check = no_check
    """What is checked of each cell beside the checks of the harness."""
    max_writes: str | None = None
    """The limit of the bytes written to each disk, as the user wrote it."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The bytes that the run may write to each disk, by name; empty without a limit."""
    switches: frozenset[str] = frozenset()
    """The flags of features with which the run measures more."""

    @property
    def disks(self) -> frozenset[str]:
        return frozenset(disk for plan in self.plans for disk in plan.disks)

    @property
    def planned(self) -> Planned:
        """What the campaign measures at least, for those who follow the run."""
        groups = [
            PlannedGroup(
                group.id,
                len(group.cells),
                plan.rounds,
                plan.most_rounds,
                plan.rounds * group.round_seconds,
                plan.paces.seconds(plan.group_work(group)),
            )
            for plan in self.plans
            for group in plan.groups
        ]
        fio_seconds = sum(plan.fio_seconds for plan in self.plans)
        return Planned(tuple(groups), fio_seconds, sum(group.seconds for group in groups))

    def budgets(self, cell: Cell, lab_kind: LabKind) -> dict[str, Budget]:
        return budgets_for(self.scenarios[cell.scenario], cell, lab_kind)

    def family(self, lab_kind: LabKind) -> int:
        return sum(len(self.budgets(cell, lab_kind)) for plan in self.plans for cell in plan.cells)


@dataclass(frozen=True, slots=True)
class LabFound:
    """The properties of the host. `provenance` has its versions and settings, as plain JSON values."""

    info: LabInfo
    kind: LabKind
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)
    builds: bool = False
    """Whether the layouts of the requested group must be built and filled first."""


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group that is ready to be measured. Each arm uses `span` bytes.

    `skipped` has the reason for each mode that the host does not support, and `unable` for each cell, by its id, whose
    job its guest cannot run. `effective` has the effective attachment of each mode. `notes` has other differences
    between the arms, by the arm's id. `provenance` is of guest and disks.
    """

    span: int
    conditioning: ConditioningRecord
    skipped: Mapping[str, str] = field(default_factory=dict)
    unable: Mapping[str, str] = field(default_factory=dict)
    effective: Mapping[str, Effective] = field(default_factory=dict)
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    provenance: Mapping[str, JsonValue] = field(default_factory=dict)
    rotational: bool = False
    """Whether the disk is a hard disk, which needs a longer pause between slices."""
    block: int = 512
    """The smallest I/O in bytes that every arm can do."""
    disks: tuple[DiskRecord, ...] = ()
    """The disks, with their health before the first measurement."""
    disks_afterwards: Callable[[], tuple[DiskRecord, ...]] = tuple
    """Reads the health of the disks again, for the time after the last measurement."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """The kernel name of each disk by its name in the lab."""
    uncounted: frozenset[str] = frozenset()
    """The ids of the arms whose I/O the host's counters do not show, because a guest has the disk for itself."""

    def supports(self, arm: Arm) -> bool:
        return arm.mode is None or arm.mode.name not in self.skipped

    def why_skipped(self, cell: Cell) -> str | None:
        return self.skipped.get(cell.mode.name) or self.unable.get(cell.id)


@dataclass(frozen=True, slots=True)
class RoundSegment:
    """A part of round `number`, which is measured without a break. `index` is its number in the round, from 1.

    `boot` is the number of the guest's boot. If it belongs to several rounds, `blocks` is how many each job has in one.
    """

    number: int
    index: int
    boot: int
    table: Timetable
    blocks: int | None = None

    def place_of(self, planned: Slice) -> tuple[int, int]:
        """The round of the slice, and its block within the round, from 1."""
        later, block = divmod(planned.block - 1, self.blocks) if self.blocks is not None else (0, planned.block - 1)
        return self.number + later, block + 1


@dataclass(frozen=True, slots=True)
class OpenSession:
    """The session of the group that was prepared last, for measuring something else than rounds."""

    session_for: SessionFor
    session: Session
    store: RunStore
    log: CreationLog
    seed: int


class NothingToCompare(Unsupported):
    """The host supports none of the requested modes. Nothing is written just to measure the host.

    `skipped` has the reason for each mode.
    """

    def __init__(self, skipped: Mapping[str, str]) -> None:
        super().__init__("; ".join(skipped.values()))
        self.skipped = skipped

    def reason(self, mode: Mode) -> str:
        """Why a cell of `mode` is skipped."""
        return self.skipped.get(mode.name) or f"the host is not measured without a guest: {self.message}"


def require_guest(modes: Sequence[Mode], skipped: Mapping[str, str]) -> None:
    """Raise NothingToCompare if `modes` has modes with a guest, and all of them are `skipped`."""
    reasons = {mode.name: skipped.get(mode.name) for mode in modes if mode.attach is not None}
    known = {name: why for name, why in reasons.items() if why is not None}
    if known and len(known) == len(reasons):
        raise NothingToCompare(known)


class Measurer(Protocol):
    """Prepares groups on one host, and measures the segments of their rounds."""

    @property
    def restarts(self) -> Sequence[str]:
        """One sentence for each failure of a simulated lab after which it was prepared again."""

    @property
    def runner(self) -> Runner | None:
        """Runs commands on the host; None if it is not open. Raises HostError if it is no longer leased."""

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        """Prepare the group. A session that already serves the group stays open.

        `examined` is called with the properties of the host before anything is built, and may raise. Raises
        NothingToCompare, Unsupported, HostError, GuestError, LabUnavailable, SafetyError.
        """

    def boot_again(self) -> None:
        """Boot the guest of the prepared group anew, if it has measured something. Raises HostError, GuestError."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        """Measure a segment of a round of the group that was prepared last, and write it to the journal.

        `began` is called when a block begins, and every few seconds of a long one. Raises MeasurementError, HostError,
        GuestError, SafetyError.
        """

    def use_session(self, work: Callable[[OpenSession], _T]) -> _T:
        """Do `work` in the session of the group that was prepared last, and return its result.

        Raises what `work` raises.
        """

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        """Take down a simulated lab that failed. `prepare` prepares it again. `what` describes the failure.

        Raises `error` on a real host, and if the lab fails repeatedly.
        """

    def round_measured(self) -> None:
        """Note that a round was measured. A later failure is then a new one."""

    def close_session(self) -> None:
        """Take down the guest and the layouts. The host stays open."""

    def close(self) -> None:
        """Take down everything that was built, and close the host."""


@dataclass(frozen=True, slots=True)
class Round:
    """A round to measure. `number` is its number in the journal, and `nth` its number among the rounds that count.

    It may be several `rounds`, which share their timetables because nothing is decided between them. They are numbered
    from `number`, and the blocks of their slices continue from one to the next.
    `pause` is the time after a slice, `backup_tail` in addition that after one with a backup. `quiet` is how much of a
    pause is left when the last I/Os have usually completed; None if that is not known. All three are asked before each
    timetable, and may learn from the one before. `record` is called with the measurements of each of them.
    `recorded` is entered before the first one, and gets the error if one fails. `seconds_left` estimates the time of
    everything after this round and the rounds that surely follow it: `further`, None if their number is not known.
    """

    plan: Plan
    group: Group
    number: int
    nth: int
    tables: Sequence[Timetable]
    pause: Pause
    record: Callable[[Sequence[Measurement]], None]
    seconds_left: Callable[[], float] = lambda: 0.0
    further: int | None = None
    recorded: AbstractContextManager[None] = field(default_factory=nullcontext)
    backup_tail: Callable[[], float] = lambda: BACKUP_TAIL
    quiet: Callable[[], float | None] = lambda: None
    rounds: int = 1

    @property
    def failure(self) -> str:
        return f"the lab failed in round {self.number} of {self.group.id}, which does not count"


@dataclass(frozen=True, slots=True)
class SpecialStep:
    """What a policy measures instead of a round: `run`, in the prepared group. `failure` describes a failed lab.

    `writes` has the most bytes that it writes, by the disk's name. `title` names it in the message of a limit.
    """

    plan: Plan
    group: Group
    failure: str
    run: Callable[[], None]
    title: str = ""
    writes: Mapping[str, float] = field(default_factory=dict)


Step = Round | SpecialStep
"""What is measured without a decision in between. It counts as a whole, or not at all if the lab fails meanwhile."""


class Policy(Protocol):
    """Chooses what a series measures. A subclass says what comes next; all other methods may stay as they are."""

    def next_step(self, prepared: PreparedGroup) -> Step | None:
        """The next step in the group as it is prepared; None if nothing more is to be measured.

        It is asked again if the step before did not count.
        """

    def count_step(self, prepared: PreparedGroup) -> None:  # noqa: ARG002 - a default
        """Called after each step that was measured as a whole."""
        return

    def handle_refusal(self, refusal: Unsupported) -> None:
        """The step may not be measured, because of a limit or of the host. Raises `refusal` if the series cannot go on.

        Without an error, the next step is asked for.
        """
        raise refusal

    def end_series(self, prepared: PreparedGroup) -> None:  # noqa: ARG002 - a default
        """Called when the series has ended, also after an error or an interrupt."""
        return


class LimitReached(Unsupported):
    """A limit of the run does not allow the next step: it is not measured. Smaller steps may still be."""


class StepLimit:
    """A limit that a run keeps: decides before each step whether it may be measured. This one allows everything.

    The methods `require_...` raise LimitReached.
    """

    def examine(self) -> None:
        """Called when the host is open, before anything is built. Raises HostError."""

    def require_setup(self, plan: Plan, group: Group) -> None:
        """Before the layouts of the group are built and filled."""

    def note_prepared(self, prepared: PreparedGroup) -> None:
        """Called when the group is prepared."""

    def require_round(self, plan: Plan, group: Group, tables: Sequence[Timetable]) -> None:
        """Before a round with these timetables begins."""

    def require_step(self, step: SpecialStep) -> None:
        """Before a step begins that writes and is not a round."""

    def require_table(self, plan: Plan, group: Group, table: Timetable) -> Timetable:  # noqa: ARG002 - a default
        """Before each timetable. Returns the timetable to measure."""
        return table

    def count_measurements(self, group: Group, measurements: Sequence[Measurement]) -> None:
        """Called after each timetable."""

    def find_refusal(self, plan: Plan, group: Group, arms: Mapping[Job, Sequence[ScheduledArm]]) -> LimitReached | None:  # noqa: ARG002 - a default
        """Why another round with these arms cannot be measured; None if it can."""
        return None

    def note_refusal(self, refusal: LimitReached) -> None:
        """Record that measuring ended early for this reason."""

    def record(self) -> None:
        """Record what was used of the limit so far."""

    def end(self) -> None:
        """Called at the end of the run, when everything was taken down and the host is still open."""


class SeriesEngine:
    """Measures series on one host. `examined` gets the properties of the host before a group is prepared.

    `limit` is asked before everything that writes.
    """

    def __init__(
        self,
        measurer: Measurer,
        events: Events,
        examined: Callable[[LabFound], None] = lambda _found: None,
        limit: StepLimit | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._measurer = measurer
        self._events = events
        self._examined = examined
        self._limit = limit or StepLimit()
        self._timing = timing or Timing(())
        self._boots: dict[str, int] = {}
        """The number of the current boot, by group: that of the first round in it."""

    def prepare(self, plan: Plan, group: Group) -> PreparedGroup:
        """Prepare the group. If a simulated lab fails meanwhile, it is prepared again."""

        def examined(lab: LabFound) -> None:
            self._limit.examine()
            self._examined(lab)
            if lab.builds:
                self._limit.require_setup(plan, group)

        while True:
            try:
                prepared = self._measurer.prepare(plan, group, examined)
            except (HostError, GuestError) as error:
                self._start_again(error, f"the lab failed before {group.id} was measured")
            else:
                self._limit.note_prepared(prepared)
                self._timing.record_prepared(plan, group)
                return prepared

    def run_series(self, policy: Policy, prepared: PreparedGroup) -> PreparedGroup:
        """Measure the steps that the policy chooses, until it chooses no more. Raises what the measurer raises.

        If a simulated lab fails, it is prepared again, and the policy chooses anew. Returns the group as it is prepared
        at the end.
        """
        try:
            while (step := policy.next_step(prepared)) is not None:
                try:
                    if self._measure_step(step):
                        policy.count_step(prepared)
                    else:
                        prepared = self.prepare(step.plan, step.group)
                except Unsupported as refusal:
                    policy.handle_refusal(refusal)
        finally:
            policy.end_series(prepared)
        return prepared

    def _measure_step(self, step: Step) -> bool:
        """Measure the step. False if a simulated lab failed meanwhile and was taken down."""
        try:
            if isinstance(step, Round):
                self._measure_round(step)
            else:
                if step.writes:
                    self._limit.require_step(step)
                step.run()
        except (HostError, GuestError) as error:
            self._start_again(error, step.failure)
            return False
        self._measurer.round_measured()
        return True

    def _start_again(self, error: HostError | GuestError, what: str) -> None:
        self._boots.clear()
        self._measurer.start_again(error, what)

    def _measure_round(self, this: Round) -> None:
        """Measure a round: ask the limit, note the round in the journal, boot if it has its own boot, then measure."""
        plan, group = this.plan, this.group
        if plan.reboots(group):
            self._boots.clear()
        boot = self._boots.setdefault(group.id, this.number)
        self._limit.require_round(plan, group, this.tables)
        with this.recorded:
            if plan.reboots(group):
                self._measurer.boot_again()
            self._measure_tables(this, boot)

    def _measure_tables(self, this: Round, boot: int) -> None:
        plan, group = this.plan, this.group
        blocks = len({planned.of_block for table in this.tables for planned in table.slices}) // this.rounds
        begun: dict[tuple[int, Job], int] = {}
        rounds = max(plan.rounds, this.nth + this.further) if this.further is not None else plan.rounds
        table_ends = 0.0

        def began(planned: Slice) -> None:
            begun[planned.of_block] = segment.place_of(planned)[0]
            newest = max(begun.values())
            number = sum(begun_in == newest for begun_in in begun.values())
            what = f"block {number} of {blocks}: {planned.job.id}"
            left = table_ends - time.monotonic() + following
            self._events(BlockStarted(group.id, this.nth + newest - this.number, rounds, what, max(left, 0.0)))

        for index, table in enumerate(this.tables, start=1):
            paused = table.paused(this.pause, this.backup_tail(), this.quiet())
            following = self._estimate_seconds_after(this, this.tables[index:])
            # Nothing is between this permission and the writes.
            limited = self._limit.require_table(plan, group, paused)
            segment = RoundSegment(this.number, index, boot, limited, group.blocks if this.rounds > 1 else None)
            started = time.monotonic()
            table_ends = started + self._timing.seconds_of([limited])
            measurements = self._measurer.measure(group, segment, began)
            self._limit.count_measurements(group, measurements)
            self._timing.ran(group, limited, time.monotonic() - started)
            this.record(measurements)

    def _estimate_seconds_after(self, this: Round, later: Sequence[Timetable]) -> float:
        """The time of the later timetables of the round, of the rounds that surely follow, and of everything else."""
        paused = [table.paused(this.pause, this.backup_tail()) for table in (this.tables if this.further else later)]
        seconds = self._timing.seconds_of(paused[len(paused) - len(later) :]) + this.seconds_left()
        if this.further:
            boot = self._timing.boot_seconds(this.plan, this.group)
            seconds += this.further * (boot + self._timing.seconds_of(paused) / this.rounds)
        return seconds
