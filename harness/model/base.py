"""What layouts lie on: the disk itself, or an md array over several. Sizes in bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field

from harness.analysis import Shape
from harness.model.amplification import NONE, Amplification
from harness.model.job import Job
from harness.model.requirement import Module, Requirement, Tools
from harness.model.values import VALUE, Count, Size, power_of_two, whole_number

RaidLevel = Literal[0, 1, 5, 6, 10]
ArrayState = Literal["optimal", "degraded", "rebuilding"]

KIB = 1024

Chunk = Annotated[Size, AfterValidator(power_of_two(4 * KIB))]


class Kind:
    """The interface of every kind of layout, with defaults. A kind overrides what differs."""

    __slots__ = ()

    kind: str
    effort: ClassVar[int] = 100
    """How much there is to look after, relative to others: layers, space to be watched, metadata to be repaired."""
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

    __pydantic_config__ = VALUE

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

    __pydantic_config__ = VALUE

    level: Annotated[RaidLevel, BeforeValidator(whole_number)]
    """RAID level."""
    disks: Annotated[Count, Field(ge=2)]
    """The number of disks."""
    chunk: Chunk = 512 * KIB
    """Bytes on one disk before the next disk follows."""
    legs: Annotated[Literal[1, 2], BeforeValidator(whole_number)] = 1
    """1 for one array, 2 for a stripe over two."""
    starts: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Field(max_length=2)] = ()
    """The place of each leg's first disk in the scenario's `disks`, from 1. Empty: the legs follow each other from the
    first disk on."""
    state: ArrayState = "optimal"
    """`degraded`: the last member is missing. `rebuilding`: it is rebuilt on the spare while its arms are measured."""
    spares: Annotated[Literal[0, 1], BeforeValidator(whole_number)] = 0
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
