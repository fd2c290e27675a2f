"""The trials of a calibration: a device against itself, a known delay, series of short slices, and boots. Pure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from harness.config.names import RunId
from harness.errors import MeasurementError, Unsupported
from harness.events import Events, Note
from harness.features.calibrate.memory_disk import create_memory_disk
from harness.features.calibrate.noise import LEAST_MEANS, SHORTEST_S
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.lab.inventory import HostSpec
from harness.layout import BlockSource
from harness.measure.host_measurer import SessionMeasurer
from harness.measure.phases import Pauses, Phases
from harness.measure.prepare import SetupRequest, open_session
from harness.measure.recorder import examine
from harness.measure.series import LabFound, Measurer, Policy, PreparedGroup, Round, SeriesEngine
from harness.measure.session import Session
from harness.model.attach import Attach
from harness.model.base import Device
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Mode, Place
from harness.results import Measurement, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Timetable, timetables

MIB = 1024**2
SPAN = 64 * MIB
"""Bytes of the disk that are filled and read."""
BLOCK = 4096
DEPTHS = (32, 1)
"""The iodepths of the groups that measure a device against itself, in turn, and of the series of short slices."""
LEAST_SLICES = 2 * LEAST_MEANS
"""Slices of a series that must count: two means of neighbours are compared at least so often."""

PASSTHROUGH = Mode("passthrough", Device(), Attach())
# Their names are part of the names of the disks on the host. The kernel accepts 31 characters there.
PLAIN = Mode("plain", Device(), Attach())
LATE = Mode("late", Device(), Attach())

SCENARIO = "calibration"
IN_MEMORY = "memory"
"""The name of the disk in the trials with a delay. It is not a disk of the lab file."""


@dataclass(frozen=True, slots=True)
class CalibrationSpec:
    """What to measure: `groups` of `rounds` blocks of a device against itself, and `repetitions` of the delay.

    Each repetition has `delay_rounds` blocks. `seconds` is the duration of each slice. Each series has `slices` of the
    shortest duration. Each of `boots` has `boot_rounds` blocks.
    """

    groups: int = 40
    rounds: int = 3
    repetitions: int = 5
    delay_rounds: int = 6
    seconds: float = 1.0
    slices: int = 120
    boots: int = 5
    boot_rounds: int = 5


@dataclass(frozen=True, slots=True)
class Trial:
    """One group, which is measured in one round of `rounds` blocks. All turns run the same job.

    `reboot`: the round begins with a new boot of the guest. At least `least` of its blocks must count.
    """

    group: Group
    turns: tuple[ScheduledArm, ...]
    rounds: int
    reboot: bool = False
    least: int = 2

    @property
    def job(self) -> Job:
        return self.group.jobs[0]

    @property
    def plan(self) -> Plan:
        """The trial as a plan."""
        return Plan(self.group.disk, (self.group,), 1, SPAN, write_rate=0, reboot=self.reboot)

    def tables(self, seed: int, number: int) -> list[Timetable]:
        """The timetables of round `number`. Their random order depends only on seed, group and round."""
        chance = random.Random(f"calibrate {seed} {self.group.id} {number}")
        return timetables({self.job: self.turns}, self.rounds, chance=chance, pause=self.pause)

    @staticmethod
    def pause(job: Job, arm: Arm) -> float:
        """The time after each slice. It does not depend on what was measured, so that all trials have the same."""
        return Pauses().after(job, in_guest=arm.in_guest, rotational=False)


def plan_same_device(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """The guest's `disk` as two arms, `a` and `b`. All differences between them are noise."""
    arm = Arm(Place.GUEST, PASSTHROUGH)
    turns = (ScheduledArm(arm, 1, "a"), ScheduledArm(arm, 2, "b"))
    trials = []
    for number in range(spec.groups):
        job = _read_job(DEPTHS[number % len(DEPTHS)], spec.seconds)
        cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
        trials.append(Trial(Group(f"same{number + 1:02}-{job.id}", disk, SCENARIO, (cell,)), turns, spec.rounds))
    return trials


def plan_delays(spec: CalibrationSpec) -> list[Trial]:
    """Two disks in the guest, one of them with a delay. One request at a time."""
    return [_plan_delay(f"delay{number + 1:02}", Place.GUEST, spec) for number in range(spec.repetitions)]


def plan_host_delay(spec: CalibrationSpec) -> Trial:
    """The same two disks on the host, to check the delay itself."""
    return _plan_delay("delay-on-host", Place.HOST, spec)


