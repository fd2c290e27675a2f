"""What fio and its timetable need of a machine's operating system: linux.py, windows.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from harness.lab.transport.base import Completed, Runner
from harness.measure.clock import Clock
from harness.measure.linux import Linux
from harness.measure.pacing import Start
from harness.measure.windows import Windows
from harness.model.job import Job


class Paced(Protocol):
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

    def pacing(self, token: str, starts: Sequence[Start]) -> Paced:
        """fio with these starts. `token` is unique in this process."""
        ...

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        """Reads the machine's clock. Raises HostError."""
        ...

    def notes(self, evidence: Mapping[str, str]) -> Iterable[str]:
        """What makes the figures of a machine with this evidence differ from those of a quiet one, with the remedy."""
        ...

    def lacking(self, job: Job) -> str | None:
        """Why fio cannot run the job there as on the host; None if it can."""
        ...


LINUX: Platform = Linux()
WINDOWS: Platform = Windows()


def platform_of(fio: str = "fio", *, windows: bool) -> Platform:
    """That of a machine. Every host runs Linux. `fio` is the program there."""
    return WINDOWS if windows else Linux(fio)
