"""Runs one timetable: fio on host and guest at the same time, with the host's counters for each slice."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event
from typing import Any

from harness.errors import HostError, MeasurementError
from harness.feature import Companion, CountedCycles, CycleCounter, features, find_brought
from harness.guest.protocol import Guest
from harness.lab.counters import CounterFiles, Cycles, MdDevice, Sample, parse_samples, read_samples
from harness.lab.created import Processes
from harness.lab.guard import run_all
from harness.lab.pin import MARK
from harness.lab.transport.base import Completed, Runner, suggest_remedy
from harness.measure.fio import JobResult, TimedSection, add_results, job_file, parse, reports_start
from harness.measure.platform import Clock, Platform, ScheduledFio, Start, choose_platform, remove_waits
from harness.measure.ran_slices import RanPart, RanSlice, Times, alone_between, find_overlapping
from harness.measure.session import Session, SessionFor
from harness.model.job import Job
from harness.model.mode import ConcurrentJob
from harness.results import RunStore
from harness.results.journal import CLOCK_CHANGED, BackupCounts
from harness.scenario.timetable import GUARD_SECONDS, Slice, Timetable
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
    cycles: CountedCycles | None
    companions: Sequence[Companion]
    clock_changed: bool
    """Whether a guest's clock stopped or was set meanwhile, so that it is not known when its slices ran."""

    def find_left_over(self, planned: Slice, ran: Times) -> str:
        """What still ran for another slice during this one; empty if nothing did."""
        words = (companion.find_left_over(planned, ran.first, ran.ended) for companion in self.companions)
        return next(filter(None, words), "")

    def count_backup(self, planned: Slice, part: RanPart) -> BackupCounts | None:
        counts = (companion.count(planned, part.begun, part.ended) for companion in self.companions)
        return next((count for count in counts if count is not None), None)


