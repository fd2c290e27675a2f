"""Runs commands on the local machine, over the three pipes of a process, with a limit on the output and a deadline."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from typing import IO

from harness.errors import HostError
from harness.files import replacing
from harness.lab.transport.base import (
    HELD_GRACE_SECONDS,
    Completed,
    HeldCommand,
    Output,
    TooMuchOutput,
    disk_full,
    failed,
    holding,
    in_words,
    missing_program,
    open_source,
    outputs,
    overdue,
    stdin_bytes,
    too_much,
)
from harness.signals import Deadline, held_back, in_main_thread, interruptible, interruptions

_CHUNK_BYTES = 64 << 10
# PIPE_BUF: a pipe that is ready accepts this many bytes without blocking (pipe(7)).
_WRITE_BYTES = 4096
_LOOK_SECONDS = 0.5
"""How often another thread than the main one, which no signal interrupts, looks whether that one was interrupted."""


class Interrupted(Exception):
    """The main thread was interrupted while this thread waited. The process still runs."""


def converse(process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[Output, Output]:
    """Send `stdin` to the process, wait until it has ended and closed both outputs, and return both.

    Raises subprocess.TimeoutExpired after `deadline` seconds, TooMuchOutput, and in another thread than the main one
    Interrupted. In all these cases the process still runs.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    end = Deadline.after(deadline)
    stdout, stderr = outputs()
    unsent = memoryview(stdin)
    before = interruptions()
    most = math.inf if in_main_thread() else _LOOK_SECONDS
    with selectors.DefaultSelector() as pipes:
        pipes.register(process.stdout, selectors.EVENT_READ, stdout)
        pipes.register(process.stderr, selectors.EVENT_READ, stderr)
        if unsent:
            pipes.register(process.stdin, selectors.EVENT_WRITE)
        else:
            _close(process.stdin)
        while pipes.get_map():
            with interruptible():
                ready = pipes.select(min(_read_remaining(process, deadline, end), most))
            _require_uninterrupted(before)
            for key, _ in ready:
                if key.data is None:
                    unsent = _feed(process.stdin, unsent)
                    at_end = not unsent
                else:
                    at_end = not _read(key.fd, key.data)
                if at_end:
                    pipes.unregister(key.fileobj)
                    _close(key.fileobj)  # type: ignore[arg-type] # the three pipes registered above
    while process.poll() is None:
        left = min(_read_remaining(process, deadline, end), most)
        with interruptible(), suppress(subprocess.TimeoutExpired):
            process.wait(left)
        _require_uninterrupted(before)
    return stdout, stderr


def _require_uninterrupted(before: int) -> None:
    if not in_main_thread() and interruptions() != before:
        raise Interrupted


def _read_remaining(process: subprocess.Popen[bytes], deadline: float, end: Deadline) -> float:
    remaining = end.left
    if remaining <= 0:
        raise subprocess.TimeoutExpired(process.args, deadline)
    return remaining


def _read(descriptor: int, output: Output) -> bool:
    """Read the available data; False at the end of the stream."""
    chunk = os.read(descriptor, _CHUNK_BYTES)
    output.add(chunk)
    return bool(chunk)


def _feed(pipe: IO[bytes], unsent: memoryview) -> memoryview:
    """Send the next bytes, and return the rest. If the command has closed its input, the rest is empty."""
    try:
        return unsent[os.write(pipe.fileno(), unsent[:_WRITE_BYTES]) :]
    except BrokenPipeError:
        return unsent[:0]


def _close(pipe: IO[bytes]) -> None:
    with suppress(BrokenPipeError):
        pipe.close()


GRACE_SECONDS = 3.0
CHUNK_BYTES = 1 << 20


class PipeStream:
    """A local process with standard error in its standard output. `kill` ends it with its children."""

    def __init__(self, process: subprocess.Popen[bytes], kill: Callable[[subprocess.Popen[bytes]], object]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._kill = kill
        self._stdin = process.stdin
        self._stdout = process.stdout

    def read(self) -> bytes:
        return os.read(self._stdout.fileno(), _CHUNK_BYTES)

    def write(self, data: bytes) -> None:
        if self._stdin.closed:
            raise BrokenPipeError("its standard input is closed")
        self._stdin.write(data)
        self._stdin.flush()

    def end_input(self) -> None:
        with suppress(OSError):
            self._stdin.close()

    def end(self) -> None:
        try:
            self._process.wait(HELD_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill(self._process)
        self._stdout.close()


class LocalRunner:
    """A Runner for this machine: a subprocess per command, in a separate process group."""

    def __init__(self, name: str = "this machine") -> None:
        self.name = name

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        # A signal between the start of the process and the block that ends it would leave it running.
        with held_back():
            process = self._start(argv)
            try:
                stdout, stderr = converse(process, stdin_bytes(stdin), deadline)
            except subprocess.TimeoutExpired:
                raise overdue(self.name, in_words(argv), deadline, outcome=_ended(process)) from None
            except TooMuchOutput as excess:
                raise too_much(self.name, in_words(argv), excess, outcome=_ended(process)) from None
            except Interrupted:
                _end_group(process)
                raise HostError(f"{self.name}: the run was interrupted: `{in_words(argv)}` was ended") from None
            except BaseException:
                # Ctrl-C in the terminal does not reach the command, because it has a separate process group.
                _end_group(process)
                raise
        done = Completed(tuple(argv), process.returncode, stdout.text, stderr.text)
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        end = Deadline.after(deadline)
        with open_source(source) as original:
            size = os.fstat(original.fileno()).st_size
            try:
                self._put(original, Path(target), end, deadline)
            except OSError as error:
                if error.errno == ENOSPC:
                    raise disk_full(self.name, target, size) from error
                raise HostError(f"{self.name}: cannot write {target}: {error.strerror or error}") from error

    @contextmanager
    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> Iterator[HeldCommand]:
        with held_back():
            stream = PipeStream(self._start(argv, stderr=subprocess.STDOUT), _end_group)
            with holding(self.name, what, stream, deadline=deadline) as held:
                yield held

    def close(self) -> None:
        """Does nothing: there is no connection to close."""

    def _start(self, argv: Sequence[str], *, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | {"LC_ALL": "C"},
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise missing_program(self.name, argv[0]) from error

    def _put(self, original: IO[bytes], target: Path, end: Deadline, deadline: float) -> None:
        # Readable only by its owner, because the guest image contains the guest's private host key.
        with replacing(target, mode=0o600) as copy:
            while chunk := original.read(CHUNK_BYTES):
                copy.write(chunk)
                if end.passed:
                    raise overdue(self.name, f"copy to {target}", deadline, outcome="the incomplete copy was removed")


def _ended(process: subprocess.Popen[bytes]) -> str:
    """End the command. Returns the outcome as text."""
    return "it was ended" if _end_group(process) else "it cannot be killed (waiting for a device?)"


def _end_group(process: subprocess.Popen[bytes]) -> bool:
    """Send TERM first: fio puts its jobs in separate sessions, so only fio itself can end them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return process.poll() is not None
