"""The shell behind an SSH server: how a command is requested, how it reports its process, and how it is ended.

Behind OpenSSH for Windows it is PowerShell: a script, its arguments and its input, without any quoting. The command is
`("powershell", SCRIPT, ARGUMENT...)`. The script begins with `param($given, ...)`: its standard input as text, and the
arguments. What it returns is printed, and `$global:status` is its exit status.
"""

from __future__ import annotations

import base64
import re
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


PROGRAM = "powershell"
_BANNER = re.compile(r"SSH-2\.0-OpenSSH_for_Windows_")

# Neither cmd.exe nor PowerShell, which may be the shell of OpenSSH, changes anything in this line. cmd.exe takes at
# most 8191 characters, so the script itself comes on standard input.
# -OutputFormat: standard error would else be XML.
_LINE = f"{PROGRAM} -NoProfile -NonInteractive -OutputFormat Text -EncodedCommand "
MOST_CHARACTERS = 8191

NO_INPUT = r"let cmd.exe be the shell of OpenSSH again: remove DefaultShell from HKLM:\SOFTWARE\OpenSSH"
"""The remedy if the standard input of a command does not arrive."""

_BOOT = read_script("harness.lab.transport", "run_script.ps1", NO_INPUT=NO_INPUT)

# taskkill ends the children as well. Its status is 128 if there is no such process.
_END = r"""
$null = cmd.exe /c "taskkill /PID {pid} /T /F 2>nul"
if ($LASTEXITCODE -eq 0 -or $LASTEXITCODE -eq 128) {{ exit 0 }} else {{ exit 1 }}
"""


def is_windows(banner: str) -> bool:
    """Whether an SSH server with this identification is OpenSSH for Windows: "SSH-2.0-OpenSSH_for_Windows_9.5"."""
    return _BANNER.match(banner) is not None


class PowerShell:
    """A `RemoteShell`, see harness/lab/transport/shells.py."""

    def command(self, argv: Sequence[str]) -> str:
        _make_script(argv)
        return _encode(_BOOT)

    def held(self, argv: Sequence[str]) -> str:
        """The script must be short, because it is in the line. It gets its input line by line in `$input`."""
        return _encode(_make_script(argv))

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:
        texts = (_make_script(argv).encode(), data, *(each.encode() for each in argv[2:]))
        return b"".join(base64.b64encode(text) + b"\n" for text in texts)

    def ender(self, pid: int) -> str:
        return _encode(_END.format(pid=pid))


def _make_script(argv: Sequence[str]) -> str:
    if argv[0] != PROGRAM:
        raise ValueError(f"Windows has no program `{argv[0]}`")
    return argv[1]


def _encode(script: str) -> str:
    """The line that runs this script. Source: about_PowerShell_exe, -EncodedCommand (base64 of UTF-16LE)."""
    line = _LINE + base64.b64encode(script.strip().encode("utf-16-le")).decode()
    if len(line) > MOST_CHARACTERS:
        raise ValueError(f"the command has {len(line)} characters, and cmd.exe takes {MOST_CHARACTERS}")
    return line


POWERSHELL = PowerShell()
