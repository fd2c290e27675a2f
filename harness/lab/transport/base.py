"""The interface of a machine that can run commands, also for a while; their errors; deadlines for calls that block."""

from __future__ import annotations

import base64
import binascii
import shlex
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import IO, Generic, Protocol, TypeVar, runtime_checkable

from harness.errors import ConfigError, HostError
from harness.files import read_script
from harness.signals import cleaning_up, interruptible
from harness.terminal import quoted
from harness.units import format_duration, format_size

MOST_LINES = 64
MOST_LINE_BYTES = 4096
# The time that the command may need to end after its standard input has ended.
HELD_GRACE_SECONDS = 5.0


class Stream(Protocol):
    """The local end of a running command: its standard input, and its two outputs in one stream."""

    def read(self) -> bytes:
        """The next output of the command. Blocks. Empty at the end of the output."""

    def write(self, data: bytes) -> None:
        """Raises OSError if the command no longer reads."""

    def end_input(self) -> None: ...

    def end(self) -> None:
        """Wait for the end of the command and close the stream. Never blocks for long."""


class HeldCommand:
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
            raise HostError(f"{self._machine}: {self._what} has ended: {error.strerror or error}") from error

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
            self._changed.wait_for(lambda: self._ended, HELD_GRACE_SECONDS)
        self._stream.end()
        self._listener.join(HELD_GRACE_SECONDS)

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
def holding(machine: str, what: str, stream: Stream, *, deadline: float) -> Iterator[HeldCommand]:
    """The command behind `stream`, after its first line, until the block ends.

    Raises HostError if it prints no line within `deadline` seconds, or ends without one.
    """
    held = HeldCommand(machine, what, stream)
    try:
        if not held.wait(lambda lines: len(lines) > 0, deadline):
            why = f"did not answer within {format_duration(deadline)}" if held.alive else "ended without an answer"
            raise HostError(f"{machine}: {what} {why}", hint=f"check that {machine} is up and not overloaded")
        yield held
    finally:
        with cleaning_up():
            held.close()


NO_SPACE = "No space left on device"
MISSING_PROGRAM = 127
"""The exit status of a shell that does not find the program."""

STDOUT_BYTES = 32 << 20
"""The most that a command may print. fio prints at most 2 MiB for the jobs of one process."""
STDERR_BYTES = 4 << 20
WRAPPED = "--then--"
"""In the arguments of a script that checks something and then runs a command: the command follows this word."""
_LONGEST_WORD = 40
_MOST_WORDS = 12
_LONGEST_COMMAND = 100
_REMEDIES = (
    (("Input/output error", "No such device"), "a disk or a layer below it failed or is gone: see `dmesg` on {}"),
    (("Read-only file system",), "mount it writable; after an error of its disk the kernel makes it so: `dmesg` on {}"),
    ((NO_SPACE, "Disk quota exceeded"), "free space on {}"),
    (("Cannot allocate memory",), "free memory on {}"),
    (("Permission denied", "Operation not permitted"), "use root on {}, and check that nothing there forbids it"),
)
"""What to do about errors of the system, by their texts."""


_WHOLE = read_script("harness.lab.transport", "feed_whole_input.sh")


def whole(argv: Sequence[str], stdin: str | bytes) -> list[str]:
    """The command that runs `argv` only if all of its standard input, which is text, has arrived.

    Without it, the end of a connection is the end of the input: a part of a job file or a record is taken for all.
    """
    return ["sh", "-c", _WHOLE, "sh", str(len(stdin_bytes(stdin))), WRAPPED, *argv]


class TooMuchOutput(Exception):
    """A command printed more than the limit. It has the stream and its limit in bytes."""

    def __init__(self, stream: str, limit: int) -> None:
        super().__init__(f"more than {format_size(limit)} on {stream}")


