"""Files on a host: whether another user could exchange them, what identifies them, and on which disks they are.

Commands of a run, QEMU and fio open files by path, as root. Whoever may write to a directory on the way can put a link
there at any time, and chooses what is written to. So the check is that nobody else may: it holds until root changes it.

The number of an inode is used again for a new file, the root of every ext4 has inode 2, and the number of a device
changes when a disk is attached or mounted again. So a file is known by its inode and its birth time in nanoseconds,
which no program can set, and a file system by its UUID.
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


FILE_IDENTITY = read_script("harness.lab", "file_identity.sh")


_BELOW = read_script("harness.lab", "list_members.sh")


def disks_below(runner: Runner, path: str) -> tuple[str, ...]:
    """The kernel's names of the disks below the volume or file at `path`.

    Empty if the host has no disk below it, as with NFS. Raises HostError.
    """
    return tuple(runner.run(["sh", "-s", "--", path], stdin=_BELOW, deadline=60).stdout.split())
