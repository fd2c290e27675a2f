"""Runs commands on a remote machine over one open SSH connection, directly or through another machine."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import repeat
from pathlib import Path
from typing import IO, Protocol

from paramiko import Channel, ChannelException, SSHException, Transport

from harness.errors import HostError
from harness.files import read_script
from harness.lab.transport.base import (
    HELD_GRACE_SECONDS,
    MISSING_PROGRAM,
    NO_SPACE,
    Completed,
    HeldCommand,
    Overdue,
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
    within,
)
from harness.lab.transport.handshake import WINDOW_BYTES, Jump, NotUpYet, SshTarget, abandon, open_transport
from harness.signals import Deadline, attempts, cleaning_up, held_back, interruptible
from harness.units import format_duration

_ENDER = read_script("harness.lab.transport", "end_tree.sh")


class RemoteShell(Protocol):
    """The shell of a machine. A command prints `virt-overhead-pid NUMBER` first, on standard error."""

    def command(self, argv: Sequence[str], *, has_input: bool) -> str:
        """The line that runs `argv`. Without input, nothing is sent to it: the line itself gives `argv` an empty one.

        Raises ValueError if this shell cannot run it.
        """

    def held(self, argv: Sequence[str]) -> str:
        """The line that runs `argv` while its standard input is open. Raises ValueError as `command`."""

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:
        """The standard input of the line of `command`, for a command that gets `data`."""

    def ender(self, pid: int) -> str:
        """The line that ends the process with its descendants. Its exit status is 0 if all are gone."""


class PosixShell:
    """sh, bash, dash or busybox, on a machine with /proc."""

    def command(self, argv: Sequence[str], *, has_input: bool) -> str:
        # The remote shell prints its process id and becomes the command, so a deadline can end the command. This needs
        # no additional process and no additional round trip. For a missing program, the shell prints no process id.
        start = f"command -v {shlex.quote(argv[0])} >/dev/null && echo virt-overhead-pid $$ >&2"
        # If the server has just closed the channel, the end of the input would make it close the connection.
        return f"export LC_ALL=C; {start}; exec {shlex.join(argv)}{'' if has_input else ' </dev/null'}"

    def held(self, argv: Sequence[str]) -> str:
        return f"export LC_ALL=C; exec {shlex.join(argv)}"

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:  # noqa: ARG002 - a RemoteShell
        return data

    def ender(self, pid: int) -> str:
        return self.command(("sh", "-c", _ENDER, "sh", str(pid)), has_input=True)


_WINDOWS = re.compile(r"SSH-2\.0-OpenSSH_for_Windows_")


def is_windows(banner: str) -> bool:
    """Whether an SSH server with this identification is OpenSSH for Windows: "SSH-2.0-OpenSSH_for_Windows_9.5"."""
    return _WINDOWS.match(banner) is not None


# The channel's timeout: how often a blocked read checks standard error, and a blocked write checks `abandoned`.
POLL_SECONDS = 0.2
PACKET_BYTES = 32 << 10

_PID = re.compile(rb"virt-overhead-pid (\d{1,10})\n")
# It is the first output of the command. Only the start-up files of the remote shell may print before it.
_PID_WITHIN_BYTES = 64 << 10


class ConnectionLost(Exception):
    """The connection ended before the command did."""


class Exchange:
    """One line for the shell on one channel. `converse` blocks, so it runs in a thread that can be abandoned."""

    def __init__(self, transport: Transport, line: str) -> None:
        self._transport = transport
        self._line = line
        self.requested = False
        self.pid: int | None = None
        """The command's process id on the remote machine, when it has started there."""
        self._channel: Channel | None = None
        self._abandoned = threading.Event()
        self._started = threading.Event()
        self._stdout, self._stderr = outputs()

    def converse(self, deadline: float, stdin: Iterable[bytes] | None = None) -> int:
        """Run the command to its end. Returns its exit status, which is negative if a signal ended it.

        `deadline` limits only the opening of the channel. The caller must limit the rest. Without `stdin`,
        nothing is sent, not even the end of an input: the line must not wait for it.

        Raises ConnectionLost, TooMuchOutput, or paramiko's exception if a channel cannot be opened.
        """
        channel = self._transport.open_channel("session", window_size=WINDOW_BYTES, timeout=deadline + 1.0)
        self._channel = channel
        try:
            if self._abandoned.is_set():
                raise ConnectionLost("the channel opened too late")
            channel.settimeout(POLL_SECONDS)
            self.requested = True
            channel.exec_command(self._line)
            if stdin is not None:
                threading.Thread(target=self._feed, args=(channel, stdin), daemon=True).start()
            self._drain(channel)
            status = channel.recv_exit_status()
            self._check_whole(channel)
            return status
        finally:
            self._abandoned.set()
            self._started.set()
            channel.close()

    def abandon(self) -> None:
        """Close the channel. The command may continue on the remote machine: see `ender`."""
        self._abandoned.set()
        if self._channel is not None:
            self._channel.close()

    def wait_for_pid(self, seconds: float) -> int | None:
        """The command's process id. A command that was abandoned right after its start may not have reported it yet."""
        if self.requested:
            self._started.wait(seconds)
        return self.pid

    @property
    def stdout(self) -> str:
        return self._stdout.text

    @property
    def stderr(self) -> str:
        return _PID.sub(b"", self._stderr.data, count=1).decode(errors="replace")

    def _feed(self, channel: Channel, stdin: Iterable[bytes]) -> None:
        try:
            for chunk in stdin:
                for start in range(0, len(chunk), PACKET_BYTES):
                    if not self._send(channel, chunk[start : start + PACKET_BYTES]):
                        return
            channel.shutdown_write()
        except (OSError, EOFError, SSHException, ValueError):
            # The command stopped reading, the connection ended (`_drain` finds out which), or the caller abandoned the
            # command and closed the file.
            return

    def _send(self, channel: Channel, packet: bytes) -> bool:
        while packet and not self._abandoned.is_set():
            try:
                sent = channel.send(packet)
            except TimeoutError:
                continue
            if sent == 0:
                return False
            packet = packet[sent:]
        return not packet

    def _drain(self, channel: Channel) -> None:
        at_end = False
        while not at_end and not self._abandoned.is_set():
            try:
                data = channel.recv(WINDOW_BYTES)
            except TimeoutError:
                data = b""
            else:
                at_end = not data
            # The end of the channel is the end of both streams, so after it this never blocks.
            while at_end or channel.recv_stderr_ready():
                errors = channel.recv_stderr(WINDOW_BYTES)
                if not errors:
                    break
                self._look_for_pid(errors)
                self._stderr.add(errors)
            # Last, because the process id must be known to end a command that prints too much.
            self._stdout.add(data)

    def _look_for_pid(self, errors: bytes) -> None:
        if self.pid is None and (match := _PID.search(self._stderr.head(_PID_WITHIN_BYTES) + errors)):
            self.pid = int(match[1])
            self._started.set()

    def _check_whole(self, channel: Channel) -> None:
        if channel.eof_received:
            return
        # paramiko closes the channels of a lost connection a moment before it marks the connection as inactive.
        self._transport.join(0.5)
        if not self._transport.is_alive():
            raise ConnectionLost(str(self._transport.get_exception() or "") or "the remote side closed it")


