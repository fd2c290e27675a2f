"""The lab host may hang in its emulator (docs/lab.md): the test files in which it did are run once more."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import pytest

AGAIN = "VIRT_OVERHEAD_TESTED_AGAIN"


class LostLab:
    """Asks where a test fails whether the lab host had hung: `hung` tells, and has started it anew then.

    At the end the files that lost their lab are run again as a whole, once. They decide then: a file that fails without
    a hang of the lab host has failed, and so has one that fails twice; a run that was interrupted stays so.
    """

    def __init__(self, hung: Callable[[], bool]) -> None:
        self._hung = hung
        self._lost: dict[Path, str] = {}
        self._failed: set[Path] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._failed.add(item.path)
            if self._hung():
                self._lost.setdefault(item.path, item.nodeid)
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        for test in self._lost.values():
            session.config.get_terminal_writer().line(f"\nthe lab host hung in {test}")
        only_these_failed = session.exitstatus == pytest.ExitCode.TESTS_FAILED and self._failed == self._lost.keys()
        if only_these_failed and AGAIN not in os.environ and self._passes(sorted(self._lost)):
            session.exitstatus = pytest.ExitCode.OK

    def _passes(self, files: Sequence[Path]) -> bool:
        argv = [sys.executable, "-m", "pytest", "-q", *map(str, files)]
        return subprocess.run(argv, env=os.environ | {AGAIN: "1"}, check=False).returncode == 0
