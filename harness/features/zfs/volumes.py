"""Volumes and files on ZFS: in a pool that a run creates on a disk, or in a dataset that is in use.

Those in a dataset are created with a token of the run, and removed if they still have it. Before that, the shape of the
pool, from what its host prints, and the space that a record takes on its disks, in bytes.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Room, Writable, created, created_directory
from harness.lab.pin import MOUNT_DIRECTORY, TAG
from harness.lab.storages import FoundStorage
from harness.lab.transport.base import Runner
from harness.layout import BlockSource, Sources
from harness.layout.regions import FIND, Need, Region
from harness.layout.storage_files import create_in_directory
from harness.model.layout import ZFS_PROPERTIES, Layout, OnZfs, ZfsFile, Zvol
from harness.model.option import Effective
from harness.untrusted import reading

MIB = 1024**2
_READ = read_script("harness.features.zfs", "read_zfs.sh")
_GROUP = re.compile(r"(mirror|raidz[123]?)-[0-9]+")
_OF_OTHERS = ("logs", "cache", "spares", "special", "dedup")
"""The titles of groups that do not have a pool's ordinary data."""
_USUAL_SHIFT = 12
"""The power of two of a sector if the pool does not report it: disks with sectors of 4 KiB."""
_TOKEN = "voh:token"
"""A property of the datasets of a run. ZFS sets it when it creates them."""

_REMOVE = read_script("harness.features.zfs", "remove_dataset.sh")


@dataclass(frozen=True, slots=True)
class DiskGroup:
    """A top-level virtual device of a pool: a disk, a mirror, or raidz with `parity` disks."""

    disks: int = 1
    parity: int = 0

    @property
    def words(self) -> str:
        if self.parity:
            return f"raidz{self.parity} over {self.disks} disks"
        return "1 disk" if self.disks == 1 else f"mirror of {self.disks} disks"

    def compute_space(self, record: int, sector: int) -> float:
        """The bytes that a record of so many bytes takes on the disks, for each byte of it."""
        sectors = -(-record // sector)
        taken = count_raidz_sectors(sectors, self.disks, self.parity) if self.parity else sectors * self.disks
        return taken * sector / record


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A pool: its groups of disks with ordinary data, its state, and the bytes of a sector."""

    groups: tuple[DiskGroup, ...]
    state: str = "ONLINE"
    busy: str = ""
    """What changes its speed: `resilver` or `scrub`; empty if nothing does."""
    has_log: bool = False
    """Whether synchronous writes go to a device of their own first."""
    sector: int = 1 << _USUAL_SHIFT

    @property
    def words(self) -> str:
        """For example `mirror of 2 disks, DEGRADED`, or `2 x raidz1 over 3 disks with a log device`."""
        counts = Counter(group.words for group in self.groups)
        disks = counts.pop("1 disk", 0)
        parts = [f"{number} x {words}" if number > 1 else words for words, number in counts.items()]
        if disks:
            parts.append("1 disk" if disks == 1 else f"{disks} disks")
        shape = " and ".join(parts) + (" with a log device" if self.has_log else "")
        return ", ".join([shape, *filter(None, (self.state if self.state != "ONLINE" else "", self.busy))])

    def compute_space(self, record: int) -> float:
        """The most bytes that a record of so many bytes takes on the disks, for each byte of it."""
        return max(group.compute_space(record, self.sector) for group in self.groups)


@dataclass(frozen=True, slots=True)
class FoundZfs:
    """What the host reports of one volume: the properties of its dataset, its pool, the seconds between two groups.

    Without the seconds, the host does not show the parameters of its module.
    """

    properties: dict[str, str]
    pool: PoolShape
    txg_seconds: int | None

    @property
    def effective(self) -> Effective:
        """The settings that show it."""
        sizes = {name: int(self.properties[name]) for name in ZFS_PROPERTIES[:2] if name in self.properties}
        record = next(iter(sizes.values()))
        return Effective(
            host_zfs_volblocksize=sizes.get("volblocksize"),
            host_zfs_recordsize=sizes.get("recordsize"),
            host_zfs_compression=self.properties.get("compression"),
            host_zfs_sync=self.properties.get("sync"),
            host_zfs_logbias=self.properties.get("logbias"),
            host_zfs_primarycache=self.properties.get("primarycache"),
            host_zfs_pool=self.pool.words,
            host_zfs_space=round(self.pool.compute_space(record), 4),
            host_zfs_txg_timeout=self.txg_seconds,
        )


def read_zfs(runner: Runner, path: str) -> Effective:
    """What ZFS reports of the zvol or the file at `path`, and of its pool. Raises HostError."""
    printed = runner.run(["sh", "-s", "--", path], stdin=_READ, deadline=60).stdout
    with reading(f"{runner.name}: what ZFS reports of {path}"):
        return parse_zfs(printed).effective


def parse_zfs(printed: str) -> FoundZfs:
    """The facts in what the script prints. Raises ValueError for other output."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in printed.splitlines():
        if re.fullmatch(r"\[[a-z_]+\]", line):
            lines = sections.setdefault(line[1:-1], [])
        else:
            lines.append(line)
    properties = dict(line.split("\t", 1) for line in sections["properties"])
    shifts = [int(line) for line in sections["ashift"] if line.strip().isdigit() and int(line)]
    return FoundZfs(
        {name: value for name, value in properties.items() if name in ZFS_PROPERTIES and value != "-"},
        parse_pool(sections["status"], sector=1 << max(shifts, default=_USUAL_SHIFT)),
        int(sections["txg_timeout"][0]) if sections["txg_timeout"] else None,
    )


def parse_pool(status: Sequence[str], *, sector: int) -> PoolShape:
    """The shape of a pool from the lines of `zpool status -P`. Raises ValueError if they have no data disks."""
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in status)}
    tree = list(_read_tree(status))
    groups, title, members = [], "", 0
    for number, (depth, name) in enumerate(tree):
        if depth == 0:
            title = name if name in _OF_OTHERS else ""
        if depth != 1 or title:
            continue
        members = sum(1 for _ in _list_members(tree, number))
        if members and not (match := _GROUP.fullmatch(name)):
            raise ValueError(f"virtual devices such as {name} are not known")
        kind = match[1] if members and match else ""
        parity = int(kind[5:] or 1) if kind.startswith("raidz") else 0
        groups.append(DiskGroup(max(members, 1), parity))
    if not groups:
        raise ValueError("the pool has no disks")
    scan = facts.get("scan", "")
    return PoolShape(
        tuple(groups),
        state=facts.get("state", ""),
        busy=scan.split(" in progress")[0] if " in progress" in scan else "",
        has_log=(0, "logs") in tree,
        sector=sector,
    )


