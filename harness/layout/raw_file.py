"""A RAW file: as large as its disk, allocated at once or when it is written."""

from __future__ import annotations

from harness.lab.guard import Writable, built_on
from harness.layout.regions import Need
from harness.layout.source import BlockSource
from harness.model.layout import Preallocation

MIB = 1024**2
SLOWEST_WRITE = 2 * MIB
"""Bytes per second; a disk that takes less is broken rather than slow."""
NEED = Need(0, 1.0)


def make(region: Writable, path: str, size: int, preallocation: Preallocation) -> BlockSource:
    """A file of `size` bytes, whole MiB, on a file system of ours on `region`; with `full` it is written with zeros.

    Raises SafetyError where `path` is on something else, HostError.
    """
    if preallocation == "off":
        region.run(["truncate", "-s", str(size), path], deadline=20)
    elif preallocation == "falloc":
        region.run(["fallocate", "-l", str(size), path], deadline=60)
    else:
        write = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size // MIB}", "oflag=direct", "status=none"]
        region.run(write, deadline=60 + size / SLOWEST_WRITE)
    (file,) = built_on([region], [path])
    return BlockSource(path, "file", 0, size, grant=file)
