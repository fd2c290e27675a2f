"""What layouts lie on, the disk itself or an md array, what a host must have for it, and how many bytes its disks move.

Sizes in bytes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal, Protocol, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field

from harness.model.job import Job
from harness.model.option import NOTHING, Effective
from harness.model.values import Count, FileValue, Size, power_of_two, require_whole_number


class HostFeatures(Protocol):
    """The features that a host reports."""

    @property
    def has_device_mapper(self) -> bool: ...

    def has_tool(self, name: str) -> bool: ...

    def has_module(self, name: str) -> bool: ...

    def install(self, *packages: str) -> str:
        """The command that installs Debian's `packages` there."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs that must be installed. `package` is the Debian package that has them."""

    names: tuple[str, ...]
    what: str
    package: str

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has everything."""
        if all(host.has_tool(name) for name in self.names):
            return None
        return f"{self.what} not installed there: {host.install(self.package)}"


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module that must be loaded, or that the kernel can load. `remedy` says how to get it."""

    name: str
    what: str
    remedy: str = ""

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has the module."""
        if host.has_module(self.name):
            return None
        return f"its kernel has no {self.what}: {self.remedy or f'load {self.name}, or measure on another host'}"


@dataclass(frozen=True, slots=True)
class DeviceMapper:
    """The kernel's device-mapper."""

    def unsupported_by(self, host: HostFeatures) -> str | None:
        """What the host lacks, with the remedy. None if it has device-mapper."""
        if host.has_device_mapper:
            return None
        return "its kernel has no device-mapper, which LVM and LUKS need: load dm_mod, or measure on another host"


@dataclass(frozen=True, slots=True)
class InUse:
    """A storage in use, for layouts that are never built on a disk under test. Storages do not ask for this."""

    what: str
    key: str

    def unsupported_by(self, host: HostFeatures) -> str:  # noqa: ARG002 - a requirement
        """Where the layout can be, because this is asked of disks only."""
        return f"{self.what} can only be on a storage in use: name one in the lab file, by the key {self.key}"


Requirement = Tools | Module | DeviceMapper | InUse


@dataclass(frozen=True, slots=True)
class Amplification:
    """Bytes that all disks of a layout together move for each byte of a user: minimum and maximum.

    `read_for_write` is the maximum of the bytes that are also read for each byte written. `rebuild_read` and
    `rebuild_written` are what the recovery of an array moves for each byte of a member that it rebuilds.
    """

    fewest_read: float = 1.0
    most_read: float = 1.0
    fewest_written: float = 1.0
    most_written: float = 1.0
    read_for_write: float = 0.0
    rebuild_read: float = 0.0
    rebuild_written: float = 0.0
    fewest_trimmed: float = 1.0
    most_trimmed: float = 1.0

    def over(self, below: Amplification) -> Amplification:
        """The amplification of a layer on a base. `below` is the amplification of the base."""
        return Amplification(
            self.fewest_read * below.fewest_read,
            self.most_read * below.most_read,
            self.fewest_written * below.fewest_written,
            self.most_written * below.most_written,
            self.read_for_write * below.most_read + self.most_written * below.read_for_write,
            below.rebuild_read,
            below.rebuild_written,
            self.fewest_trimmed * below.fewest_trimmed,
            self.most_trimmed * below.most_trimmed,
        )


NONE = Amplification()
"""Each byte once, for example a disk, a partition or a volume."""

METADATA = 0.03
"""Metadata as a share of the bytes written: a journal, file times, mappings of a thin pool, tables of an image."""
WITH_METADATA = Amplification(most_written=1 + METADATA, fewest_trimmed=0.0)
"""What is allocated by blocks. Only a trim of whole chunks reaches the disk, and none from a file."""


def find_widest(several: Iterable[Amplification]) -> Amplification:
    """What the disks may move for jobs that run at the same time: the least of all minima, and the most of the rest."""
    amplifications = list(several)
    values = {field.name: [getattr(one, field.name) for one in amplifications] for field in fields(Amplification)}
    return Amplification(
        **{name: min(bounds) if name.startswith("fewest") else max(bounds) for name, bounds in values.items()}
    )


def of_records(record_bytes: int, block_bytes: int, *, times_written: float) -> Amplification:
    """The amplification of a file system that reads and writes whole records, and writes them seconds later.

    What it writes after a slice is not counted for it, so nothing follows from too few bytes written.
    """
    records = max(1.0, record_bytes / block_bytes)
    return Amplification(
        most_read=records,
        fewest_written=0.0,
        most_written=records * times_written,
        read_for_write=records,
        fewest_trimmed=0.0,
    )


_PARITY = {5: 1, 6: 2}


