"""Measures a calibration's trials on one disk of one host, in rounds in the same way as a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from harness.calibrate.assess import Measured
from harness.calibrate.trials import LATE, PASSTHROUGH, PLAIN, SPAN, Trial
from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events, Note
from harness.guest.protocol import Hypervisor
from harness.image import ImageSet
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.layout.memory_disk import memory_disk
from harness.layout.source import BlockSource
from harness.measure.arm import measure_arm
from harness.measure.environment import Environment
from harness.measure.measurer import LabFound, Measurer, Prepared, Turn
from harness.measure.phases import Phases
from harness.measure.provenance import examine
from harness.measure.rounds import Round, Rounds
from harness.measure.session import Session, SetupRequest, session
from harness.model.mode import Mode, Place
from harness.results import Measurement, RunStore
from harness.scenario.plan import Group, Plan

DELAY_NS = 1_000_000
PLAIN_ANSWER_NS = 8_000_000
"""The response time of the disk without the delay, in nanoseconds.

With a shorter time, a delay adds more latency than its own size: see docs/calibration.md.
"""
MEMORY_DISK_BYTES = 32 * 1024**2
_TURN_OVERHEAD = 0.6
"""Seconds to start fio and to read counters. This estimate is used until the first turn is measured."""


class TrialMeasurer:
    """The measurer of a calibration. Its guest has the disk under test and, if the host can create them, two disks in
    memory."""

    def __init__(
        self, environment: Environment, store: RunStore, disk: str, *, seed: int, images: ImageSet, phases: Phases
    ) -> None:
        self._environment = environment
        self._store = store
        self._disk = disk
        self._seed = seed
        self._images = images
        self._phases = phases

    @property
    def restarts(self) -> Sequence[str]:
        return self._environment.restarts

    @property
    def host(self) -> Host:
        return self._environment.opened()

    def can_delay(self) -> bool:
        """Whether the host could create the two disks in memory, one of them with a delay. Prepares the guest."""
        return LATE.name in self._session().layouts.by_mode

    def ready(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> Prepared:  # noqa: ARG002 - all trials share one guest
        examined(examine(self._environment.opened(), self._images))
        at = self._session()
        return Prepared(at.layouts.span, at.conditioning)

    def measure(self, group: Group, turn: Turn, number: int) -> list[Measurement]:
        at = self._environment.current
        place = _on_disk(at, turn.name) if turn.arm.place is Place.HOST else at
        return measure_arm(place, self._store, group, turn.arm, seed=self._seed, number=number, again=turn.again)

    def start_again(self, error: HostError | GuestError, what: str) -> None:
        self._environment.start_again(error, what)

    def round_measured(self) -> None:
        self._environment.round_measured()

    def close(self) -> None:
        self._environment.close()

    def _session(self) -> Session:
        """The session of all trials. It is opened at the first request and after a restart."""
        return self._environment.session_for(self._disk, self._opened)

    @contextmanager
    def _opened(self, host: Host, hypervisor: Hypervisor, log: CreationLog) -> Iterator[Session]:
        with ExitStack() as stack:
            disks = self._memory_disks(log, stack)
            request = SetupRequest((self._disk,), modes=(PASSTHROUGH,), jobs=(), span=SPAN, conditioning="fill")
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
    """Measure all rounds of these trials, in order. Raises what the measurer raises."""
    rounds = Rounds(measurer, events)
    pace = _Pace(left=sum(trial.rounds * len(trial.turns) for trial in trials), started=time.monotonic())
    measured = []
    for trial in trials:
        at = rounds.ready(trial.plan, trial.group)
        found: list[Mapping[str, Mapping[str, float]]] = []
        for number in range(1, trial.rounds + 1):
            this = _TrialRound(trial, number, pace, seed)
            at = rounds.measure(trial.plan, trial.group, at, this.begin)
            found.append(this.values)
        measured.append(Measured(trial, tuple(found)))
    return measured


@dataclass(slots=True)
class _Pace:
    """The number of turns that are left in all trials, and their pace. `started` is on the monotonic clock."""

    left: int
    started: float
    done: int = 0

    def turn_measured(self) -> None:
        """Count a turn that was measured."""
        self.left -= 1
        self.done += 1

    def turns_lost(self, turns: int) -> None:
        """Count turns that must be measured again."""
        self.left += turns

    def seconds_left(self, trial: Trial) -> float:
        each = (time.monotonic() - self.started) / self.done if self.done else trial.job.wall + _TURN_OVERHEAD
        return each * self.left


@dataclass(slots=True)
class _TrialRound:
    """A round of a trial. It begins again if the lab fails. `values` are by the turn's name and then by metric."""

    trial: Trial
    number: int
    pace: _Pace
    seed: int
    values: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def begin(self, _at: Prepared) -> Round:
        self.pace.turns_lost(len(self.values))
        self.values = {}
        turns = self.trial.order(self.seed, self.number)
        return Round(self.number, self.number, turns, self._record, lambda: self.pace.seconds_left(self.trial))

    def _record(self, turn: Turn, measurements: Sequence[Measurement]) -> None:
        (measurement,) = measurements
        self.values[turn.name] = measurement.metrics
        self.pace.turn_measured()
