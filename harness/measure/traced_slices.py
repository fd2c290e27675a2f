"""Measures one I/O at a time on a host and in a guest, in slices with and without tracing by turns."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.analysis import Passed, PathTimes, follow, path_times
from harness.errors import GuestError, Unsupported
from harness.lab.created import CreationLog
from harness.lab.tracing import Tracer, tracer
from harness.measure.clock import Clock
from harness.measure.ran_slices import RanSlice
from harness.measure.session import Session
from harness.measure.slices import At, run_timetable
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import RunStore, TracedBlock
from harness.scenario.timetable import Slice, Timetable, Turn, timetables

PAIRS = 4
"""Pairs of timetables, one with tracing and one without. Their order within a pair is random."""
BLOCKS = 4
"""Blocks of each timetable: in each, a slice of both arms."""
_MOST_SECONDS = 1.0
"""The longest slice: it has hundreds of I/Os also in an emulated guest."""
_LEAST_SECONDS = 0.2
_MOST_IOS = 5000
"""As many I/Os of a slice are enough for its means, and those of a timetable fit into the buffers of a trace."""


@dataclass(frozen=True, slots=True)
class TracingRequest:
    """The arm on the host, the arm in the guest, and the job with one I/O in flight. `pause` follows each slice."""

    id: str
    baseline: Arm
    guest: Arm
    job: Job
    pause: float

    def at_most(self, seconds: float) -> TracingRequest:
        """The same with slices that are not longer."""
        return replace(self, job=replace(self.job, seconds=min(self.job.seconds, seconds)))

    @property
    def seconds(self) -> float:
        """How long fio runs for it at most, with the pauses."""
        return 2 * PAIRS * BLOCKS * 2 * (self.at_most(_MOST_SECONDS).job.wall + self.pause)

    def table(self, chance: random.Random, blocks: int = BLOCKS) -> Timetable:
        """A timetable with so many slices of both arms."""
        turns = {self.job: [Turn(self.baseline), Turn(self.guest)]}
        (table,) = timetables(turns, blocks, chance=chance, pause=lambda _job: self.pause)
        return table


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
    # A first block shows how fast both arms are, and how exactly slices start on these machines. It does not count.
    first, own_seed = request.table(chance, blocks=1), chance.getrandbits(31)
    ran = run_timetable(at, session, store, first, name=f"{request.id}-breakdown", seed=own_seed, began=_unreported)
    rate = max(each.result.metrics["iops"] for each in ran)
    request = request.at_most(max(_MOST_IOS / rate, _LEAST_SECONDS))
    with ExitStack() as stack:
        on_host = stack.enter_context(tracer(session.host.runner, _paths(session, request), log=log))
        in_guest = stack.enter_context(tracer(guest.runner, [session.target(request.guest).path], log=None))
        blocks: list[TracedBlock] = []
        for number in range(1, PAIRS + 1):
            halves = {}
            for traced in chance.sample([False, True], 2):
                name = f"{request.id}-breakdown{number}-{'traced' if traced else 'untraced'}"
                half = _Half(on_host, in_guest, request, name, traced)
                halves[traced] = half.measured(at, session, store, chance)
            blocks += _blocks(halves[False], halves[True])
    return blocks


def _unreported(_slice: Slice) -> None:
    """A breakdown is one step of the progress, without blocks of its own."""


def _paths(session: Session, request: TracingRequest) -> list[str]:
    sources = [session.layouts.twin(request.baseline.mode)]
    if request.guest.mode is not None:
        sources.append(session.layouts.guest(request.guest.mode))
    return list(dict.fromkeys(source.path for source in sources))


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice: fio's mean latency and its number of I/Os, and what the kernels show; None if nothing was traced."""

    latency: float
    ios: float
    host: PathTimes | None
    guest: PathTimes | None


@dataclass(frozen=True, slots=True)
class _Half:
    """A timetable of both arms, traced or not."""

    on_host: Tracer
    in_guest: Tracer
    request: TracingRequest
    name: str
    traced: bool

    def measured(
        self, at: At, session: Session, store: RunStore, chance: random.Random
    ) -> list[tuple[_Slice, _Slice] | None]:
        """The slices of host and guest of each block; None for a block whose slices overlapped."""
        table, seed = self.request.table(chance), chance.getrandbits(31)
        if self.traced:
            for each in (self.on_host, self.in_guest):
                each.switch(on=True)
        try:
            ran = run_timetable(at, session, store, table, name=self.name, seed=seed, began=_unreported)
        finally:
            if self.traced:
                for each in (self.on_host, self.in_guest):
                    each.switch(on=False)
        host = _Trace(self.on_host.passed(), session.clocks.read(self.on_host.runner)) if self.traced else None
        guest = _Trace(self.in_guest.passed(), session.clocks.read(self.in_guest.runner)) if self.traced else None
        by_arm = {(each.planned.arm, each.planned.block): _slice(each, host, guest) for each in ran if not each.overlap}
        found: list[tuple[_Slice, _Slice] | None] = []
        for block in range(1, BLOCKS + 1):
            one = by_arm.get((self.request.baseline, block))
            other = by_arm.get((self.request.guest, block))
            found.append((one, other) if one is not None and other is not None else None)
        return found


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


def _slice(ran: RanSlice, host: _Trace | None, guest: _Trace | None) -> _Slice:
    latency = ran.result.metrics["lat_mean"]
    ios = ran.result.metrics["iops"] * ran.result.seconds
    return _Slice(latency, ios, host.during(ran) if host else None, guest.during(ran) if guest else None)


def _blocks(
    untraced: Sequence[tuple[_Slice, _Slice] | None], traced: Sequence[tuple[_Slice, _Slice] | None]
) -> Iterator[TracedBlock]:
    for before, after in zip(untraced, traced, strict=True):
        if before is None or after is None:
            continue
        (host, guest), (host_traced, guest_traced) = before, after
        if host_traced.host is None or guest_traced.host is None or guest_traced.guest is None:
            continue
        yield TracedBlock(
            host_latency=host.latency,
            guest_latency=guest.latency,
            host_traced=host_traced.latency,
            guest_traced=guest_traced.latency,
            host=host_traced.host,
            guest=guest_traced.guest,
            below=guest_traced.host,
            followed=min(guest_traced.guest.ios, guest_traced.host.ios) / guest_traced.ios,
        )


def require_blocks(blocks: Sequence[TracedBlock]) -> None:
    """Raise Unsupported if the traces show no I/O."""
    if not blocks:
        raise Unsupported(
            "the traces show no requests of the disk (block_rq_issue, block_rq_complete)",
            hint="disks whose driver takes bios, such as a zvol, have no requests; use another layout",
        )
