"""Measures a calibration's trials on one disk of one host, in rounds as a campaign measures its groups."""

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
"""What the disk without the delay takes, in nanoseconds.

With a shorter answer, a later one costs more than it is later: see docs/calibration.md.
"""
MEMORY_DISK_BYTES = 32 * 1024**2
_TURN_OVERHEAD = 0.6
"""Seconds that starting fio and reading counters take, until some were measured."""


class TrialMeasurer:
    """The measurer of a calibration: a guest that has the disk under test and, where the host makes them, two disks in
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
        """Whether the host could make the two disks of which one answers later; makes the guest ready."""
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

    def went_well(self) -> None:
        self._environment.went_well()

    def close(self) -> None:
        self._environment.close()

    def _session(self) -> Session:
        """The one session of all trials, made at the first need and after a restart."""
        return self._environment.reused(self._disk, self._opened)

    @contextmanager
    def _opened(self, host: Host, hypervisor: Hypervisor, log: CreationLog) -> Iterator[Session]:
        with ExitStack() as stack:
            beside = self._memory_disks(log, stack)
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
                    beside=beside,
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
            self._phases.events(Note(f"{error.message}: no delay is measured; {error.hint}"))
            return {}


def _on_disk(at: Session, name: str) -> Session:
    """The session with the disk in memory of this name as the bare disk of the host."""
    source = at.layouts.by_mode[name]
    return replace(at, layouts=replace(at.layouts, device=source, disk=source.path.rpartition("/")[2]))


def measure_trials(trials: Sequence[Trial], measurer: Measurer, events: Events, *, seed: int) -> list[Measured]:
    """All rounds of these trials, in their order. Raises what the measurer raises."""
    rounds = Rounds(measurer, events)
    pace = _Pace(left=sum(trial.rounds * len(trial.turns) for trial in trials), started=time.monotonic())
    measured = []
    for trial in trials:
        at = rounds.ready(trial.plan, trial.group)
        found: list[Mapping[str, Mapping[str, float]]] = []
        for number in range(1, trial.rounds + 1):
            tried = _Tried(trial, number, pace, seed)
            at = rounds.measure(trial.plan, trial.group, at, tried.begin)
            found.append(tried.values)
        measured.append(Measured(trial, tuple(found)))
    return measured


@dataclass(slots=True)
class _Pace:
    """How many turns all trials still have, and how fast they go; `started` is on the monotonic clock."""

    left: int
    started: float
    done: int = 0

    def went(self) -> None:
        """A turn was measured."""
        self.left -= 1
        self.done += 1

    def lost(self, turns: int) -> None:
        """So many turns have to be measured again."""
        self.left += turns

    def seconds_left(self, trial: Trial) -> float:
        each = (time.monotonic() - self.started) / self.done if self.done else trial.job.wall + _TURN_OVERHEAD
        return each * self.left


@dataclass(slots=True)
class _Tried:
    """A round of a trial, begun anew where the lab fails in it; `values` by the turn's name and then by metric."""

    trial: Trial
    number: int
    pace: _Pace
    seed: int
    values: dict[str, Mapping[str, float]] = field(default_factory=dict)

    def begin(self, _at: Prepared) -> Round:
        self.pace.lost(len(self.values))
        self.values = {}
        turns = self.trial.order(self.seed, self.number)
        return Round(self.number, self.number, turns, self._keep, lambda: self.pace.seconds_left(self.trial))

    def _keep(self, turn: Turn, measurements: Sequence[Measurement]) -> None:
        (measurement,) = measurements
        self.values[turn.name] = measurement.metrics
        self.pace.went()
