"""fio on Linux, on every host and in most guests: a `Platform`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from harness.lab.fio_path import fio_path
from harness.lab.transport.base import Runner
from harness.measure.clock import Clock, read_uptime
from harness.measure.pacing import Pacing, Start
from harness.model.job import Job

PROGRAM = "fio"
"""The program if the lab names no other one."""
ENGINE = "libaio"
_BOOT_TIME = 7
"""The kernel's number of the clock of /proc/uptime, which no adjustment of the time of day changes."""


def command(program: str = PROGRAM) -> tuple[str, ...]:
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

    def pacing(self, token: str, starts: Sequence[Start]) -> Pacing:
        return Pacing.of(token, command(self.program), starts)

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        return nullcontext(partial(read_uptime, runner))

    def notes(self, evidence: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 - a Platform
        return ()

    def lacking(self, job: Job) -> None:  # noqa: ARG002 - a Platform
        return None
