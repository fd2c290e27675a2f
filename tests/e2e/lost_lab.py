"""The emulator may take lab host or guest down (docs/lab.md): the test files in which it did are run once more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

AGAIN = "VIRT_OVERHEAD_TESTED_AGAIN"


class LostLab:
    """Asks where a test fails whether its lab was lost: the lab host, or the guest that the test has as `guest`.

    `host_lost` tells of the host, and has started it anew then. At the end the files that lost their lab are run again
    as a whole, once. They decide then: a file that fails with its lab at hand has failed, and so has one that fails
    twice; a run that was interrupted stays so.
    """

    def __init__(self, host_lost: Callable[[], bool]) -> None:
        self._host_lost = host_lost
        self._lost: dict[Path, str] = {}
        self._failed: set[Path] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._failed.add(item.path)
            if what := self._what_was_lost(item):
                self._lost.setdefault(item.path, f"{what} was lost in {item.nodeid}")
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for told in self._lost.values():
            session.config.get_terminal_writer().line(f"\n{told}")
        only_these_failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED and self._failed == self._lost.keys()
        if only_these_failed and AGAIN not in os.environ and self._passes(sorted(self._lost)):
            session.exitstatus = pytest.ExitCode.OK

    def _what_was_lost(self, item: pytest.Item) -> str | None:
        if self._host_lost():
            return "the lab host"
        guest = item.funcargs.get("guest") if isinstance(item, pytest.Function) else None
        runner = getattr(guest, "runner", None)
        return "the guest" if runner is not None and not runner.alive else None

    def _passes(self, files: Sequence[Path]) -> bool:
        argv = [sys.executable, "-m", "pytest", "-q", *map(str, files)]
        return subprocess.run(argv, env=os.environ | {AGAIN: "1"}, check=False).returncode == 0
