"""What fio and its timetable need of a machine's operating system; how fio on Linux starts each slice on time.

fio itself starts a delayed job only when it next looks, every 0.1 s. So fio creates each job early, and the job sleeps
in its `exec_prerun` command until its time. In the embedded lab on a slow machine, it then starts 20 to 90 ms late.
With a process for each slice, 0.43 s more pass there between two slices, and 1.5 s with a job for `fio --server`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import ClassVar, Self

from harness.errors import Unsupported
from harness.feature import features
from harness.files import read_script
from harness.lab.lab_schema import fio_path
from harness.lab.pin import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Completed, Runner
from harness.model.job import Job
from harness.untrusted import finite, reading

STARTUP_SECONDS = 0.8
"""The time without any jobs, before it was seen: login, and the start of fio."""
STARTUP_SECONDS_PER_SLICE = 0.012
"""The most that fio needs longer for each job, as seen on a slow machine, twice: two of them start there."""
LEAST_STARTUP_SECONDS = 0.7
"""The host's counters must be read before the first slice, by a program that needs this time to start."""
STARTUP_MARGIN = 1.4
"""A machine may be slower the next time."""
_USUAL_SECONDS = 0.4
_USUAL_SECONDS_PER_SLICE = 0.003
"""When fio is ready in the embedded lab. Each job takes 6 ms there; host and guest create theirs at the same time."""
MOST_UNREADY_SECONDS = 10.0


@dataclass(slots=True)
class Startup:
    """What was seen in the timetables so far. Times in seconds."""

    late: float = 0.0
    """By how much slices started late, because fio was not ready."""
    seen: list[tuple[float, int]] = field(default_factory=list)
    """The times until fio was ready, each with the number of slices."""

    def seconds(self, slices: int) -> float:
        most = STARTUP_SECONDS + STARTUP_SECONDS_PER_SLICE * slices
        if self.seen:
            most = min(STARTUP_MARGIN * max(_scale(*seen, slices) for seen in self.seen), most)
        return max(most, LEAST_STARTUP_SECONDS) + self.late

    def record_ready(self, seconds: float, slices: int) -> None:
        self.seen.append((seconds, slices))

    def record_late(self, seconds: float) -> None:
        self.late = min(self.late + seconds, MOST_UNREADY_SECONDS)
        self.seen.clear()


def _scale(seconds: float, of: int, slices: int) -> float:
    """The time for so many slices, if it was `seconds` for `of` slices. A slow login is not slower for more slices."""
    later = _USUAL_SECONDS_PER_SLICE * max(slices - of, 0)
    return min(seconds * _estimate_usual(slices) / _estimate_usual(of), seconds + later)


def _estimate_usual(slices: int) -> float:
    return _USUAL_SECONDS + _USUAL_SECONDS_PER_SLICE * slices


