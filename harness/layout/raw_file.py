"""A RAW file: as large as its disk, allocated at creation or when it is written."""

from __future__ import annotations

from harness.lab.guard import Writable, built_on
from harness.layout.regions import Need
from harness.layout.source import BlockSource
from harness.model.layout import Preallocation

MIB = 1024**2
SLOWEST_WRITE = 2 * MIB
"""Bytes per second. A disk that writes slower is broken."""
NEED = Need(0, 1.0)


def make(region: Writable, path: str, size: int, preallocation: Preallocation) -> BlockSource:
    """A file of `size` bytes (whole MiB) on the file system on `region`. With `full`, it is filled with zeros.

    Raises SafetyError if `path` is not on `region`, and HostError.
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
