"""Measures one I/O at a time on a host and in a guest, in slices with and without tracing by turns.

The host and the guest are never traced at the same time. An I/O of a guest passes both, and each event of a trace takes
time. In this way, only the guest's own events are in the latency whose parts are added up. Tracing is switched in the
pauses between slices.

A trace instance has its own buffers and events, so other users of tracefs neither see nor disturb it. Source: the
kernel's Documentation/trace/ftrace.rst, "Instances". tracefs needs no programs: perf and bpftrace need packages that
few hosts, and fewer guests, have.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from itertools import groupby
from threading import Event
from typing import ClassVar, Literal

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Note
from harness.features.breakdown.parts import (
    BreakdownRecord,
    Passed,
    PathPoint,
    PathTimes,
    TracedBlock,
    average_times,
    baseline_of,
    break_down,
    follow_ios,
    skip_breakdown,
)
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, RandomName
from harness.lab.pin import TAG
from harness.lab.transport.base import HeldCommand, HoldingRunner, Runner
from harness.measure.phases import Pauses
from harness.measure.platform import Clock
from harness.measure.ran_slices import RanSlice
from harness.measure.rounds import FollowingSeries, OneStepSeries, SeriesContext, follow_once
from harness.measure.series import OpenSession, PreparedGroup
from harness.measure.session import Session
from harness.measure.slices import run_timetable
from harness.model.attach import Attach, InContainer, Vfio
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Place
from harness.scenario.plan import Plan
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm, Timetable, in_order, rebuilds
from harness.units import format_duration
from harness.untrusted import finite, reading

BLOCK_EVENTS = {
    "block/block_bio_queue": PathPoint.QUEUED,
    "block/block_rq_issue": PathPoint.ISSUED,
    "block/block_rq_complete": PathPoint.COMPLETED,
}
KVM_EVENTS = {
    "kvm/kvm_mmio": PathPoint.KICK,
    "kvm/kvm_fast_mmio": PathPoint.KICK,
    "kvm/kvm_msi_set_irq": PathPoint.INTERRUPT,
}
_POINTS = {name.rpartition("/")[2]: point for name, point in (BLOCK_EVENTS | KVM_EVENTS).items()}
# For example `   IO iothread1-739     [000] d..1.    64.421710: kvm_msi_set_irq: dst 0 vec 42 (Fixed|physical|edge)`.
_LINE = re.compile(rf" (?P<moment>\d+\.\d+): (?P<event>{'|'.join(_POINTS)}): (?P<rest>.*)")
# The guest's reads of registers are no notifications.
_KEYS = {
    "kvm_mmio": re.compile(r"mmio write len \d+ gpa (0x[0-9a-f]+)"),
    "kvm_fast_mmio": re.compile(r"fast mmio at gpa (0x[0-9a-f]+)"),
    "kvm_msi_set_irq": re.compile(r"dst [0-9a-f]+ vec (\d+)"),
}


def parse_trace(lines: Iterable[str]) -> Iterator[Passed]:
    """The events of a file `trace` in tracefs, in its order, which is that of time. Other lines are left out."""
    for line in lines:
        match = _LINE.search(line)
        if match is None:
            continue
        key = _KEYS.get(match["event"])
        matched = key.match(match["rest"]) if key is not None else None
        if key is None or matched is not None:
            yield Passed(finite(match["moment"]), _POINTS[match["event"]], matched[1] if matched else "")


TRACING = "/sys/kernel/tracing"
"""Where the kernel's documentation and systemd mount tracefs."""
HOST_KIB = 8 << 10
"""The size of the buffer of each CPU of a host, which has the events of about 20 000 I/Os."""
GUEST_KIB = 4 << 10
"""The same of a guest, which has fewer events."""
_MOST_CPUS = 64
"""On a larger machine, the buffers of all CPUs together are not larger than with so many."""
MOST_TEXT = 24 << 20
"""Bytes of a trace that are read. The limit of a command's output is larger."""
_DEADLINE = 60.0

_DEVICES = read_script("harness.features.breakdown", "list_devices_below.sh")

_HOLD = read_script("harness.features.breakdown", "hold_tracing.sh", MOST_CPUS=_MOST_CPUS)
# What is not read is not needed again.
_READ = 'head -c "$2" "$1/trace"; echo >"$1/trace"'
# $1: the directory of the instance.
_REMOVE = r"""
[ -d "$1" ] || { echo absent; exit; }
rmdir "$1" && echo removed
"""


