"""Files on a file system on a region of ours: RAW files, and qcow2 files with a RAW twin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from harness.lab.paths import MOUNT_DIRECTORY
from harness.lab.transport.base import Runner
from harness.layout import qcow2, raw_file
from harness.layout.regions import Need, Region
from harness.layout.source import Sources
from harness.layout.undo import Undo
from harness.scenario.layouts import Filesystem, Qcow2, RawFile

MIB = 1024**2
FIXED_OVERHEAD: Mapping[Filesystem, int] = {"ext4": 64 * MIB, "xfs": 300 * MIB}
"""Bytes beside the files whatever their size: journal, group descriptors. mkfs.xfs makes nothing below 300 MiB."""
SHARE_OVERHEAD = 0.05
"""Bytes beside the files, as a share of them: inode tables, bitmaps, B-trees, a larger journal."""

_MAKE: Mapping[Filesystem, tuple[str, ...]] = {
    # No lazy initialisation: it would write in the background while we measure.
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-T", "largefile", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    # Not discarded, for the whole disk was a moment ago.
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
# $1: the mount point.
_UNMOUNT = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
if mountpoint -q "$1"; then umount "$1" || exit; fi
[ ! -d "$1" ] || rmdir "$1"
"""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of all modes, (mode, layout) each, on one file system."""

    filesystem: Filesystem
    modes: tuple[tuple[str, RawFile | Qcow2], ...]

    @property
    def region(self) -> str:
        return self.filesystem

    @property
    def need(self) -> Need:
        needs = [raw_file.NEED if isinstance(layout, RawFile) else qcow2.need(layout) for _, layout in self.modes]
        files = Need(sum(need.fixed for need in needs), sum(need.shares for need in needs))
        return Need(files.fixed + FIXED_OVERHEAD[self.filesystem], files.shares * (1 + SHARE_OVERHEAD))

    @contextmanager
    def built(self, runner: Runner, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        point = f"{MOUNT_DIRECTORY}/{name}-{self.filesystem}"
        with Undo(runner) as undo:
            runner.run([*_MAKE[self.filesystem], region.device], deadline=300)
            undo.by(f"the mount {point}", ["sh", "-s", "--", point], stdin=_UNMOUNT, deadline=120)
            runner.run(["mkdir", "-p", point], deadline=20)
            runner.run(["mount", "-t", self.filesystem, "-o", "noatime", region.device, point], deadline=60)
            yield {mode: _made(runner, layout, f"{point}/{mode}", span) for mode, layout in self.modes}


def _made(runner: Runner, layout: RawFile | Qcow2, path: str, span: int) -> Sources:
    if isinstance(layout, RawFile):
        return Sources.same(raw_file.make(runner, f"{path}.raw", span, layout.preallocation))
    return qcow2.make(runner, path, span, layout)
