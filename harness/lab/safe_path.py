"""Checks that no other user of a host can exchange a directory of a run, or a file in it, for something else.

Commands of a run, QEMU and fio open files by path, as root. Whoever may write to a directory on the way can put a link
there at any time, and chooses what is written to. So the check is that nobody else may: it holds until root changes it.
"""

from __future__ import annotations

from harness.errors import SafetyError
from harness.lab.transport.base import Runner
from harness.shipped import read_script

UNSAFE = read_script("harness.lab", "unsafe_path.sh")

_ASK = UNSAFE + 'export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"\nfor path; do unsafe "$path"; done\n'

REMEDY = (
    "name a directory that only root can change, with everything above it: chown root DIRECTORY; "
    "chmod go-w DIRECTORY (commands of a run and QEMU open files by path, as root)"
)


def why_unsafe(runner: Runner, *paths: str) -> str | None:
    """Why another user could exchange a part of a path, or change the file or directory there; None if nobody could.

    Raises HostError if the host cannot tell.
    """
    return runner.run(["sh", "-c", _ASK, "sh", *paths], deadline=30).stdout.partition("\n")[0] or None


def require_safe(runner: Runner, directory: str, refused: str) -> None:
    """Raise SafetyError, which begins with `refused`, if another user could exchange what is in the directory."""
    if why := why_unsafe(runner, directory):
        raise SafetyError(f"{refused}another user could exchange what is in {directory}: {why}", hint=REMEDY)