class TraceInstance(HostThing):
    """A trace instance on the host. Its name has a UUID, so no other program made it."""

    kind: Literal["trace-instance"] = "trace-instance"
    path: RandomName

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the trace instance {self.path}"


@dataclass(frozen=True, slots=True)
class Tracer:
    """A trace instance that records nothing until it is switched on. `held` is the program that switches it."""

    runner: Runner
    path: str
    held: HeldCommand
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def switch(self, *, on: bool) -> str:
        """Request a switch. Returns its number."""
        number = str(next(self.numbers))
        self.held.send(f"{number} {int(on)}")
        return number

    def wait_until_switched(self, number: str) -> None:
        """Wait until this switch is done."""
        if not self.held.wait(lambda lines: number in lines, _DEADLINE):
            raise HostError(
                f"{self.runner.name}: its trace could not be switched: {self.held.lines[-1][:300]}",
                hint=f"look into {TRACING}/error_log",
            )

    def read_events(self) -> list[Passed]:
        """What was recorded, in the order of time, which is the machine's uptime in seconds. Raises HostError."""
        text = self.runner.run(["sh", "-c", _READ, "sh", self.path, str(MOST_TEXT)], deadline=2 * _DEADLINE).stdout
        with reading(f"{self.runner.name}: the trace of its I/Os"):
            return list(parse_trace(text.splitlines()))


def switch_tracers(tracers: Iterable[tuple[Tracer, bool]]) -> None:
    """Begin (True) or end to record on several machines at the same time, and wait until it is done.

    While it is off, the events are off in the kernel and cost nothing. Raises HostError.
    """
    waiting = [(tracer, tracer.switch(on=on)) for tracer, on in tracers]
    for tracer, number in waiting:
        tracer.wait_until_switched(number)


@contextmanager
def trace_devices(runner: Runner, paths: Sequence[str], log: CreationLog | None) -> Iterator[Tracer]:
    """A tracer of the I/Os of these block devices, or files, of a machine and of the devices below them.

    With `log`, the machine is the host, whose KVM is traced too. Without, it is a guest. tracefs is mounted for the
    block if it is not. The instance is removed at the end, also if this process or the connection ends, and by
    `reap`. Raises Unsupported, with the remedy, if the machine cannot trace, and HostError.
    """
    if not isinstance(runner, HoldingRunner):
        raise Unsupported(f"{runner.name}: tracing needs a login that stays open", hint="give the VM a login by SSH")
    if not all(path.startswith("/") for path in paths):
        raise Unsupported(f"{runner.name}: only Linux has the kernel's trace events", hint="trace a guest with Linux")
    name = f"{TAG}-{uuid.uuid4()}"
    path = f"{TRACING}/instances/{name}"
    numbers = runner.run(["sh", "-c", _DEVICES, "sh", *paths], deadline=_DEADLINE).stdout.split()
    with reading(f"{runner.name}: the numbers of the block devices of {', '.join(paths)}"):
        block_filter = " || ".join(f"dev == {number}" for number in dict.fromkeys(map(_parse_device_number, numbers)))
    if not numbers:
        raise Unsupported(
            f"{runner.name}: there is no block device below {', '.join(paths)}, so its I/Os cannot be followed",
            hint="use a layout on a disk of this host, and not on ZFS or a network",
        )
    events = (*BLOCK_EVENTS, *(KVM_EVENTS if log is not None else ()))
    kib = HOST_KIB if log is not None else GUEST_KIB
    argv = ["sh", "-c", _HOLD, "sh", TRACING, name, str(kib), block_filter, *events]
    with ExitStack() as stack:
        if log is not None:
            stack.enter_context(log.making_here(TraceInstance(path=path)))
        held = stack.enter_context(runner.hold(argv, what="the trace of I/Os", deadline=_DEADLINE))
        printed = " ".join(held.lines)
        if printed.startswith("missing"):
            raise Unsupported(
                f"{runner.name}: the kernel offers no trace events of the block layer in {TRACING}",
                hint="use a kernel with CONFIG_EVENT_TRACING, as distributions have, and a login as root",
            )
        if held.lines[0].split()[0] != "ready":
            hint = f"look into {TRACING}/error_log"
            raise Unsupported(f"{runner.name}: its I/Os cannot be traced: {printed[:300]}", hint=hint)
        yield Tracer(runner, path, held)


