"""Measures a calibration's trials on one disk of one host, in blocks in the same way as a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from harness.calibrate.assess import Measured
from harness.calibrate.trials import LATE, PASSTHROUGH, PLAIN, SPAN, Trial
from harness.errors import MeasurementError, Unsupported
from harness.events import Events, Note
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.layout.device import memory_disk
from harness.layout.source import BlockSource
from harness.measure.host_measurer import Environment, SessionMeasurer
from harness.measure.phases import Phases
from harness.measure.prepare import SetupRequest, session
from harness.measure.provenance import examine
from harness.measure.series import LabFound, Measurer, Policy, PreparedGroup, Round, SeriesEngine
from harness.measure.session import Session
from harness.model.cell import Place
from harness.model.mode import Mode
from harness.results import Measurement, RunStore
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm

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


class TrialMeasurer(SessionMeasurer):
    """The measurer of a calibration. Its guest has the disk under test and, if the host can create them, two disks in
    memory."""

    def __init__(
        self, environment: Environment, store: RunStore, disk: str, *, seed: int, images: ImageSet, phases: Phases
    ) -> None:
        super().__init__(environment, store, seed=seed)
        self._disk = disk
        self._images = images
        self._phases = phases

    @property
    def host(self) -> Host:
        return self._environment.opened()

    def can_delay(self) -> bool:
        """Whether the host could create the two disks in memory, one of them with a delay. Prepares the guest."""
        return LATE.name in self._session().layouts.by_mode

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:  # noqa: ARG002 - all trials share one guest
        examined(examine(self._environment.opened(), self._images))
        at = self._session()
        return PreparedGroup(at.layouts.span, at.conditioning)

    def _at(self, turn: ScheduledArm) -> Session:
        current = super()._at(turn)
        in_memory = turn.arm.place is Place.HOST and turn.name in (PLAIN.name, LATE.name)
        return _on_disk(current, turn.name) if in_memory else current

    def _session(self) -> Session:
        """The session of all trials. It is opened at the first request and after a restart."""
        return self._environment.session_for(self._disk, self._opened)

    @contextmanager
    def _opened(self, host: Host, hypervisor: Hypervisor, log: CreationLog) -> Iterator[Session]:
        with ExitStack() as stack:
            disks = self._memory_disks(log, stack)
            modes = (PASSTHROUGH.on(host.spec.guest),)
            request = SetupRequest((self._disk,), modes=modes, jobs=(), span=SPAN, conditioning="fill")
            yield stack.enter_context(
                session(
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

    def _memory_disks(self, log: CreationLog, stack: ExitStack) -> dict[Mode, BlockSource]:
        answers = {PLAIN: PLAIN_ANSWER_NS, LATE: PLAIN_ANSWER_NS + DELAY_NS}
        try:
            return {
                mode: stack.enter_context(memory_disk(log, mode.name, size=MEMORY_DISK_BYTES, answer_ns=answer))
                for mode, answer in answers.items()
            }
        except Unsupported as error:
            self._phases.events(Note(f"{error.message}: the delay is not measured; {error.hint}"))
            return {}


def _on_disk(at: Session, name: str) -> Session:
    """The session in which the host's bare disk is the disk in memory with this name."""
    source = at.layouts.by_mode[name]
    return replace(at, layouts=replace(at.layouts, device=source, disk=source.path.rpartition("/")[2]))


def measure_trials(trials: Sequence[Trial], measurer: Measurer, events: Events, *, seed: int) -> list[Measured]:
    """Measure these trials, in order.

    Raises what the measurer raises, and MeasurementError if too few blocks of a trial count.
    """
    engine = SeriesEngine(measurer, events)
    pace = _Pace(left=sum(_seconds(trial) for trial in trials), started=time.monotonic())
    measured = []
    for trial in trials:
        rounds = _TrialRounds(trial, pace, seed)
        engine.run_series(rounds, engine.prepare(trial.plan, trial.group))
        pace.measured(trial)
        measured.append(Measured(trial, rounds.blocks, rounds.gap))
    return measured


def _seconds(trial: Trial) -> float:
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
        self.left -= _seconds(trial)
        self.done += _seconds(trial)

    def seconds_after(self, trial: Trial) -> float:
        """The time of the trials after this one, which is not measured yet."""
        slowness = (time.monotonic() - self.started) / self.done if self.done else 1.0
        return (self.left - _seconds(trial)) * slowness


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
        starts = pairwise(sorted(each.started for each in self.measured))
        return max(median(after - before for before, after in starts) - self.trial.job.wall, 0.0)

    @property
    def blocks(self) -> tuple[Mapping[str, Mapping[str, float]], ...]:
        """The values of each block that counts, by the turn's name and then by metric.

        A block does not count if one of its slices overlapped another one, or completed no I/O.
        """
        names = {(turn.arm.id, turn.again): turn.name for turn in self.trial.turns}
        found: dict[int, dict[str, Mapping[str, float]]] = {}
        for each in self.measured:
            if each.overlap is None and each.metrics.get(self.trial.job.headline, 0.0) > 0:
                found.setdefault(each.block, {})[names[each.arm, each.repeat]] = each.metrics
        return tuple(values for _, values in sorted(found.items()) if len(values) == len(names))
