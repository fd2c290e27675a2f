"""The disk under test as a block device: a link to a real disk, or a loop device on a file that the run creates."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.errors import SafetyError
from harness.lab.created import CreationLog, Entry, HostThing
from harness.lab.guard import serial_of
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.transport.base import Runner
from harness.layout.free_space import places_for
from harness.untrusted import parse_json, reading

# $1: the file, $2: its device and inode. If another process has the loop device open (udev or lsblk, for a moment), the
# kernel detaches it when that process closes it, and `losetup -d` does not wait for that.
_DETACH = r"""
devices() { losetup --list --noheadings --output NAME,BACK-MAJ:MIN,BACK-INO | sed 's/  */ /g' | sed -n "s/ $key\$//p"; }
number=${2%:*}
key="$((number >> 8 & 0xfff | number >> 32 & ~0xfff)):$((number & 0xff | number >> 12 & ~0xff)) ${2#*:}"
found=$(devices) || exit
[ -n "$found" ] || { echo absent; exit; }
for device in $found; do losetup -d "$device" || exit; done
for try in 1 2 3 4 5 6 7 8 9 10; do
    found=$(devices) || exit
    [ -n "$found" ] || { echo removed; exit; }
    sleep 0.5
done
echo "another process has" $found open >&2
exit 1
"""
# $1: the file, $2: its device and inode, $3: its name while it was created.
_REMOVE = r"""
rm -f "$3"
[ -e "$1" ] || { echo absent; exit; }
now=$(stat -c %d:%i "$1") || exit
[ "$now" = "$2" ] || { echo "foreign: $1 is another file, which was created later"; exit; }
devices=$(losetup --list --noheadings --output NAME --associated "$1") || exit
[ -z "$devices" ] || { echo "it is in use by" $devices >&2; exit 1; }
rm -f "$1" && echo removed
"""
# $1: the file, $2: a unique name in the same directory, $3: its size. The file gets its final name only after it is in
# the log, and never replaces another file.
_MAKE = r"""
umask 077
set -C
: >"$2" && truncate -s "$3" "$2" && stat -c %d:%i "$2"
"""


class BackingFile(HostThing):
    """A file that a run creates, behind a loop device or for a backup. `inode` is the device number of its file system,
    and its inode."""

    kind: Literal["backing-file"] = "backing-file"
    path: str
    draft: str
    inode: str

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the file {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.inode, self.draft]


class LoopDevice(HostThing):
    """The loop device on a backing file."""

    kind: Literal["loop-device"] = "loop-device"
    path: str
    inode: str

    removal: ClassVar[str] = _DETACH

    @property
    def words(self) -> str:
        return f"the loop device on {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.inode]


@contextmanager
def block_device(log: CreationLog, disk: DiskSpec) -> Iterator[str]:
    """The path of the disk's block device on the host. A loop device exists until the end of the block."""
    if isinstance(disk, DiskByFile):
        with _loop_device(log, disk) as device:
            yield device
    else:
        yield disk.id


@contextmanager
def _loop_device(log: CreationLog, disk: DiskByFile) -> Iterator[str]:
    runner, path = log.runner, str(disk.file)
    refused = f"{runner.name}: disk {disk.name}, {disk.identity}, will not be written to: "
    if not disk.destroy:
        raise SafetyError(
            refused + "the lab file does not have `destroy = true` for it",
            hint=f"add it under disk.{disk.name} if you need nothing in that file",
        )
    if runner.run(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ]', "sh", path], deadline=20, check=False).status == 0:
        attached = loop_devices(runner, path)
        raise SafetyError(
            refused + "the file exists already" + (f", and is behind {', '.join(attached)}" if attached else ""),
            hint="virt-overhead creates and removes this file itself. Name a path that does not exist, or, if a killed "
            "run left the file, run: virt-overhead reap",
        )
    with (
        own_file(log, path, disk.size, (serial_of(disk),), refused) as (file, _),
        log.making_here(LoopDevice(disks=file.disks, path=path, inode=file.inode)),
    ):
        attach = ["losetup", "--find", "--show", "--partscan", "--direct-io=on", path]
        yield runner.run(attach, deadline=30).stdout.strip()


@contextmanager
def own_file(
    log: CreationLog, path: str, size: int, disks: tuple[str, ...], refused: str
) -> Iterator[tuple[BackingFile, Entry]]:
    """A new sparse file of `size` bytes, and its record in the log. It is removed at the end.

    Raises SafetyError, which begins with `refused`, if `places_for` refuses its place. Raises HostError, for example if
    the file exists already.
    """
    runner = log.runner
    with places_for(log, {path: size}, refused):
        pass
    directory, _, name = path.rpartition("/")
    draft = f"{directory}/.{name}.{uuid.uuid4()}"
    try:
        inode = runner.run(["sh", "-c", _MAKE, "sh", path, draft, str(size)], deadline=20).stdout.strip()
        file = BackingFile(disks=disks, path=path, draft=draft, inode=inode)
        with log.making_here(file) as entry:
            # `ln` fails if the file exists by now.
            runner.run(["ln", "-T", draft, path], deadline=20)
            runner.run(["rm", "-f", draft], deadline=20)
            yield file, entry
    finally:
        # The name is unique, so this removes no other file.
        runner.run(["rm", "-f", draft], deadline=20, check=False)


def loop_devices(runner: Runner, file: str) -> list[str]:
    """The loop devices on `file`."""
    # Without --list, losetup prints its own format for -j and ignores --json.
    listed = runner.run(["losetup", "--list", "--json", "--output", "NAME", "-j", file], deadline=30).stdout
    source = f"{runner.name}: losetup's list for {file}"
    with reading(source):
        return [str(each["name"]) for each in parse_json(listed or "{}", source).get("loopdevices", ())]
