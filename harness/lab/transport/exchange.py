"""One command on one SSH channel: starts it, sends its input, reads its output, and ends it on the remote machine."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable

from paramiko import Channel, SSHException, Transport

from harness.lab.transport.base import outputs

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
