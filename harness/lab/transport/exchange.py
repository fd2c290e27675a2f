"""One command on one SSH channel: start it, feed it, drain it, and end it on the far side when asked."""

from __future__ import annotations

import re
import shlex
import threading
from collections.abc import Iterable, Sequence

from paramiko import Channel, SSHException, Transport

from harness.lab.transport.base import outputs

# The channel's timeout: how often a blocked read looks at standard error, and a blocked write at `abandoned`.
POLL_SECONDS = 0.2
# Larger than what arrives in one poll, so that a full standard error does not hold up standard output.
WINDOW_BYTES = 16 << 20
PACKET_BYTES = 32 << 10
MISSING_PROGRAM = 127

_PID = re.compile(rb"virt-overhead-pid (\d{1,10})\n")
# It is the first that the command prints; only the far shell's own start-up files may print before it.
_PID_WITHIN_BYTES = 64 << 10

# Ends a command and everything that came of it: members of its session or group, and children of those (fio puts
# its jobs in sessions of their own). TERM first, then KILL. Builtins only but for sleep: forks are dear in a guest.
_ENDER = r"""
tree=" $1 " grown=yes
while [ "$grown" ]; do
  grown=
  for stat in /proc/[0-9]*/stat; do
    read -r line 2>/dev/null <"$stat" || continue
    pid=${line%% *}
    case $tree in *" $pid "*) continue;; esac
    set -- ${line##*) }
    case $tree in *" $2 "*|*" $3 "*|*" $4 "*) tree="$tree$pid " grown=yes;; esac
  done
done
for signal in TERM KILL; do
  kill -$signal $tree 2>/dev/null
  for pause in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    left=" "
    for pid in $tree; do
      read -r line 2>/dev/null <"/proc/$pid/stat" || continue
      set -- ${line##*) }
      [ "$1" = Z ] || left="$left$pid "
    done
    [ "$left" = " " ] && exit 0
    sleep 0.1
  done
  tree=$left
done
exit 1
"""


class ConnectionLost(Exception):
    """The connection ended before the command did."""


class Exchange:
    """One command on one channel. `converse` blocks: it runs in a thread that can be given up."""

    def __init__(self, transport: Transport, argv: Sequence[str]) -> None:
        self._transport = transport
        self._argv = argv
        self.requested = False
        self.pid: int | None = None
        """The command's process id on the far side, once it has started there."""
        self._channel: Channel | None = None
        self._abandoned = threading.Event()
        self._started = threading.Event()
        self._stdout, self._stderr = outputs()

    def converse(self, deadline: float, stdin: Iterable[bytes] | None = None) -> int:
        """Run the command to its end; its exit status, negative when a signal ended it.

        `deadline` bounds the opening of the channel alone: the caller waits no longer for the rest either.

        Raises ConnectionLost, TooMuchOutput, or what paramiko raises where a channel cannot be opened.
        """
        channel = self._transport.open_channel("session", window_size=WINDOW_BYTES, timeout=deadline + 1.0)
        self._channel = channel
        try:
            if self._abandoned.is_set():
                raise ConnectionLost("the channel opened too late")
            channel.settimeout(POLL_SECONDS)
            self.requested = True
            channel.exec_command(_command_line(self._argv))
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
        """Let go of the channel. What runs on the far side may go on: see `ender`."""
        self._abandoned.set()
        if self._channel is not None:
            self._channel.close()

    def wait_for_pid(self, seconds: float) -> int | None:
        """The command's process id; a command that was given up right after its start may not have told it yet."""
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
            # The command stopped reading, the connection ended (`_drain` finds out which), or the caller gave up
            # and closed the file.
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
                complaint = channel.recv_stderr(WINDOW_BYTES)
                if not complaint:
                    break
                self._look_for_pid(complaint)
                self._stderr.add(complaint)
            # Last: to end a command that prints too much, its process id must be known.
            self._stdout.add(data)

    def _look_for_pid(self, complaint: bytes) -> None:
        if self.pid is None and (match := _PID.search(self._stderr.head(_PID_WITHIN_BYTES) + complaint)):
            self.pid = int(match[1])
            self._started.set()

    def _check_whole(self, channel: Channel) -> None:
        if channel.eof_received:
            return
        # paramiko closes the channels of a lost connection a moment before it calls the connection inactive.
        self._transport.join(0.5)
        if not self._transport.is_alive():
            raise ConnectionLost(str(self._transport.get_exception() or "") or "the far side closed it")


def ender(transport: Transport, pid: int) -> Exchange:
    """The command that ends the far process `pid` with its descendants; status 0 when all are gone."""
    return Exchange(transport, ("sh", "-c", _ENDER, "sh", str(pid)))


def is_missing_program(exchange: Exchange, status: int) -> bool:
    """Whether the shell found no such program (a program may itself end with this status)."""
    return status == MISSING_PROGRAM and exchange.pid is None


def _command_line(argv: Sequence[str]) -> str:
    # The far shell tells its process id and becomes the command, so a deadline can end it; no process more, no
    # round trip more. A program that is missing tells none.
    program = shlex.quote(argv[0])
    return f"export LC_ALL=C; command -v {program} >/dev/null && echo virt-overhead-pid $$ >&2; exec {shlex.join(argv)}"
