"""Runs commands on the local machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from typing import IO

from harness.errors import HostError
from harness.files import replacing
from harness.lab.transport.base import (
    Completed,
    TooMuchOutput,
    disk_full,
    failed,
    in_words,
    missing_program,
    open_source,
    overdue,
    stdin_bytes,
    too_much,
)
from harness.lab.transport.held import Held, holding
from harness.lab.transport.pipes import Interrupted, converse
from harness.lab.transport.streams import PipeStream
from harness.signals import held_back
from harness.waiting import Deadline

GRACE_SECONDS = 3.0
CHUNK_BYTES = 1 << 20


class LocalRunner:
    """A Runner for this machine: a subprocess per command, in a separate process group."""

    def __init__(self, name: str = "this machine") -> None:
        self.name = name

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: float,
        stdin: str | bytes | None = None,
        check: bool = True,
    ) -> Completed:
        # A signal between the start of the process and the block that ends it would leave it running.
        with held_back():
            process = self._start(argv)
            try:
                stdout, stderr = converse(process, stdin_bytes(stdin), deadline)
            except subprocess.TimeoutExpired:
                raise overdue(self.name, in_words(argv), deadline, outcome=_ended(process)) from None
            except TooMuchOutput as excess:
                raise too_much(self.name, in_words(argv), excess, outcome=_ended(process)) from None
            except Interrupted:
                _end_group(process)
                raise HostError(f"{self.name}: `{in_words(argv)}` was ended, because the run was interrupted") from None
            except BaseException:
                # Ctrl-C in the terminal does not reach the command, because it has a separate process group.
                _end_group(process)
                raise
        done = Completed(tuple(argv), process.returncode, stdout.text, stderr.text)
        if check and done.status != 0:
            raise failed(self.name, done)
        return done

    def put(self, source: Path, target: str, *, deadline: float) -> None:
        end = Deadline.after(deadline)
        with open_source(source) as original:
            size = os.fstat(original.fileno()).st_size
            try:
                self._put(original, Path(target), end, deadline)
            except OSError as error:
                if error.errno == ENOSPC:
                    raise disk_full(self.name, target, size) from error
                raise HostError(f"{self.name}: cannot write {target}: {error.strerror or error}") from error

    @contextmanager
    def hold(self, argv: Sequence[str], *, what: str, deadline: float) -> Iterator[Held]:
        with held_back():
            stream = PipeStream(self._start(argv, stderr=subprocess.STDOUT), _end_group)
            with holding(self.name, what, stream, deadline=deadline) as held:
                yield held

    def close(self) -> None:
        """Does nothing: there is no connection to close."""

    def _start(self, argv: Sequence[str], *, stderr: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | {"LC_ALL": "C"},
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise missing_program(self.name, argv[0]) from error

    def _put(self, original: IO[bytes], target: Path, end: Deadline, deadline: float) -> None:
        # Readable only by its owner, because the guest image contains the guest's private host key.
        with replacing(target, mode=0o600) as copy:
            while chunk := original.read(CHUNK_BYTES):
                copy.write(chunk)
                if end.passed:
                    raise overdue(self.name, f"copy to {target}", deadline, outcome="the incomplete copy was removed")


def _ended(process: subprocess.Popen[bytes]) -> str:
    """End the command. Returns the outcome as text."""
    return "it was ended" if _end_group(process) else "it cannot be killed (waiting for a device?)"


def _end_group(process: subprocess.Popen[bytes]) -> bool:
    """Send TERM first: fio puts its jobs in separate sessions, so only fio itself can end them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    return process.poll() is not None