def is_missing_program(exchange: Exchange, status: int) -> bool:
    """Whether the shell did not find the program. The status alone is not sufficient: a program may end with it."""
    return status == MISSING_PROGRAM and exchange.pid is None


_STREAM_BYTES = 64 << 10
# The timeout of a write to a channel, and the poll interval of a read.
CHANNEL_SECONDS = 5.0


class ChannelStream:
    """A command on an SSH channel, with standard error in its standard output."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    def start(cls, transport: Transport, line: str, deadline: float) -> ChannelStream:
        """Start the command on a separate channel. Raises paramiko's exception if the channel cannot be opened."""
        channel = transport.open_channel("session", timeout=deadline)
        channel.settimeout(CHANNEL_SECONDS)
        channel.set_combine_stderr(True)
        channel.exec_command(line)
        return cls(channel)

    def read(self) -> bytes:
        while True:
            try:
                data: bytes = self._channel.recv(_STREAM_BYTES)
            except TimeoutError:
                continue
            return data

    def write(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (SSHException, EOFError) as error:
            raise OSError(str(error) or "its connection was closed at the other end") from error

    def end_input(self) -> None:
        with suppress(OSError, SSHException, EOFError):
            self._channel.shutdown_write()

    def end(self) -> None:
        # The remote side reports the end of the process after the end of its output.
        self._channel.status_event.wait(HELD_GRACE_SECONDS)
        with suppress(OSError, SSHException, EOFError):
            self._channel.close()


__all__ = ["SshRunner", "SshTarget"]

BANNER_SECONDS = 15.0
# While a machine boots, user-mode networking accepts a connection and may never answer. So short tries detect the
# server soonest. Every PATIENT_TRYth try waits longer, for a server that is up but slow.
QUICK_BANNER_SECONDS = 1.5
PATIENT_TRY = 5
RETRY_SECONDS = 0.25
# The time after the deadline in which a command must end on the remote machine.
ENDING_SECONDS = 20.0
PID_SECONDS = 3.0
_UNKNOWN = "the machine does not answer, so the command may still run there"
CHUNK_BYTES = 256 << 10

_DROPBEAR = re.compile(r"SSH-2\.0-dropbear_(\d{4}\.\d{1,3})$")
# The first and the last version of dropbear with this defect: https://github.com/mkj/dropbear/issues/321
_ONE_AT_A_TIME = (2022.82, 2024.86)

# $1 target, $2 partial file, $3 bytes. The count detects a file that is incomplete because the connection was lost. The
# file is on the disk before it gets its name, and the name is on the disk before this ends. An old `sync` accepts no
# file names, and syncs all.
_PUT = (
    "umask 077; trap 'rm -f \"$2\"' EXIT; trap 'exit 1' HUP TERM; "
    'durable() { sync "$1" 2>/dev/null || sync; }; '
    'cat >"$2" && [ "$(wc -c <"$2")" -eq "$3" ] && durable "$2" && mv -f "$2" "$1" && durable "$(dirname "$1")" '
    "&& trap - EXIT"
)


class SshRunner:
    """A Runner for a remote machine. One connection, one channel per command; threads may share it."""

    def __init__(self, transport: Transport, *, name: str, label: str) -> None:
        self.name = name
        self.windows = is_windows(transport.remote_version)
        """Whether the machine runs Windows, as its SSH server reports."""
        self._transport = transport
        self._label = label
        self.shell: RemoteShell = PosixShell()
        """That of another system is set by what knows the system, before the first command."""
        concurrent = runs_commands_concurrently(transport.remote_version)
        self._turn: AbstractContextManager[object] = nullcontext() if concurrent else threading.Lock()

    @classmethod
    def connect(
        cls,
        target: SshTarget,
        *,
        name: str,
        via: SshRunner | None = None,
        deadline: float,
        banner_seconds: float = BANNER_SECONDS,
    ) -> SshRunner:
        """Log in, through `via` if given. Close the new runner before `via`.

        Raises HostError naming machine, cause and remedy, at the latest after `deadline` seconds.
        """
        jump = Jump(via.name, via._label, via._transport) if via else None
        transport = open_transport(target, name=name, via=jump, deadline=deadline, banner_seconds=banner_seconds)
        return cls(transport, name=name, label=f"{target.address}@{via._label}" if via else target.address)

    @classmethod
    def connect_when_up(
        cls,
        target: SshTarget,
        *,
        name: str,
        via: SshRunner | None = None,
        deadline: float,
        on_wait: Callable[[str], None] | None = None,
    ) -> SshRunner:
        """Log in to a machine that may still be booting. Try until `deadline` seconds have passed.

        `on_wait` is called with the cause after each failed try. Raises HostError with the last cause. An error that
        waiting cannot solve (a refused key, another host key) is raised immediately.
        """
        end = Deadline.after(deadline)
        for attempt in attempts(end, repeat(RETRY_SECONDS)):
            remaining = max(end.left, QUICK_BANNER_SECONDS)
            try:
                return cls.connect(
                    target,
                    name=name,
                    via=via,
                    deadline=remaining,
                    banner_seconds=_choose_banner_seconds(attempt.number),
                )
            except NotUpYet as error:
                cause = error.message
            if on_wait is not None:
                on_wait(cause)
            if attempt.is_last:
                raise HostError(
                    f"{name}: no SSH login within {format_duration(deadline)} ({attempt.number} tries); last: {cause}",
                    hint="look at the machine's console to see how far it has booted, or allow more time",
                )
        raise AssertionError("unreachable: the attempts have no end")

    @property
    def alive(self) -> bool:
        """Whether the connection is open, as far as is known. Only a command shows whether the machine answers."""
        return self._transport.is_active()

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        data = self.shell.stdin(argv, stdin_bytes(stdin))
        done = self._execute(argv, deadline, (data,) if data else None, in_words(argv))
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        with open_source(source) as file:
            size = os.fstat(file.fileno()).st_size
            partial = f"{target}.{secrets.token_hex(4)}.part"
            argv = ("sh", "-c", _PUT, "sh", target, partial, str(size))
            done = self._execute(argv, deadline, _read_chunks(file), f"copy of {source} to {target}")
        if NO_SPACE in done.stderr:
            raise disk_full(self.name, target, size)
        if done.status != 0:
            why = done.stderr.strip() or f"fewer than {size} bytes arrived"
            raise HostError(f"{self.name}: cannot write {target}: {why}")

    @contextmanager
    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> Iterator[HeldCommand]:
        with held_back():
            line = self.shell.held(argv)
            try:
                stream = within(deadline, lambda: self._start_stream(line, deadline))
            except Overdue:
                raise overdue(self.name, what, deadline, outcome=_UNKNOWN) from None
            except ChannelException as error:
                raise self._explain_no_session(what, error) from error
            except (SSHException, EOFError, OSError) as error:
                raise self._explain_lost(what, error) from error
            with holding(self.name, what, stream, deadline=deadline) as held:
                yield held

    def close(self) -> None:
        abandon(self._transport)

    def _execute(self, argv: Sequence[str], deadline: float, stdin: Iterable[bytes] | None, what: str) -> Completed:
        with held_back():
            exchange = Exchange(self._transport, self.shell.command(argv, has_input=stdin is not None))
            try:
                status = within(deadline, lambda: self._converse(exchange, deadline, stdin), waiting=interruptible())
            except Overdue:
                raise overdue(self.name, what, deadline, outcome=self._end(exchange)) from None
            except TooMuchOutput as excess:
                raise too_much(self.name, what, excess, outcome=self._end(exchange)) from None
            except ChannelException as error:
                raise self._explain_no_session(what, error) from error
            except (ConnectionLost, SSHException, EOFError, OSError) as error:
                raise self._explain_lost(what, error) from error
            except BaseException:
                with cleaning_up():
                    self._end(exchange)
                raise
        if is_missing_program(exchange, status):
            raise missing_program(self.name, argv[0])
        return Completed(tuple(argv), status, exchange.stdout, exchange.stderr)

    def _converse(self, exchange: Exchange, deadline: float, stdin: Iterable[bytes] | None) -> int:
        with self._turn:
            return exchange.converse(deadline, stdin)

    def _start_stream(self, line: str, deadline: float) -> ChannelStream:
        with self._turn:
            return ChannelStream.start(self._transport, line, deadline)

    def _explain_no_session(self, what: str, error: ChannelException) -> HostError:
        return HostError(
            f"{self.name}: no further session: {error.text} (for `{what}`)",
            hint=f"raise MaxSessions in the sshd_config of {self.name}, or run fewer commands at once",
        )

    def _explain_lost(self, what: str, error: Exception) -> HostError:
        why = getattr(error, "strerror", None) or str(error) or "it was closed at the other end"
        return HostError(
            f"{self.name}: the connection was lost: {why} (while running `{what}`)",
            hint=f"check that {self.name} is still up, and that the network between it and this machine works",
        )

    def _end(self, exchange: Exchange) -> str:
        """End the command on the remote machine. Returns the outcome as text. Closing the channel would not end it."""
        outcome = _UNKNOWN if exchange.requested else "it was not started there"
        try:
            pid = exchange.wait_for_pid(PID_SECONDS)
            if pid is not None:
                ending = Exchange(self._transport, self.shell.ender(pid))
                gone = within(ENDING_SECONDS, lambda: ending.converse(ENDING_SECONDS, ())) == 0
                outcome = "it was ended there" if gone else "it cannot be killed there (waiting for a device?)"
        except (Overdue, ConnectionLost, SSHException, EOFError, OSError):
            outcome = _UNKNOWN
        if outcome == _UNKNOWN:
            # Otherwise each further command, for example of a teardown, would wait for its deadline.
            self.close()
        with suppress(Overdue, SSHException, EOFError, OSError):
            within(2.0, exchange.abandon)
        return outcome


def runs_commands_concurrently(banner: str) -> bool:
    """Whether the SSH server with this identification can start a command while another one of the connection ends.

    dropbear 2022.82 to 2024.86 sometimes cannot: it takes the new channel for one whose command has ended, and drops
    the connection.
    """
    dropbear = _DROPBEAR.match(banner)
    return dropbear is None or not _ONE_AT_A_TIME[0] <= float(dropbear[1]) <= _ONE_AT_A_TIME[1]


def _choose_banner_seconds(attempt: int) -> float:
    if attempt % PATIENT_TRY:
        return QUICK_BANNER_SECONDS
    return min(QUICK_BANNER_SECONDS * 2.0 ** (attempt // PATIENT_TRY), BANNER_SECONDS)


def _read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
