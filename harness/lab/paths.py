"""The paths and names that the harness uses on a lab host, and whether another user could exchange a file there.

Commands of a run, QEMU and fio open files by path, as root. Whoever may write to a directory on the way can put a link
there at any time, and chooses what is written to. So the check is that nobody else may: it holds until root changes it.

The number of an inode is used again for a new file, the root of every ext4 has inode 2, and the number of a device
changes when a disk is attached or mounted again. So a file is known by its inode and its birth time in nanoseconds,
which no program can set, and a file system by its UUID.
"""

from __future__ import annotations

import uuid

from harness.errors import SafetyError
from harness.lab.transport.base import Runner
from harness.shipped import read_script

STATE_DIRECTORY = "/var/lib/virt-overhead"
IMAGE_DIRECTORY = f"{STATE_DIRECTORY}/images"
CREATED_DIRECTORY = f"{STATE_DIRECTORY}/created"
"""The creation log: a directory per run, a file per thing (harness/lab/created.py)."""
LEFT_DIRECTORY = f"{STATE_DIRECTORY}/left"
"""Samples of the disks that earlier runs used. A later run compares them, to detect writes by others since then."""
MOUNT_DIRECTORY = f"{STATE_DIRECTORY}/mnt"
BACKUP_DIRECTORY = f"{STATE_DIRECTORY}/backup"
LEASE_DIRECTORY = "/run/virt-overhead"
CONSOLE_DIRECTORY = f"{STATE_DIRECTORY}/console"
STATE_DIRECTORIES = (STATE_DIRECTORY, IMAGE_DIRECTORY, CREATED_DIRECTORY, LEFT_DIRECTORY, MOUNT_DIRECTORY)
"""Nobody but root may write to any of them."""

TAG = "voh"
"""Begins all names that a run gives on a lab host: partitions `voh:RUN:WHAT`, volume groups and guests `voh-RUN...`.

Names are for people only. The creation log (harness/lab/created.py) says what a run created.
"""

MARK = f"VIRT_OVERHEAD={uuid.uuid4()}"
"""In the environment of each fio and perf that this process starts. They continue if this process is killed.

No other run has the same value.
"""


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
