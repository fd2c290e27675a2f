"""pytest's terminal as a screen for progress. It can write while a test runs and its output is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from _pytest.capture import CaptureManager


class PytestScreen:
    """A screen on the terminal reporter. `capture` is None if capturing is off (`-s`)."""

    def __init__(self, reporter: pytest.TerminalReporter, capture: CaptureManager | None) -> None:
        self._reporter = reporter
        self._capture = capture

    def isatty(self) -> bool:
        return bool(self._reporter.isatty())

    def write_line(self, line: str) -> None:
        with self._uncaptured():
            self._reporter.write_line(line)

    def rewrite(self, line: str, *, erase: bool) -> None:
        with self._uncaptured():
            self._reporter.rewrite(line, erase=erase)

    @contextmanager
    def _uncaptured(self) -> Iterator[None]:
        if self._capture is None:
            yield
        else:
            with self._capture.global_and_fixture_disabled():
                yield
