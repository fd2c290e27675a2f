"""The disk under test as a block device: a link to a real disk, a loop device on a new file, or a disk in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.errors import SafetyError, Unsupported
from harness.files import read_script
from harness.lab.created import CreationLog, Entry, HostThing, fenced
from harness.lab.guard import created, serial_of
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import FILE_IDENTITY, TAG
from harness.lab.transport.base import Runner
from harness.layout.free_space import reserve_places
from harness.layout.source import BlockSource
from harness.untrusted import parse_json, reading

_OURS = FILE_IDENTITY + read_script("harness.layout", "our_file.sh")
_DETACH = _OURS + read_script("harness.layout", "detach_loop.sh")
_REMOVE = _OURS + read_script("harness.layout", "remove_file.sh")
# $1: the file, $2: a unique name in the same directory, $3: its size. The file gets its final name only after it is in
# the log with its identity, and never replaces another file. Prints its inode and birth time.
_MAKE = (
    FILE_IDENTITY
    + r"""
umask 077
set -C
: >"$2" && truncate -s "$3" "$2" && file_of "$2"
"""
)
_FILESYSTEM = FILE_IDENTITY + 'filesystem_of "$1"\n'
# $1: the file, $2: its draft, $3: its inode and birth time.
_NAME = r"""
ln -T "$2" "$1" || exit
case $3 in *" 0") ;; *) rm -f "$2";; esac
"""


# $1: a loop device. Prints its name, its sequence number and the id of the boot.
_ATTACHED = r"""
read -r diskseq 2>/dev/null <"/sys/block/${1##*/}/diskseq" || diskseq=
echo "${1##*/} $diskseq $(cat /proc/sys/kernel/random/boot_id)"
"""


class BackingFile(HostThing):
    """A file that a run creates, behind a loop device or for a backup. `inode` has its inode and its birth time, once
    it exists, and `draft` is its name before that."""

    kind: Literal["backing-file"] = "backing-file"
    path: str
    draft: str
    inode: str = ""
    filesystem: str = ""
    size: int = 0

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the file {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.draft, self.inode, self.filesystem, str(self.size)]


class LoopDevice(HostThing):
    """The loop device on a backing file, and once it exists its name, its sequence number and the boot, as `device`."""

    kind: Literal["loop-device"] = "loop-device"
    path: str
    inode: str
    draft: str = ""
    device: str = ""

    removal: ClassVar[str] = _DETACH

    @property
    def words(self) -> str:
        return f"the loop device on {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.draft, self.inode, self.device]


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
        devices = list_loop_devices(runner, path)
        raise SafetyError(
            refused + "the file exists already" + (f", and is behind {', '.join(devices)}" if devices else ""),
            hint="virt-overhead creates and removes this file itself. Name a path that does not exist, or, if a killed "
            "run left the file, run: virt-overhead reap",
        )
    with own_file(log, path, disk.size, (serial_of(disk),), refused) as (file, _):
        known = [LoopDevice(disks=file.disks, path=path, draft=file.draft, inode=file.inode)]
        with log.making(known[0], lambda: known[-1].remove(runner)) as entry:
            attach = ["losetup", "--find", "--show", "--partscan", "--direct-io=on", path]
            device = runner.run(fenced(entry, attach), deadline=30).stdout.strip()
            attached = runner.run(["sh", "-c", _ATTACHED, "sh", device], deadline=20).stdout.strip()
            known.append(known[0].model_copy(update={"device": attached}))
            log.amend(entry, known[-1])
            yield device


@contextmanager
def own_file(
    log: CreationLog, path: str, size: int, disks: tuple[str, ...], refused: str
) -> Iterator[tuple[BackingFile, Entry]]:
    """A new sparse file of `size` bytes, and its record in the log. It is removed at the end.

    Raises SafetyError, which begins with `refused`, if `places_for` refuses its place. Raises HostError, for example if
    the file exists already.
    """
    runner = log.runner
    with reserve_places(log, {path: size}, refused):
        directory, _, name = path.rpartition("/")
        draft = f"{directory}/.{name}.{uuid.uuid4()}"
        filesystem = runner.run(["sh", "-c", _FILESYSTEM, "sh", path], deadline=30).stdout.strip()
        known = [BackingFile(disks=disks, path=path, draft=draft, filesystem=filesystem, size=size)]
        with log.making(known[0], lambda: known[-1].remove(runner)) as entry:
            make = fenced(entry, ["sh", "-c", _MAKE, "sh", path, draft, str(size)])
            known.append(known[0].model_copy(update={"inode": runner.run(make, deadline=20).stdout.strip()}))
            log.amend(entry, known[-1])
            # `ln` fails if the file exists by now.
            runner.run(fenced(entry, ["sh", "-c", _NAME, "sh", path, draft, known[-1].inode]), deadline=20)
            yield known[-1], entry


def list_loop_devices(runner: Runner, file: str) -> list[str]:
    """The loop devices on `file`."""
    # Without --list, losetup prints its own format for -j and ignores --json.
    listed = runner.run(["losetup", "--list", "--json", "--output", "NAME", "-j", file], deadline=30).stdout
    source = f"{runner.name}: losetup's list for {file}"
    with reading(source):
        return [str(loop["name"]) for loop in parse_json(listed or "{}", source).get("loopdevices", ())]


NULL_BLK = "/sys/kernel/config/nullb"
MIB = 1024**2
_QUEUE_DEPTH = 64
_LONGEST_NAME = 31  # of a block device; the kernel truncates longer names

# $1: the directory of null_blk disks. Status 3: the kernel has no null_blk.
_AVAILABLE = """
export PATH="$PATH:/usr/sbin:/sbin"
[ -d "$1" ] || modprobe null_blk nr_devices=0 2>/dev/null
[ -d "$1" ] || exit 3
"""
_CREATE = read_script("harness.layout", "create_memory_disk.sh")
_REMOVE_MEMORY_DISK = read_script("harness.layout", "remove_memory_disk.sh")


class MemoryDisk(HostThing):
    """A null_blk disk: its directory, and the id of the boot in which it was created."""

    kind: Literal["memory-disk"] = "memory-disk"
    directory: str
    boot: str

    removal: ClassVar[str] = _REMOVE_MEMORY_DISK

    @property
    def words(self) -> str:
        return f"the disk in memory {self.directory.rpartition('/')[2]}"

    def arguments(self) -> Sequence[str]:
        return [self.directory, self.boot]


def name_disk(run_id: str, name: str) -> str:
    """The name on the host of the disk `name` of a run."""
    return f"{TAG}-{run_id}-{name}"


@contextmanager
def create_memory_disk(log: CreationLog, name: str, *, size: int, answer_ns: int) -> Iterator[BlockSource]:
    """A disk of `size` bytes (whole MiB) in memory. It completes each request after `answer_ns` nanoseconds.

    It takes 64 requests at a time. Other disks are not touched. Raises Unsupported if the kernel has no null_blk,
    or one that cannot name its disks (before Linux 5.19), HostError if the creation fails, and ValueError if the name
    is too long. Source of the settings: the kernel's Documentation/block/null_blk.rst.
    """
    runner, full_name = log.runner, name_disk(log.run_id, name)
    if len(full_name) > _LONGEST_NAME:
        raise ValueError(f"the name of a disk has at most {_LONGEST_NAME} characters: {full_name} is too long")
    if runner.run(["sh", "-s", "--", NULL_BLK], stdin=_AVAILABLE, deadline=60, check=False).status == 3:
        raise Unsupported(
            f"{runner.name}: its kernel has no null_blk module, which creates disks in memory",
            hint="modprobe null_blk nr_devices=0 shows why; cloud kernels may have it in a package of extra modules",
        )
    directory, device = f"{NULL_BLK}/{full_name}", f"/dev/{full_name}"
    settings = {
        "size": size // MIB,
        "memory_backed": 1,
        "blocksize": 512,
        "queue_mode": 2,  # blk-mq
        "irqmode": 2,  # completed by a timer
        "completion_nsec": answer_ns,
        "hw_queue_depth": _QUEUE_DEPTH,
        "submit_queues": 1,
        "power": 1,
    }
    boot = runner.run(["cat", "/proc/sys/kernel/random/boot_id"], deadline=20).stdout.strip()
    with log.making_here(MemoryDisk(directory=directory, boot=boot)) as entry:
        words = [f"{key}={value}" for key, value in settings.items()]
        # `mkdir` fails if the disk already exists.
        runner.run(fenced(entry, ["sh", "-c", _CREATE, "sh", directory, *words]), deadline=60)
        if runner.run(["test", "-b", device], deadline=20, check=False).status != 0:
            raise Unsupported(f"{runner.name}: null_blk did not create {device}", hint="use Linux 5.19 or newer")
        (grant,) = created(runner, entry, [device])
        yield BlockSource(device, "block", 0, size, grant=grant)
