"""pytest's terminal as a screen for progress, also for that of pytest-xdist's workers, which have none."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import TextIO, cast, get_args

import pytest
from _pytest.capture import CaptureManager

from harness.events import Event, Listener
from harness.progress import Progress, Screen
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


KEY = "virt_overhead_progress"
"""The key of `workerinput` with the path of the controller's socket."""

_MOST_BYTES = 65536
_EVENTS = {arg.__name__: arg for arg in get_args(Event)}


class Sender:
    """A worker's listener. Progress that cannot be sent is lost: the measurement is more important."""

    def __init__(self, path: str, worker: str) -> None:
        self._path = path
        self._worker = worker

    def __call__(self, event: Event) -> None:
        message = json.dumps([self._worker, type(event).__name__, asdict(event)])
        _send(self._path, message.encode())


def _send(path: str, message: bytes) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.settimeout(0.1)
        out.sendto(message, path)


class Relay:
    """The controller's side: each worker's events, with its name before them, on one screen."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._progress: dict[str, Listener] = {}
        self._directory = tempfile.mkdtemp(prefix="virt-overhead-")
        self.path = str(Path(self._directory, "progress"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Show what has arrived, and end."""
        _send(self.path, b"")
        self._thread.join(timeout=5)
        self._socket.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _serve(self) -> None:
        while message := self._socket.recv(_MOST_BYTES):
            worker, name, fields = json.loads(message)
            if worker not in self._progress:
                self._progress[worker] = Progress(_Named(self._screen, worker))
            self._progress[worker](_EVENTS[name](**fields))


class _Named:
    """A screen whose lines begin with a name."""

    def __init__(self, screen: Screen, name: str) -> None:
        self._screen = screen
        self._name = name
        self.isatty: Callable[[], bool] = screen.isatty

    def write_line(self, line: str) -> None:
        self._screen.write_line(f"  [{self._name}]{line}")

    def rewrite(self, line: str, *, erase: bool) -> None:
        self._screen.rewrite(f"  [{self._name}]{line}" if line else line, erase=erase)
