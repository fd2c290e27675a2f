"""The layers between the disk and its user: one class per kind of layout, composed by `on`. Sizes in bytes. Pure.

A class has everything about a kind that does not need a host: its table in a scenario file, its record in results.json,
what a host must have for it, and how many bytes the disks move for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Discriminator, Field, Strict

from harness.model.base import (
    METADATA,
    WITH_METADATA,
    Amplification,
    Base,
    Device,
    DeviceMapper,
    HostFeatures,
    InUse,
    Kind,
    Md,
    Module,
    OnBase,
    Requirement,
    Tools,
    of_records,
)
from harness.model.job import Job
from harness.model.option import NOTHING, Effective
from harness.model.values import FileValue, Flag, Size, power_of_two
from harness.units import format_size

Filesystem = Literal["ext4", "xfs", "btrfs"]
Preallocation = Literal["off", "falloc", "full"]
Qcow2Preallocation = Literal["off", "metadata", "falloc", "full"]
Encryption = Literal["none", "luks2"]
ZfsCompression = Literal["off", "on", "lz4", "zstd", "zstd-fast", "gzip", "zle"]
ZfsSync = Literal["standard", "always", "disabled"]
ZfsLogBias = Literal["latency", "throughput"]
ZfsCache = Literal["metadata", "none", "all"]

KIB, MIB, GIB = 1024, 1024**2, 1024**3

_QCOW2_TABLES = 0.05
"""Share of the bytes read if QEMU's cache does not have all tables of an image."""
_BTRFS_TABLES = 128 * KIB
"""Bytes of tables that a write changes at most in a file that is copied on write: in each of the trees of files,
extents, checksums and free space a node of 16 KiB, all stored twice (mkfs.btrfs(8), PROFILES)."""
_BTRFS_LOG = 96 * KIB
"""The same of each flush, also of a file that is written in place: two nodes of the log's trees, the path to them, and
the superblocks. Measured with Linux 6.12: 70 KiB."""
_COMMIT, _COMMIT_SECONDS = 24 * KIB, 5
"""A file's times change with each write. A commit of ext4 has three blocks for them, and writes two or three blocks to
their places later; by default, it follows by 5 s. xfs writes less often. Measured with Linux 6.12 in 57 s: 68 and 34
KiB."""
_FSYNC = 16 * KIB
"""An fsync of ext4 after a write: the three blocks of a commit. Measured with Linux 6.18: 8.4 KiB for 4 KiB."""
_MOUNTED = 64 * KIB
"""What a mount leaves to be read or written later: superblocks, and a cluster of inodes."""
_SECTOR = 4 * KIB
_ZFS_WRITES = 2
"""Synchronous writes go to the intent log first, then to their place."""


def _check_thin_chunk(size: int) -> int:
    # lvmthin(7): a multiple of 64 KiB up to 1 GiB.
    if not 64 * KIB <= size <= GIB or size % (64 * KIB):
        raise ValueError(f"allowed: multiples of {format_size(64 * KIB)} up to {format_size(GIB)}")
    return size


ThinChunk = Annotated[Size, AfterValidator(_check_thin_chunk)]
RbdClient = Literal["krbd", "librbd"]
# rbd(8): from 4 KiB to 32 MiB.
RbdObject = Annotated[Size, AfterValidator(power_of_two(4 * KIB, 32 * MIB))]
# docs/interop/qcow2.txt of QEMU: cluster_bits from 9 to 21.
Cluster = Annotated[Size, AfterValidator(power_of_two(512, 2 * MIB))]
# zfsprops(7): from a sector to 16 MiB, SPA_MAXBLOCKSIZE. The version of a host may limit it further.
ZfsBlock = Annotated[Size, AfterValidator(power_of_two(512, 16 * MIB))]
# Records of other layouts stay as they are.
NoCow = Annotated[Flag | None, Field(exclude_if=lambda value: value is None)]


class Layer(Kind):
    """A layer on a base."""

    __slots__ = ()

    on: Base

    @property
    def base(self) -> Base:
        return self.on


class Encryptable(Layer):
    """A layer that dm-crypt can encrypt: the partition or the volume itself, or what is below the file system."""

    __slots__ = ()

    encryption: Encryption

    @property
    def encrypted(self) -> bool:
        return self.encryption != "none"

    @property
    def expected(self) -> Effective:
        return Effective(host_encryption="luks2") if self.encrypted else NOTHING