def _read_tree(status: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Depth and name of each line of the pool's configuration: 0 for the pool, and for the title of other groups."""
    started = False
    for line in status:
        if line.startswith("\tNAME "):
            started = True
        elif started and not line.startswith("\t"):
            return
        elif started and line.strip():
            text = line[1:]
            yield (len(text) - len(text.lstrip(" "))) // 2, text.split()[0]


def _list_members(tree: Sequence[tuple[int, str]], group: int) -> Iterator[str]:
    """The members of the group at this place. A disk that is being replaced counts once, with its replacement."""
    for depth, name in tree[group + 1 :]:
        if depth <= 1:
            return
        if depth == 2:
            yield name


def count_raidz_sectors(sectors: int, disks: int, parity: int) -> int:
    """The sectors that a record of so many takes on raidz: a record has its own parity, at least one sector for each
    row of `disks` - `parity`. It takes a multiple of `parity` + 1 sectors, so that no hole is too small for a record.

    Source: `vdev_raidz_asize` in OpenZFS's module/zfs/vdev_raidz.c.
    """
    sectors += parity * -(-sectors // (disks - parity))
    return -(-sectors // (parity + 1)) * (parity + 1)


ZFS_FIXED = 256 * MIB
"""Labels, the log, and the part of a pool that ZFS reserves: at least 128 MiB."""
ZFS_SHARE = 0.15
"""Checksums and trees of block pointers, and the reserved part: 1/32 of a large pool."""

_REMOVE_POOL = FIND + read_script("harness.features.zfs", "remove_pool.sh")


class Pool(HostThing):
    """A ZFS pool on the partition with the UUID `partuuid`, and the mount point of its datasets."""

    kind: Literal["zfs-pool"] = "zfs-pool"
    name: str
    point: str
    partuuid: str

    removal: ClassVar[str] = _REMOVE_POOL

    @property
    def words(self) -> str:
        return f"the pool {self.name}"


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
        return Need(ZFS_FIXED, len(self.modes) * (1 + ZFS_SHARE))

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
            paths = {mode: _create_dataset(device, layout, pool, mode, span) for mode, layout in self.modes}
            log.runner.run(["udevadm", "settle", "--timeout=20"], deadline=30)
            # The kernel does not show the device below a dataset, but the pool was just created and is in the log.
            granted = created(log.runner, entry, list(paths.values()))
            yield {
                mode: Sources.same(
                    BlockSource(paths[mode], "block" if isinstance(layout, Zvol) else "file", 0, span, grant=grant)
                )
                for (mode, layout), grant in zip(self.modes, granted, strict=True)
            }


def list_zfs_options(layout: OnZfs) -> Iterator[str]:
    """The options of `zfs create` for the properties that this layout requests."""
    record = "volblocksize" if isinstance(layout, Zvol) else "recordsize"
    for name, value in {record: str(layout.record_bytes), **layout.properties}.items():
        yield from ("-o", f"{name}={value}")


def _create_dataset(device: Writable, layout: Zvol | ZfsFile, pool: Pool, mode: str, span: int) -> str:
    dataset = f"{pool.name}/{mode}"
    if isinstance(layout, Zvol):
        device.run(["zfs", "create", "-V", str(span), *list_zfs_options(layout), dataset], deadline=60)
        return f"/dev/zvol/{dataset}"
    device.run(["zfs", "create", *list_zfs_options(layout), dataset], deadline=60)
    path = f"{pool.point}/{mode}/disk.raw"
    # Not allocated: each write goes to a new place anyway.
    device.run(["truncate", "-s", str(span), path], deadline=20)
    return path


class StoredDataset(HostThing):
    """A volume or dataset in an existing ZFS dataset. It is created with the random `token` as a property.

    `guid` is known once it exists. `point` is the mount point of a dataset.
    """

    kind: Literal["stored-dataset"] = "stored-dataset"
    name: str
    token: str
    point: str = ""
    guid: str = ""

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the dataset {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.name, _TOKEN, self.token, self.guid, self.point]


class StoredDatasets:
    """A `VolumeKind`: volumes and datasets in a ZFS dataset."""

    thing: ClassVar[type[HostThing]] = StoredDataset
    baseline: ClassVar[Layout] = Zvol()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:
        """With its checksums and block pointers, and on raidz with the space that small records take there.

        ZFS counts space there as if all records had 128 KiB.
        """
        record = layout.record_bytes if isinstance(layout, OnZfs) else ZfsFile().record_bytes
        times = max(
            (_count_space(record, *group) / _count_space(ZfsFile().record_bytes, *group) for group in storage.raidz),
            default=1.0,
        )
        return round(span * (1 + ZFS_SHARE) * max(times, 1.0))

    @contextmanager
    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> Iterator[dict[str, Sources]]:
        """The volume or file for each name in `wanted`. They are removed at the end. Raises SafetyError, HostError."""
        with ExitStack() as stack:
            sources = {}
            for name, layout in wanted.items():
                full_name = f"{TAG}-{log.run_id}-{name}"
                thing = StoredDataset(
                    disks=(label,),
                    name=f"{room.found.at}/{full_name}",
                    token=secrets.token_hex(16),
                    point="" if isinstance(layout, Zvol) else f"{MOUNT_DIRECTORY}/{full_name}",
                )
                sources[name] = stack.enter_context(_create_stored_dataset(log, room, thing, layout, span))
            yield sources


def _count_space(record: int, parity: int, disks: int, sector: int) -> float:
    """The space on raidz of a record of so many bytes, for each byte of it."""
    return count_raidz_sectors(-(-record // sector), disks, parity) * sector / record


@contextmanager
def _create_stored_dataset(
    log: CreationLog, room: Room, thing: StoredDataset, layout: Layout, span: int
) -> Iterator[Sources]:
    runner = log.runner
    known = [thing]
    with log.making(thing, lambda: known[-1].remove(runner)) as entry:
        # A snapshot of it would keep it from being removed.
        common = ["-o", f"{_TOKEN}={thing.token}", "-o", "com.sun:auto-snapshot=false"]
        common += list_zfs_options(layout if isinstance(layout, OnZfs) else ZfsFile())
        if isinstance(layout, Zvol):
            options = ["-V", str(span)]
        else:
            options = ["-o", f"mountpoint={thing.point}", "-o", "atime=off"]
            runner.run(["mkdir", "-p", MOUNT_DIRECTORY], deadline=20)
        # Fails if a dataset with this name exists.
        room.run(["zfs", "create", *options, *common, thing.name], deadline=60)
        guid = room.run(["zfs", "get", "-Hp", "-o", "value", "guid", thing.name], deadline=60).stdout
        known.append(thing.model_copy(update={"guid": guid.strip()}))
        log.amend(entry, known[-1])
        if isinstance(layout, Zvol):
            runner.run(["udevadm", "settle", "--timeout=20"], deadline=30)
            path = f"/dev/zvol/{thing.name}"
            (grant,) = created(runner, entry, [path])
            yield Sources.same(BlockSource(path, "block", 0, span, grant=grant))
        else:
            directory = created_directory(runner, entry, thing.point)
            yield create_in_directory(directory, f"{directory.path}/disk", layout, span, preallocates=False)
