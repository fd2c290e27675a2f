"""Runs commands on a remote machine over one open SSH connection, directly or through another machine."""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import repeat
from pathlib import Path
from typing import IO

from paramiko import ChannelException, SSHException, Transport

from harness.errors import HostError
from harness.lab.transport.base import (
    NO_SPACE,
    Completed,
    Overdue,
    TooMuchOutput,
    disk_full,
    failed,
    in_words,
    missing_program,
    open_source,
    overdue,
    stdin_bytes,
    too_much,
    within,
)
from harness.lab.transport.exchange import ChannelStream, ConnectionLost, Exchange, is_missing_program
from harness.lab.transport.handshake import Jump, NotUpYet, SshTarget, abandon, open_transport
from harness.lab.transport.held import Held, holding
from harness.lab.transport.shells import POSIX, POWERSHELL, RemoteShell, is_windows
from harness.signals import cleaning_up, held_back, interruptible
from harness.units import format_duration
from harness.waiting import Deadline, attempts

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
        self._shell: RemoteShell = POWERSHELL if self.windows else POSIX
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
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> Completed:
        data = self._shell.stdin(argv, stdin_bytes(stdin))
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
    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> Iterator[Held]:
        with held_back():
            line = self._shell.held(argv)
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
            exchange = Exchange(self._transport, self._shell.command(argv))
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
            f"{self.name}: no further session for `{what}`: {error.text}",
            hint=f"raise MaxSessions in the sshd_config of {self.name}, or run fewer commands at once",
        )

    def _explain_lost(self, what: str, error: Exception) -> HostError:
        return HostError(
            f"connection to {self.name} was lost while running `{what}`: {error or type(error).__name__}",
            hint=f"check that {self.name} is still up",
        )

    def _end(self, exchange: Exchange) -> str:
        """End the command on the remote machine. Returns the outcome as text. Closing the channel would not end it."""
        outcome = _UNKNOWN if exchange.requested else "it was not started there"
        try:
            pid = exchange.wait_for_pid(PID_SECONDS)
            if pid is not None:
                ending = Exchange(self._transport, self._shell.ender(pid))
                gone = within(ENDING_SECONDS, lambda: ending.converse(ENDING_SECONDS)) == 0
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