def run_timetable(
    at: SessionFor,
    session: Session,
    store: RunStore,
    table: Timetable,
    *,
    name: str,
    seed: int,
    began: Callable[[Slice], None] = lambda _slice: None,
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
        host_clock = clocks[session.host.runner]
        files = _list_counter_files(at, session, table)
        asked = time.monotonic()
        start = asked + prepare
        moments = [start + moment for moment in reading_times(table)]
        deadline = prepare + table.seconds * 1.5 + _GRACE_SECONDS
        fios = list_fios(
            at, session, table, guests, clocks, store=store, name=name, seed=seed, start=start, prepare=prepare
        )
        stopped = Event()
        made = (feature.accompany(session, table, start) for feature in features())
        companions = [companion for companion in made if companion is not None]
        running = {fio: pool.submit(fio.run, deadline=deadline) for fio in fios}
        times = [host_clock.uptime(moment) for moment in moments]
        sampled = pool.submit(read_samples, session.host.runner, files, times, deadline=deadline)
        counted = pool.submit(_count_cycles, session, table.seconds + prepare)
        others = [pool.submit(companion.run, stopped) for companion in companions]
        if beside is not None:
            others.append(pool.submit(beside, table, start, stopped))
        with _stop_at_failure(session.host.runner, running, stopped):
            _wait([*running.values(), sampled, counted, *others], table, start, began)
        changed = has_clock_changed(clocks, read_clocks(guests.values(), session, pool), session.host.runner)
    store.save_raw(f"{name}-counters.txt", sampled.result(), command=f"{' '.join(files.paths)}")
    samples = parse_samples(sampled.result(), files, session.host.runner.name, expected=len(times))
    ended = {fio: done.result() for fio, done in running.items()}
    readings = _Readings(start, host_clock, samples, counted.result(), companions, changed)
    ran = _make_ran_slices(table, _parse_results(ended, deadline), readings)
    ready = [moment for fio, done in ended.items() if (moment := fio.ready(done)) is not None]
    if ready:
        startup.record_ready(max(ready) - asked - slower, len(table.slices))
    # All fio of one machine together: its clock is corrected once.
    for runner in dict.fromkeys(fio.runner for fio in fios):
        names = {fio.name for fio in fios if fio.runner is runner}
        session.clocks.started(runner, _find_late(names, ran, start))
    return ran


def _parse_results(ended: Mapping[Fio, Completed], deadline: float) -> dict[SliceJob, tuple[Fio, JobResult, str]]:
    """The result of each job, with its fio and the path of the output. Stores the outputs before it reads them."""
    results_of: dict[SliceJob, tuple[Fio, JobResult, str]] = {}
    for fio, done in ended.items():
        raw = fio.save(done)
        results = parse(done.stdout, fio.sections, fio.runner.name, within=deadline)
        for slice_job, result in zip(fio.jobs, results, strict=True):
            results_of[slice_job] = fio, result, raw
    return results_of


def _find_late(names: Collection[str], ran: Sequence[RanSlice], start: float) -> list[float]:
    """Seconds by which the jobs of these fio started late; empty if fio does not report starts."""
    return [
        part.first - start - ran_slice.planned.start
        for ran_slice in ran
        for part in ran_slice.parts
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


def _list_counter_files(at: SessionFor, session: Session, table: Timetable) -> CounterFiles:
    guests = session.guests.running if session.guests is not None else {}
    threads = {name: guest.threads for name, guest in guests.items() if guest.threads is not None}
    first = next(iter(threads), "")
    others = {name: vm for name, vm in threads.items() if name != first}
    md = _list_arrays(at, table)
    tasks = tuple(device.thread for device in md if device.thread is not None)
    names = tuple(device.name for device in md)
    memory = any(slice_.arm.mode is not None and slice_.arm.mode.cached for slice_ in table.slices)
    return CounterFiles(_list_disks(at, table), threads.get(first), names, tasks, others, memory)


def _list_disks(at: SessionFor, table: Timetable) -> tuple[str, ...]:
    sessions = [(at(slice_.turn), slice_.arm) for slice_ in table.slices]
    counted = (disk for session, arm in sessions for disk in session.counted_disks(arm))
    return tuple(dict.fromkeys([*counted, *(disk for session, _ in sessions for disk in session.shared_disks)]))


def _list_arrays(at: SessionFor, table: Timetable) -> tuple[MdDevice, ...]:
    return tuple(dict.fromkeys(device for slice_ in table.slices for device in at(slice_.turn).arrays(slice_.arm)))


def _count_cycles(session: Session, seconds: float) -> CountedCycles | None:
    counter = find_brought(CycleCounter) if session.host.cycles.counted else None
    return counter.count(session.host.runner, seconds) if counter is not None else None


@contextmanager
def _stop_at_failure(host: Runner, running: Mapping[Fio, Future[Completed]], stopped: Event) -> Iterator[None]:
    """After an error or an interrupt in the block, nothing continues on the machines."""
    try:
        yield
    except BaseException:
        with cleaning_up():
            stopped.set()
            for fio, done in running.items():
                if not done.done():
                    with suppress(HostError):  # the first error is more useful than a second one of the same connection
                        fio.scheduled.stop(fio.runner)
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


def _make_ran_slices(
    table: Timetable,
    results_of: Mapping[SliceJob, tuple[Fio, JobResult, str]],
    read: _Readings,
) -> list[RanSlice]:
    """The slices in their order, with the counters that were read between them."""
    parts = [
        tuple(_make_ran_part(slice_, part, results_of[slice_, part], read) for part in slice_.parts)
        for slice_ in table.slices
    ]
    times = [Times(min(part.first for part in of_slice), max(part.ended for part in of_slice)) for of_slice in parts]
    readings = [Times(read.host.moment(reading.begun), read.host.moment(reading.ended)) for reading in read.samples]
    alone = [
        not read.clock_changed and alone_between(times, number, *readings[number : number + 2])
        for number in range(len(times))
    ]
    return [
        RanSlice(
            planned=planned,
            result=add_results([part.result for part in of_slice if not part.planned.neighbour]),
            first=ran.first,
            begun=of_slice[0].begun,
            ended=ran.ended,
            before=read.samples[number] if alone[number] else None,
            after=read.samples[number + 1] if alone[number] else None,
            cycles=_find_cycles(read, of_slice[0].begun, ran.ended),
            raw=of_slice[0].raw,
            overlap=CLOCK_CHANGED
            if read.clock_changed
            else _find_overlap(table, times, number) or read.find_left_over(planned, ran),
            backup=read.count_backup(planned, of_slice[0]),
            parts=of_slice,
        )
        for number, (planned, of_slice, ran) in enumerate(zip(table.slices, parts, times, strict=True))
    ]


def _make_ran_part(
    planned: Slice, part: ConcurrentJob, result_of: tuple[Fio, JobResult, str], read: _Readings
) -> RanPart:
    fio, result, raw = result_of
    moments = read.start + planned.start, read.start + planned.measured_from
    first, begun = (
        plan if uptime is None else fio.clock.moment(uptime)
        for plan, uptime in zip(moments, (result.ramp_started, result.started), strict=True)
    )
    return RanPart(part, result, first, begun, begun + result.seconds, raw)


def _find_cycles(read: _Readings, begun: float, ended: float) -> Cycles:
    """The cycles between two moments."""
    return Cycles() if read.cycles is None else read.cycles.between(read.host.uptime(begun), read.host.uptime(ended))


def _find_overlap(table: Timetable, times: Sequence[Times], number: int) -> str:
    """The turn that ran at the same time as the slice with this number, or as its ramp; empty if none did."""
    other = find_overlapping(times, number)
    return "" if other is None else str(table.slices[other].turn)


AHEAD_SECONDS = 1.0
"""How much earlier fio creates a job than it would need to if it were ready in time."""
JOBS_AHEAD = 4
"""A job is not created so early that this many before it on the machine still wait for their starts."""
SliceJob = tuple[Slice, ConcurrentJob]
"""A job and the slice in which it runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Fio:
    """One fio on a machine, host or guest, with its jobs of a timetable. Each runs in a slice."""

    runner: Runner
    run_command: Callable[..., Completed]
    name: str
    clock: Clock
    jobs: tuple[SliceJob, ...]
    sections: tuple[TimedSection, ...]
    scheduled: ScheduledFio
    job_file: str
    store: RunStore
    raw_name: str

    def run(self, *, deadline: float) -> Completed:
        """Run it. Raises MeasurementError at once if it fails, because the other machine still runs then."""
        done = self.scheduled.run(self.run_command, self.job_file, deadline=deadline)
        if done.status != 0:
            raw = self.store.path / self.save(done)
            printed = (done.stderr or done.stdout).strip()[-400:]
            raise MeasurementError(
                f"{self.runner.name}: fio ended with status {done.status}: {printed}",
                hint="; ".join(filter(None, (suggest_remedy(self.runner.name, printed), f"its output is in {raw}"))),
            )
        return done

    def ready(self, done: Completed) -> float | None:
        """The moment at which it could have started its first job; None if that is not known."""
        uptime = self.scheduled.ready(done)
        # A job whose slice is not the first one of the timetable is created later.
        delay = self.sections[0].delay or 0.0
        return self.clock.moment(uptime) - delay if uptime is not None else None

    def save(self, done: Completed) -> str:
        """Store the output and return its path. Not during a slice, because it writes to a disk.

        The output is as fio printed it, but without the line for each job that waits, so that it is JSON.
        """
        return self.store.save_raw(
            f"{self.raw_name}-{self.name}.json",
            remove_waits(done.stdout),
            command=f"{shlex.join(self.scheduled.fio)} <<'JOBS'\n{self.scheduled.stdin(self.job_file)}JOBS",
        )


def guests_of(session: Session, table: Timetable) -> dict[str, Guest | None]:
    """The guest on each machine of the timetable; None on the host, which is the first, also if no slice runs there."""
    guests: dict[str, Guest | None] = {"host": None}
    for slice_ in table.slices:
        for part in slice_.parts:
            if part.machine not in guests:
                guests[part.machine] = session.guest(part.arm)
    return guests


def read_clocks(guests: Iterable[Guest | None], session: Session, pool: ThreadPoolExecutor) -> dict[Runner, Clock]:
    """The clocks of all machines, which are read at the same time."""
    platforms = {_choose_runner(session, guest): _choose_platform(session, guest) for guest in guests}
    readings = {
        runner: pool.submit(session.clocks.read, runner, platform.clock(runner))
        for runner, platform in platforms.items()
    }
    return {runner: done.result() for runner, done in readings.items()}


def has_clock_changed(before: Mapping[Runner, Clock], after: Mapping[Runner, Clock], host: Runner) -> bool:
    """Whether a guest's clock stopped or was set against the host's between these readings of all machines.

    A guest that was paused runs all its further slices later than planned, which its own clock does not show. If this
    process was suspended, or the host with its guests, all clocks changed alike, and the slices kept their order.
    """

    def change(runner: Runner) -> float:
        return after[runner].offset - before[runner].offset

    def error(runner: Runner) -> float:
        return after[runner].error + before[runner].error

    return any(abs(change(runner) - change(host)) > GUARD_SECONDS + error(runner) + error(host) for runner in before)


def list_fios(
    at: SessionFor,
    session: Session,
    table: Timetable,
    guests: Mapping[str, Guest | None],
    clocks: Mapping[Runner, Clock],
    *,
    store: RunStore,
    name: str,
    seed: int,
    start: float,
    prepare: float,
) -> list[Fio]:
    """The fio of each machine with slices. Each of the jobs that run on the host at the same time has its own.

    `start` is the moment at which the timetable begins, `prepare` how long before it they are started.
    """
    jobs: dict[str, list[SliceJob]] = {machine: [] for machine in guests}
    for slice_ in table.slices:
        for part in slice_.parts:
            jobs[part.machine].append((slice_, part))
    fios = []
    for machine, guest in guests.items():
        if not (of_machine := jobs[machine]):
            continue
        runner, platform = _choose_runner(session, guest), _choose_platform(session, guest)
        clock, late = clocks[runner], session.clocks.late(runner)
        # A job starts a little after it is released.
        starts = [
            Start(clock.uptime(start + moment - late), part.job.numjobs)
            for planned, part in of_machine
            for moment in _list_starts(planned)
        ]
        scheduled = platform.schedule_fio(f"{name}-{machine}", starts)
        sections = tuple(_make_sections(at, of_machine, prepare))
        version = session.host.facts["fio"] if guest is None else guest.evidence.get("fio", "")
        text = job_file(sections, seed, reports_start=reports_start(version), platform=platform, waits=scheduled.waits)
        run_command = _on_host(at, of_machine) if guest is None else runner.run
        jobs_of_fio = tuple(of_machine)
        fios.append(Fio(runner, run_command, machine, clock, jobs_of_fio, sections, scheduled, text, store, name))
    return fios


def _choose_platform(session: Session, guest: Guest | None) -> Platform:
    fio = session.host.spec.fio if guest is None else guest.fio
    return choose_platform(fio, system="windows" if guest is not None and guest.windows else "linux")


def _choose_runner(session: Session, guest: Guest | None) -> Runner:
    return guest.runner if guest is not None else session.host.runner


def _on_host(at: SessionFor, jobs: Sequence[SliceJob]) -> Callable[..., Completed]:
    """Runs fio on the host, if all devices of these jobs are still the same."""
    devices = list(dict.fromkeys(at(planned.turn).layouts.twin(part.arm.mode).writable for planned, part in jobs))

    def on_host(argv: Sequence[str], *, stdin: str, deadline: float, check: bool) -> Completed:
        return run_all(devices, argv, stdin=stdin, deadline=deadline, check=check)

    return on_host


def _make_sections(at: SessionFor, jobs: Sequence[SliceJob], prepare: float) -> Iterator[TimedSection]:
    """The sections of fio on one machine, which starts at most `prepare` seconds after its command.

    So fio creates each job up to `prepare` seconds before its start, and up to AHEAD_SECONDS earlier: if fio is ready
    too late, only the first slices start late. A job needs memory from then on, so only a few wait at a time.
    """
    starts: list[float] = []
    for number, (planned, part) in enumerate(jobs, start=1):
        starts.append(planned.start)
        earlier = starts[-1 - JOBS_AHEAD] + prepare if len(starts) > JOBS_AHEAD else 0.0
        delay = max(planned.start - AHEAD_SECONDS, min(earlier, planned.start), 0.0)
        name = f"{number}-{planned.turn}-{part.job.id}".replace(":", "-")
        yield TimedSection(name, part.job, at(planned.turn).target(part.arm), delay, _write_limit(planned))


def _write_limit(planned: Slice) -> int | None:
    """The limit for each job of a slice: an equal part for those that write."""
    writing = sum(part.job.writes for part in planned.parts)
    return planned.write_limit // writing if planned.write_limit is not None and writing else planned.write_limit


def _list_starts(planned: Slice) -> tuple[float, ...]:
    """When fio's jobs of this slice start, in seconds from the start of the timetable: ramp and job."""
    return (planned.start, planned.measured_from) if planned.job.ramp else (planned.start,)