@dataclass(frozen=True, slots=True)
class Shape:
    """An md array: its RAID level, its disks, and whether it is one array or a stripe over two (`legs`) of them."""

    level: int
    disks: int
    legs: int = 1

    def __post_init__(self) -> None:
        known = self.level in (0, 1, 5, 6, 10) and self.legs >= 1
        if not known or self.disks % self.legs or self.data_disks < 1:
            raise ValueError(f"RAID {self.level} over {self.disks} disks in {self.legs} legs is not a possible array")

    @property
    def disks_of_leg(self) -> int:
        return self.disks // self.legs

    @property
    def copies(self) -> int:
        """How often each block is stored: on all disks of a leg in RAID 1, twice in RAID 10, else once."""
        return self.disks_of_leg if self.level == 1 else 2 if self.level == 10 else 1

    @property
    def parity(self) -> int:
        """Parity blocks of a stripe."""
        return _PARITY.get(self.level, 0)

    @property
    def data_disks(self) -> int:
        """Data blocks of a leg's stripe for levels with parity; the disks of a leg for other levels."""
        return self.disks_of_leg - self.parity

    def written(self, *, full_stripe: bool) -> float:
        """Blocks written to disks for each block written to the array."""
        if not self.parity:
            return self.copies
        return self.disks_of_leg / self.data_disks if full_stripe else 1 + self.parity

    def read_for_write(self, *, full_stripe: bool) -> float:
        """Blocks read from disks for each block written to the array: a partial stripe's parity needs old blocks.

        md uses the cheaper method: it reads the old data and parity (read-modify-write), or the stripe's other data
        (reconstruct-write). See `handle_stripe_dirtying` in the kernel's drivers/md/raid5.c.
        """
        if not self.parity or full_stripe:
            return 0
        return min(1 + self.parity, self.data_disks - 1)


RaidLevel = Literal[0, 1, 5, 6, 10]
ArrayState = Literal["optimal", "degraded", "rebuilding"]

KIB = 1024

Chunk = Annotated[Size, AfterValidator(power_of_two(4 * KIB))]


class Kind(FileValue):
    """The interface of every kind of layout, with defaults. A kind overrides what differs."""

    __slots__ = ()

    kind: str
    effort: ClassVar[int] = 100
    """How much there is to look after, relative to others: layers, space to be watched, metadata to be repaired."""
    write_interval: ClassVar[float] = 0.0
    """Seconds after which it writes what is in memory; 0 if what a job writes reaches the disks at once. Slices of jobs
    that write last for whole intervals."""
    has_snapshots: ClassVar[bool] = False
    """Whether it has snapshots that do not slow every later write down, as those of thick LVM volumes do."""

    @classmethod
    def samples(cls) -> Iterator[Self]:
        """One layout for each set of requirements that the kind has."""
        yield cls()

    @property
    def base(self) -> Kind:
        """The device that has the layout's regions: the disk, or an array of several disks."""
        return self

    @property
    def is_base(self) -> bool:
        """Whether it is a bare disk or a bare array, without a layer on it."""
        return False

    @property
    def encrypted(self) -> bool:
        """Whether the host encrypts what its user writes."""
        return False

    @property
    def is_file(self) -> bool:
        """Whether it is a file, and not a device."""
        return False

    @property
    def writes_later(self) -> bool:
        """Whether some of what a write needs is written seconds later, when another arm may run."""
        return False

    @property
    def twin(self) -> Kind:
        """The layout that fio uses on the host for the twin."""
        return self

    @property
    def regions(self) -> int:
        """The number of regions of the base that it needs."""
        return 1

    @property
    def words(self) -> str:
        """The layer in words."""
        return self.kind

    @property
    def requirements(self) -> Iterator[Requirement]:
        """What a host must have to build it."""
        yield from ()

    @property
    def over_network(self) -> bool:
        """Whether QEMU opens the volume over a network by itself, without a device or a file of the host."""
        return False

    @property
    def expected(self) -> Effective:
        """The settings of the layout that must be read back, as `Attach.expected`."""
        return NOTHING

    def amplification(self, job: Job) -> Amplification:  # noqa: ARG002
        """The amplification on its base for `job`. Conditioning has already allocated the blocks."""
        return NONE