class OnFilesystem(Encryptable):
    """A file on a file system."""

    __slots__ = ()

    filesystem: Filesystem
    nodatacow: bool | None

    @property
    def is_file(self) -> bool:
        return True

    @property
    def writes_later(self) -> bool:
        """Each write of btrfs goes to a new place, unless `nodatacow` is set, and the tables of it follow by 30 s."""
        return self.filesystem == "btrfs" and not self.nodatacow

    @property
    def expected(self) -> Effective:
        return super().expected.merged(Effective(host_nodatacow=self.nodatacow))

    def count_tables(self, job: Job) -> float:
        """The most bytes of the file system's tables for each byte that the job writes."""
        if self.filesystem != "btrfs":
            return METADATA
        flushed = _BTRFS_LOG if job.flushes or job.durable else 0
        return METADATA + (flushed + (_BTRFS_TABLES if self.writes_later else 0)) / min(job.block_sizes)


@dataclass(frozen=True, slots=True)
class Partition(Encryptable):
    """A GPT partition."""

    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    encryption: Encryption = "none"
    """`luks2`: dm-crypt encrypts the partition."""
    kind: Literal["partition"] = "partition"
    """Which layout it is."""
    effort: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Lvm(Encryptable):
    """A thick LVM volume."""

    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    encryption: Encryption = "none"
    """`luks2`: dm-crypt encrypts the volume."""
    kind: Literal["lvm"] = "lvm"
    """Which layout it is."""
    effort: ClassVar[int] = 3

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield from _LVM


@dataclass(frozen=True, slots=True)
class LvmThin(Encryptable):
    """An LVM volume in a thin pool that allocates by `chunk`."""

    chunk: ThinChunk = 64 * KIB
    """Bytes that the thin pool allocates at once."""
    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    encryption: Encryption = "none"
    """`luks2`: dm-crypt encrypts the volume."""
    kind: Literal["lvm-thin"] = "lvm-thin"
    """Which layout it is."""
    effort: ClassVar[int] = 5
    has_snapshots: ClassVar[bool] = True

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield from _LVM
        yield Tools(("thin_check",), "the tools of thin pools are", "thin-provisioning-tools")
        yield Module("dm_thin_pool", "thin pools")

    def amplification(self, job: Job) -> Amplification:  # noqa: ARG002
        return WITH_METADATA


@dataclass(frozen=True, slots=True)
class RawFile(OnFilesystem):
    """A RAW file on a file system."""

    filesystem: Filesystem = "ext4"
    """The file system that the file is on."""
    preallocation: Preallocation = "falloc"
    """What is allocated when the file is made."""
    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    encryption: Encryption = "none"
    """`luks2`: dm-crypt encrypts what the file system is on."""
    nodatacow: NoCow = None
    """Whether btrfs overwrites blocks in place, without checksums; null: what the directory says, by default not."""
    kind: Literal["raw"] = "raw"
    """Which layout it is."""
    effort: ClassVar[int] = 4

    @classmethod
    def samples(cls) -> Iterator[Self]:
        return (cls(filesystem) for filesystem in get_args(Filesystem))

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield from _require_filesystem(self.filesystem)

    def amplification(self, job: Job) -> Amplification:
        return replace(WITH_METADATA, most_written=1 + self.count_tables(job))


@dataclass(frozen=True, slots=True)
class Qcow2(OnFilesystem):
    """A qcow2 file on a file system. Its twin is a separate RAW file, because fio cannot read the qcow2 format."""

    filesystem: Filesystem = "ext4"
    """The file system that the file is on."""
    cluster_size: Cluster = 64 * KIB
    """Bytes that the image allocates at once."""
    preallocation: Qcow2Preallocation = "metadata"
    """What is allocated when the image is made."""
    lazy_refcounts: Flag = False
    """Whether reference counts are written later."""
    snapshots: Annotated[int, Strict(), Field(ge=0, le=64)] = 0
    """External snapshots: images on top of the one with the data, each on the one before. The guest has the last."""
    data_file: Flag = False
    """Whether the data is in a RAW file of its own, and the image has only the tables."""
    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    encryption: Encryption = "none"
    """`luks2`: dm-crypt encrypts what the file system is on."""
    nodatacow: NoCow = None
    """Whether btrfs overwrites blocks in place, without checksums; null: what the directory says, by default not."""
    kind: Literal["qcow2"] = "qcow2"
    """Which layout it is."""
    effort: ClassVar[int] = 8
    has_snapshots: ClassVar[bool] = True

    @property
    def twin(self) -> RawFile:
        # `metadata` allocates the image's tables. The file's data blocks are allocated when they are written.
        preallocation = "off" if self.preallocation == "metadata" else self.preallocation
        return RawFile(self.filesystem, preallocation, self.on, self.encryption, self.nodatacow)

    @property
    def regions(self) -> int:
        return 2

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield from _require_filesystem(self.filesystem)
        yield Tools(("qemu-img",), "qemu-img is", "qemu-utils")

    @property
    def expected(self) -> Effective:
        chain = Effective(qemu_backing_files=self.snapshots or None, qemu_data_file=self.data_file or None)
        return super(Qcow2, self).expected.merged(chain)

    def amplification(self, job: Job) -> Amplification:
        tables = _QCOW2_TABLES * (1 + self.snapshots)
        if not self.snapshots:
            most = 1 + self.count_tables(job)
            return Amplification(most_written=most, most_read=1 + tables, read_for_write=tables, fewest_trimmed=0.0)
        # The first write to a cluster copies it to the last image.
        copied = of_records(self.cluster_size, min(job.block_sizes), times_written=1)
        return Amplification(
            most_written=copied.most_written + self.count_tables(job),
            most_read=1 + tables,
            read_for_write=copied.read_for_write + tables,
            fewest_trimmed=0.0,
        )


