"""Files on a file system on a region: RAW files, and qcow2 files with a RAW twin."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable
from harness.lab.paths import MOUNT_DIRECTORY
from harness.layout import luks, qcow2, raw_file
from harness.layout.identity import FIND
from harness.layout.regions import Need, Region
from harness.layout.source import Sources
from harness.model.layout import Filesystem, Qcow2, RawFile
from harness.shipped import read_script

MIB = 1024**2
FIXED_OVERHEAD: Mapping[Filesystem, int] = {"ext4": 64 * MIB, "xfs": 300 * MIB}
"""Bytes in addition to the files, for any size: journal, group descriptors. mkfs.xfs needs at least 300 MiB."""
SHARE_OVERHEAD = 0.05
"""Bytes in addition to the files, as a share of them: inode tables, bitmaps, B-trees, a larger journal."""

_MAKE: Mapping[Filesystem, tuple[str, ...]] = {
    # No lazy initialisation: it would write in the background during the measurement.
    "ext4": (
        "mkfs.ext4",
        "-q",
        "-F",
        "-m",
        "0",
        "-T",
        "largefile",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
        "-U",
    ),
    # Not discarded, because the whole disk has just been discarded.
    "xfs": ("mkfs.xfs", "-q", "-f", "-K", "-m"),
}
_REMOVE = FIND + read_script("harness.layout", "remove_filesystem.sh")


class FilesystemMount(HostThing):
    """A file system with its UUID, the UUID of its partition, and its mount point."""

    kind: Literal["filesystem"] = "filesystem"
    point: str
    uuid: str
    partuuid: str

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the file system at {self.point}"

    def arguments(self) -> Sequence[str]:
        return [self.point, self.uuid, self.partuuid]


@dataclass(frozen=True, slots=True)
class Files:
    """The files of all modes on one file system, as (mode, layout). With `encrypted`, it is on an encrypted device."""

    filesystem: Filesystem
    modes: tuple[tuple[str, RawFile | Qcow2], ...]
    encrypted: bool = False

    @property
    def region(self) -> str:
        return f"{self.filesystem}-luks" if self.encrypted else self.filesystem

    @property
    def need(self) -> Need:
        needs = [raw_file.NEED if isinstance(layout, RawFile) else qcow2.need(layout) for _, layout in self.modes]
        files = Need(sum(need.fixed for need in needs), sum(need.shares for need in needs))
        fixed = FIXED_OVERHEAD[self.filesystem] + (luks.NEED.fixed if self.encrypted else 0)
        return Need(files.fixed + fixed, files.shares * (1 + SHARE_OVERHEAD))

    @contextmanager
    def built(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        mount = FilesystemMount(
            disks=region.device.disks,
            point=f"{MOUNT_DIRECTORY}/{name}-{self.region}",
            uuid=str(uuid.uuid4()),
            partuuid=region.partuuid,
        )
        identity = mount.uuid if self.filesystem == "ext4" else f"uuid={mount.uuid}"
        with self._device(log, region, name) as device, log.making_here(mount):
            device.run([*_MAKE[self.filesystem], identity, device.path], deadline=300)
            log.runner.run(["mkdir", "-p", MOUNT_DIRECTORY], deadline=20)
            # Fails if the directory already exists.
            log.runner.run(["mkdir", mount.point], deadline=20)
            device.run(["mount", "-t", self.filesystem, "-o", "noatime", device.path, mount.point], deadline=60)
            yield {mode: _made(device, layout, f"{mount.point}/{mode}", span) for mode, layout in self.modes}

    @contextmanager
    def _device(self, log: CreationLog, region: Region, name: str) -> Iterator[Writable]:
        """The device of the file system."""
        if not self.encrypted:
            yield region.device
            return
        with luks.encrypted(log, region.device, f"{name}.{self.region}", region.partuuid) as device:
            yield device


def _made(region: Writable, layout: RawFile | Qcow2, path: str, span: int) -> Sources:
    if isinstance(layout, RawFile):
        return Sources.same(raw_file.make(region, f"{path}.raw", span, layout.preallocation))
    return qcow2.make(region, path, span, layout)
