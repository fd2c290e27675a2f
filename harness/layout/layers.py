"""The layers of a base, in which modes share a volume group, a file system or a pool if possible, and their registry.

A new kind of layout is a class in model/layout.py, a module with its `LayerKind`, and a line in `LAYERS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Protocol

from harness.lab.created import CreationLog, HostThing
from harness.layout import luks
from harness.layout.files import Files
from harness.layout.lvm import ThinVolumes, Volumes
from harness.layout.regions import Need, Region
from harness.layout.source import BlockSource, Sources
from harness.layout.zfs import Datasets
from harness.model.base import Base, Device, Md
from harness.model.layout import Layout, Partition
from harness.model.mode import Mode


class LayerBuilder(Protocol):
    """Builds what the modes of one kind share on a region of a base: one volume group, one file system, one pool."""

    @property
    def region(self) -> str:
        """The name of its region in the partition table: at most 11 characters, unique per base."""
        ...

    @property
    def need(self) -> Need:
        """The size that the region must have."""
        ...

    def build(
        self, log: CreationLog, region: Region, name: str, span: int
    ) -> AbstractContextManager[Mapping[str, Sources]]:
        """A source of `span` bytes per mode, by the name of the mode. The layer is removed at the end.

        `log` has the runner, and records everything before it is created. All names on the host begin with `name`,
        which is unique for the run and the base. Raises HostError.
        """
        ...


class LayerKind(LayerBuilder, Protocol):
    """A kind of layer: chooses which modes share one, and names what it creates."""

    things: ClassVar[tuple[type[HostThing], ...]]
    """What it creates on a host, for the creation log."""

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[LayerKind]:
        """The layers of this kind for these modes on one base, given as (mode, layout)."""
        ...


BARE = "device"
"""The name of the region of the bare disk, and of a bare array."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A partition for one mode, on which nothing is built unless it is encrypted."""

    mode: str
    region: str
    encrypted: bool = False

    things: ClassVar[tuple[type[HostThing], ...]] = (luks.CryptDevice,)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Alone]:
        partitions = [(mode, layout) for mode, layout in layouts if isinstance(layout, Partition)]
        for number, (mode, layout) in enumerate(partitions, start=1):
            yield cls(mode, f"part{number}", layout.encrypted)

    @property
    def need(self) -> Need:
        return Need(luks.NEED.fixed if self.encrypted else 0, 1)

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        if not self.encrypted:
            yield {self.mode: Sources.same(BlockSource(region.device.path, "block", 0, span, grant=region.device))}
            return
        name = f"{name}.{self.mode}"
        with luks.encrypted(log, region.device, name, region.partuuid) as device:
            yield {self.mode: Sources.same(BlockSource(f"/dev/mapper/{name}", "block", 0, span, grant=device))}


LAYERS: tuple[type[LayerKind], ...] = (Alone, Volumes, ThinVolumes, Files, Datasets)
"""All kinds of layers, in the order of their regions on a base."""


@dataclass(frozen=True, slots=True)
class BasePlan:
    """A base and everything to build on it. The modes in `bare` use a region of it directly.

    `label` distinguishes arrays. The label of the disk is empty.
    """

    base: Base
    label: str
    bare: tuple[str, ...]
    layers: tuple[LayerBuilder, ...]

    @property
    def needs(self) -> dict[str, Need]:
        """The size of each region by its name. The disk always has a bare region, for the host's baseline."""
        bare = {BARE: Need(0, 1)} if self.bare or isinstance(self.base, Device) else {}
        return bare | {layer.region: layer.need for layer in self.layers}


def base_plans(modes: Sequence[Mode]) -> list[BasePlan]:
    """The disk, always first, and each array that a mode uses."""
    arrays = dict.fromkeys(base for mode in modes if isinstance(base := mode.layout.base, Md))
    labelled: dict[Base, str] = {Device(): "", **{base: f"m{number}" for number, base in enumerate(arrays)}}
    return [
        BasePlan(base, label, tuple(mode.name for mode in modes if mode.layout == base), tuple(_layers_on(base, modes)))
        for base, label in labelled.items()
    ]


def _layers_on(base: Base, modes: Sequence[Mode]) -> list[LayerBuilder]:
    """The layers of the modes whose layout is built on this base, in the order of their regions."""
    layouts = [(mode.name, mode.layout) for mode in modes if mode.layout.base == base]
    return [layer for kind in LAYERS for layer in kind.group(layouts)]
