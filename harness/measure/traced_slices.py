"""Measures one I/O at a time on a host and in a guest, in slices with and without tracing by turns.

The host and the guest are never traced at the same time. An I/O of a guest passes both, and each event of a trace takes
time. In this way, only the guest's own events are in the latency whose parts are added up. Tracing is switched in the
pauses between slices.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from threading import Event
from typing import Generic, TypeVar

from harness.analysis import Passed, PathTimes, follow, path_times
from harness.errors import GuestError, Unsupported
from harness.lab.created import CreationLog
from harness.lab.tracing import Tracer, switch, tracer
from harness.measure.platform import Clock
from harness.measure.ran_slices import RanSlice
from harness.measure.session import Session, SessionFor
from harness.measure.slices import run_timetable
from harness.model.cell import Arm, Place
from harness.model.job import Job
from harness.results import RunStore, TracedBlock
from harness.scenario.timetable import ScheduledArm, Slice, Timetable, in_order

State = TypeVar("State")

_AFTER_SLICE = 0.3
"""When a pause is used, as a share of it: slices may end later than planned, and the next one needs a quiet machine."""
_BEFORE_FIRST = 0.5
"""Seconds before the first slice in which it may be switched."""


@dataclass(slots=True)
class Switching(Generic[State]):
    """`switch` returns when the state is set. It is `off` before the timetable, and `end` sets that again."""

    switch: Callable[[State], None]
    wanted: Callable[[Slice], State]
    off: State
    switched: list[tuple[float, float]] = field(default_factory=list)
    """When each switch began and when it was done, in moments of this process's monotonic clock."""
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.off

    def run(self, table: Timetable, start: float, stopped: Event) -> None:
        """Switch beside a timetable, which begins at the moment `start`. Raises what `switch` raises."""
        ended = -_BEFORE_FIRST
        for slice_ in table.slices:
            moment = start + ended + _AFTER_SLICE * (slice_.start - ended)
            if stopped.wait(max(moment - time.monotonic(), 0.0)):
                break
            self._set(self.wanted(slice_))
            ended = slice_.end

    def end(self) -> None:
        self._set(self.off)

    def disturbed(self, begun: float, ended: float) -> bool:
        """Whether it was switched in this time."""
        return any(first <= ended and last >= begun for first, last in self.switched)

    def _set(self, state: State) -> None:
        if state != self.state:
            begun = time.monotonic()
            self.switch(state)
            self.switched.append((begun, time.monotonic()))
            self.state = state


class Traced(IntEnum):
    """Which machine is traced in a slice. It is also the number of the turn of an arm in a block."""

    NOTHING = 1
    HOST = 2
    GUEST = 3


_TURNS = {Place.HOST: (Traced.NOTHING, Traced.HOST), Place.GUEST: (Traced.NOTHING, Traced.HOST, Traced.GUEST)}
"""What is traced in the slices of a block: those of the arm on the host, and those of the arm in the guest."""
_IN_BLOCK = sum(map(len, _TURNS.values()))
BLOCKS = 32
"""In each block, the slices of an arm follow each other, in random order.

Noise lasts seconds, so it changes little between them."""
_NAMES = {Traced.NOTHING: "{}", Traced.HOST: "{}-host-traced", Traced.GUEST: "{}-guest-traced"}
_MOST_SECONDS = 0.4
"""The longest slice: it has hundreds of I/Os also in an emulated guest."""
_LEAST_SECONDS = 0.2
_MOST_IOS = 2000
"""As many I/Os of a slice are enough for its mean."""
_MOST_TRACED = 24_000
"""As many I/Os of a timetable fit into the buffers of a trace."""
_PAUSE = 0.25
"""The shortest pause in seconds: in each, tracing may be switched."""


