"""Runs one timetable: fio on host and guest at the same time, with the host's counters for each slice."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

from harness.errors import HostError
from harness.guest.protocol import Backup
from harness.lab.counters import CounterFiles
from harness.lab.cycles import NO_CYCLES, CycleSeries, count_cycles
from harness.lab.md_devices import MdDevice
from harness.lab.paths import MARK
from harness.lab.processes import Processes
from harness.lab.sampling import Sample, parse_samples, sample
from harness.lab.transport.base import Completed, Runner
from harness.measure.backups import Backups, Copies
from harness.measure.clock import Clock
from harness.measure.fio_results import JobResult, parse, together
from harness.measure.machines import Fio, Machine, SessionFor, SliceJob, guests_of, machines_of, read_clocks
from harness.measure.overlaps import Times, alone_between, overlapping
from harness.measure.ran_slices import RanPart, RanSlice
from harness.measure.session import Session
from harness.model.cell import Part
from harness.model.job import Job
from harness.results import RunStore
from harness.results.journal_records import BackupCounts
from harness.scenario.timetable import Slice, Timetable, backed_up
from harness.signals import cleaning_up, held_back, interruptible

_FIRST_PAUSE_SECONDS = 0.5
"""As much time before the first slice counts as a pause."""
_BEFORE_SLICE = 0.5
"""When the counters are read before a slice, as a share of the quiet part of the pause before it.

Ends and starts both differ from the plan, in the embedded lab by 10 to 20 ms. So the middle is safest.
"""
_GRACE_SECONDS = 60.0
_WATCH_SECONDS = 0.5
_REPORTED_SECONDS = 10.0
"""During a block that takes longer, the time that is left is reported this often."""
_STOP_SECONDS = 5.0

_OTHER_THREADS = 5
"""Threads beside those that run fio: the host's clock, its counters and its cycles, backups, and what runs beside."""

Beside = Callable[[Timetable, float, Event], None]
"""Something that runs beside a timetable, which begins at this moment, until its end or until the event is set."""


@dataclass(frozen=True, slots=True)
class _Readings:
    """What was read on the host during a timetable that began at the moment `start`."""

    start: float
    host: Clock
    samples: Sequence[Sample]
    cycles: CycleSeries
    copies: Copies


def run_timetable(
    at: SessionFor,
    session: Session,
    store: RunStore,
    table: Timetable,
    *,
    name: str,
    seed: int,
    began: Callable[[Slice], None],
    beside: Beside | None = None,
) -> list[RanSlice]:
    """Run all slices of `table`, and store fio's output and the counters as raw files named after `name`.

    `began` is called when a block begins, and every few seconds of a long one. `beside` runs in a thread of its own.
    Raises MeasurementError if fio fails, HostError or GuestError if a machine is lost, and SafetyError if a device is
    no longer the same one. An error of `beside` is raised too.
    """
    slower = max(session.platform(part.arm).startup for slice_ in table.slices for part in slice_.parts)
    startup = session.clocks.startup
    prepare = startup.seconds(len(table.slices)) + slower
    several = {part.machine for slice_ in table.slices for part in slice_.parts}
    with held_back(), ThreadPoolExecutor(len(several) + _OTHER_THREADS) as pool:
        guests = guests_of(session, table)
        clocks = read_clocks(guests.values(), session, pool)
        # A machine with a clock that is not known well may run its slices earlier or later than planned.
        table = table.spread(max(clock.needs_apart for clock in clocks.values()))
        machines = machines_of(at, session, table, guests, clocks, prepare=prepare)
        host = machines[0]
        files = _counter_files(at, session, table)
        asked = time.monotonic()
        start = asked + prepare
        moments = [start + moment for moment in reading_times(table)]
        deadline = prepare + table.seconds * 1.5 + _GRACE_SECONDS
        working = [machine for machine in machines if machine.jobs]
        backups = Backups(start)
        copied = pool.submit(backups.run, _backed_up(session, table))
        fios = {machine.name: Fio(machine, machine.pacing(name, start), seed, store, name) for machine in working}
        running = {fio: pool.submit(fio.run, deadline=deadline) for fio in fios.values()}
        times = [host.clock.uptime(moment) for moment in moments]
        sampled = pool.submit(sample, session.host.runner, files, times, deadline=deadline)
        counted = pool.submit(_count_cycles, session, table.seconds + prepare)
        others = [pool.submit(beside, table, start, backups.stopped)] if beside is not None else []
        with _stopped_at_failure(host.runner, running, backups):
            _wait([*running.values(), sampled, counted, copied, *others], table, start, began)
    store.save_raw(f"{name}-counters.txt", sampled.result(), command=f"{' '.join(files.paths)}")
    samples = parse_samples(sampled.result(), files, session.host.runner.name, expected=len(times))
    found: dict[SliceJob, tuple[Machine, JobResult, str]] = {}
    for fio, done in running.items():
        raw = fio.save(done.result())
        results = parse(done.result().stdout, fio.machine.sections, fio.machine.runner.name, within=deadline)
        for each, result in zip(fio.machine.jobs, results, strict=True):
            found[each] = fio.machine, result, raw
    ran = _ran(table, found, _Readings(start, host.clock, samples, counted.result(), copied.result()))
    ready = [moment for fio, done in running.items() if (moment := fio.ready(done.result())) is not None]
    if ready:
        startup.was_ready(max(ready) - asked - slower, len(table.slices))
    # All fio of one machine together: its clock is corrected once.
    for runner in dict.fromkeys(machine.runner for machine in working):
        names = {machine.name for machine in working if machine.runner is runner}
        session.clocks.started(runner, _late(names, ran, start))
    return ran


