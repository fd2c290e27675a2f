"""What the rest of the harness knows of a machine it can run commands on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from harness.errors import HostError
from harness.lab.transport.held import Held
from harness.units import format_duration, format_size

NO_SPACE = "No space left on device"

STDOUT_BYTES = 32 << 20
"""The most that a command may print. fio prints at most 2 MiB for the jobs of one process."""
STDERR_BYTES = 4 << 20


class TooMuchOutput(Exception):
    """A command printed more than is read: which stream, and its limit in bytes."""

    def __init__(self, stream: str, limit: int) -> None:
        super().__init__(f"more than {format_size(limit)} on {stream}")


class Output:
    """One output stream of a command as it arrives: at most `limit` bytes of it."""

    def __init__(self, stream: str, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises TooMuchOutput; what arrived is then dropped."""
        if len(self._data) + len(chunk) > self._limit:
            self._data.clear()
            raise TooMuchOutput(self._stream, self._limit)
        self._data += chunk

    def head(self, size: int) -> bytes:
        return bytes(self._data[:size])

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    @property
    def text(self) -> str:
        return self._data.decode(errors="replace")


def outputs() -> tuple[Output, Output]:
    """Standard output and standard error of a command, empty."""
    return Output("standard output", STDOUT_BYTES), Output("standard error", STDERR_BYTES)


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended: its arguments, exit status (negative: killed by a signal) and both outputs as text."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def command(self) -> str:
        return shlex.join(self.argv)


class Runner(Protocol):
    """Runs commands on one machine. `name` is what messages call it, for example `host lab` or `guest on lab`."""

    name: str

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> Completed:
        """Run `argv` (no shell, LC_ALL=C) and wait at most `deadline` seconds.

        Raises HostError naming machine and command when the deadline passes or the command prints more than
        STDOUT_BYTES or STDERR_BYTES (the command is ended), the program is not installed or the connection is lost,
        and with `check` also when the exit status is not 0 (with the end of stderr).
        """
        ...

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        """Copy a file's content there; `target` appears whole or not at all, and survives a power failure.

        Only the user who copies it may read it. Needs sh, cat, wc, sync, mv, dirname and rm there.
        """
        ...

    def close(self) -> None: ...


class HoldingRunner(Runner, Protocol):
    """A Runner that can also have a command live as long as this process wants it to."""

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[Held]:
        """Run `argv` until the block ends, from the first line that it prints within `deadline` seconds.

        The command must end when its standard input does: at the end of the block, of this process, or of the
        connection. `what` names it in messages. Raises HostError if it cannot start or prints no line.
        """
        ...


def failed(runner_name: str, done: Completed) -> HostError:
    """The error for a command that ended with a status other than 0."""
    said = (done.stderr.strip() or done.stdout.strip() or "(it printed nothing)").splitlines()[-8:]
    how = f"ended with status {done.status}" if done.status >= 0 else "was killed by a signal"
    return HostError(f"{runner_name}: `{done.command}` {how}: " + "\n     ".join(said))


def overdue(runner_name: str, command: str, deadline: float, *, outcome: str) -> HostError:
    """The error for a command that its deadline ended; `outcome` says what became of the process."""
    return HostError(
        f"{runner_name}: `{command}` was not done after {format_duration(deadline)}; {outcome}",
        hint="see what keeps the machine busy, or allow the command more time",
    )


def too_much(runner_name: str, command: str, excess: TooMuchOutput, *, outcome: str) -> HostError:
    """The error for a command that printed more than is read; `outcome` says what became of the process."""
    return HostError(
        f"{runner_name}: `{command}` printed {excess}; {outcome}",
        hint=f"run the command on {runner_name} to see what it prints",
    )


def missing_program(runner_name: str, program: str) -> HostError:
    """The error for a program that the machine does not have."""
    return HostError(
        f"{runner_name}: there is no `{program}` that could be run", hint=f"install `{program}` on {runner_name}"
    )


def disk_full(runner_name: str, target: str, size_bytes: int) -> HostError:
    """The error for a file that did not fit."""
    return HostError(
        f"{runner_name}: no space left for {target} ({format_size(size_bytes)})",
        hint=f"free space on {runner_name}, or choose another directory",
    )


def open_source(source: Path) -> IO[bytes]:
    """The regular file that is to be copied, opened; HostError if there is none."""
    try:
        # Asked before opening it: a pipe would block, and has no size to check the copy against.
        if source.exists() and not source.is_file():
            raise HostError(f"cannot copy {source}: it is no regular file")
        return source.open("rb")
    except OSError as error:
        raise HostError(
            f"cannot copy {source}: {error.strerror or error}", hint="check the path and its permissions"
        ) from error


def stdin_bytes(stdin: str | bytes | None) -> bytes:
    return stdin.encode() if isinstance(stdin, str) else stdin or b""
