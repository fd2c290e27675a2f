"""The shell behind an SSH server: how a command is requested, how it reports its process, and how it is ended."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Protocol

from harness.shipped import read_script

_ENDER = read_script("harness.lab.transport", "end_tree.sh")


class RemoteShell(Protocol):
    """The shell of a machine. A command prints `virt-overhead-pid NUMBER` first, on standard error."""

    def command(self, argv: Sequence[str]) -> str:
        """The line that runs `argv`. Raises ValueError if this shell cannot run it."""
        ...

    def held(self, argv: Sequence[str]) -> str:
        """The line that runs `argv` while its standard input is open. Raises ValueError as `command`."""
        ...

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:
        """The standard input of the line of `command`, for a command that gets `data`."""
        ...

    def ender(self, pid: int) -> str:
        """The line that ends the process with its descendants. Its exit status is 0 if all are gone."""
        ...


class PosixShell:
    """sh, bash, dash or busybox, on a machine with /proc."""

    def command(self, argv: Sequence[str]) -> str:
        # The remote shell prints its process id and becomes the command, so a deadline can end the command. This needs
        # no additional process and no additional round trip. For a missing program, the shell prints no process id.
        found = f"command -v {shlex.quote(argv[0])} >/dev/null && echo virt-overhead-pid $$ >&2"
        return f"export LC_ALL=C; {found}; exec {shlex.join(argv)}"

    def held(self, argv: Sequence[str]) -> str:
        return f"export LC_ALL=C; exec {shlex.join(argv)}"

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:  # noqa: ARG002 - a RemoteShell
        return data

    def ender(self, pid: int) -> str:
        return self.command(("sh", "-c", _ENDER, "sh", str(pid)))


POSIX: RemoteShell = PosixShell()
