"""A disk in the host's memory that answers after a time that we set: null_blk, completed by a high-resolution timer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.errors import Unsupported
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import created
from harness.lab.paths import TAG
from harness.layout.source import BlockSource

NULL_BLK = "/sys/kernel/config/nullb"
MIB = 1024**2
_QUEUE_DEPTH = 64
_LONGEST_NAME = 31  # of a block device; the kernel cuts off the rest

# $1: the directory of null_blk disks. Status 3: the kernel has none to offer.
_AVAILABLE = """
export PATH="$PATH:/usr/sbin:/sbin"
[ -d "$1" ] || modprobe null_blk nr_devices=0 2>/dev/null
[ -d "$1" ] || exit 3
"""
# $1: the directory of the new disk, then KEY=VALUE in the order in which they are written.
_CREATE = """
export PATH="$PATH:/usr/sbin:/sbin"
mkdir "$1" && cd "$1" && shift || exit 1
for setting; do echo "${setting#*=}" >"${setting%%=*}" || exit 1; done
! command -v udevadm >/dev/null || udevadm settle --timeout=20
"""
# $1: the directory of the disk, $2: the boot in which it was made: it is in memory.
_REMOVE = r"""
[ -d "$1" ] || { echo absent; exit; }
read -r boot </proc/sys/kernel/random/boot_id
[ "$boot" = "$2" ] || { echo "foreign: $1 was made after the host was started again"; exit; }
echo 0 >"$1/power" && rmdir "$1" && echo removed
"""


class MemoryDisk(HostThing):
    """A null_blk disk: its directory, and the boot of the host in which it was made."""

    kind: Literal["memory-disk"] = "memory-disk"
    directory: str
    boot: str

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the disk in memory {self.directory.rpartition('/')[2]}"

    def arguments(self) -> Sequence[str]:
        return [self.directory, self.boot]


def disk_name(run_id: str, name: str) -> str:
    """What the disk `name` of a run is called on the host."""
    return f"{TAG}-{run_id}-{name}"


@contextmanager
def memory_disk(log: CreationLog, name: str, *, size: int, answer_ns: int) -> Iterator[BlockSource]:
    """A disk of `size` bytes (whole MiB) in memory; each request is answered after `answer_ns` nanoseconds.

    It has room for 64 requests at a time, and nobody else's disk is touched. Raises Unsupported where the host's kernel
    has no null_blk, or one that cannot name its disks (before Linux 5.19), HostError where making it fails, and
    ValueError for a name that is too long. Source of the settings: the kernel's Documentation/block/null_blk.rst.
    """
    runner, called = log.runner, disk_name(log.run_id, name)
    if len(called) > _LONGEST_NAME:
        raise ValueError(f"{called} is too long a name for a disk: at most {_LONGEST_NAME} characters")
    if runner.run(["sh", "-s", "--", NULL_BLK], stdin=_AVAILABLE, deadline=60, check=False).status == 3:
        raise Unsupported(
            f"{runner.name}: its kernel offers no null_blk, which makes disks in memory",
            hint="modprobe null_blk nr_devices=0 says why; cloud kernels may have it in a package of extra modules",
        )
    directory, device = f"{NULL_BLK}/{called}", f"/dev/{called}"
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
        # `mkdir` fails where there is such a disk already.
        runner.run(["sh", "-s", "--", directory, *words], stdin=_CREATE, deadline=60)
        if runner.run(["test", "-b", device], deadline=20, check=False).status != 0:
            raise Unsupported(f"{runner.name}: null_blk made no {device}", hint="it needs Linux 5.19 or newer")
        (grant,) = created(runner, entry, [device])
        yield BlockSource(device, "block", 0, size, grant=grant)
