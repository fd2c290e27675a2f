"""Commands on the machine that has the node's disks and guests, to which a command like ssh leads."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from pve_double.errors import PveError

DEADLINE = 120.0
FORWARD_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended."""

    status: int
    stdout: str
    stderr: str


class Commands(Protocol):
    """Runs commands, and reaches sockets, on the machine of the guests."""

    def run(
        self, argv: Sequence[str], *, deadline: float = DEADLINE, stdin: IO[bytes] | None = None, check: bool = True
    ) -> Done:
        """Raises PveError with what the command printed when it fails, unless `check` is off."""
        ...

    def socket(self, path: str) -> Path:
        """A path here that leads to the UNIX socket `path` there."""
        ...

    def close(self) -> None: ...


class Shell:
    """Commands behind a prefix such as `ssh -p 2222 root@127.0.0.1`, never plainly on this machine.

    Sockets there are reached by OpenSSH's forwarding, for which the prefix has to be ssh with options and destination.
    """

    def __init__(self, prefix: Sequence[str]) -> None:
        if not prefix:
            raise ValueError("there has to be a command that leads to the guests' host")
        self._prefix = tuple(prefix)
        self._directory = tempfile.TemporaryDirectory(prefix="pve-double-sockets-")
        self._forwards: dict[str, tuple[Path, subprocess.Popen[bytes]]] = {}

    def run(
        self, argv: Sequence[str], *, deadline: float = DEADLINE, stdin: IO[bytes] | None = None, check: bool = True
    ) -> Done:
        words = [*self._prefix, shlex.join(argv)]
        try:
            ended = subprocess.run(
                words, stdin=stdin or subprocess.DEVNULL, capture_output=True, timeout=deadline, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            raise PveError(f"command '{shlex.join(argv)}' failed: {failed}") from failed
        done = Done(ended.returncode, ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace"))
        if check and done.status != 0:
            said = done.stderr.strip() or f"exit code {done.status}"
            raise PveError(f"command '{shlex.join(argv)}' failed: {said}")
        return done

    def socket(self, path: str) -> Path:
        known = self._forwards.get(path)
        if known is not None and known[1].poll() is None:
            return known[0]
        here = Path(self._directory.name) / path.rpartition("/")[2]
        here.unlink(missing_ok=True)
        program, *options = self._prefix
        words = [program, "-N", "-S", "none", "-o", "ExitOnForwardFailure=yes", "-L", f"{here}:{path}", *options]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(words, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        self._forwards[path] = (here, process)
        deadline = time.monotonic() + FORWARD_SECONDS
        while not here.exists():
            if process.poll() is not None or time.monotonic() >= deadline:
                raise PveError(f"no way to the socket {path}: {shlex.join(words)} ended or took too long")
            time.sleep(0.02)
        return here

    def close(self) -> None:
        for _, process in self._forwards.values():
            process.terminate()
            process.wait(timeout=FORWARD_SECONDS)
        self._forwards.clear()
        self._directory.cleanup()
