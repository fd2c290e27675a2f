"""RAW files on a file system on a partition of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from harness.errors import HostError
from harness.lab.paths import MOUNT_DIRECTORY
from harness.lab.transport.base import Runner
from harness.layout.source import BlockSource

MIB = 1024**2


FIXED_OVERHEAD = 64 * MIB
"""Bytes that ext4 needs beside the files whatever their size: journal, group descriptors."""
SHARE_OVERHEAD = 0.05
"""Bytes that ext4 needs beside the files, as a share of them: inode tables, bitmaps, a larger journal."""


@contextmanager
def raw_files(
    runner: Runner, partition: str, run_id: str, names: Sequence[str], size: int
) -> Iterator[dict[str, BlockSource]]:
    """One preallocated file of `size` bytes per name on a fresh ext4, which is unmounted at the end."""
    mount_point = f"{MOUNT_DIRECTORY}/{run_id}"
    # No lazy initialisation: it would write in the background while we measure.
    options = ["-q", "-F", "-m", "0", "-T", "largefile", "-E", "lazy_itable_init=0,lazy_journal_init=0"]
    runner.run(["mkfs.ext4", *options, partition], deadline=300)
    try:
        runner.run(["mkdir", "-p", mount_point], deadline=20)
        runner.run(["mount", "-t", "ext4", "-o", "noatime", partition, mount_point], deadline=60)
        paths = {name: f"{mount_point}/{name}.raw" for name in names}
        for path in paths.values():
            runner.run(["fallocate", "-l", str(size), path], deadline=60)
        yield {name: BlockSource(path, "file", 0, size) for name, path in paths.items()}
    finally:
        with suppress(HostError):
            runner.run(["umount", mount_point], deadline=120, check=False)
            runner.run(["rmdir", mount_point], deadline=20, check=False)
