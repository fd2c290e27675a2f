"""The machines of a timetable, host and guests: their clocks, and one fio for all of their slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from harness.errors import MeasurementError
from harness.guest.protocol import Guest
from harness.lab.guard import run_all
from harness.lab.transport.base import Completed, Runner
from harness.measure.clock import Clock
from harness.measure.fio import Section, job_file, reports_start
from harness.measure.pacing import Start, without_waits
from harness.measure.platform import Paced, Platform, platform_of
from harness.measure.session import Session
from harness.model.cell import Part
from harness.results import RunStore
from harness.scenario.timetable import ScheduledArm, Slice, Timetable

AHEAD_SECONDS = 1.0
"""How much earlier fio creates a job than it would need to if it were ready in time."""
JOBS_AHEAD = 4
"""A job is not created so early that this many before it on the machine still wait for their starts."""
SliceJob = tuple[Slice, Part]
"""A job and the slice in which it runs."""
SessionFor = Callable[[ScheduledArm], Session]
"""The session of a turn. In a calibration on the host, the turns have different disks."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The jobs of a timetable that one fio on a machine runs, host or guest. Each runs in a slice."""

    runner: Runner
    run: Callable[..., Completed]
    name: str
    platform: Platform
    fio: str
    clock: Clock
    late: float
    """How long before its planned time a job is released, in seconds: it starts so much later."""
    jobs: tuple[SliceJob, ...]
    sections: tuple[Section, ...]

    def pacing(self, token: str, start: float) -> Paced:
        """Its fio, with the first slice of the timetable at the moment `start`."""
        starts = []
        for each, part in self.jobs:
            moments = (self.clock.uptime(start + moment - self.late) for moment in _starts(each))
            starts += [Start(moment, part.job.numjobs) for moment in moments]
        return self.platform.pacing(f"{token}-{self.name}", starts)


@dataclass(frozen=True, slots=True, eq=False)
class Fio:
    """fio on one machine, for all of its slices."""

    machine: Machine
    pacing: Paced
    seed: int
    store: RunStore
    name: str

    @property
    def jobs(self) -> str:
        machine = self.machine
        starts = reports_start(machine.fio)
        return job_file(
            machine.sections, self.seed, reports_start=starts, platform=machine.platform, waits=self.pacing.waits
        )

    def run(self, *, deadline: float) -> Completed:
        """Run it. Raises MeasurementError at once if it fails, because the other machine still runs then."""
        done = self.pacing.run(self.machine.run, self.jobs, deadline=deadline)
        if done.status != 0:
            raw = self.store.path / self.save(done)
            said = (done.stderr or done.stdout).strip()[-400:]
            raise MeasurementError(
                f"{self.machine.runner.name}: fio ended with status {done.status}: {said}",
                hint=f"its output is in {raw}",
            )
        return done

    def ready(self, done: Completed) -> float | None:
        """The moment at which it could have started its first job; None if that is not known."""
        uptime = self.pacing.ready(done)
        # A job whose slice is not the first one of the timetable is created later.
        delay = self.machine.sections[0].delay or 0.0
        return self.machine.clock.moment(uptime) - delay if uptime is not None else None

    def save(self, done: Completed) -> str:
        """Store the output and return its path. Not during a slice, because it writes to a disk.

        The output is as fio printed it, but without the line for each job that waits, so that it is JSON.
        """
        return self.store.save_raw(
            f"{self.name}-{self.machine.name}.json",
            without_waits(done.stdout),
            command=f"{done.command} <<'JOBS'\n{self.pacing.stdin(self.jobs)}JOBS",
        )


def guests_of(session: Session, table: Timetable) -> dict[str, Guest | None]:
    """The guest on each machine of the timetable; None on the host, which is the first, also if no slice runs there."""
    found: dict[str, Guest | None] = {"host": None}
    for slice_ in table.slices:
        for part in slice_.parts:
            if part.machine not in found:
                found[part.machine] = session.guest(part.arm)
    return found


def read_clocks(guests: Iterable[Guest | None], session: Session, pool: ThreadPoolExecutor) -> dict[Runner, Clock]:
    """The clocks of all machines, which are read at the same time."""
    platforms = {_runner(session, guest): _platform(session, guest) for guest in guests}
    readings = {
        runner: pool.submit(session.clocks.read, runner, platform.clock(runner))
        for runner, platform in platforms.items()
    }
    return {runner: done.result() for runner, done in readings.items()}


def machines_of(
    at: SessionFor,
    session: Session,
    table: Timetable,
    guests: Mapping[str, Guest | None],
    clocks: Mapping[Runner, Clock],
    *,
    prepare: float,
) -> list[Machine]:
    """Each machine has its own fio, and so has each of the jobs that run on the host at the same time."""
    jobs: dict[str, list[SliceJob]] = {name: [] for name in guests}
    for slice_ in table.slices:
        for part in slice_.parts:
            jobs[part.machine].append((slice_, part))
    host = session.host
    return [
        Machine(
            runner := _runner(session, guest),
            _on_host(at, jobs[name]) if guest is None else runner.run,
            name,
            _platform(session, guest),
            host.facts["fio"] if guest is None else guest.evidence.get("fio", ""),
            clocks[runner],
            session.clocks.late(runner),
            tuple(jobs[name]),
            tuple(_sections(at, jobs[name], prepare)),
        )
        for name, guest in guests.items()
    ]


def _platform(session: Session, guest: Guest | None) -> Platform:
    fio = session.host.spec.fio if guest is None else guest.fio
    return platform_of(fio, windows=guest is not None and guest.windows)


def _runner(session: Session, guest: Guest | None) -> Runner:
    return guest.runner if guest is not None else session.host.runner


def _on_host(at: SessionFor, jobs: Sequence[SliceJob]) -> Callable[..., Completed]:
    """Runs fio on the host, if all devices of these jobs are still the same."""
    devices = list(dict.fromkeys(at(each.turn).layouts.twin(part.arm.mode).writable for each, part in jobs))

    def on_host(argv: Sequence[str], *, stdin: str, deadline: float, check: bool) -> Completed:
        return run_all(devices, argv, stdin=stdin, deadline=deadline, check=check)

    return on_host


def _sections(at: SessionFor, jobs: Sequence[SliceJob], prepare: float) -> Iterator[Section]:
    """The sections of fio on one machine, which starts at most `prepare` seconds after its command.

    So fio creates each job up to `prepare` seconds before its start, and up to AHEAD_SECONDS earlier: if fio is ready
    too late, only the first slices start late. A job needs memory from then on, so only a few wait at a time.
    """
    starts: list[float] = []
    for number, (each, part) in enumerate(jobs, start=1):
        starts.append(each.start)
        earlier = starts[-1 - JOBS_AHEAD] + prepare if len(starts) > JOBS_AHEAD else 0.0
        delay = max(each.start - AHEAD_SECONDS, min(earlier, each.start), 0.0)
        name = f"{number}-{each.turn}-{part.job.id}".replace(":", "-")
        yield Section(name, part.job, at(each.turn).target(part.arm), delay, _write_limit(each))


def _write_limit(planned: Slice) -> int | None:
    """The limit for each job of a slice: an equal part for those that write."""
    writing = sum(part.job.writes for part in planned.parts)
    return planned.write_limit // writing if planned.write_limit is not None and writing else planned.write_limit


def _starts(planned: Slice) -> tuple[float, ...]:
    """When fio's jobs of this slice start, in seconds from the start of the timetable: ramp and job."""
    return (planned.start, planned.measured_from) if planned.job.ramp else (planned.start,)