@dataclass(frozen=True, slots=True)
class TracingRequest:
    """The arm on the host, the arm in the guest, and the job with one I/O in flight. `pause` follows each slice."""

    id: str
    baseline: Arm
    guest: Arm
    job: Job
    pause: float
    blocks: int = BLOCKS

    def at_most(self, seconds: float) -> TracingRequest:
        """The same with slices that are not longer."""
        return replace(self, job=replace(self.job, seconds=min(self.job.seconds, seconds)))

    @property
    def seconds(self) -> float:
        """How long fio runs for it at most, with the pauses."""
        return _IN_BLOCK * self.blocks * (self.at_most(_MOST_SECONDS).job.wall + max(self.pause, _PAUSE))

    def tables(self, chance: random.Random, ios: float) -> list[Timetable]:
        """The timetables if the host's trace of a block has so many I/Os."""
        number = math.ceil(self.blocks / max(_MOST_TRACED // max(ios, 1.0), 1))
        return [self.table(chance, len(range(first, self.blocks, number))) for first in range(number)]

    def table(self, chance: random.Random, blocks: int = 1) -> Timetable:
        """A timetable of so many blocks."""
        turns = [
            [
                ScheduledArm(arm, traced, _NAMES[traced].format(arm.id))
                for arm in chance.sample([self.baseline, self.guest], 2)
                for traced in _shuffle_turns(arm, chance)
            ]
            for _ in range(blocks)
        ]
        return in_order(self.job, turns, pause=max(self.pause, _PAUSE))


def traced_blocks(
    at: SessionFor, session: Session, store: RunStore, log: CreationLog, request: TracingRequest, *, seed: int
) -> list[TracedBlock]:
    """Measure the request. Raises Unsupported, with the remedy, if host or guest cannot trace, and what `run_timetable`
    raises.
    """
    chance = random.Random(f"breakdown {seed} {request.id}")
    guest = session.guest(request.guest)
    if guest is None or request.guest.mode is None:
        raise GuestError(f"{request.id}: there is no guest to trace")
    request = request.at_most(_MOST_SECONDS)
    with ExitStack() as stack:
        on_host = stack.enter_context(tracer(session.host.runner, _list_paths(session, request), log=log))
        in_guest = stack.enter_context(tracer(guest.runner, [session.target(request.guest).path], log=None))
        tracing = _Tracing(at, session, store, on_host, in_guest, f"{request.id}-breakdown")
        # A first block shows how fast both arms are, and how exactly slices start on these machines. It does not count.
        first = tracing.run(request.table(chance), 0, chance).slices
        rates = {ran_slice.planned.turn: ran_slice.result.metrics["iops"] for ran_slice in first}
        request = request.at_most(max(_MOST_IOS / max(rates.values()), _LEAST_SECONDS))
        traced = sum(iops for turn, iops in rates.items() if turn.again == Traced.HOST)
        tables = request.tables(chance, traced * request.job.seconds)
        ran = [tracing.run(table, number, chance) for number, table in enumerate(tables, start=1)]
        return [block for ran_table in ran for block in ran_table.blocks()]


def _shuffle_turns(arm: Arm, chance: random.Random) -> list[Traced]:
    turns = _TURNS[Place.GUEST if arm.in_guest else Place.HOST]
    return chance.sample(turns, len(turns))


def _ignore_slice(_slice: Slice) -> None:
    """A breakdown is one step of the progress, without blocks of its own."""


def _list_paths(session: Session, request: TracingRequest) -> list[str]:
    sources = [session.layouts.twin(request.baseline.mode)]
    if request.guest.mode is not None:
        sources.append(session.layouts.guest(request.guest.mode))
    return list(dict.fromkeys(source.path for source in sources))


@dataclass(frozen=True, slots=True)
class _Tracing:
    """Runs timetables, with tracing switched on for the slices that are to be traced, on host and guest."""

    at: SessionFor
    session: Session
    store: RunStore
    on_host: Tracer
    in_guest: Tracer
    name: str

    def run(self, table: Timetable, number: int, chance: random.Random) -> _Ran:
        """Run it, and read the traces."""
        switching = Switching(self._switch, lambda planned: Traced(planned.turn.again), off=Traced.NOTHING)
        seed, name = chance.getrandbits(31), f"{self.name}{number}"
        try:
            ran = run_timetable(
                self.at,
                self.session,
                self.store,
                table,
                name=name,
                seed=seed,
                began=_ignore_slice,
                beside=switching.run,
            )
        finally:
            switching.end()
        host, guest = (
            _Trace(machine_tracer.passed(), self.session.clocks.read(machine_tracer.runner))
            for machine_tracer in (self.on_host, self.in_guest)
        )
        return _Ran(ran, switching, host, guest)

    def _switch(self, traced: Traced) -> None:
        switch([(self.on_host, traced == Traced.HOST), (self.in_guest, traced == Traced.GUEST)])


@dataclass(frozen=True, slots=True)
class _Trace:
    """What one machine's kernel recorded, by its uptime, and its clock."""

    passed: Sequence[Passed]
    clock: Clock

    def during(self, ran: RanSlice) -> PathTimes | None:
        """The I/Os of a slice."""
        begun, ended = (self.clock.uptime(moment) for moment in (ran.begun, ran.ended))
        first = bisect_left(self.passed, begun, key=lambda passed: passed.moment)
        last = bisect_right(self.passed, ended, key=lambda passed: passed.moment)
        return path_times(follow(self.passed[first:last]))


@dataclass(frozen=True, slots=True)
class _Ran:
    """A timetable that ran, when tracing was switched, and the traces of host and guest."""

    slices: Sequence[RanSlice]
    switching: Switching[Traced]
    host: _Trace
    guest: _Trace

    def blocks(self) -> Iterator[TracedBlock]:
        """The blocks of which all slices count. A slice is void if another one, or a switch, ran at the same time."""
        for _, slices in groupby(filter(self._counts, self.slices), key=lambda slice_: slice_.planned.block):
            by_turn = {(slice_.planned.arm.in_guest, slice_.planned.turn.again): slice_ for slice_ in slices}
            block = self._block(by_turn) if len(by_turn) == _IN_BLOCK else None
            if block is not None:
                yield block

    def _counts(self, ran: RanSlice) -> bool:
        return not ran.overlap and not self.switching.disturbed(ran.first, ran.ended)

    def _block(self, ran: Mapping[tuple[bool, int], RanSlice]) -> TracedBlock | None:
        latency = {turn: ran_slice.result.metrics["lat_mean"] for turn, ran_slice in ran.items()}
        of_guest, of_host = ran[True, Traced.GUEST], ran[True, Traced.HOST]
        host, guest, below = (
            self.host.during(ran[False, Traced.HOST]),
            self.guest.during(of_guest),
            self.host.during(of_host),
        )
        if host is None or guest is None or below is None:
            return None
        return TracedBlock(
            host_latency=latency[False, Traced.NOTHING],
            guest_latency=latency[True, Traced.NOTHING],
            host_traced=latency[False, Traced.HOST],
            guest_traced=latency[True, Traced.GUEST],
            below_traced=latency[True, Traced.HOST],
            host=host,
            guest=guest,
            below=below,
            followed=min(guest.ios / _count_ios(of_guest), below.ios / _count_ios(of_host)),
        )


def _count_ios(ran: RanSlice) -> float:
    """As many as fio counted."""
    return ran.result.metrics["iops"] * ran.result.seconds


def require_blocks(blocks: Sequence[TracedBlock]) -> None:
    """Raise Unsupported if the traces show no I/O."""
    if not blocks:
        raise Unsupported(
            "no block has a request of the disk in each trace (block_rq_issue, block_rq_complete), and no void slice",
            hint="disks whose driver takes bios, such as a zvol, have no requests; use another layout",
        )
