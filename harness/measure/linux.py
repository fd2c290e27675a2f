"""fio on Linux, on every host and in most guests: a `Platform`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from harness.lab.fio_path import fio_path
from harness.lab.transport.base import Runner
from harness.measure.clock import Clock, read_uptime
from harness.measure.pacing import Pacing, Start
from harness.model.job import Job

FIO = ("fio", "--output-format=json+", "-")
"""Only fio, with the same arguments on host and guest. The job file is on standard input."""
ENGINE = "libaio"
_BOOT_TIME = 7
"""The kernel's number of the clock of /proc/uptime, which no adjustment of the time of day changes."""


class Linux:
    """Every host has it."""

    engine = ENGINE
    start_clock = _BOOT_TIME
    startup = 0.0
    disk_util = True

    def filename(self, path: str) -> str:
        return fio_path(path)

    def pacing(self, token: str, starts: Sequence[Start]) -> Pacing:
        return Pacing.of(token, FIO, starts)

    def clock(self, runner: Runner) -> AbstractContextManager[Callable[[], Clock]]:
        return nullcontext(partial(read_uptime, runner))

    def notes(self, evidence: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002 - a Platform
        return ()

    def lacking(self, job: Job) -> None:  # noqa: ARG002 - a Platform
        return None
