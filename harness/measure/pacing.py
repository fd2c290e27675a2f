"""Runs fio on one machine by a timetable: one process with a job for each slice, and each slice starts on time.

fio itself starts a delayed job only when it next looks, every 0.1 s. So fio creates each job early, and the job sleeps
in its `exec_prerun` command until its time. In the embedded lab on a slow machine, it then starts 20 to 90 ms late.
With a process for each slice, 0.43 s more pass there between two slices, and 1.5 s with a job for `fio --server`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.lab.paths import LEASE_DIRECTORY, MARK
from harness.lab.transport.base import Completed, Runner
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
class Pacing:
    """fio on one machine with the starts of its jobs. `directory` exists while it runs."""

    directory: str
    fio: tuple[str, ...]
    starts: tuple[Start, ...]

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> Pacing:
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
        found = _READY.search(done.stderr)
        return float(found[1]) if found else None

    def stop(self, runner: Runner) -> None:
        """End it on the machine, if it runs there. Raises HostError."""
        runner.run(["sh", "-c", _STOP, "sh", self.directory], deadline=_DEADLINE, check=False)


def without_waits(output: str) -> str:
    """fio's output without the lines in which it says that a job runs its `exec_prerun` command."""
    return "".join(line for line in output.splitlines(keepends=True) if " : Saving output of prerun in " not in line)
