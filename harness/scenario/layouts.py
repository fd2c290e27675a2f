"""What lies between the disk and its user: one dataclass per kind of layout, composed by `on`. Sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Filesystem = Literal["ext4", "xfs"]
Preallocation = Literal["off", "falloc", "full"]
Qcow2Preallocation = Literal["off", "metadata", "falloc", "full"]
RaidLevel = Literal[0, 1, 5, 6, 10]

KIB = 1024


@dataclass(frozen=True, slots=True)
class Device:
    """The bare device: no layer between the disk and its user."""

    kind: Literal["device"] = "device"


@dataclass(frozen=True, slots=True)
class Md:
    """An md array of the scenario's first `disks` disks. With `legs` 2 it is a stripe over two arrays.

    Each leg has half of the disks, in the scenario's order: those of one controller and those of the other.
    """

    level: RaidLevel
    disks: int
    chunk: int = 512 * KIB
    legs: Literal[1, 2] = 1
    kind: Literal["md"] = "md"

    @property
    def amplification(self) -> float:
        """Bytes that the disks write for each byte of the array, with its mirrors and parity, in whole stripes."""
        leg = self.disks // self.legs
        match self.level:
            case 0:
                return 1
            case 1:
                return leg
            case 10:
                return 2
            case 5 | 6:
                return leg / (leg - (self.level - 4))


Base = Device | Md
"""What can be cut into regions: the disk itself, or an array over several."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of GPT."""

    on: Base = field(default_factory=Device)
    kind: Literal["partition"] = "partition"


@dataclass(frozen=True, slots=True)
class Lvm:
    """A thick LVM volume."""

    on: Base = field(default_factory=Device)
    kind: Literal["lvm"] = "lvm"


@dataclass(frozen=True, slots=True)
class LvmThin:
    """An LVM volume in a thin pool that allocates by `chunk`."""

    chunk: int = 64 * KIB
    on: Base = field(default_factory=Device)
    kind: Literal["lvm-thin"] = "lvm-thin"


@dataclass(frozen=True, slots=True)
class RawFile:
    """A RAW file on a file system."""

    filesystem: Filesystem = "ext4"
    preallocation: Preallocation = "falloc"
    on: Base = field(default_factory=Device)
    kind: Literal["raw"] = "raw"


@dataclass(frozen=True, slots=True)
class Qcow2:
    """A qcow2 file on a file system."""

    filesystem: Filesystem = "ext4"
    cluster_size: int = 64 * KIB
    preallocation: Qcow2Preallocation = "metadata"
    lazy_refcounts: bool = False
    on: Base = field(default_factory=Device)
    kind: Literal["qcow2"] = "qcow2"


@dataclass(frozen=True, slots=True)
class Zvol:
    """A volume of a ZFS pool. ZFS keeps its checksums and its own cache, the ARC."""

    volblocksize: int = 16 * KIB
    on: Base = field(default_factory=Device)
    kind: Literal["zvol"] = "zvol"


@dataclass(frozen=True, slots=True)
class ZfsFile:
    """A RAW file on a ZFS dataset."""

    recordsize: int = 128 * KIB
    on: Base = field(default_factory=Device)
    kind: Literal["zfs"] = "zfs"


Layout = Device | Md | Partition | Lvm | LvmThin | RawFile | Qcow2 | Zvol | ZfsFile


def base_of(layout: Layout) -> Base:
    """What the layout's regions are cut from."""
    return layout if isinstance(layout, Device | Md) else layout.on
