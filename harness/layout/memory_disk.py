"""A disk in the host's memory that answers after a time that we set: null_blk, completed by a high-resolution timer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.errors import Unsupported
from harness.lab.paths import TAG
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource
from harness.layout.undo import Undo

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
_REMOVE = '[ ! -d "$1" ] || { echo 0 >"$1/power"; rmdir "$1"; }'


def disk_name(run_id: str, name: str) -> str:
    """What the disk `name` of a run is called on the host."""
    return f"{TAG}-{run_id}-{name}"


@contextmanager
def memory_disk(runner: Runner, run_id: str, name: str, *, size: int, answer_ns: int) -> Iterator[BlockSource]:
    """A disk of `size` bytes (whole MiB) in memory; each request is answered after `answer_ns` nanoseconds.

    It has room for 64 requests at a time, and nobody else's disk is touched. Raises Unsupported where the host's kernel
    has no null_blk, or one that cannot name its disks (before Linux 5.19), HostError where making it fails, and
    ValueError for a name that is too long. Source of the settings: the kernel's Documentation/block/null_blk.rst.
    """
    called = disk_name(run_id, name)
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
    with Undo(runner) as undo:
        undo.by(f"the disk in memory {called}", ["sh", "-s", "--", directory], stdin=_REMOVE, deadline=60)
        words = [f"{key}={value}" for key, value in settings.items()]
        runner.run(["sh", "-s", "--", directory, *words], stdin=_CREATE, deadline=60)
        if runner.run(["test", "-b", device], deadline=20, check=False).status != 0:
            raise Unsupported(f"{runner.name}: null_blk made no {device}", hint="it needs Linux 5.19 or newer")
        yield BlockSource(device, "block", 0, size)