def plan_slices(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """Series of short slices that follow each other on one arm: host and guest, at each depth."""
    trials = []
    for place in (Place.HOST, Place.GUEST):
        for depth in DEPTHS:
            job = _read_job(depth, SHORTEST_S)
            group = Group(f"slices-{place}-{job.id}", disk, SCENARIO, (Cell(SCENARIO, disk, PASSTHROUGH, job),))
            trials.append(Trial(group, (_make_arm(place),), spec.slices, least=LEAST_SLICES))
    return trials


def plan_boots(spec: CalibrationSpec, disk: str) -> list[Trial]:
    """The guest against the host, each time in a new boot."""
    job = _read_job(DEPTHS[0], spec.seconds)
    cell = Cell(SCENARIO, disk, PASSTHROUGH, job)
    turns = (_make_arm(Place.HOST), _make_arm(Place.GUEST))
    return [
        Trial(Group(f"boot{number:02}-{job.id}", disk, SCENARIO, (cell,)), turns, spec.boot_rounds, reboot=True)
        for number in range(1, spec.boots + 1)
    ]


def _make_arm(place: Place) -> ScheduledArm:
    """The arm of the disk under test at this place, which is also the turn's name."""
    return ScheduledArm(Arm(place, PASSTHROUGH if place is Place.GUEST else None), name=str(place))


def _plan_delay(name: str, place: Place, spec: CalibrationSpec) -> Trial:
    job = _read_job(1, spec.seconds)
    cells = tuple(Cell(SCENARIO, IN_MEMORY, mode, job) for mode in (PLAIN, LATE))
    # On the host there is only one arm. The name of the turn selects the disk.
    plain, late = (Arm(place, mode if place is Place.GUEST else None) for mode in (PLAIN, LATE))
    turns = (ScheduledArm(plain, 1, PLAIN.name), ScheduledArm(late, 2, LATE.name))
    return Trial(Group(f"{name}-{job.id}", IN_MEMORY, SCENARIO, cells), turns, spec.delay_rounds)


def _read_job(iodepth: int, seconds: float) -> Job:
    return Job("randread", BLOCK, iodepth=iodepth, ramp=0.0, seconds=seconds)


DELAY_NS = 1_000_000
PLAIN_ANSWER_NS = 8_000_000
"""The response time of the disk without the delay, in nanoseconds.

With a shorter time, a delay adds more latency than its own size: see docs/calibration.md.
"""
MEMORY_DISK_BYTES = 32 * 1024**2
MOST_TRIES = 3
"""Rounds of a trial until enough of its blocks count."""
_TRIAL_OVERHEAD = 3.0
"""Seconds of a trial besides its slices."""
_BOOT_SECONDS = 12.0
"""Seconds of a boot of the guest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished trial. `rounds` has the values of each block, by the turn's name and then by metric.

    `gap` is the time in seconds that each slice took besides its planned duration.
    """

    trial: Trial
    rounds: tuple[Mapping[str, Mapping[str, float]], ...]
    gap: float

    def values(self, turn: str, metric: str) -> list[float]:
        """One turn's values of a metric, in the order of blocks and in the metric's unit."""
        return [round_[turn][metric] for round_ in self.rounds]


class TrialMeasurer(SessionMeasurer):
    """The measurer of a calibration. Its guest has the disk under test and, if the host can create them, two disks in
    memory."""

    def __init__(
        self, host: HostSpec, run_id: RunId, store: RunStore, disk: str, *, seed: int, images: ImageSet, phases: Phases
    ) -> None:
        super().__init__(host, run_id, [disk], store=store, seed=seed, images=images, phases=phases)
        self._disk = disk

    def can_delay(self) -> bool:
        """Whether the host could create the two disks in memory, one of them with a delay. Prepares the guest."""
        return LATE.name in self._prepare_session().layouts.by_mode

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002 - all trials share one guest
        examined(examine(self.host, self._images))
        at = self._prepare_session()
        return PreparedGroup(at.layouts.span, at.conditioning)

    def _find_session(self, turn: ScheduledArm) -> Session:
        current = super()._find_session(turn)
        in_memory = turn.arm.place is Place.HOST and turn.name in (PLAIN.name, LATE.name)
        return _select_disk(current, turn.name) if in_memory else current

    def _prepare_session(self) -> Session:
        """The session of all trials. It is opened at the first request and after a restart."""
        return self.session_for(self._disk, self._make_session)

    @contextmanager
    def _make_session(self, host: Host, hypervisor: Hypervisor, log: CreationLog) -> Iterator[Session]:
        with ExitStack() as stack:
            disks = self._create_memory_disks(log, stack)
            modes = (PASSTHROUGH.on(host.spec.guest),)
            request = SetupRequest((self._disk,), modes=modes, jobs=(), span=SPAN, conditioning="fill")
            yield stack.enter_context(
                open_session(
                    host,
                    hypervisor,
                    [host.spec.disk(self._disk)],
                    request,
                    log=log,
                    seed=self._seed,
                    phases=self._phases,
                    extra=disks,
                )
            )

    def _create_memory_disks(self, log: CreationLog, stack: ExitStack) -> dict[Mode, BlockSource]:
        answers = {PLAIN: PLAIN_ANSWER_NS, LATE: PLAIN_ANSWER_NS + DELAY_NS}
        try:
            return {
                mode: stack.enter_context(create_memory_disk(log, mode.name, size=MEMORY_DISK_BYTES, answer_ns=answer))
                for mode, answer in answers.items()
            }
        except Unsupported as error:
            self._phases.events(Note(f"{error.message}: the delay is not measured; {error.hint}"))
            return {}


def _select_disk(at: Session, name: str) -> Session:
    """The session in which the host's bare disk is the disk in memory with this name."""
    source = at.layouts.by_mode[name]
    return replace(at, layouts=replace(at.layouts, device=source, disk=source.path.rpartition("/")[2]))


def measure_trials(trials: Sequence[Trial], measurer: Measurer, events: Events, *, seed: int) -> list[Measured]:
    """Measure these trials, in order.

    Raises what the measurer raises, and MeasurementError if too few blocks of a trial count.
    """
    engine = SeriesEngine(measurer, events)
    pace = _Pace(left=sum(_compute_seconds(trial) for trial in trials), started=time.monotonic())
    measured = []
    for trial in trials:
        rounds = _TrialRounds(trial, pace, seed)
        engine.run_series(rounds, engine.prepare(trial.plan, trial.group))
        pace.measured(trial)
        measured.append(Measured(trial, rounds.blocks, rounds.gap))
    return measured


def _compute_seconds(trial: Trial) -> float:
    block = sum(trial.job.wall + trial.pause(trial.job, turn.arm) for turn in trial.turns)
    return trial.rounds * block + _TRIAL_OVERHEAD + (_BOOT_SECONDS if trial.reboot else 0.0)


@dataclass(slots=True)
class _Pace:
    """The planned seconds of all trials that are left, and of those that are measured. `started` is monotonic."""

    left: float
    started: float
    done: float = 0.0

    def measured(self, trial: Trial) -> None:
        """Count a trial that was measured."""
        self.left -= _compute_seconds(trial)
        self.done += _compute_seconds(trial)

    def seconds_after(self, trial: Trial) -> float:
        """The time of the trials after this one, which is not measured yet."""
        slowness = (time.monotonic() - self.started) / self.done if self.done else 1.0
        return (self.left - _compute_seconds(trial)) * slowness


@dataclass(slots=True)
class _TrialRounds(Policy):
    """Chooses rounds of a trial until enough of the blocks of one count."""

    trial: Trial
    pace: _Pace
    seed: int
    number: int = 1
    measured: list[Measurement] = field(default_factory=list)
    """What the last round measured."""

    def next_step(self, prepared: PreparedGroup) -> Round | None:  # noqa: ARG002 - a Policy
        trial = self.trial
        if self.measured and len(self.blocks) >= trial.least:
            return None
        if self.number > MOST_TRIES:
            raise MeasurementError(
                f"{trial.group.id}: slices overlapped, or completed no I/O, in {MOST_TRIES} rounds",
                hint="the host is too busy to start fio on time; find out what else it does",
            )
        self.measured = []
        tables = trial.tables(self.seed, self.number)
        return Round(
            trial.plan,
            trial.group,
            self.number,
            1,
            tables,
            trial.pause,
            self.measured.extend,
            lambda: self.pace.seconds_after(trial),
        )

    def count_step(self, prepared: PreparedGroup) -> None:  # noqa: ARG002 - a Policy
        self.number += 1

    @property
    def gap(self) -> float:
        """Seconds that a slice takes besides its planned duration: the median over all but the last one."""
        starts = pairwise(sorted(measurement.started for measurement in self.measured))
        return max(median(after - before for before, after in starts) - self.trial.job.wall, 0.0)

    @property
    def blocks(self) -> tuple[Mapping[str, Mapping[str, float]], ...]:
        """The values of each block that counts, by the turn's name and then by metric.

        A block does not count if one of its slices overlapped another one, or completed no I/O.
        """
        names = {(turn.arm.id, turn.again): turn.name for turn in self.trial.turns}
        by_block: dict[int, dict[str, Mapping[str, float]]] = {}
        for measurement in self.measured:
            if measurement.overlap is None and measurement.metrics.get(self.trial.job.headline, 0.0) > 0:
                by_block.setdefault(measurement.block, {})[names[measurement.arm, measurement.repeat]] = (
                    measurement.metrics
                )
        return tuple(values for _, values in sorted(by_block.items()) if len(values) == len(names))