@dataclass(frozen=True, slots=True)
class InnerFilesystem(FileValue):
    """A file system on the disk of a guest. fio uses a file on it, and its twin one on the same file system."""

    kind: Filesystem
    """What mkfs made."""
    options: str = ""
    """Options of mount, separated by commas; empty for the defaults of the kernel."""

    @property
    def writes_later(self) -> bool:
        """Whether its tables follow a write by up to 30 s."""
        return RawFile(self.kind).writes_later

    def amplification(self, job: Job, *, by_loop: bool = False) -> Amplification:
        """What its disk may move for each byte of the job: its journal, and the times of the file.

        With `by_loop`, the disk is a loop device on a file: a flush is an fsync, which writes the times of that file.
        """
        moved = RawFile(self.kind).amplification(job)
        flushed = _FSYNC / min(job.block_sizes) if by_loop and (job.flushes or job.durable) else 0.0
        return replace(moved, most_written=moved.most_written + flushed)

    def count_journal(self, seconds: float) -> float:
        """The most bytes that its journal moves in so many seconds, whatever the job does."""
        return _MOUNTED + _COMMIT * seconds / _COMMIT_SECONDS


ZFS_PROPERTIES = ("volblocksize", "recordsize", "compression", "sync", "logbias", "primarycache")
"""The properties of a dataset that are options of a layout."""


class OnZfs(Layer):
    """A layer on ZFS, with the properties that every dataset has. Source: zfsprops(7)."""

    __slots__ = ()

    compression: ZfsCompression | None
    sync: ZfsSync | None
    logbias: ZfsLogBias | None
    primarycache: ZfsCache
    has_snapshots: ClassVar[bool] = True
    write_interval: ClassVar[float] = 5.0
    """A transaction group: the default of zfs_txg_timeout (zfs(4))."""

    @property
    def record_bytes(self) -> int:
        """Bytes of a record."""
        raise NotImplementedError

    @property
    def properties(self) -> dict[str, str]:
        """The requested properties by their names in ZFS, without the size of a record."""
        asked = {
            "compression": self.compression,
            "sync": self.sync,
            "logbias": self.logbias,
            "primarycache": self.primarycache,
        }
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def expected(self) -> Effective:
        return Effective(
            host_zfs_compression=self.compression,
            host_zfs_sync=self.sync,
            host_zfs_logbias=self.logbias,
            host_zfs_primarycache=self.primarycache,
        )

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield from _ZFS

    def amplification(self, job: Job) -> Amplification:
        block = min(job.block_sizes)
        twice = of_records(self.record_bytes, block, times_written=_ZFS_WRITES)
        # A write in the log has a header, so it takes a sector more than its bytes.
        logged = max(1.0, self.record_bytes / block) + 1 + _SECTOR / block
        return replace(twice, most_written=max(twice.most_written, logged))


@dataclass(frozen=True, slots=True)
class Zvol(OnZfs):
    """A volume of a ZFS pool. ZFS has its own checksums and its own cache (ARC)."""

    volblocksize: ZfsBlock = 16 * KIB
    """Bytes of a record of the volume."""
    compression: ZfsCompression | None = None
    """How ZFS compresses records, as the three below; null: as the dataset above it."""
    sync: ZfsSync | None = None
    """What ZFS does with synchronous writes. `disabled`: nothing is durable when it completes."""
    logbias: ZfsLogBias | None = None
    """Where synchronous writes go first: to the log, or to their place."""
    primarycache: ZfsCache = "metadata"
    """What ZFS may have in its cache (ARC)."""
    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    kind: Literal["zvol"] = "zvol"
    """Which layout it is."""
    effort: ClassVar[int] = 6

    @property
    def record_bytes(self) -> int:
        return self.volblocksize

    @property
    def expected(self) -> Effective:
        # The default stands for what a storage in use of Proxmox VE has, whose volumes have no block size of their own.
        size = self.volblocksize if self.volblocksize != Zvol().volblocksize else None
        return super(Zvol, self).expected.merged(Effective(host_zfs_volblocksize=size))