def _late(names: Collection[str], ran: Sequence[RanSlice], start: float) -> list[float]:
    """Seconds by which the jobs of these fio started late; empty if fio does not report starts."""
    return [
        part.first - start - each.planned.start
        for each in ran
        for part in each.parts
        if part.planned.machine in names and part.result.started is not None
    ]


def reading_times(table: Timetable) -> Iterator[float]:
    """When the counters are read, in seconds from the start of the timetable: before each slice, and at the end.

    At the beginning of a pause, I/Os of the slice before may still be in flight. Backups run a little longer than their
    slices. No slice has what they move before and after.
    """
    ended = -_FIRST_PAUSE_SECONDS
    for slice_ in table.slices:
        begins = slice_.start - slice_.lead
        pause = begins - ended
        yield begins - _BEFORE_SLICE * (pause if table.quiet is None else min(table.quiet, pause))
        ended = slice_.end + slice_.tail
    yield table.seconds


def _counter_files(at: SessionFor, session: Session, table: Timetable) -> CounterFiles:
    """The files with the counters of the disks, of the arrays, and of each guest that runs."""
    guests = session.guests.running if session.guests is not None else {}
    threads = {name: guest.threads for name, guest in guests.items() if guest.threads is not None}
    first = next(iter(threads), "")
    others = {name: vm for name, vm in threads.items() if name != first}
    md = _arrays(at, table)
    tasks = tuple(device.thread for device in md if device.thread is not None)
    names = tuple(device.name for device in md)
    return CounterFiles(_disks(at, table), threads.get(first), names, tasks, others)


def _disks(at: SessionFor, table: Timetable) -> tuple[str, ...]:
    sessions = [(at(slice_.turn), slice_.arm) for slice_ in table.slices]
    own = (disk for session, arm in sessions for disk in session.counted_disks(arm))
    return tuple(dict.fromkeys([*own, *(disk for session, _ in sessions for disk in session.shared_disks)]))


def _arrays(at: SessionFor, table: Timetable) -> tuple[MdDevice, ...]:
    return tuple(dict.fromkeys(device for slice_ in table.slices for device in at(slice_.turn).arrays(slice_.arm)))


def _backed_up(session: Session, table: Timetable) -> list[tuple[Slice, Backup]]:
    """The slices during which a backup runs, in the order of time."""
    backups = {arm: session.backup(arm) for arm in dict.fromkeys(slice_.arm for slice_ in table.slices)}
    return [(slice_, backup) for slice_ in table.slices if (backup := backups[slice_.arm]) is not None]


def _count_cycles(session: Session, seconds: float) -> CycleSeries:
    return count_cycles(session.host.runner, seconds) if session.host.cycles.counted else NO_CYCLES