class Output:
    """The data of one output stream of a command, at most `limit` bytes."""

    def __init__(self, stream: str, limit: int) -> None:
        self._stream = stream
        self._limit = limit
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises TooMuchOutput. Then the data is dropped."""
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


def in_words(argv: Sequence[str]) -> str:
    """A command for messages: a script shows its first words only, and of many arguments only the first are shown."""
    argv = list(dropwhile(lambda word: word == "env" or "=" in word, argv))
    if argv[:2] == ["sh", "-c"] and WRAPPED in argv:
        argv = argv[argv.index(WRAPPED) + 1 :]
    words = [word if len(word) <= _LONGEST_WORD else f"{' '.join(word.split())[:_LONGEST_WORD]}..." for word in argv]
    most = min(len(words), _MOST_WORDS)
    while most > 1 and len(shlex.join(words[:most])) > _LONGEST_COMMAND:
        most -= 1
    more = f" and {len(words) - most} more words" if len(words) > most else ""
    return shlex.join(words[:most]) + more


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended: its arguments, exit status (negative: killed by a signal) and both outputs as text."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def command(self) -> str:
        return in_words(self.argv)


class Runner(Protocol):
    """Runs commands on one machine. `name` is its name in messages, for example `host lab` or `guest on lab`."""

    name: str

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        """Run `argv` (no shell, LC_ALL=C) and wait at most `deadline` seconds.

        Raises HostError naming machine and command if the deadline passes or the command prints more than STDOUT_BYTES
        or STDERR_BYTES (then the command is ended), if the program is not installed, or if the connection is lost. With
        `check`, it also raises HostError, with the end of stderr, if the exit status is not 0.
        """

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        """Copy a file to the machine. `target` is never incomplete, and survives a power failure.

        Only the user who copies it may read it. The machine needs sh, cat, wc, sync, mv, dirname and rm.
        """

    def close(self) -> None: ...


@runtime_checkable
class HoldingRunner(Runner, Protocol):
    """A Runner that can also run a command for the duration of a block."""

    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> AbstractContextManager[HeldCommand]:
        """Run `argv` until the block ends. The block starts when the command has printed its first line.

        The first line must come within `deadline` seconds. The command must end when its standard input ends: at the
        end of the block, of this process, or of the connection. `what` names it in messages. Raises HostError if it
        cannot start or prints no line.
        """


def failed(runner_name: str, done: Completed) -> HostError:
    """The error for a command that ended with a status other than 0: what it printed, and then which command it was."""
    printed = (done.stderr.strip() or done.stdout.strip()).splitlines()[-8:]
    how = f"`{done.command}` " + (f"ended with status {done.status}" if done.status >= 0 else "was killed by a signal")
    why = "\n     ".join(printed) + f" ({how})" if printed else f"{how} and printed nothing"
    return HostError(f"{runner_name}: {why}", hint=suggest_remedy(runner_name, why))


def suggest_remedy(machine: str, printed: str) -> str | None:
    """What to do about an error of the system in what a command printed; None if there is none."""
    return next((remedy.format(machine) for texts, remedy in _REMEDIES if any(text in printed for text in texts)), None)


def overdue(runner_name: str, command: str, deadline: float, *, outcome: str) -> HostError:
    """The error for a command that passed its deadline; `outcome` says what happened to the process."""
    return HostError(
        f"{runner_name}: a command was not done after {format_duration(deadline)}; {outcome}: `{command}`",
        hint="find out what keeps the machine busy, or allow the command more time",
    )


def too_much(runner_name: str, command: str, excess: TooMuchOutput, *, outcome: str) -> HostError:
    """The error for a command that printed more than the limit; `outcome` says what happened to the process."""
    return HostError(
        f"{runner_name}: a command printed {excess}; {outcome}: `{command}`",
        hint=f"run the command on {runner_name} to see what it prints",
    )


def missing_program(runner_name: str, program: str) -> HostError:
    """The error for a program that the machine does not have."""
    return HostError(f"{runner_name}: the program `{program}` is missing", hint=f"install `{program}` on {runner_name}")


def disk_full(runner_name: str, target: str, size_bytes: int) -> HostError:
    """The error for a file that did not fit."""
    return HostError(
        f"{runner_name}: no space left for {target} ({format_size(size_bytes)})",
        hint=f"free space on {runner_name}, or choose another directory",
    )


def open_source(source: Path) -> IO[bytes]:
    """Open the regular file for a copy; HostError if there is none."""
    try:
        # Checked before the file is opened: a pipe would block, and it has no size to compare the copy with.
        if source.exists() and not source.is_file():
            raise HostError(f"cannot copy {source}: it is not a regular file")
        return source.open("rb")
    except OSError as error:
        raise HostError(
            f"cannot copy {source}: {error.strerror or error}", hint="check the path and its permissions"
        ) from error


def stdin_bytes(stdin: str | bytes | None) -> bytes:
    return stdin.encode() if isinstance(stdin, str) else stdin or b""


T = TypeVar("T")


class Overdue(Exception):
    """The call was still blocked at its deadline. It continues in its thread, until `ended` is true."""

    def __init__(self, thread: threading.Thread | None = None) -> None:
        super().__init__()
        self._thread = thread

    @property
    def ended(self) -> bool:
        return self._thread is None or not self._thread.is_alive()


class _Call(threading.Thread, Generic[T]):
    def __init__(self, action: Callable[[], T]) -> None:
        # A daemon thread, because a call that never returns must not stop the interpreter from exiting.
        super().__init__(daemon=True)
        self._action = action
        self.result: T
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:
            self.error = error


def within(seconds: float, action: Callable[[], T], *, waiting: AbstractContextManager[None] | None = None) -> T:
    """Return the result of `action()` or raise its exception. Raises Overdue after `seconds`.

    The call continues if a signal interrupts the waiting. `waiting` says when it may: by default, where signals may.
    """
    call = _Call(action)
    call.start()
    with waiting or nullcontext():
        call.join(max(seconds, 0.0))
    if call.is_alive():
        raise Overdue(call)
    if call.error is not None:
        raise call.error
    return call.result


def split_key(text: str, *, origin: str) -> tuple[str, str]:
    """Type and base64 body of a public key line ("ssh-ed25519 AAAA... comment"); ConfigError naming `origin`."""
    kind, _, rest = text.strip().partition(" ")
    body = rest.split()[0] if rest.split() else ""
    try:
        base64.b64decode(body, validate=True)
    except binascii.Error:
        body = ""
    if not body:
        raise ConfigError(
            f"{origin}: {quoted(text.strip())} is not a public key",
            hint="write the type and the key, for example `ssh-ed25519 AAAA...` from `ssh-keyscan -t ed25519 HOST`",
        )
    return kind, body
