"""A RAW file: as large as its disk, allocated at once or when it is written."""

from __future__ import annotations

from harness.lab.transport.base import Runner
from harness.layout.regions import Need
from harness.layout.source import BlockSource
from harness.scenario.layouts import Preallocation

MIB = 1024**2
SLOWEST_WRITE = 2 * MIB
"""Bytes per second; a disk that takes less is broken rather than slow."""
NEED = Need(0, 1.0)


def make(runner: Runner, path: str, size: int, preallocation: Preallocation) -> BlockSource:
    """A file of `size` bytes, whole MiB. With `full` all of it is written with zeros. Raises HostError."""
    if preallocation == "off":
        runner.run(["truncate", "-s", str(size), path], deadline=20)
    elif preallocation == "falloc":
        runner.run(["fallocate", "-l", str(size), path], deadline=60)
    else:
        write = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size // MIB}", "oflag=direct", "status=none"]
        runner.run(write, deadline=60 + size / SLOWEST_WRITE)
    return BlockSource(path, "file", 0, size)
