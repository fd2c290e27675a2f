"""What fio and its timetable need of a machine's operating system; how fio on Linux starts each slice on time.

fio itself starts a delayed job only when it next looks, every 0.1 s. So fio creates each job early, and the job sleeps
in its `exec_prerun` command until its time. In the embedded lab on a slow machine, it then starts 20 to 90 ms late.
With a process for each slice, 0.43 s more pass there between two slices, and 1.5 s with a job for `fio --server`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

from harness.errors import Unsupported
from harness.feature import features
from harness.lab.fields import fio_path
from harness.lab.paths import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Completed, Runner
from harness.measure.clock import Clock, read_uptime
from harness.model.job import Job
from harness.shipped import read_script

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
class LinuxFio:
    """fio on one machine with the starts of its jobs. `directory` exists while it runs."""

    directory: str
    fio: tuple[str, ...]
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> LinuxFio:
        """`token` is part of the name of the directory, and unique in this process."""
        process = MARK[-8:]
        return cls(f"{LEASE_DIRECTORY}/pacing-{token}-{process}", tuple(fio), tuple(starts))

    @property
    def argv(self) -> tuple[str, ...]:
        return ("env", MARK, "sh", "-c", _PACE, "sh", self.directory, *self.fio)

    def waits(self, number: int) -> str:
        return f"exec_prerun=exec sh wait_until {self.starts[number].at * 100:.0f}"

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


def without_waits(output: str) -> str:
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
class Linux:
    """Every host has it. `program` is fio."""

    program: str = PROGRAM
    engine: ClassVar[str] = ENGINE
    start_clock: ClassVar[int] = _BOOT_TIME
    startup: ClassVar[float] = 0.0
    disk_util: ClassVar[bool] = True

    def filename(self, path: str) -> str:
        return fio_path(path)

    def schedule_fio(self, token: str, starts: Sequence[Start]) -> LinuxFio:
        return LinuxFio.of(token, fio_command(self.program), starts)

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        return nullcontext(partial(read_uptime, runner))

    def notes(self, evidence: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 - a Platform
        return ()

    def why_unsupported(self, job: Job) -> None:  # noqa: ARG002 - a Platform
        return None


class ScheduledFio(Protocol):
    """fio on one machine with the starts of its jobs."""

    def waits(self, number: int) -> str:
        """fio's option for the job with this number: it waits for its start when everything else is ready."""
        ...

    def stdin(self, job_file: str) -> str:
        """The standard input of the command: the starts, then fio's job file."""
        ...

    def run(self, run: Callable[..., Completed], job_file: str, *, deadline: float) -> Completed:
        """Run it with `run`, which is called as `Runner.run`. Any exit status is accepted."""
        ...

    def ready(self, done: Completed) -> float | None:
        """The machine's uptime at which fio's first job waited for its start. None if it was not noted."""
        ...

    def stop(self, runner: Runner) -> None:
        """End it on the machine, if it runs there. Raises HostError."""
        ...


class Platform(Protocol):
    """How fio runs on an operating system."""

    @property
    def engine(self) -> str:
        """fio's engine for asynchronous I/O of the system."""
        ...

    @property
    def start_clock(self) -> int:
        """The number of the clock for `job_start_clock_id` that `clock` reads as well."""
        ...

    @property
    def startup(self) -> float:
        """Seconds that fio takes longer to start than on a Linux host."""
        ...

    @property
    def disk_util(self) -> bool:
        """Whether fio has this option."""
        ...

    def filename(self, path: str) -> str:
        """The disk or file in fio's job file. Raises ValueError if fio does not accept it."""
        ...

    def schedule_fio(self, token: str, starts: Sequence[Start]) -> ScheduledFio:
        """fio with these starts. `token` is unique in this process."""
        ...

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        """Reads the machine's clock. Raises HostError."""
        ...

    def notes(self, evidence: Mapping[str, str]) -> Iterable[str]:
        """What makes the figures of a machine with this evidence differ from those of a quiet one, with the remedy."""
        ...

    def why_unsupported(self, job: Job) -> str | None:
        """Why fio cannot run the job there as on the host; None if it can."""
        ...


LINUX: Platform = Linux()


def platform_of(fio: str = "fio", *, system: str = "linux") -> Platform:
    """That of a machine with this operating system. Every host runs Linux. `fio` is the program there.

    Raises Unsupported for a system that no feature brings.
    """
    if system == "linux":
        return Linux(fio)
    for feature in features():
        if (make := feature.platforms.get(system)) is not None:
            return make()
    raise Unsupported(f"fio cannot be run in a guest with {system}", hint="use a guest with Linux")
