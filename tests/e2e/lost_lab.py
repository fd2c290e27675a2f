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
    """Notices that the lab host answers nobody where a test fails, and starts it again.

    At the end the files that lost their lab are run again as a whole, once. They decide then: a file that fails without
    a hang of the lab host has failed, and so has one that fails twice.
    """

    def __init__(self, answers: Callable[[], bool], start_again: Callable[[], None]) -> None:
        self._answers = answers
        self._start_again = start_again
        self._lost: dict[Path, str] = {}
        self._failed: set[Path] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            self._failed.add(item.path)
            if not self._answers():
                self._lost.setdefault(item.path, item.nodeid)
                self._start_again()
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._lost or AGAIN in os.environ:
            return
        for test in self._lost.values():
            session.config.get_terminal_writer().line(f"\nthe lab host hung in {test}; its file is run again")
        if self._passes(sorted(self._lost)) and self._failed <= self._lost.keys():
            session.exitstatus = pytest.ExitCode.OK

    def _passes(self, files: Sequence[Path]) -> bool:
        argv = [sys.executable, "-m", "pytest", "-q", *map(str, files)]
        return subprocess.run(argv, env=os.environ | {AGAIN: "1"}, check=False).returncode == 0
