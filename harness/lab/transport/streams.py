"""The local end of a held command: the pipes of a local process, or an SSH channel to another machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

from paramiko import Channel, SSHException, Transport

from harness.lab.transport.held import GRACE_SECONDS

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
