"""Runs commands in a VM through its QEMU guest agent: without a network, a login or an SSH server in the VM.

The agent starts a program and collects its output, and is asked repeatedly whether the program has ended. What it must
be able to do, and why it may not, is the same for all hypervisors.
"""

from __future__ import annotations

import base64
import gzip
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from harness.errors import HostError, Unsupported
from harness.lab.transport.base import (
    MISSING_PROGRAM,
    NO_SPACE,
    Completed,
    TooMuchOutput,
    disk_full,
    failed,
    in_words,
    missing_program,
    open_source,
    outputs,
    overdue,
    stdin_bytes,
    too_much,
)
from harness.lab.transport.ssh import PosixShell
from harness.signals import Deadline, cleaning_up, growing, held_back, wait_until
from harness.untrusted import reading

SILENCE_SECONDS = 30.0
"""How long the agent of a running program may be silent: a busy guest answers late, and a service may start anew."""
ENDING_SECONDS = 20.0
PLAIN_BYTES = 16 << 10
"""Standard input of up to this size is sent as it is, if it is ASCII. Proxmox VE accepts at most 64 KiB in a form in
which a character may take three bytes, and libvirt 4 MiB. fio's job files are compressed to a tenth or less."""
MOST_SENT_BYTES = 60 << 10
"""The most that is sent at once, compressed and in base64."""
_PIECE_BYTES = 32 << 10
MOST_STORED_BYTES = 16 << 20
"""The most of an output that the agent stores: GUEST_EXEC_MAX_OUTPUT of qga/commands.c."""
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.004, 2.0, 1.15
"""Pauses between two questions in seconds, each longer than the one before by a factor. A question takes CPU time of
the VM and of its host, also while fio measures. So a pause is about a seventh of the time that has passed."""
_SHELL = "/bin/sh"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MISSING = "virt-overhead-missing"

# The agent runs with few variables, and may have no PATH. $@: the command.
_RUN = f"""
export LC_ALL=C PATH="${{PATH:+$PATH:}}{_PATH}"
command -v "$1" >/dev/null || {{ echo {_MISSING} >&2; exit {MISSING_PROGRAM}; }}
"""
_PLAIN = f'{_RUN}exec "$@"'
_PACKED = f'{_RUN}base64 -d | gzip -dc | {{ exec "$@"; }}'
# $1: a file, $2: its part; standard input is the next piece.
_ADD = 'umask 077; cat >>"$2"'
# $1 target, $2 partial file, $3 bytes. It is on the disk before it gets its name.
_FINISH = 'trap \'rm -f "$2"\' EXIT; [ "$(wc -c <"$2")" -eq "$3" ] && sync && mv -f "$2" "$1" && sync && trap - EXIT'

T = TypeVar("T")


class AgentSilent(HostError):
    """The agent does not answer now."""


@dataclass(frozen=True, slots=True)
class EndedProgram:
    """A program that the agent started and that ended. `status` is negative if a signal ended it."""

    status: int
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """Whether the agent dropped the rest of an output."""


class Agent(Protocol):
    """The guest agent of one VM, as its hypervisor offers it.

    Its methods raise AgentSilent if it does not answer, and HostError for everything else.
    """

    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        """Start a program. Returns its process id. Its outputs are stored until it was asked for its end."""

    def ended(self, pid: int) -> EndedProgram | None:
        """How the program ended; None while it runs. The agent answers this only once for a program that ended."""


