"""The shape of a mode in a scenario file: a table per kind of layout, one for attaching, and what they make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.scenario.attach import (
    Aio,
    Attach,
    Attachment,
    Bus,
    Cache,
    Controller,
    DetectZeroes,
    DeviceKind,
    Discard,
    Vfio,
)
from harness.scenario.fields import Size, Table, power_of_two
from harness.scenario.layouts import (
    Base,
    Device,
    Filesystem,
    Lvm,
    LvmThin,
    Md,
    Partition,
    Preallocation,
    Qcow2,
    Qcow2Preallocation,
    RaidLevel,
    RawFile,
    ZfsFile,
    Zvol,
)
from harness.scenario.legality import mode_problems
from harness.units import format_size

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
_THIN_STEP = 64 * _KIB


def _thin_chunk(size: int) -> int:
    # lvmthin(7): a multiple of 64 KiB up to 1 GiB.
    if not _THIN_STEP <= size <= _GIB or size % _THIN_STEP:
        raise ValueError(f"allowed: multiples of {format_size(_THIN_STEP)} up to {format_size(_GIB)}")
    return size


def _whole_number(value: object) -> object:
    # To Python 1, 1.0 and true are equal, and a literal takes each for the other.
    if type(value) is not int:
        raise ValueError("must be a whole number, without quotes")
    return value


Chunk = Annotated[Size, AfterValidator(power_of_two(4 * _KIB))]
ThinChunk = Annotated[Size, AfterValidator(_thin_chunk)]
# docs/interop/qcow2.txt of QEMU: cluster_bits from 9 to 21.
Cluster = Annotated[Size, AfterValidator(power_of_two(512, 2 * _MIB))]
# zfsprops(7): from a sector to 16 MiB, SPA_MAXBLOCKSIZE; how much of that a host takes depends on its version.
ZfsBlock = Annotated[Size, AfterValidator(power_of_two(512, 16 * _MIB))]
# QEMU takes up to 2 MiB of both (util/block-helpers.c); a guest's kernel takes no logical block above its page.
LogicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 4 * _KIB))]
PhysicalBlock = Annotated[Size, AfterValidator(power_of_two(512, 2 * _MIB))]
# A virtio device has at most 1024 virtqueues, of which virtio-scsi keeps two; each holds 4 to 1024 requests.
Queues = Annotated[int, Field(ge=1, le=1022)]
QueueSize = Annotated[int, AfterValidator(power_of_two(4, 1024, sizes=False))]


class DeviceTable(Table):
    kind: Literal["device"] = "device"

    def made(self) -> Device:
        return Device()


class MdTable(Table):
    kind: Literal["md"]
    level: Annotated[RaidLevel, BeforeValidator(_whole_number)]
    disks: Annotated[int, Field(ge=2)]
    chunk: Chunk = Md(0, 2).chunk
    legs: Annotated[Literal[1, 2], BeforeValidator(_whole_number)] = Md(0, 2).legs

    def made(self) -> Md:
        return Md(self.level, self.disks, self.chunk, self.legs)


BaseTable = Annotated[DeviceTable | MdTable, Field(discriminator="kind")]


class OnBase(Table):
    """What is built on the disk itself, or on an array."""

    on: BaseTable = DeviceTable()

    @property
    def base(self) -> Base:
        return self.on.made()


class PartitionTable(OnBase):
    kind: Literal["partition"]

    def made(self) -> Partition:
        return Partition(self.base)


class LvmTable(OnBase):
    kind: Literal["lvm"]

    def made(self) -> Lvm:
        return Lvm(self.base)


class LvmThinTable(OnBase):
    kind: Literal["lvm-thin"]
    chunk: ThinChunk = LvmThin().chunk

    def made(self) -> LvmThin:
        return LvmThin(self.chunk, self.base)


class RawFileTable(OnBase):
    kind: Literal["raw"]
    filesystem: Filesystem = RawFile().filesystem
    preallocation: Preallocation = RawFile().preallocation

    def made(self) -> RawFile:
        return RawFile(self.filesystem, self.preallocation, self.base)


class Qcow2Table(OnBase):
    kind: Literal["qcow2"]
    filesystem: Filesystem = Qcow2().filesystem
    cluster_size: Cluster = Qcow2().cluster_size
    preallocation: Qcow2Preallocation = Qcow2().preallocation
    lazy_refcounts: bool = Qcow2().lazy_refcounts

    def made(self) -> Qcow2:
        return Qcow2(self.filesystem, self.cluster_size, self.preallocation, self.lazy_refcounts, self.base)


class ZvolTable(OnBase):
    kind: Literal["zvol"]
    volblocksize: ZfsBlock = Zvol().volblocksize

    def made(self) -> Zvol:
        return Zvol(self.volblocksize, self.base)


class ZfsFileTable(OnBase):
    kind: Literal["zfs"]
    recordsize: ZfsBlock = ZfsFile().recordsize

    def made(self) -> ZfsFile:
        return ZfsFile(self.recordsize, self.base)


LayoutTable = Annotated[
    DeviceTable
    | PartitionTable
    | LvmTable
    | LvmThinTable
    | RawFileTable
    | Qcow2Table
    | MdTable
    | ZvolTable
    | ZfsFileTable,
    Field(discriminator="kind"),
]
LAYOUT_TABLES: tuple[type[Table], ...] = (
    DeviceTable,
    PartitionTable,
    LvmTable,
    LvmThinTable,
    RawFileTable,
    Qcow2Table,
    MdTable,
    ZvolTable,
    ZfsFileTable,
)


class AttachTable(Table):
    """How the guest gets the layout; what is left out is as in the presets."""

    bus: Bus = Attach().bus
    cache: Cache = Attach().cache
    aio: Aio = Attach().aio
    iothread: bool = Attach().iothread
    queues: Queues | None = Attach().queues
    queue_size: QueueSize | None = Attach().queue_size
    iothread_vq_mapping: Annotated[int, Field(ge=0, le=1022)] = Attach().iothread_vq_mapping
    controller: Controller = Attach().controller
    discard: Discard = Attach().discard
    detect_zeroes: DetectZeroes = Attach().detect_zeroes
    logical_block_size: LogicalBlock | None = Attach().logical_block_size
    physical_block_size: PhysicalBlock | None = Attach().physical_block_size
    read_only: bool = Attach().read_only
    device: Literal[DeviceKind, "vfio"] = Attach().device

    def made(self) -> Attachment:
        if self.device == "vfio":
            return Vfio()
        return Attach(**{field.name: getattr(self, field.name) for field in fields(Attach)})


class ModeTable(Table):
    """A mode of the scenario's own."""

    layout: LayoutTable
    attach: AttachTable

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        problems = list(mode_problems(self.layout.made(), self.attach.made(), frozenset(self._given())))
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _given(self) -> Iterator[str]:
        """The keys that the file has of this mode, as `layout.on.level` and `attach.bus`."""
        yield from (f"attach.{key}" for key in self.attach.model_fields_set)
        yield from (f"layout.{key}" for key in self.layout.model_fields_set)
        if isinstance(self.layout, OnBase):
            yield from (f"layout.on.{key}" for key in self.layout.on.model_fields_set)