@contextmanager
def _stopped_at_failure(host: Runner, running: Mapping[Fio, Future[Completed]], backups: Backups) -> Iterator[None]:
    """After an error or an interrupt in the block, nothing continues on the machines."""
    try:
        yield
    except BaseException:
        with cleaning_up():
            backups.stopped.set()
            for fio, done in running.items():
                if not done.done():
                    with suppress(HostError):  # the first error is more useful than a second one of the same connection
                        fio.pacing.stop(fio.machine.runner)
            wait(running.values(), timeout=_STOP_SECONDS)
            with suppress(HostError):
                # On the host, perf and the reading of counters would continue until the end of the timetable.
                Processes(mark=MARK).remove(host)
        raise


def _wait(futures: Sequence[Future[Any]], table: Timetable, start: float, began: Callable[[Slice], None]) -> None:
    """Wait for all, and report each block at its planned time, a long one several times. Raises the first error."""
    ahead = list(reported_slices(table.slices))
    left = set(futures)
    while left:
        with interruptible():
            done, left = wait(left, timeout=_WATCH_SECONDS, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        while ahead and time.monotonic() >= start + ahead[0].start:
            began(ahead.pop(0))


def reported_slices(slices: Iterable[Slice]) -> Iterator[Slice]:
    """The slices whose start is reported: the first one of each block, and others if a block takes longer."""
    begun: set[tuple[int, Job]] = set()
    last = 0.0
    for slice_ in slices:
        if slice_.of_block not in begun or slice_.start - last >= _REPORTED_SECONDS:
            begun.add(slice_.of_block)
            last = slice_.start
            yield slice_


def _ran(
    table: Timetable,
    found: Mapping[SliceJob, tuple[Machine, JobResult, str]],
    read: _Readings,
) -> list[RanSlice]:
    """The slices in their order, with the counters that were read between them."""
    parts = [
        tuple(_ran_part(slice_, part, found[slice_, part], read) for part in slice_.parts) for slice_ in table.slices
    ]
    times = [Times(min(part.first for part in own), max(part.ended for part in own)) for own in parts]
    readings = [Times(read.host.moment(each.begun), read.host.moment(each.ended)) for each in read.samples]
    alone = [alone_between(times, number, *readings[number : number + 2]) for number in range(len(times))]
    return [
        RanSlice(
            planned=each,
            result=together([part.result for part in own if not part.planned.neighbour]),
            first=ran.first,
            begun=own[0].begun,
            ended=ran.ended,
            before=read.samples[number] if alone[number] else None,
            after=read.samples[number + 1] if alone[number] else None,
            cycles=read.cycles.between(read.host.uptime(own[0].begun), read.host.uptime(ran.ended)),
            raw=own[0].raw,
            overlap=_overlap(table, times, number) or _left_over(each, read.copies, ran),
            backup=_backup(each, read.copies, own[0]),
            parts=own,
        )
        for number, (each, own, ran) in enumerate(zip(table.slices, parts, times, strict=True))
    ]


def _ran_part(planned: Slice, part: Part, found: tuple[Machine, JobResult, str], read: _Readings) -> RanPart:
    machine, result, raw = found
    moments = read.start + planned.start, read.start + planned.measured_from
    first, begun = (
        plan if uptime is None else machine.clock.moment(uptime)
        for plan, uptime in zip(moments, (result.ramp_started, result.started), strict=True)
    )
    return RanPart(part, result, first, begun, begun + result.seconds, raw)


def _left_over(planned: Slice, copies: Copies, ran: Times) -> str:
    """`backup` if a backup for another slice still ran during this one; empty if none did."""
    return "backup" if not backed_up(planned.arm) and copies.disturb(ran.first, ran.ended) else ""


def _backup(planned: Slice, copies: Copies, part: RanPart) -> BackupCounts | None:
    if not backed_up(planned.arm):
        return None
    # fio waits for its last I/Os, which a backup may delay by seconds: it must run until fio issues no more.
    begun, ended = part.begun, part.begun + planned.job.seconds
    after = max(part.ended - ended, copies.after(begun, ended))
    return BackupCounts(round(copies.share(begun, ended), 4), round(copies.rate(begun, ended)), round(after, 3))


def _overlap(table: Timetable, times: Sequence[Times], number: int) -> str:
    """The turn that ran at the same time as the slice with this number, or as its ramp; empty if none did."""
    other = overlapping(times, number)
    return "" if other is None else str(table.slices[other].turn)