class AgentRunner:
    """A Runner in a VM with a guest agent. Threads may share it: the agent does one thing at a time."""

    windows = False
    """The agent of a Windows is not used."""

    def __init__(self, agent: Agent, *, name: str) -> None:
        self.name = name
        self._agent = agent
        self._one_at_a_time = threading.Lock()
        self._silent = False

    @property
    def alive(self) -> bool:
        """Whether the agent answered when it was asked last."""
        return not self._silent

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> Completed:
        end = Deadline.after(deadline)
        with held_back():
            pid = self._start(argv, stdin_bytes(stdin))
            try:
                ended_program = self._wait(pid, end)
            except BaseException:
                with cleaning_up():
                    self._end(pid)
                raise
            if ended_program is None:
                raise overdue(self.name, in_words(argv), deadline, outcome=self._end(pid))
        done = self._completed(argv, ended_program)
        if done.status == MISSING_PROGRAM and done.stderr.strip() == _MISSING:
            raise missing_program(self.name, argv[0])
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        end = Deadline.after(deadline)
        with open_source(source) as file:
            size = os.fstat(file.fileno()).st_size
            partial = f"{target}.{secrets.token_hex(4)}.part"
            script = _ADD
            while script:
                piece = file.read(_PIECE_BYTES)
                script = _ADD if piece else ""
                argv = ["sh", "-c", script or _FINISH, "sh", target, partial, str(size)]
                done = self.run(argv, stdin=piece, deadline=max(end.left, 1.0), check=False)
                if NO_SPACE in done.stderr:
                    raise disk_full(self.name, target, size)
                if done.status != 0:
                    why = done.stderr.strip() or f"fewer than {size} bytes arrived"
                    raise HostError(f"{self.name}: cannot write {target}: {why}")

    def close(self) -> None:
        """Does nothing: the hypervisor has the connection."""

    def _start(self, argv: Sequence[str], data: bytes) -> int:
        script, sent = _PLAIN, data
        if len(data) > PLAIN_BYTES or not data.isascii():
            script, sent = _PACKED, base64.b64encode(gzip.compress(data))
        if len(sent) > MOST_SENT_BYTES:
            raise HostError(
                f"{self.name}: the standard input of a command has {len(sent)} bytes, also compressed, but the guest "
                f"agent accepts {MOST_SENT_BYTES}: `{in_words(argv)}` is not started",
                hint='use SSH instead (reach = "node" in the lab file), or select fewer cells with -k',
            )
        return self._execute(["-c", script, "sh", *argv], sent)

    def _execute(self, arguments: Sequence[str], data: bytes) -> int:
        with self._one_at_a_time:
            return self._answered(lambda: self._agent.execute(_SHELL, arguments, data))

    def _wait(self, pid: int, end: Deadline) -> EndedProgram | None:
        """How the program ended; None if it still runs at the deadline. The agent may be silent for a while."""
        patience: Deadline | None = None

        def look() -> EndedProgram | None:
            nonlocal patience
            try:
                with self._one_at_a_time:
                    ended_program = self._answered(lambda: self._agent.ended(pid))
            except AgentSilent:
                patience = patience or Deadline.after(SILENCE_SECONDS)
                if patience.passed:
                    raise
                return None
            patience = None
            return ended_program

        return wait_until(look, deadline=end, every=growing(_FIRST_PAUSE, _LONGEST_PAUSE, factor=_GROWTH))

    def _answered(self, ask: Callable[[], T]) -> T:
        self._silent = True
        answer = ask()
        self._silent = False
        return answer

    def _end(self, pid: int) -> str:
        """End the program in the VM, with its children. Returns the outcome as text."""
        try:
            ending = self._execute(["-c", PosixShell().ender(pid)], b"")
            done = self._wait(ending, Deadline.after(ENDING_SECONDS))
            # The agent forgets a program when it was asked for its end.
            self._wait(pid, Deadline.after(1.0))
        except HostError:
            return "the agent does not answer, so the command may still run there"
        gone = done is not None and done.status == 0
        return "it was ended there" if gone else "it cannot be killed there (waiting for a device?)"

    def _completed(self, argv: Sequence[str], ended: EndedProgram) -> Completed:
        stdout, stderr = outputs()
        try:
            stdout.add(ended.stdout)
            stderr.add(ended.stderr)
            if ended.truncated:
                raise TooMuchOutput("its outputs", MOST_STORED_BYTES)
        except TooMuchOutput as excess:
            raise too_much(self.name, in_words(argv), excess, outcome="it has ended there") from None
        return Completed(tuple(argv), ended.status, stdout.text, stderr.text)


NEEDED = ("guest-exec", "guest-exec-status")
INSTALL = "in the VM, install qemu-guest-agent and start it: systemctl enable --now qemu-guest-agent"
_ALLOW = (
    "in the VM, allow them (on RHEL and its relatives in /etc/sysconfig/qemu-ga: remove them from the list after "
    "BLACKLIST_RPC or -b, or add them to that after --allow-rpcs; elsewhere see block-rpcs and allow-rpcs in "
    '/etc/qemu/qemu-ga.conf), then: systemctl restart qemu-guest-agent; or use SSH (reach = "node")'
)


class AgentOfVm(ABC):
    """An `Agent` by its answers, which have the same form on every hypervisor."""

    prefix: ClassVar[str] = ""
    """How the names of its commands begin in messages."""

    @property
    @abstractmethod
    def host(self) -> str:
        """The name of its host in the lab file."""

    @property
    @abstractmethod
    def vm(self) -> str:
        """The VM in messages."""

    @abstractmethod
    def execute(self, path: str, arguments: Sequence[str], stdin: bytes) -> int:
        """As that of `Agent`."""

    @abstractmethod
    def ask(self, command: str, **parameters: object) -> Any:
        """Its answer to a command, whose name is without `guest-`. Raises AgentSilent, HostError."""

    @staticmethod
    @abstractmethod
    def decode(output: str) -> bytes:
        """An output of a program as it is in an answer. Raises ValueError."""

    @property
    def where(self) -> str:
        """The agent in messages."""
        return f"host {self.host}: the guest agent of {self.vm}"

    def reading(self, command: str) -> AbstractContextManager[None]:
        """Raises HostError if its answer to the command has another form."""
        return reading(f"{self.where}: its answer to {self.prefix}{command}", HostError)

    def require_usable(self) -> None:
        """Raises Unsupported, with the remedy, if it cannot run programs; HostError."""
        try:
            info = self.ask("info")
        except AgentSilent as error:
            raise Unsupported(error.message, hint=error.hint) from error
        with self.reading("info"):
            enabled = {str(command["name"]) for command in info["supported_commands"] if command["enabled"]}
        if disabled := [name for name in NEEDED if name not in enabled]:
            what = "they are" if len(disabled) > 1 else "it is"
            why = f"does not run {' and '.join(disabled)}: {what} disabled in the VM"
            raise Unsupported(f"{self.where} {why}", hint=_ALLOW)
        os_info = self.ask("get-osinfo")
        with self.reading("get-osinfo"):
            is_windows = os_info.get("id") == "mswindows"
        if is_windows:
            raise Unsupported(
                f"host {self.host}: {self.vm} runs Windows, in which commands run only over SSH",
                hint='use reach = "node" or "direct" in the lab file',
            )

    def ended(self, pid: int) -> EndedProgram | None:
        answer = self.ask("exec-status", pid=pid)
        with self.reading("exec-status"):
            if not int(answer["exited"]):
                return None
            status = -int(answer["signal"]) if "signal" in answer else int(answer["exitcode"])
            out, err = (self.decode(answer.get(key, "")) for key in ("out-data", "err-data"))
            truncated = any(int(answer.get(key) or 0) for key in ("out-truncated", "err-truncated"))
            return EndedProgram(status, out, err, truncated)
