"""A command that runs while this process keeps its standard input open, and ends when that is closed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from harness.errors import HostError
from harness.signals import cleaning_up, interruptible
from harness.units import format_duration

MOST_LINES = 64
MOST_LINE_BYTES = 4096
# The time that the command may need to end after its standard input has ended.
GRACE_SECONDS = 5.0


class Stream(Protocol):
    """The local end of a running command: its standard input, and its two outputs in one stream."""

    def read(self) -> bytes:
        """The next output of the command. Blocks. Empty at the end of the output."""
        ...

    def write(self, data: bytes) -> None:
        """Raises OSError if the command no longer reads."""
        ...

    def end_input(self) -> None: ...

    def end(self) -> None:
        """Wait for the end of the command and close the stream. Never blocks for long."""
        ...


class Held:
    """A running command. It stores the last MOST_LINES lines of the command's output. Threads may share it."""

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
        """Whether the command runs, as far as is known. A broken connection is only noticed by a missing answer."""
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
        """Wait until `until(lines)` is true, at most `seconds` or until the command ends. Returns its last result."""
        with self._changed:
            with interruptible():
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
        # If the stream was closed meanwhile, a read raises ValueError.
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
    """The command behind `stream`, after its first line, until the block ends.

    Raises HostError if it prints no line within `deadline` seconds, or ends without one.
    """
    held = Held(machine, what, stream)
    try:
        if not held.wait(lambda lines: len(lines) > 0, deadline):
            why = f"did not answer within {format_duration(deadline)}" if held.alive else "ended without an answer"
            raise HostError(f"{machine}: {what} {why}", hint=f"check that {machine} is up and not overloaded")
        yield held
    finally:
        with cleaning_up():
            held.close()
