"""Pins block devices and files. A pinned command acts on exactly the device that was checked, or does not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from harness.errors import HostError, SafetyError
from harness.lab.transport.base import Completed, Runner, failed, whole
from harness.untrusted import reading

SECTOR = 512
"""Bytes per unit of a block device's size in sysfs, independent of the device's sectors."""

CHANGED = 90
"""The exit status of a pinned command that did not start because a pin no longer holds."""

# Shell functions. `facts_of NAME` sets number, diskseq, sectors and identity of the block device with that kernel name.
# It starts almost no processes, because on an emulated host each costs more than the reading. The identity is a serial
# number, the UUID of a device-mapper or md device, or the backing file of a loop device. The identity of a partition is
# the identity of its disk, and its first sector.
FACTS = r"""
word() { # FILE: sets text to its first line, without blanks at the ends
    text=
    [ ! -r "$1" ] || { read -r text || :; } 2>/dev/null <"$1"
}
serial_of() { # NAME MAJOR:MINOR, of a whole device
    for file in dm/uuid md/uuid loop/backing_file serial device/serial; do
        word "/sys/class/block/$1/$file"
        [ -z "$text" ] || { identity=$text; return; }
    done
    identity=
    [ -r "/run/udev/data/b$2" ] || return 0
    while IFS= read -r line; do
        case $line in E:ID_SERIAL_SHORT=*) identity=${line#*=}; return;; esac
    done <"/run/udev/data/b$2"
}
facts_of() { # NAME
    at=/sys/class/block/$1
    [ -e "$at/dev" ] || return 1
    word "$at/size"; sectors=$text
    word "$at/dev"; number=$text
    if [ -e "$at/partition" ]; then
        disk=$(readlink -f "$at/..") || return 1
        disk=${disk##*/}
        word "/sys/class/block/$disk/dev"; serial_of "$disk" "$text"
        word "$at/start"; identity="$identity@$text"
        word "/sys/class/block/$disk/diskseq"; diskseq=$text
    else
        serial_of "$1" "$number"
        word "$at/diskseq"; diskseq=$text
    fi
}
"""

# $1: a condition that must be true, $2: the number of pins that follow, each a path and its expected facts; then the
# command. Every device stays open while the command runs: meanwhile the kernel gives its name and number to no other
# device.
_PINNED = (
    FACTS
    + r"""
changed() { echo "$1" >&2; exit 90; }
eval "$1" || changed "this run has lost its lease of the host"
shift
check() { # PATH EXPECTED DESCRIPTOR
    case $2 in
    file:*) now=$(stat -L -c file:%d:%i "/proc/self/fd/$3") || changed "$1 is gone";;
    *)
        node=$(stat -L -c '%t %T' "/proc/self/fd/$3") && facts_of "${1##*/}" || changed "$1 is gone"
        [ "$number" = "$((0x${node% *})):$((0x${node#* }))" ] || changed "$1 is another device node"
        now="$number $diskseq $sectors $identity";;
    esac
    [ "$now" = "$2" ] || changed "$1 was ($2) and is ($now) now"
}
pins=$1 descriptor=3; shift
while [ "$pins" -gt 0 ]; do
    # Descriptors above 9 cannot be written as one digit; the last ones are checked as well, but not held open.
    [ "$descriptor" -le 9 ] || descriptor=9
    [ -e "$1" ] || changed "$1 is gone"
    case $descriptor in # without `command`, a failure would end the shell
    3) command exec 3<"$1";; 4) command exec 4<"$1";; 5) command exec 5<"$1";; 6) command exec 6<"$1";;
    7) command exec 7<"$1";; 8) command exec 8<"$1";; 9) command exec 9<"$1";;
    esac 2>/dev/null || changed "$1 cannot be opened"
    check "$1" "$2" "$descriptor"
    shift 2
    descriptor=$((descriptor + 1)) pins=$((pins - 1))
done
"$@" 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
"""
)

# Paths. For each, a line: the path, its real path, and `block` with the facts or `file` with device and inode.
_PINS = (
    FACTS
    + r"""
export PATH="$PATH:/usr/sbin:/sbin"
for path; do
    real=$(readlink -e "$path") || { echo "there is no $path" >&2; exit 1; }
    if [ -b "$real" ]; then
        facts_of "${real##*/}" || { echo "the kernel does not know $real" >&2; exit 1; }
        printf '%s\tblock\t%s\t%s\t%s\t%s\n' "$real" "$number" "$diskseq" "$sectors" "$identity"
    elif [ -f "$real" ]; then
        printf '%s\tfile\t%s\n' "$real" "$(stat -c '%d:%i' "$real")"
    else echo "$path is neither a block device nor a file" >&2; exit 1; fi
done
"""
)

# $1: a partition. Prints its facts, and the UUID that the partition table has for it now. It stays open in between, so
# that both are about the same partition.
_PARTITION = (
    FACTS
    + r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
exec 3<"$1" && facts_of "${1##*/}" && node=$(stat -L -c '%t %T' /proc/self/fd/3) || exit
[ "$number" = "$((0x${node% *})):$((0x${node#* }))" ] || { echo "$1 is another device node" >&2; exit 1; }
partuuid=$(blkid --probe --match-tag PART_ENTRY_UUID --output value "$1") || [ $? -eq 2 ] || exit
printf '%s\tblock\t%s\t%s\t%s\t%s\n%s\n' "$1" "$number" "$diskseq" "$sectors" "$identity" "$partuuid"
"""
)


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
    return [_parsed(runner, line) for line in printed]


def read_partition(runner: Runner, path: str) -> tuple[Pin, str]:
    """The current pin of a partition, and its UUID in the partition table. Raises HostError."""
    printed = runner.run(["sh", "-c", _PARTITION, "sh", path], deadline=30).stdout.splitlines()
    return _parsed(runner, printed[0] if printed else ""), printed[1] if len(printed) > 1 else ""


def directory_pin(runner: Runner, path: str) -> FilePin:
    """The current pin of the directory at `path`. Raises HostError if it is not a directory."""
    describe = 'cd -P "$1" && pwd -P && stat -c %d:%i .'
    printed = runner.run(["sh", "-c", describe, "sh", path], deadline=30).stdout
    real, _, facts = printed.strip().rpartition("\n")
    return _file_pin(runner, real, facts)


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


def _file_pin(runner: Runner, path: str, facts: str) -> FilePin:
    with reading(f"{runner.name}: device and inode of {path}"):
        device, _, inode = facts.partition(":")
        return FilePin(path, int(device), int(inode))


def _parsed(runner: Runner, line: str) -> Pin:
    try:
        path, kind, *facts = line.split("\t")
        if kind == "file":
            return _file_pin(runner, path, facts[0])
        number, diskseq, sectors, identity = facts
        return BlockPin(path, number, diskseq, int(sectors), identity)
    except ValueError as error:
        raise HostError(
            f"{runner.name}: it described a device as {line!r}, which is not a valid description"
        ) from error
