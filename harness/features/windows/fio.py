"""fio for Windows by a timetable, and the clock of Windows. Built from documentation: see docs/windows.md.

As on Linux, fio creates each job early, and the job waits in its `exec_prerun` command. fio passes that to cmd.exe,
which reads a line from a named pipe. The script that starts fio writes the line when it is time.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from harness.errors import HostError
from harness.features.windows.guest import find_notes
from harness.files import read_script
from harness.lab.pin import MARK
from harness.lab.transport.base import Completed, HeldCommand, Runner
from harness.lab.transport.ssh import NO_INPUT, PROGRAM, SshRunner
from harness.measure.platform import ENGINE, Clock, Platform, ScheduledFio, Start
from harness.model.job import Job
from harness.untrusted import finite, reading

_DEADLINE = 30.0
_NO_SYNC = ("0", "none")
_DISK = re.compile(r"\\\\\.\\PhysicalDrive([0-9]{1,4})")

_PACE = read_script("harness.features.windows", "pace_fio.ps1")

_STOP = read_script("harness.features.windows", "stop_fio.ps1")

_CLOCK = read_script("harness.features.windows", "answer_clock.ps1")


@dataclass(frozen=True, slots=True)
class WindowsFio(ScheduledFio):
    """`directory` is a token in the names of its directory and of its pipes."""

    @classmethod
    def of(cls, token: str, fio: Sequence[str], starts: Sequence[Start]) -> Self:
        return cls(re.sub("[^A-Za-z0-9-]", "-", f"{token}-{MARK[-8:]}"), tuple(fio), tuple(starts))

    @property
    def argv(self) -> tuple[str, ...]:
        return (*self.fio, self.directory)

    def waits(self, number: int) -> str:
        return rf"exec_prerun=set /p go=<\\.\pipe\voh-{self.directory}-{number}"

    def stdin(self, job_file: str) -> str:
        starts = (f"{start.at:.6f}:{start.processes}" for start in self.starts)
        return f"{' '.join(starts)}\n{job_file}"

    def run(self, run: Callable[..., Completed], job_file: str, *, deadline: float) -> Completed:
        numbers = sorted({match[1] for match in _DISK.finditer(job_file)})
        return run((*self.argv, *numbers), stdin=self.stdin(job_file), deadline=deadline, check=False)

    def ready(self, done: Completed) -> None:  # noqa: ARG002 - a ScheduledFio
        """It is not noted."""
        return

    def stop(self, runner: Runner) -> None:
        runner.run((PROGRAM, _STOP, self.directory), deadline=_DEADLINE, check=False)


class Windows(Platform):
    """fio for Windows in a guest."""

    engine = "windowsaio"
    # fio's clock_gettime knows only the time of day and this one there, CLOCK_MONOTONIC.
    start_clock = 1
    # The start of PowerShell and of Get-Disk. Not measured: a guess that the first timetable needs.
    startup = 4.0
    disk_util = False

    def filename(self, path: str) -> str:
        """fio takes the path as it is. Only a colon would have a meaning, and there is none."""
        if not _DISK.fullmatch(path):
            raise ValueError(r"a disk of Windows is named \\.\PhysicalDriveN")
        return path

    def schedule_fio(self, token: str, starts: Sequence[Start]) -> WindowsFio:
        return WindowsFio.of(token, (PROGRAM, _PACE), starts)

    @contextmanager
    def clock(self, runner: Runner) -> Iterator[Callable[[], Clock]]:
        """One PowerShell answers several times, because its start takes longer than a reading may."""
        if not isinstance(runner, SshRunner):
            raise HostError(f"{runner.name}: the clock of Windows is read over SSH")
        with runner.hold((PROGRAM, _CLOCK), what="the clock of Windows", deadline=_DEADLINE) as held:
            yield lambda: _read_clock(runner.name, held)

    def notes(self, evidence: Mapping[str, str]) -> Iterator[str]:
        return find_notes(evidence)

    def why_unsupported(self, job: Job) -> str | None:
        if job.trims:
            return "fio for Windows cannot trim a disk: measure trims in a guest with Linux"
        if job.durable:
            return (
                "fio for Windows has no sync=dsync, and its write-through is not the same as O_DSYNC on the host; "
                "a workload with fdatasync, for example wal, can be measured"
            )
        for section in job.from_file.sections if job.from_file else ():
            options = {option.name: option.value for option in section.options_for(1)}
            if (engine := options.get("ioengine", ENGINE)) != ENGINE:
                return f"fio for Windows has no ioengine={engine} with direct I/O: use {ENGINE}, there windowsaio"
            if (sync := options.get("sync", "0")) not in _NO_SYNC:
                return f"sync={sync} of fio for Windows is write-through, which is not the same as on the host"
        return None


WINDOWS = Windows()


def _read_clock(name: str, held: HeldCommand) -> Clock:
    before = len(held.lines)
    asked = time.monotonic()
    held.send("now")
    lines_shown = held.wait(lambda lines: len(lines) > before, _DEADLINE)
    answered = time.monotonic()
    if not lines_shown:
        raise HostError(
            f"{name}: the clock of Windows did not answer within {_DEADLINE:.0f} s",
            hint=NO_INPUT,
        )
    with reading(f"{name}: the clock of Windows"):
        word, seconds = held.lines[-1].split()
        if word != "at":
            raise ValueError(f"it printed {held.lines[-1][:80]!r}")
        moment = finite(seconds)
    return Clock(moment - (asked + answered) / 2, (answered - asked) / 2)
