"""pytest's terminal as a screen for progress. It can write while a test runs and its output is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import pytest
from _pytest.capture import CaptureManager

from harness.terminal import CleanStream, clean, one_line


def clean_output(reporter: pytest.TerminalReporter) -> None:
    """Clean all that pytest prints, for example the messages of failed tests. pytest's own colours stay."""
    writer = reporter._tw
    if not isinstance(writer._file, CleanStream):
        writer._file = cast("TextIO", CleanStream(writer._file, styles=writer.hasmarkup, rewrites=reporter.isatty()))


class PytestScreen:
    """A screen on the terminal reporter. `capture` is None if capturing is off (`-s`)."""

    def __init__(self, reporter: pytest.TerminalReporter, capture: CaptureManager | None) -> None:
        self._reporter = reporter
        self._capture = capture

    def isatty(self) -> bool:
        return bool(self._reporter.isatty())

    def write_line(self, line: str) -> None:
        with self._uncaptured():
            self._reporter.write_line(clean(line))

    def rewrite(self, line: str, *, erase: bool) -> None:
        with self._uncaptured():
            self._reporter.rewrite(clean(one_line(line)), erase=erase)

    @contextmanager
    def _uncaptured(self) -> Iterator[None]:
        if self._capture is None:
            yield
        else:
            with self._capture.global_and_fixture_disabled():
                yield
