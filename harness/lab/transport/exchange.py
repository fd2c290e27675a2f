"""One command on one SSH channel: starts it, sends its input, reads its output, and ends it on the remote machine.

Also the local end of a held command: the pipes of a local process, or an SSH channel to another machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from paramiko import Channel, SSHException, Transport

from harness.lab.transport.base import outputs
from harness.lab.transport.held import GRACE_SECONDS

# The channel's timeout: how often a blocked read checks standard error, and a blocked write checks `abandoned`.
POLL_SECONDS = 0.2
# Larger than the data of one poll. Then a full standard error does not block standard output.
WINDOW_BYTES = 16 << 20
PACKET_BYTES = 32 << 10
MISSING_PROGRAM = 127

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

        `deadline` limits only the opening of the channel. The caller must limit the rest.

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
            if stdin is None:
                channel.shutdown_write()
            else:
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


CHUNK_BYTES = 64 << 10
# The timeout of a write to a channel, and the poll interval of a read.
CHANNEL_SECONDS = 5.0


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
        return os.read(self._stdout.fileno(), CHUNK_BYTES)

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
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill(self._process)
        self._stdout.close()


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
                data: bytes = self._channel.recv(CHUNK_BYTES)
            except TimeoutError:
                continue
            return data

    def write(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except (SSHException, EOFError) as error:
            raise OSError(str(error) or type(error).__name__) from error

    def end_input(self) -> None:
        with suppress(OSError, SSHException, EOFError):
            self._channel.shutdown_write()

    def end(self) -> None:
        # The remote side reports the end of the process after the end of its output.
        self._channel.status_event.wait(GRACE_SECONDS)
        with suppress(OSError, SSHException, EOFError):
            self._channel.close()
