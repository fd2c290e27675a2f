"""Volumes and files of a ZFS pool on a region of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from harness.lab.paths import MOUNT_DIRECTORY
from harness.lab.transport.base import Runner
from harness.layout.regions import Need, Region
from harness.layout.source import BlockSource, Sources
from harness.layout.undo import Undo
from harness.scenario.layouts import ZfsFile, Zvol

MIB = 1024**2
FIXED_OVERHEAD = 256 * MIB
"""Labels, the log, and the part of a pool that ZFS keeps free: at least 128 MiB."""
SHARE_OVERHEAD = 0.15
"""Checksums and trees of block pointers, and the part kept free: 1/32 of a large pool."""

# $1: the pool, $2: where its datasets are mounted.
_DESTROY = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
! zpool list "$1" >/dev/null 2>&1 || zpool destroy "$1" || exit
[ ! -d "$2" ] || rmdir "$2"
"""


@dataclass(frozen=True, slots=True)
class Datasets:
    """The volumes and files of all modes, (mode, layout) each, in one pool."""

    modes: tuple[tuple[str, Zvol | ZfsFile], ...]
    region: str = "zfs"

    @property
    def need(self) -> Need:
        return Need(FIXED_OVERHEAD, len(self.modes) * (1 + SHARE_OVERHEAD))

    @contextmanager
    def built(self, runner: Runner, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        pool, point = f"{name}-zfs", f"{MOUNT_DIRECTORY}/{name}-zfs"
        with Undo(runner) as undo:
            undo.by(f"the pool {pool}", ["sh", "-s", "--", pool, point], stdin=_DESTROY, deadline=120)
            # Without a cache file it is not imported when the host boots again.
            options = ["-f", "-o", "ashift=12", "-o", "cachefile=none", "-O", "atime=off", "-m", point]
            runner.run(["zpool", "create", *options, pool, region.device], deadline=120)
            sources = {
                mode: _made(runner, layout, f"{pool}/{mode}", f"{point}/{mode}", span) for mode, layout in self.modes
            }
            runner.run(["udevadm", "settle", "--timeout=20"], deadline=30)
            yield sources


def _made(runner: Runner, layout: Zvol | ZfsFile, dataset: str, mounted: str, span: int) -> Sources:
    if isinstance(layout, Zvol):
        create = ["zfs", "create", "-V", str(span), "-o", f"volblocksize={layout.volblocksize}", dataset]
        runner.run(create, deadline=60)
        return Sources.same(BlockSource(f"/dev/zvol/{dataset}", "block", 0, span))
    runner.run(["zfs", "create", "-o", f"recordsize={layout.recordsize}", dataset], deadline=60)
    path = f"{mounted}/disk.raw"
    # Not allocated: each write goes to a new place anyway.
    runner.run(["truncate", "-s", str(span), path], deadline=20)
    return Sources.same(BlockSource(path, "file", 0, span))