@dataclass(frozen=True, slots=True)
class ZfsFile(OnZfs):
    """A RAW file on a ZFS dataset."""

    recordsize: ZfsBlock = 128 * KIB
    """Bytes of a record of the file."""
    compression: ZfsCompression | None = None
    """How ZFS compresses records, as the three below; null: as the dataset above it."""
    sync: ZfsSync | None = None
    """What ZFS does with synchronous writes. `disabled`: nothing is durable when it completes."""
    logbias: ZfsLogBias | None = None
    """Where synchronous writes go first: to the log, or to their place."""
    primarycache: ZfsCache = "metadata"
    """What ZFS may have in its cache (ARC)."""
    on: OnBase = field(default_factory=Device)
    """What it lies on: the disk, or an array."""
    kind: Literal["zfs"] = "zfs"
    """Which layout it is."""
    effort: ClassVar[int] = 7

    @property
    def record_bytes(self) -> int:
        return self.recordsize

    @property
    def is_file(self) -> bool:
        return True

    @property
    def expected(self) -> Effective:
        return super(ZfsFile, self).expected.merged(Effective(host_zfs_recordsize=self.recordsize))


@dataclass(frozen=True, slots=True)
class Rbd(Layer):
    """An image of Ceph RBD, in a pool that the host uses. It has no lock, so that host and guest use it in turn."""

    client: RbdClient = "krbd"
    """`krbd`: the host's kernel maps the image, and the guest gets the device. `librbd`: QEMU opens the image."""
    object_size: RbdObject = 4 * MIB
    """Bytes of each of the objects that have the data."""
    on: OnBase = field(default_factory=Device)
    """What it lies on. An image is never on a disk under test."""
    kind: Literal["rbd"] = "rbd"
    """Which layout it is."""
    effort: ClassVar[int] = 9
    has_snapshots: ClassVar[bool] = True

    @property
    def over_network(self) -> bool:
        return self.client == "librbd"

    @property
    def expected(self) -> Effective:
        return Effective(qemu_block_driver="rbd" if self.over_network else None)

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield InUse("an image of Ceph RBD", "rbd")
        yield Tools(("rbd", "ceph"), "the clients of Ceph are", "ceph-common")
        yield Module("rbd", "client of Ceph RBD")


Layout = Device | Partition | Lvm | LvmThin | RawFile | Qcow2 | Md | Zvol | ZfsFile | Rbd
AnyLayout = Annotated[Layout, Discriminator("kind")]
"""A layout in a file or in a record. `kind` selects the type."""

_LVM: tuple[Requirement, ...] = (Tools(("lvm",), "LVM is", "lvm2"), DeviceMapper())
_LUKS: tuple[Requirement, ...] = (
    Tools(("cryptsetup",), "cryptsetup is", "cryptsetup-bin"),
    DeviceMapper(),
    Module("dm_crypt", "dm-crypt"),
)
_ZFS: tuple[Requirement, ...] = (
    Tools(("zpool", "zfs"), "ZFS is", "zfsutils-linux"),
    Module("zfs", "ZFS", "apt-get install zfs-dkms, or measure on a Proxmox VE node, which has it"),
)
_PACKAGES: dict[Filesystem, str] = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}


def requirements(layout: Layout) -> Iterator[Requirement]:
    """What a host must have for the layout and for its base."""
    if not layout.is_base:
        yield from layout.base.requirements
    yield from layout.requirements
    if layout.encrypted:
        yield from _LUKS


def find_missing_requirement(layout: Layout, host: HostFeatures) -> str | None:
    """Why the layout cannot be built on the host, with the remedy. None if it can."""
    return next(filter(None, (requirement.unsupported_by(host) for requirement in requirements(layout))), None)


def amplification(layout: Layout, job: Job) -> Amplification:
    """The amplification on the disks under `layout` for `job`."""
    below = layout.base.amplification(job)
    return below if layout.is_base else layout.amplification(job).over(below)


def every_requirement() -> Iterator[Requirement]:
    """The requirements of all layouts, to check a host only once."""
    for layout in (layout for kind in get_args(Layout) for layout in kind.samples()):
        yield from layout.requirements
    yield from _LUKS


def _require_filesystem(filesystem: Filesystem) -> Iterator[Requirement]:
    yield Tools((f"mkfs.{filesystem}",), f"mkfs.{filesystem} is", _PACKAGES[filesystem])
    if filesystem == "btrfs":
        yield Tools(("chattr", "lsattr"), "chattr is", "e2fsprogs")
    yield Module(filesystem, filesystem, f"load the module {filesystem}, or measure on another host")