def _parse_device_number(number: str) -> int:
    """The kernel's own number of a device `MAJOR:MINOR` (include/linux/kdev_t.h), by which its filters compare."""
    major, minor = map(int, number.split(":"))
    return major << 20 | minor


BLOCKS = 32
"""In each block, the slices of an arm follow each other, in random order.

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
_AFTER_SLICE = 0.3
"""When a pause is used, as a share of it: slices may end later than planned, and the next one needs a quiet machine."""
_BEFORE_FIRST = 0.5
"""Seconds before the first slice in which it may be switched."""


def follow(context: SeriesContext, prepared: PreparedGroup) -> Iterator[FollowingSeries]:
    """The breakdowns of a group that was measured, if the run has none of them yet."""
    group, limited = context.group, bool(context.spec.limits)
    cells = _choose_cells(group)
    if not cells:
        context.phases.events(Note(f"{group.id}: no breakdown: no workload of a guest runs with one I/O in flight"))
    series = (
        (
            _make_series(context, _make_request(cell, rotational=prepared.rotational)),
            prepared.skipped.get(cell.mode.name) or _find_obstacle(cell, limited=limited),
        )
        for cell in cells
    )
    return follow_once(context.recorder, BreakdownRecord, series)


def estimate_seconds(plan: Plan) -> float:
    """For how long fio runs for the breakdowns of the plan at most, with the pauses."""
    cells = (cell for group in plan.groups for cell in _choose_cells(group))
    return sum(_make_request(cell, rotational=False).seconds for cell in cells)


def _make_series(context: SeriesContext, request: TracingRequest) -> OneStepSeries:
    """The series of one breakdown: its only step has one I/O in flight, whatever the depths of the group's cells."""
    host = context.spec.host.name
    return OneStepSeries(
        context=context,
        id=request.id,
        title=f"trace {request.id}, {format_duration(round(request.seconds))} of I/O",
        measure=partial(_trace, request, host),
        skip=lambda why: skip_breakdown(request.cell, host, why),
        tell_problem=lambda record: f"no breakdown: {record.skipped}" if record.skipped else None,
        phase="breakdown",
    )


def _trace(request: TracingRequest, host: str, opened: OpenSession) -> BreakdownRecord:
    blocks = measure_blocks(request, opened)
    if not blocks:
        raise Unsupported(
            "no block has a request of the disk in each trace (block_rq_issue, block_rq_complete), and no void slice",
            hint="disks whose driver takes bios, such as a zvol, have no requests; use another layout",
        )
    return break_down(request.cell, host, blocks)


def _choose_cells(group: Group) -> list[Cell]:
    """A cell with one I/O in flight for each mode with a guest and each workload that may have one."""
    cells: dict[str, Cell] = {}
    for cell in group.cells:
        job = cell.job
        ordinary = cell.mode.attach is not None and not cell.mode.runs_with_others and not cell.mode.cached
        if not ordinary or job.from_file is not None or job.numjobs > 1:
            continue
        # A workload with depths of its own is about those.
        if not job.iodepths or 1 in job.iodepths:
            alone = replace(cell, job=job.workload.job(1, ramp=job.ramp, seconds=job.seconds))
            cells.setdefault(alone.id, alone)
    return list(cells.values())


