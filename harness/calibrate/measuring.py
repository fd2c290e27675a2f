"""Measures a calibration's trials on one disk of one host, round by round, as a campaign measures its groups."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from harness.calibrate.assess import Measured
from harness.calibrate.trials import LATE, PASSTHROUGH, PLAIN, SPAN, Trial
from harness.errors import GuestError, HostError, Unsupported
from harness.events import MeasurementFinished, MeasurementStarted, Note
from harness.guest.protocol import Hypervisor
from harness.lab.created import CreationLog
from harness.lab.hosts import Host
from harness.layout.memory_disk import memory_disk
from harness.layout.source import BlockSource
from harness.measure.environment import Environment
from harness.measure.phases import Phases
from harness.measure.session import Demand, Session, session
from harness.measure.visit import visit
from harness.model.mode import Mode, Place
from harness.results import RunStore
from harness.run_id import RunId

DELAY_NS = 1_000_000
PLAIN_ANSWER_NS = 8_000_000
"""What the disk without the delay takes, in nanoseconds.

With a shorter answer, a later one costs more than it is later: see docs/calibration.md.
"""
MEMORY_DISK_BYTES = 32 * 1024**2
_VISIT_OVERHEAD = 0.6
"""Seconds that starting fio and reading counters take, until some were measured."""


class Bench:
    """A host with a guest that has the disk under test and, where the host can make them, two disks in memory."""

    def __init__(
        self, environment: Environment, store: RunStore, disk: str, *, run_id: RunId, seed: int, phases: Phases
    ) -> None:
        self._environment = environment
        self._store = store
        self._disk = disk
        self._run_id = run_id
        self._seed = seed
        self._phases = phases
        self._events = phases.events
        self._visits = 0
        self._seconds = 0.0

    def ready(self) -> Session:
        """The bench, opened at the first need and after a restart."""
        return self._environment.kept(self._disk, self._opened)

    def can_delay(self) -> bool:
        """Whether the host could make the two disks of which one answers later; opens the bench."""
        return LATE.name in self.ready().layouts.by_mode

    def measure(self, trials: Sequence[Trial]) -> list[Measured]:
        """All rounds of these trials, in their order.

        Raises what a campaign raises; in a simulated lab that hangs, a round is measured anew.
        """
        left = sum(trial.rounds * len(trial.spots) for trial in trials)
        found = []
        for trial in trials:
            rounds = []
            for number in range(1, trial.rounds + 1):
                rounds.append(self._round_or_again(trial, number, left))
                left -= len(trial.spots)
            found.append(Measured(trial, tuple(rounds)))
        return found

    def _round_or_again(self, trial: Trial, number: int, left: int) -> Mapping[str, Mapping[str, float]]:
        while True:
            try:
                found = self._round(self.ready(), trial, number, left)
                self._environment.went_well()
                return found
            except (HostError, GuestError) as error:
                note = f"the lab failed in round {number} of {trial.group.id} and is started again"
                self._environment.start_again(error, note)

    def _round(self, at: Session, trial: Trial, number: int, left: int) -> Mapping[str, Mapping[str, float]]:
        group = trial.group
        found: dict[str, Mapping[str, float]] = {}
        for spot in trial.order(self._seed, number):
            place = _on_disk_of(at, spot.mode) if spot.place is Place.HOST else at
            seconds_left = self._seconds_per_visit(trial) * (left - len(found))
            self._events(MeasurementStarted(group.id, number, trial.rounds, spot.name, 1, seconds_left))
            started = time.monotonic()
            (measurement,) = visit(
                place, self._store, group, spot.arm, seed=self._seed, number=number, again=spot.visit
            )
            self._visits += 1
            self._seconds += time.monotonic() - started
            self._events(MeasurementFinished(group.id, number, spot.name, measurement.seconds))
            found[spot.name] = measurement.metrics
        return found

    def _seconds_per_visit(self, trial: Trial) -> float:
        return self._seconds / self._visits if self._visits else trial.job.wall + _VISIT_OVERHEAD

    @contextmanager
    def _opened(self, host: Host, hypervisor: Hypervisor, log: CreationLog) -> Iterator[Session]:
        with ExitStack() as stack:
            beside = self._memory_disks(log, stack)
            demand = Demand((self._disk,), modes=(PASSTHROUGH,), jobs=(), span=SPAN, conditioning="fill")
            yield stack.enter_context(
                session(
                    host,
                    hypervisor,
                    [host.spec.disk(self._disk)],
                    demand,
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
            self._events(Note(f"{error.message}: no delay is measured; {error.hint}"))
            return {}


def _on_disk_of(at: Session, mode: Mode) -> Session:
    """The session with the mode's disk as the bare disk of the host."""
    source = at.layouts.guest(mode)
    return replace(at, layouts=replace(at.layouts, device=source, disk=source.path.rpartition("/")[2]))