GOOD_SECONDS = 0.06
"""Readings end when the error is not larger than this. In the embedded lab, a good reading has half of it."""
MOST_READINGS = 4
MOST_LATE_SECONDS = 0.2
"""The longest time to wake a job up. If jobs start later than that, their fio was not ready."""
DRIFT = 200e-6
"""The most by which two clocks drift apart, as a share of the time. Quartz and NTP's corrections stay below it."""
_STEP = 0.01
"""The resolution of /proc/uptime in seconds."""


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's uptime minus this process's monotonic clock, in seconds. `error` is the largest possible error."""

    offset: float
    error: float

    def uptime(self, moment: float) -> float:
        return moment + self.offset

    def moment(self, uptime: float) -> float:
        return uptime - self.offset

    @property
    def needs_apart(self) -> float:
        """Seconds by which the pauses between slices must be longer because of a large error: twice what exceeds a good
        one. In the middle of such a pause, no slice runs, and a slice neither begins nor ends in that of another."""
        return 2 * max(self.error - GOOD_SECONDS, 0.0)

    def older(self, seconds: float) -> Clock:
        return replace(self, error=self.error + DRIFT * seconds)

    def narrowed(self, newer: Clock) -> Clock:
        """What both show together. `newer` alone if they contradict each other: then a clock was changed."""
        low = max(self.offset - self.error, newer.offset - newer.error)
        high = min(self.offset + self.error, newer.offset + newer.error)
        return Clock((low + high) / 2, (high - low) / 2) if low <= high else newer


class Clocks:
    """The clocks of the machines of a session, and how late their jobs start. Each timetable makes them more exact.

    A guest that was booted again has another clock, but its jobs start as late as before, and a boot may have only one
    timetable. So a machine that is new here begins with what was last seen of a machine of its name.
    """

    def __init__(self) -> None:
        self._known: dict[Runner, tuple[Clock, float]] = {}
        self._late: dict[Runner, float] = {}
        self._late_by_name: dict[str, float] = {}
        self.startup = Startup()

    def late(self, runner: Runner) -> float:
        """How late a job of this machine starts after its planned time, in seconds: the median of its last timetable.

        It is the time in which the machine wakes programs up. Jobs are released so much earlier.
        """
        return self._late.setdefault(runner, self._late_by_name.get(runner.name, 0.0))

    def started(self, runner: Runner, late: Sequence[float]) -> None:
        """Note how late the jobs of a timetable started, in seconds, although they were released earlier.

        If it is more than waking up can take, fio itself was late, and the next timetable gives it more time.
        """
        if not late:
            return
        lateness = self.late(runner) + median(late)
        if lateness > MOST_LATE_SECONDS:
            self.startup.record_late(lateness)
        else:
            self._late[runner] = self._late_by_name[runner.name] = max(lateness, 0.0)

    def read(self, runner: Runner, asking: AbstractContextManager[Callable[[], Clock]] | None = None) -> Clock:
        """Compare the machine's clock with that of this process, with a few readings. Raises HostError.

        `asking` makes one reading; by default, it reads /proc/uptime.

        The machine reads its clock between the request and the answer. So the error of one reading is at most half of
        that time (Cristian 1989, "Probabilistic clock synchronization"), and the offset lies where the intervals of all
        readings overlap (Marzullo & Owicki 1983), also those of earlier timetables.
        """
        clock: Clock | None = None
        if runner in self._known:
            clock, at = self._known[runner]
            clock = clock.older(time.monotonic() - at)
        with asking or nullcontext(partial(read_uptime, runner)) as ask:
            for _ in range(MOST_READINGS):
                new = ask()
                clock = new if clock is None else clock.narrowed(new)
                if clock.error <= GOOD_SECONDS:
                    break
        assert clock is not None
        self._known[runner] = clock, time.monotonic()
        return clock


def read_uptime(runner: Runner) -> Clock:
    """One reading of /proc/uptime. Raises HostError."""
    asked = time.monotonic()
    printed = runner.run(["cat", "/proc/uptime"], deadline=_DEADLINE).stdout
    answered = time.monotonic()
    with reading(f"{runner.name}: /proc/uptime"):
        uptime = finite(printed.split()[0]) + _STEP / 2
    return Clock(uptime - (asked + answered) / 2, (answered - asked + _STEP) / 2)


_DEADLINE = 20.0

_PACE = read_script("harness.measure", "pace_fio.sh")

_READY = re.compile(r"^fio was ready at (\d+\.\d+)$", re.MULTILINE)

_STOP = read_script("harness.measure", "stop_fio.sh")


@dataclass(frozen=True, slots=True)
class Start:
    """The start of one job: `at` in seconds of the machine's uptime, and the number of its processes."""

    at: float
    processes: int


