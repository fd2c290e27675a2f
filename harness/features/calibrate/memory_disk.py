"""A disk in memory, of the kernel's null_blk, as the truth against which a calibration measures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.errors import Unsupported
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import created
from harness.lab.pin import TAG
from harness.layout import BlockSource
from harness.untrusted import reading

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
_CREATE = read_script("harness.features.calibrate", "create_memory_disk.sh")
_REMOVE_MEMORY_DISK = read_script("harness.features.calibrate", "remove_memory_disk.sh")


class MemoryDisk(HostThing):
    """A null_blk disk: its directory, and the id of the boot in which it was created."""

    kind: Literal["memory-disk"] = "memory-disk"
    directory: str
    boot: str

    removal: ClassVar[str] = _REMOVE_MEMORY_DISK

    @property
    def words(self) -> str:
        return f"the disk in memory {self.directory.rpartition('/')[2]}"


@contextmanager
def create_memory_disk(log: CreationLog, name: str, *, size: int, answer_ns: int) -> Iterator[BlockSource]:
    """A disk of `size` bytes (whole MiB) in memory. It completes each request after `answer_ns` nanoseconds.

    It takes 64 requests at a time. Other disks are not touched. Raises Unsupported if the kernel has no null_blk,
    or one that cannot name its disks (before Linux 5.19), HostError if the creation fails, and ValueError if the name
    is too long. Source of the settings: the kernel's Documentation/block/null_blk.rst.
    """
    runner, full_name = log.runner, f"{TAG}-{log.run_id}-{name}"
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
    with reading(f"{runner.name}: the id of its boot"):
        disk = MemoryDisk(directory=directory, boot=boot)
    with log.making_here(disk) as entry:
        words = [f"{key}={value}" for key, value in settings.items()]
        # `mkdir` fails if the disk already exists.
        runner.run(fenced(entry, ["sh", "-c", _CREATE, "sh", directory, *words]), deadline=60)
        if runner.run(["test", "-b", device], deadline=20, check=False).status != 0:
            raise Unsupported(f"{runner.name}: null_blk did not create {device}", hint="use Linux 5.19 or newer")
        (grant,) = created(runner, entry, [device])
        yield BlockSource(device, "block", 0, size, grant=grant)
