"""A command that lives as long as this process holds it: its standard input stays open, and it ends with that."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from harness.errors import HostError
from harness.units import format_duration

MOST_LINES = 64
MOST_LINE_BYTES = 4096
# How long the command may take to end once its standard input has ended.
GRACE_SECONDS = 5.0


class Stream(Protocol):
    """The near end of a command that runs: its standard input, and its two outputs in one."""

    def read(self) -> bytes:
        """What the command printed next. Blocks; empty when no more can come."""
        ...

    def write(self, data: bytes) -> None:
        """Raises OSError if nobody reads any more."""
        ...

    def end_input(self) -> None: ...

    def end(self) -> None:
        """Wait for the command to end and let go of it. Never blocks for long."""
        ...


class Held:
    """A command that runs. It stores the last MOST_LINES lines of the command's output; threads may share it."""

    def __init__(self, machine: str, what: str, stream: Stream) -> None:
        self._machine = machine
        self._what = what
        self._stream = stream
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._ended = False
        self._changed = threading.Condition()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def alive(self) -> bool:
        """Whether the command runs, as far as is known: the end of a silent connection shows only in an answer."""
        return not self._ended

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines that the command printed, on either output."""
        with self._changed:
            return tuple(self._lines)

    def send(self, line: str) -> None:
        """Write a line to the command. Raises HostError if the command or the connection has ended."""
        try:
            self._stream.write(f"{line}\n".encode())
        except OSError as error:
            raise HostError(f"{self._machine}: {self._what} has ended: {error or type(error).__name__}") from error

    def wait(self, until: Callable[[Sequence[str]], bool], seconds: float) -> bool:
        """Whether the lines are as wanted: now, within `seconds`, or when the command has ended before."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or until(self._lines), seconds)
            return until(self._lines)

    def close(self) -> None:
        """End the command's standard input and wait until the command has ended; never raises."""
        self._stream.end_input()
        with self._changed:
            self._changed.wait_for(lambda: self._ended, GRACE_SECONDS)
        self._stream.end()
        self._listener.join(GRACE_SECONDS)

    def _listen(self) -> None:
        pending = b""
        # A stream that was let go of meanwhile has no file to read from: ValueError.
        with suppress(OSError, ValueError):
            while data := self._stream.read():
                *lines, pending = (pending + data).split(b"\n")
                pending = pending[:MOST_LINE_BYTES]
                with self._changed:
                    self._lines.extend(line[:MOST_LINE_BYTES].decode(errors="replace") for line in lines)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


@contextmanager
def holding(machine: str, what: str, stream: Stream, *, deadline: float) -> Iterator[Held]:
    """The command behind `stream` from its first line on, until the block ends.

    Raises HostError if it has printed no line after `deadline` seconds, or ended without one.
    """
    held = Held(machine, what, stream)
    try:
        if not held.wait(lambda lines: len(lines) > 0, deadline):
            said = f"did not answer within {format_duration(deadline)}" if held.alive else "ended without an answer"
            raise HostError(f"{machine}: {what} {said}", hint=f"check that {machine} is up and not overloaded")
        yield held
    finally:
        held.close()