class Bare(Kind):
    """A bare disk or a bare array."""

    __slots__ = ()

    @property
    def base(self) -> Self:
        return self

    @property
    def is_base(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Device(Bare):
    """The bare device: no layer between the disk and its user."""

    kind: Literal["device"] = "device"
    """Which layout it is."""
    effort: ClassVar[int] = 0

    @property
    def words(self) -> str:
        return "bare device"

    @property
    def disks(self) -> int:
        return 1

    @property
    def places(self) -> tuple[int, ...]:
        """The place of the disk in the scenario's `disks`, from 0: the first one."""
        return (0,)

    @property
    def bytes_written(self) -> float:
        """Bytes written to disks for each byte that is filled."""
        return 1


@dataclass(frozen=True, slots=True)
class Md(Bare):
    """An md array of the scenario's first `disks` disks. With `legs` 2, it is a stripe over two arrays.

    Each leg has half of the disks, in the scenario's order. List the disks of one controller first, then the others.
    `starts` chooses other disks, for example those of the second controller for the second leg.
    """

    level: Annotated[RaidLevel, BeforeValidator(require_whole_number)]
    """RAID level."""
    disks: Annotated[Count, Field(ge=2)]
    """The number of disks."""
    chunk: Chunk = 512 * KIB
    """Bytes on one disk before the next disk follows."""
    legs: Annotated[Literal[1, 2], BeforeValidator(require_whole_number)] = 1
    """1 for one array, 2 for a stripe over two."""
    starts: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Field(max_length=2)] = ()
    """The place of each leg's first disk in the scenario's `disks`, from 1. Empty: the legs follow each other from the
    first disk on."""
    state: ArrayState = "optimal"
    """`degraded`: the last member is missing. `rebuilding`: it is rebuilt on the spare while its arms are measured."""
    spares: Annotated[Literal[0, 1], BeforeValidator(require_whole_number)] = 0
    """Spare disks: the one that is rebuilt. It is the disk after the array's last one."""
    kind: Literal["md"] = "md"
    """Which layout it is."""
    effort: ClassVar[int] = 2

    @classmethod
    def samples(cls) -> Iterator[Self]:
        return (cls(level, 2) for level in get_args(RaidLevel))

    @property
    def words(self) -> str:
        return f"RAID {self.level} over {self.disks} disks" + ("" if self.is_optimal else f", {self.state}")

    @property
    def is_optimal(self) -> bool:
        """Whether all members are there and in sync."""
        return self.state == "optimal"

    @property
    def places(self) -> tuple[int, ...]:
        """The place of each disk in the scenario's `disks`, from 0, leg by leg, and then that of the spare."""
        per_leg = self.disks // self.legs
        firsts = [start - 1 for start in self.starts] or [leg * per_leg for leg in range(self.legs)]
        places = [place for first in firsts for place in range(first, first + per_leg)]
        return (*places, *range(places[-1] + 1, places[-1] + 1 + self.spares))

    @property
    def shape(self) -> Shape:
        """The shape of the array for the analysis of its scaling."""
        return Shape(self.level, self.disks, self.legs)

    @property
    def bytes_written(self) -> float:
        """Bytes written to disks for each byte filled, with mirrors and parity, in whole stripes."""
        return self.shape.written(full_stripe=True)

    @property
    def requirements(self) -> Iterator[Requirement]:
        yield Tools(("mdadm",), "mdadm is", "mdadm")
        for level in (self.level, 0) if self.legs == 2 else (self.level,):
            yield Module(MD_MODULES[level], f"RAID {level}")

    def amplification(self, job: Job) -> Amplification:  # noqa: ARG002
        """With parity, writes of whole stripes need the fewest bytes, and writes of single blocks need the most."""
        # Some writes are flushed before they fill a stripe, even if a job could fill whole stripes.
        optimal = Amplification(
            fewest_written=self.shape.written(full_stripe=True),
            most_written=self.shape.written(full_stripe=False),
            read_for_write=self.shape.read_for_write(full_stripe=False),
            fewest_trimmed=0.0,
            most_trimmed=self.disks,
        )
        return optimal if self.is_optimal else self._with_one_missing(optimal)

    def _with_one_missing(self, optimal: Amplification) -> Amplification:
        """The bounds for any position of the missing member. A spare gets writes, but not those of every block.

        With parity, a block of the missing member is read from all other members, and so is what its parity needs
        (`need_this_block` in the kernel's drivers/md/raid5.c). A recovery reads the same, or the other mirror.
        """
        shape = self.shape
        others = self.disks - 1
        if not shape.parity:
            return replace(optimal, fewest_written=shape.copies - 1, rebuild_read=1.0, rebuild_written=1.0)
        return replace(
            optimal,
            most_read=others,
            fewest_written=min(others / shape.data_disks, shape.parity),
            read_for_write=others,
            rebuild_read=others,
            rebuild_written=1.0,
        )


MD_MODULES: dict[RaidLevel, str] = {0: "raid0", 1: "raid1", 5: "raid456", 6: "raid456", 10: "raid10"}
"""The kernel module of each level."""

Base = Device | Md
"""A device that can be partitioned into regions: the disk itself, or an array of several disks."""
OnBase = Annotated[Base, Discriminator("kind")]
