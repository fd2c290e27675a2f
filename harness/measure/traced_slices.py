"""Measures one I/O at a time on a host and in a guest, in slices with and without tracing by turns."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby

from harness.analysis import Passed, PathTimes, follow, path_times
from harness.errors import GuestError, Unsupported
from harness.lab.created import CreationLog
from harness.lab.tracing import Tracer, switch, tracer
from harness.measure.clock import Clock
from harness.measure.ran_slices import RanSlice
from harness.measure.session import Session
from harness.measure.slices import At, run_timetable
from harness.measure.switching import Switching
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import RunStore, TracedBlock
from harness.scenario.timetable import Slice, Timetable, Turn, in_order

_UNTRACED, _TRACED = 1, 2
"""The turns of an arm in a block."""
_IN_BLOCK = 4
"""Slices of a block: both turns of both arms."""
BLOCKS = 32
"""In each block, both arms have two slices one after the other: one with tracing and one without, in random order.

Noise lasts seconds, so it changes little between them."""
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
        return 4 * self.blocks * (self.at_most(_MOST_SECONDS).job.wall + max(self.pause, _PAUSE))

    def tables(self, chance: random.Random, ios: float) -> list[Timetable]:
        """The timetables if a slice of each arm together, traced, have so many I/Os."""
        number = math.ceil(self.blocks / max(_MOST_TRACED // max(ios, 1.0), 1))
        return [self.table(chance, len(range(first, self.blocks, number))) for first in range(number)]

    def table(self, chance: random.Random, blocks: int = 1) -> Timetable:
        """A timetable of so many blocks. A turn with tracing is the second one of its arm by name, `again`."""
        turns = [
            [
                Turn(arm, again, arm.id if again == _UNTRACED else f"{arm.id}-traced")
                for arm in chance.sample([self.baseline, self.guest], 2)
                for again in chance.sample([_UNTRACED, _TRACED], 2)
            ]
            for _ in range(blocks)
        ]
        return in_order(self.job, turns, pause=max(self.pause, _PAUSE))


def traced_blocks(
    at: At, session: Session, store: RunStore, log: CreationLog, request: TracingRequest, *, seed: int
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
        on_host = stack.enter_context(tracer(session.host.runner, _paths(session, request), log=log))
        in_guest = stack.enter_context(tracer(guest.runner, [session.target(request.guest).path], log=None))
        tracing = _Tracing(at, session, store, on_host, in_guest, f"{request.id}-breakdown")
        # A first block shows how fast both arms are, and how exactly slices start on these machines. It does not count.
        rates = [each.result.metrics["iops"] for each in tracing.run(request.table(chance), 0, chance).slices]
        request = request.at_most(max(_MOST_IOS / max(rates), _LEAST_SECONDS))
        # The turns of an arm count twice, and one of them is traced.
        tables = request.tables(chance, sum(rates) / 2 * request.job.seconds)
        ran = [tracing.run(table, number, chance) for number, table in enumerate(tables, start=1)]
        return [block for each in ran for block in each.blocks()]


def _unreported(_slice: Slice) -> None:
    """A breakdown is one step of the progress, without blocks of its own."""


def _paths(session: Session, request: TracingRequest) -> list[str]:
    sources = [session.layouts.twin(request.baseline.mode)]
    if request.guest.mode is not None:
        sources.append(session.layouts.guest(request.guest.mode))
    return list(dict.fromkeys(source.path for source in sources))


@dataclass(frozen=True, slots=True)
class _Tracing:
    """Runs timetables, with tracing switched on for the slices that are to be traced, on host and guest."""

    at: At
    session: Session
    store: RunStore
    on_host: Tracer
    in_guest: Tracer
    name: str

    def run(self, table: Timetable, number: int, chance: random.Random) -> _Ran:
        """Run it, and read the traces."""
        tracers = (self.on_host, self.in_guest)
        switching = Switching(lambda on: switch(tracers, on=on), lambda each: each.turn.again == _TRACED)
        seed, name = chance.getrandbits(31), f"{self.name}{number}"
        try:
            ran = run_timetable(
                self.at, self.session, self.store, table, name=name, seed=seed, began=_unreported, beside=switching.run
            )
        finally:
            switching.off()
        host, guest = (_Trace(each.passed(), self.session.clocks.read(each.runner)) for each in tracers)
        return _Ran(ran, switching, host, guest)


@dataclass(frozen=True, slots=True)
class _Trace:
    """What one machine's kernel recorded, by its uptime, and its clock."""

    passed: Sequence[Passed]
    clock: Clock

    def during(self, ran: RanSlice) -> PathTimes | None:
        """The I/Os of a slice."""
        begun, ended = (self.clock.uptime(moment) for moment in (ran.begun, ran.ended))
        first = bisect_left(self.passed, begun, key=lambda each: each.moment)
        last = bisect_right(self.passed, ended, key=lambda each: each.moment)
        return path_times(follow(self.passed[first:last]))


@dataclass(frozen=True, slots=True)
class _Ran:
    """A timetable that ran, when tracing was switched, and the traces of host and guest."""

    slices: Sequence[RanSlice]
    switching: Switching
    host: _Trace
    guest: _Trace

    def blocks(self) -> Iterator[TracedBlock]:
        """The blocks of which all slices count. A slice is void if another one, or a switch, ran at the same time."""
        for _, slices in groupby(filter(self._counts, self.slices), key=lambda each: each.planned.block):
            by_turn = {(each.planned.arm.in_guest, each.planned.turn.again): each for each in slices}
            block = self._block(by_turn) if len(by_turn) == _IN_BLOCK else None
            if block is not None:
                yield block

    def _counts(self, ran: RanSlice) -> bool:
        return not ran.overlap and not self.switching.disturbed(ran.first, ran.ended)

    def _block(self, ran: Mapping[tuple[bool, int], RanSlice]) -> TracedBlock | None:
        latency = {turn: each.result.metrics["lat_mean"] for turn, each in ran.items()}
        on_host, in_guest = ran[False, _TRACED], ran[True, _TRACED]
        host, guest, below = self.host.during(on_host), self.guest.during(in_guest), self.host.during(in_guest)
        if host is None or guest is None or below is None:
            return None
        return TracedBlock(
            host_latency=latency[False, _UNTRACED],
            guest_latency=latency[True, _UNTRACED],
            host_traced=latency[False, _TRACED],
            guest_traced=latency[True, _TRACED],
            host=host,
            guest=guest,
            below=below,
            followed=min(guest.ios, below.ios) / (in_guest.result.metrics["iops"] * in_guest.result.seconds),
        )


def require_blocks(blocks: Sequence[TracedBlock]) -> None:
    """Raise Unsupported if the traces show no I/O."""
    if not blocks:
        raise Unsupported(
            "no block has a request of the disk in each trace (block_rq_issue, block_rq_complete), and no void slice",
            hint="disks whose driver takes bios, such as a zvol, have no requests; use another layout",
        )