@dataclass(frozen=True, slots=True)
class ScheduledFio:
    """fio on one machine with the starts of its jobs. `directory` exists while it runs."""

    directory: str
    fio: tuple[str, ...]
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> Self:
        """`token` is part of the name of the directory, and unique in this process."""
        return cls(f"{LEASE_DIRECTORY}/pacing-{token}-{MARK[-8:]}", tuple(fio), tuple(starts))

    @property
    def argv(self) -> tuple[str, ...]:
        return ("env", MARK, "sh", "-c", _PACE, "sh", self.directory, *self.fio)

    def waits(self, number: int) -> str:
        """fio's option for the job with this number: it waits for its start when everything else is ready."""
        return f"exec_prerun=exec sh wait_until {self.starts[number].at * 1000:.0f}"

    def stdin(self, job_file: str) -> str:
        return job_file

    def run(self, run: Callable[..., Completed], job_file: str, *, deadline: float) -> Completed:
        """Run it with `run`, which is called as `Runner.run`. Any exit status is accepted."""
        return run(self.argv, stdin=self.stdin(job_file), deadline=deadline, check=False)

    def ready(self, done: Completed) -> float | None:
        """The machine's uptime at which fio's first job waited for its start. None if it was not noted."""
        match = _READY.search(done.stderr)
        return float(match[1]) if match else None

    def stop(self, runner: Runner) -> None:
        """End it on the machine, if it runs there. Raises HostError."""
        runner.run(["sh", "-c", _STOP, "sh", self.directory], deadline=_DEADLINE, check=False)


def remove_waits(output: str) -> str:
    """fio's output without the lines in which it says that a job runs its `exec_prerun` command."""
    return "".join(line for line in output.splitlines(keepends=True) if " : Saving output of prerun in " not in line)


PROGRAM = "fio"
"""The program if the lab names no other one."""
ENGINE = "libaio"
_BOOT_TIME = 7
"""The kernel's number of the clock of /proc/uptime, which no adjustment of the time of day changes."""


def fio_command(program: str = PROGRAM) -> tuple[str, ...]:
    """Only fio, with the same arguments on host and guest. The job file is on standard input."""
    return program, "--output-format=json+", "-"


@dataclass(frozen=True, slots=True)
class Platform:
    """How fio runs on an operating system: here Linux, as on every host. `program` is fio."""

    program: str = PROGRAM
    engine: ClassVar[str] = ENGINE
    """fio's engine for asynchronous I/O of the system."""
    start_clock: ClassVar[int] = _BOOT_TIME
    """The number of the clock for `job_start_clock_id` that `clock` reads as well."""
    startup: ClassVar[float] = 0.0
    """Seconds that fio takes longer to start than on a Linux host."""
    disk_util: ClassVar[bool] = True
    """Whether fio has this option."""

    def filename(self, path: str) -> str:
        """The disk or file in fio's job file. Raises ValueError if fio does not accept it."""
        return fio_path(path)

    def schedule_fio(self, token: str, starts: Sequence[Start]) -> ScheduledFio:
        """fio with these starts. `token` is unique in this process."""
        return ScheduledFio.of(token, fio_command(self.program), starts)

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        """Reads the machine's clock. Raises HostError."""
        return nullcontext(partial(read_uptime, runner))

    def notes(self, evidence: Mapping[str, str]) -> Iterable[str]:  # noqa: ARG002 - of other systems
        """What makes the figures of a machine with this evidence differ from those of a quiet one, with the remedy."""
        return ()

    def why_unsupported(self, job: Job) -> str | None:  # noqa: ARG002 - of other systems
        """Why fio cannot run the job there as on the host; None if it can."""
        return None


LINUX = Platform()


def choose_platform(fio: str = "fio", *, system: str = "linux") -> Platform:
    """That of a machine with this operating system. Every host runs Linux. `fio` is the program there.

    Raises Unsupported for a system that no feature brings.
    """
    if system == "linux":
        return Platform(fio)
    for feature in features():
        if (make := feature.platforms.get(system)) is not None:
            return make()
    raise Unsupported(f"fio cannot be run in a guest with {system}", hint="use a guest with Linux")
