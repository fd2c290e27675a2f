"""Volumes and files of a ZFS pool on a region."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, created
from harness.lab.paths import MOUNT_DIRECTORY
from harness.layout.regions import FIND, Need, Region
from harness.layout.source import BlockSource, Sources
from harness.model.layout import Layout, ZfsFile, Zvol
from harness.shipped import read_script

MIB = 1024**2
FIXED_OVERHEAD = 256 * MIB
"""Labels, the log, and the part of a pool that ZFS reserves: at least 128 MiB."""
SHARE_OVERHEAD = 0.15
"""Checksums and trees of block pointers, and the reserved part: 1/32 of a large pool."""
UNCACHED_PROPERTY = "primarycache=metadata"
"""A property of what a run creates: reads come from the disks and not from ZFS's own cache (ARC)."""
UNCACHED = ("-o", UNCACHED_PROPERTY)

_REMOVE = FIND + read_script("harness.layout", "remove_pool.sh")


class Pool(HostThing):
    """A ZFS pool on the partition with the UUID `partuuid`, and the mount point of its datasets."""

    kind: Literal["zfs-pool"] = "zfs-pool"
    name: str
    point: str
    partuuid: str

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the pool {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.name, self.point, self.partuuid]


@dataclass(frozen=True, slots=True)
class Datasets:
    """The volumes and files of all modes in one pool, as (mode, layout)."""

    modes: tuple[tuple[str, Zvol | ZfsFile], ...]
    region: str = "zfs"

    things: ClassVar[tuple[type[HostThing], ...]] = (Pool,)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Datasets]:
        modes = tuple((mode, layout) for mode, layout in layouts if isinstance(layout, Zvol | ZfsFile))
        if modes:
            yield cls(modes)

    @property
    def need(self) -> Need:
        return Need(FIXED_OVERHEAD, len(self.modes) * (1 + SHARE_OVERHEAD))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        device = region.device
        pool = Pool(
            disks=device.disks,
            name=f"{name}-zfs",
            point=f"{MOUNT_DIRECTORY}/{name}-zfs",
            partuuid=region.partuuid,
        )
        with log.making_here(pool) as entry:
            # Without a cache file, it is not imported at the next boot. Without -f, zpool refuses a device in use.
            options = ["-o", "ashift=12", "-o", "cachefile=none", "-O", "atime=off", "-m", pool.point]
            device.run(["zpool", "create", *options, pool.name, device.path], deadline=120)
            paths = {mode: _made(device, layout, pool, mode, span) for mode, layout in self.modes}
            log.runner.run(["udevadm", "settle", "--timeout=20"], deadline=30)
            # The kernel does not show the device below a dataset, but the pool was just created and is in the log.
            granted = created(log.runner, entry, list(paths.values()))
            yield {
                mode: Sources.same(
                    BlockSource(paths[mode], "block" if isinstance(layout, Zvol) else "file", 0, span, grant=grant)
                )
                for (mode, layout), grant in zip(self.modes, granted, strict=True)
            }


def _made(device: Writable, layout: Zvol | ZfsFile, pool: Pool, mode: str, span: int) -> str:
    dataset = f"{pool.name}/{mode}"
    if isinstance(layout, Zvol):
        device.run(
            ["zfs", "create", "-V", str(span), "-o", f"volblocksize={layout.volblocksize}", *UNCACHED, dataset],
            deadline=60,
        )
        return f"/dev/zvol/{dataset}"
    device.run(["zfs", "create", "-o", f"recordsize={layout.recordsize}", *UNCACHED, dataset], deadline=60)
    path = f"{pool.point}/{mode}/disk.raw"
    # Not allocated: each write goes to a new place anyway.
    device.run(["truncate", "-s", str(span), path], deadline=20)
    return path
