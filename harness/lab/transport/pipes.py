"""Exchanges data with a local process over its three pipes, with a limit on the output and a deadline."""

from __future__ import annotations

import math
import os
import selectors
import subprocess
from contextlib import suppress
from typing import IO

from harness.lab.transport.base import Output, outputs
from harness.signals import in_main_thread, interruptible, interruptions
from harness.waiting import Deadline

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
                ready = pipes.select(min(_remaining(process, deadline, end), most))
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
        left = min(_remaining(process, deadline, end), most)
        with interruptible(), suppress(subprocess.TimeoutExpired):
            process.wait(left)
        _require_uninterrupted(before)
    return stdout, stderr


def _require_uninterrupted(before: int) -> None:
    if not in_main_thread() and interruptions() != before:
        raise Interrupted


def _remaining(process: subprocess.Popen[bytes], deadline: float, end: Deadline) -> float:
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