def _find_obstacle(cell: Cell, *, limited: bool) -> str | None:
    """Why the I/Os of this cell cannot be followed; None if they can."""
    mode, attach = cell.mode, cell.mode.attach
    cached = isinstance(attach, Attach) and not attach.direct
    reasons = {
        "the guest has the disk itself (VFIO), so its I/Os do not pass the host": isinstance(attach, Vfio),
        "a container has no QEMU, which handles the requests of a guest": isinstance(attach, InContainer),
        "the host's page cache is between QEMU and the disk": cached,
        "the guests of these variants do not run at the same time; measure one variant": mode.alternating,
        "the recovery of the array also does I/O": rebuilds(mode),
        "flushes are requests too, which the traces do not tell from writes": cell.job.flushes,
        "what it writes is not in the plan of a run with a limit": limited and cell.writes,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class Traced(IntEnum):
    """Which machine is traced in a slice. It is also the number of the turn of an arm in a block."""

    NOTHING = 1
    HOST = 2
    GUEST = 3


_TURNS = {Place.HOST: (Traced.NOTHING, Traced.HOST), Place.GUEST: (Traced.NOTHING, Traced.HOST, Traced.GUEST)}
"""What is traced in the slices of a block: those of the arm on the host, and those of the arm in the guest."""
_IN_BLOCK = sum(map(len, _TURNS.values()))
_NAMES = {Traced.NOTHING: "{}", Traced.HOST: "{}-host-traced", Traced.GUEST: "{}-guest-traced"}


def _make_request(cell: Cell, *, rotational: bool) -> TracingRequest:
    return TracingRequest(cell, Pauses().after(cell.job, in_guest=True, rotational=rotational))


@dataclass(frozen=True, slots=True)
class TracingRequest:
    """A cell with one I/O in flight, to be traced on the host and in its guest. `pause` follows each slice."""

    cell: Cell
    pause: float
    blocks: int = BLOCKS

    @property
    def id(self) -> str:
        return self.cell.id

    @property
    def job(self) -> Job:
        return self.cell.job

    @property
    def guest(self) -> Arm:
        return self.cell.by_role[Place.GUEST]

    def limit_seconds(self, seconds: float) -> TracingRequest:
        """The same with slices that are not longer."""
        job = replace(self.job, seconds=min(self.job.seconds, seconds))
        return replace(self, cell=replace(self.cell, job=job))

    @property
    def seconds(self) -> float:
        """How long fio runs for it at most, with the pauses."""
        return _IN_BLOCK * self.blocks * (self.limit_seconds(_MOST_SECONDS).job.wall + max(self.pause, _PAUSE))

    def plan_tables(self, chance: random.Random, ios: float) -> list[Timetable]:
        """The timetables if the host's trace of a block has so many I/Os."""
        number = math.ceil(self.blocks / max(_MOST_TRACED // max(ios, 1.0), 1))
        return [self.plan_table(chance, len(range(first, self.blocks, number))) for first in range(number)]

    def plan_table(self, chance: random.Random, blocks: int = 1) -> Timetable:
        """A timetable of so many blocks."""
        arms = [baseline_of(self.cell), self.guest]
        turns = [
            [
                ScheduledArm(arm, traced, _NAMES[traced].format(arm.id))
                for arm in chance.sample(arms, 2)
                for traced in _shuffle_turns(arm, chance)
            ]
            for _ in range(blocks)
        ]
        return in_order(self.job, turns, pause=max(self.pause, _PAUSE))


def _shuffle_turns(arm: Arm, chance: random.Random) -> list[Traced]:
    turns = _TURNS[Place.GUEST if arm.in_guest else Place.HOST]
    return chance.sample(turns, len(turns))


def measure_blocks(request: TracingRequest, opened: OpenSession) -> list[TracedBlock]:
    """Measure the request. Raises Unsupported, with the remedy, if host or guest cannot trace, and what `run_timetable`
    raises.
    """
    session = opened.session
    chance = random.Random(f"breakdown {opened.seed} {request.id}")
    request = request.limit_seconds(_MOST_SECONDS)
    with session.holding(request.guest), ExitStack() as stack:
        guest = session.guest(request.guest)
        if guest is None:
            raise GuestError(f"{request.id}: there is no guest to trace")
        of_guest = session.target(request.guest).path
        on_host = stack.enter_context(trace_devices(session.host.runner, _list_paths(session, request), opened.log))
        in_guest = stack.enter_context(trace_devices(guest.runner, [of_guest], None))
        tracing = _Tracing(opened, on_host, in_guest, f"{request.id}-breakdown")
        # A first block shows how fast both arms are, and how exactly slices start on these machines. It does not count.
        first = tracing.run(request.plan_table(chance), 0, chance).slices
        rates = {ran_slice.planned.turn: ran_slice.result.metrics["iops"] for ran_slice in first}
        request = request.limit_seconds(max(_MOST_IOS / max(rates.values()), _LEAST_SECONDS))
        traced = sum(iops for turn, iops in rates.items() if turn.again == Traced.HOST)
        tables = request.plan_tables(chance, traced * request.job.seconds)
        ran = [tracing.run(table, number, chance) for number, table in enumerate(tables, start=1)]
        return [block for ran_table in ran for block in ran_table.make_blocks()]


def _list_paths(session: Session, request: TracingRequest) -> list[str]:
    layouts, cell = session.layouts, request.cell
    sources = [layouts.twin(baseline_of(cell).mode), layouts.guest(cell.mode)]
    return list(dict.fromkeys(source.path for source in sources))


@dataclass(slots=True)
class Switching:
    """Switches tracing beside a timetable. `switch` returns when it is done. Nothing is traced before and after."""

    switch: Callable[[Traced], None]
    switched: list[tuple[float, float]] = field(default_factory=list)
    """When each switch began and when it was done, in moments of this process's monotonic clock."""
    traced: Traced = Traced.NOTHING

    def run(self, table: Timetable, start: float, stopped: Event) -> None:
        """Switch for each slice of the timetable, which begins at the moment `start`. Raises what `switch` raises."""
        ended = -_BEFORE_FIRST
        for slice_ in table.slices:
            moment = start + ended + _AFTER_SLICE * (slice_.start - ended)
            if stopped.wait(max(moment - time.monotonic(), 0.0)):
                break
            self._set(Traced(slice_.turn.again))
            ended = slice_.end

    def end(self) -> None:
        self._set(Traced.NOTHING)

    def disturbs(self, begun: float, ended: float) -> bool:
        """Whether it was switched in this time."""
        return any(first <= ended and last >= begun for first, last in self.switched)

    def _set(self, traced: Traced) -> None:
        if traced != self.traced:
            begun = time.monotonic()
            self.switch(traced)
            self.switched.append((begun, time.monotonic()))
            self.traced = traced


@dataclass(frozen=True, slots=True)
class _Tracing:
    """Runs timetables, with tracing switched on for the slices that are to be traced, on host and guest."""

    opened: OpenSession
    on_host: Tracer
    in_guest: Tracer
    name: str

    def run(self, table: Timetable, number: int, chance: random.Random) -> _TracedTable:
        """Run it, and read the traces."""
        session, store = self.opened.session, self.opened.store
        switching = Switching(self._switch)
        seed, name = chance.getrandbits(31), f"{self.name}{number}"
        try:
            ran = run_timetable(
                self.opened.session_for,
                session,
                store,
                table,
                name=name,
                seed=seed,
                beside=switching.run,
            )
        finally:
            switching.end()
        host, guest = (
            _Trace(tracer.read_events(), session.clocks.read(tracer.runner)) for tracer in (self.on_host, self.in_guest)
        )
        return _TracedTable(ran, switching, host, guest)

    def _switch(self, traced: Traced) -> None:
        switch_tracers([(self.on_host, traced == Traced.HOST), (self.in_guest, traced == Traced.GUEST)])


@dataclass(frozen=True, slots=True)
class _Trace:
    """What one machine's kernel recorded, by its uptime, and its clock."""

    passed: Sequence[Passed]
    clock: Clock

    def average_slice(self, ran: RanSlice) -> PathTimes | None:
        """The I/Os of a slice."""
        begun, ended = (self.clock.uptime(moment) for moment in (ran.begun, ran.ended))
        first = bisect_left(self.passed, begun, key=lambda passed: passed.moment)
        last = bisect_right(self.passed, ended, key=lambda passed: passed.moment)
        return average_times(follow_ios(self.passed[first:last]))


@dataclass(frozen=True, slots=True)
class _TracedTable:
    """A timetable that ran, when tracing was switched, and the traces of host and guest."""

    slices: Sequence[RanSlice]
    switching: Switching
    host: _Trace
    guest: _Trace

    def make_blocks(self) -> Iterator[TracedBlock]:
        """The blocks of which all slices count. A slice is void if another one, or a switch, ran at the same time."""
        for _, slices in groupby(filter(self._counts, self.slices), key=lambda slice_: slice_.planned.block):
            by_turn = {(slice_.planned.arm.in_guest, slice_.planned.turn.again): slice_ for slice_ in slices}
            block = self._make_block(by_turn) if len(by_turn) == _IN_BLOCK else None
            if block is not None:
                yield block

    def _counts(self, ran: RanSlice) -> bool:
        return not ran.overlap and not self.switching.disturbs(ran.first, ran.ended)

    def _make_block(self, ran: Mapping[tuple[bool, int], RanSlice]) -> TracedBlock | None:
        latency = {turn: ran_slice.result.metrics["lat_mean"] for turn, ran_slice in ran.items()}
        of_guest, of_host = ran[True, Traced.GUEST], ran[True, Traced.HOST]
        host, guest = self.host.average_slice(ran[False, Traced.HOST]), self.guest.average_slice(of_guest)
        below = self.host.average_slice(of_host)
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
