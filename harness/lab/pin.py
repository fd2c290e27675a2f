"""The paths that the harness uses on a lab host, and pins of devices and files there.

A pinned command acts on exactly the device or file that was checked, or does not start.

Commands of a run, QEMU and fio open files by path, as root. Whoever may write to a directory on the way can put a link
there at any time, and chooses what is written to. So the check is that nobody else may: it holds until root changes it.

The number of an inode is used again for a new file, the root of every ext4 has inode 2, and the number of a device
changes when a disk is attached or mounted again. So a file is known by its inode and its birth time in nanoseconds,
which no program can set, and a file system by its UUID.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from harness.errors import HostError, SafetyError
from harness.files import read_script
from harness.lab.transport.base import Completed, Runner, failed, whole
from harness.terminal import quoted
from harness.untrusted import reading

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
    """The kernel's names of the disks below the volume or file at `path`; `nfs:` and the mount point on an NFS server.

    Empty if the host has no disk below it, as with CIFS. Raises HostError.
    """
    return tuple(runner.run(["sh", "-s", "--", path], stdin=_BELOW, deadline=60).stdout.split())


SECTOR = 512
"""Bytes per unit of a block device's size in sysfs, independent of the device's sectors."""

CHANGED = 90
"""The exit status of a pinned command that did not start because a pin no longer holds."""

FACTS = read_script("harness.lab", "device_facts.sh")

_PINNED = FACTS + read_script("harness.lab", "run_pinned.sh")

_PINS = FACTS + read_script("harness.lab", "read_pins.sh")

_PARTITION = FACTS + read_script("harness.lab", "pin_partition.sh")


@runtime_checkable
class Fenced(Protocol):
    """A runner whose commands may write only while a shell condition is true on the host, for example a lease."""

    fence: str


@dataclass(frozen=True, slots=True)
class BlockPin:
    """One block device: its path in /dev, and facts that the kernel gives to no other device until the next boot.

    `number` is major:minor. `diskseq` is empty before Linux 5.15. `identity` is the serial number or the like.
    """

    path: str
    number: str
    diskseq: str
    sectors: int
    identity: str

    @property
    def size_bytes(self) -> int:
        return self.sectors * SECTOR

    @property
    def name(self) -> str:
        """The kernel's name: nvme0n1, dm-3."""
        return self.path.rpartition("/")[2]

    @property
    def expected(self) -> str:
        return f"{self.number} {self.diskseq} {self.sectors} {self.identity}"


@dataclass(frozen=True, slots=True)
class FilePin:
    """One file or directory: its path, the device number of its file system, and its inode."""

    path: str
    device: int
    inode: int

    @property
    def expected(self) -> str:
        return f"file:{self.device}:{self.inode}"


Pin = BlockPin | FilePin


def read_pins(runner: Runner, paths: Sequence[str]) -> list[Pin]:
    """The current pins of these devices and files. Links are followed. Raises HostError."""
    printed = runner.run(["sh", "-c", _PINS, "sh", *paths], deadline=30).stdout.splitlines()
    if len(printed) != len(paths):
        raise HostError(f"{runner.name}: it described only {len(printed)} of {len(paths)} devices: {', '.join(paths)}")
    return [_parse(runner, line) for line in printed]


def read_partition(runner: Runner, path: str) -> tuple[Pin, str]:
    """The current pin of a partition, and its UUID in the partition table. Raises HostError."""
    printed = runner.run(["sh", "-c", _PARTITION, "sh", path], deadline=30).stdout.splitlines()
    return _parse(runner, printed[0] if printed else ""), printed[1] if len(printed) > 1 else ""


def directory_pin(runner: Runner, path: str) -> FilePin:
    """The current pin of the directory at `path`. Raises HostError if it is not a directory."""
    describe = 'cd -P "$1" && pwd -P && stat -c %d:%i .'
    printed = runner.run(["sh", "-c", describe, "sh", path], deadline=30).stdout
    real, _, facts = printed.strip().rpartition("\n")
    return _parse_file_pin(runner, real, facts)


def run_pinned(
    runner: Runner,
    pins: Iterable[Pin],
    argv: Sequence[str],
    *,
    deadline: float,
    stdin: str | bytes | None = None,
    check: bool = True,
) -> Completed:
    """Run the command if all pins still match. The host checks them in the same command, right before it.

    Raises SafetyError naming the device that has changed, and the errors of `Runner.run`.
    """
    fence = runner.fence if isinstance(runner, Fenced) else "true"
    command = argv if stdin is None else whole(argv, stdin)
    done = runner.run(pinned(pins, command, fence=fence), deadline=deadline, stdin=stdin, check=False)
    require_unchanged(runner, done)
    done = replace(done, argv=tuple(argv))
    if check and done.status != 0:
        raise failed(runner.name, done)
    return done


def pinned(pins: Iterable[Pin], argv: Sequence[str], *, fence: str = "true") -> list[str]:
    """The command that checks the fence and the pins, and then runs `argv`. If a check fails, its status is CHANGED."""
    words = [word for pin in dict.fromkeys(pins) for word in (pin.path, pin.expected)]
    return ["sh", "-c", _PINNED, "sh", fence, str(len(words) // 2), *words, *argv]


def require_unchanged(runner: Runner, done: Completed) -> None:
    """Raise SafetyError if a pinned command did not start."""
    if done.status == CHANGED:
        raise SafetyError(
            f"{runner.name}: a command that writes was not started: {done.stderr.strip()}",
            hint="a disk was swapped, unplugged or attached again (see dmesg there), or another run holds the host: "
            "find the cause before you start the run again",
        )


def _parse_file_pin(runner: Runner, path: str, facts: str) -> FilePin:
    with reading(f"{runner.name}: device and inode of {path}"):
        device, _, inode = facts.partition(":")
        return FilePin(path, int(device), int(inode))


def _parse(runner: Runner, line: str) -> Pin:
    try:
        path, kind, *facts = line.split("\t")
        if kind == "file":
            return _parse_file_pin(runner, path, facts[0])
        number, diskseq, sectors, identity = facts
        return BlockPin(path, number, diskseq, int(sectors), identity)
    except ValueError as error:
        raise HostError(
            f"{runner.name}: it described a device as {quoted(line)}, which is not a valid description"
        ) from error
