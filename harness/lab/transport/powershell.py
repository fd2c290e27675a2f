"""PowerShell behind OpenSSH for Windows: a script, its arguments and its input, without any quoting.

The command is `("powershell", SCRIPT, ARGUMENT...)`. The script begins with `param($given, ...)`: its standard input as
text, and the arguments. What it returns is printed, and `$global:status` is its exit status.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from harness.shipped import read_script

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
        _script(argv)
        return _encoded(_BOOT)

    def held(self, argv: Sequence[str]) -> str:
        """The script must be short, because it is in the line. It gets its input line by line in `$input`."""
        return _encoded(_script(argv))

    def stdin(self, argv: Sequence[str], data: bytes) -> bytes:
        texts = (_script(argv).encode(), data, *(each.encode() for each in argv[2:]))
        return b"".join(base64.b64encode(text) + b"\n" for text in texts)

    def ender(self, pid: int) -> str:
        return _encoded(_END.format(pid=pid))


def _script(argv: Sequence[str]) -> str:
    if argv[0] != PROGRAM:
        raise ValueError(f"Windows has no program `{argv[0]}`")
    return argv[1]


def _encoded(script: str) -> str:
    """The line that runs this script. Source: about_PowerShell_exe, -EncodedCommand (base64 of UTF-16LE)."""
    line = _LINE + base64.b64encode(script.strip().encode("utf-16-le")).decode()
    if len(line) > MOST_CHARACTERS:
        raise ValueError(f"the command has {len(line)} characters, and cmd.exe takes {MOST_CHARACTERS}")
    return line


POWERSHELL = PowerShell()
