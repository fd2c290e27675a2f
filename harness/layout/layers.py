"""Chooses the layers of a base: modes share a volume group, a file system or a pool if possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from harness.lab.created import CreationLog
from harness.layout import luks
from harness.layout.files import Files
from harness.layout.lvm import ThinVolumes, Volumes
from harness.layout.regions import Need, Region
from harness.layout.source import BlockSource, Sources
from harness.layout.zfs import Datasets
from harness.model.base import Base, Device, Md
from harness.model.layout import Filesystem, Lvm, LvmThin, Partition, Qcow2, RawFile, ZfsFile, Zvol
from harness.model.mode import Mode


class Layer(Protocol):
    """The modes of one kind that share a region of a base: one volume group, one file system, one pool."""

    @property
    def region(self) -> str:
        """The name of its region in the partition table: at most 11 characters, unique per base."""
        ...

    @property
    def need(self) -> Need:
        """The size that the region must have."""
        ...

    def built(
        self, log: CreationLog, region: Region, name: str, span: int
    ) -> AbstractContextManager[Mapping[str, Sources]]:
        """A source of `span` bytes per mode, by the name of the mode. The layer is removed at the end.

        `log` has the runner, and records everything before it is created. All names on the host begin with `name`,
        which is unique for the run and the base. Raises HostError.
        """
        ...


BARE = "device"
"""The name of the region of the bare disk, and of a bare array."""
_FILESYSTEMS: tuple[Filesystem, ...] = ("ext4", "xfs")


@dataclass(frozen=True, slots=True)
class Alone:
    """A partition for one mode, on which nothing is built unless it is encrypted."""

    mode: str
    region: str
    encrypted: bool = False

    @property
    def need(self) -> Need:
        return Need(luks.NEED.fixed if self.encrypted else 0, 1)

    @contextmanager
    def built(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        if not self.encrypted:
            yield {self.mode: Sources.same(BlockSource(region.device.path, "block", 0, span, grant=region.device))}
            return
        name = f"{name}.{self.mode}"
        with luks.encrypted(log, region.device, name, region.partuuid) as device:
            yield {self.mode: Sources.same(BlockSource(f"/dev/mapper/{name}", "block", 0, span, grant=device))}


@dataclass(frozen=True, slots=True)
class BasePlan:
    """A base and everything to build on it. The modes in `bare` use a region of it directly.

    `label` distinguishes arrays. The label of the disk is empty.
    """

    base: Base
    label: str
    bare: tuple[str, ...]
    layers: tuple[Layer, ...]

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


def _layers_on(base: Base, modes: Sequence[Mode]) -> list[Layer]:
    """The layers of the modes whose layout is built on this base, in the order of their regions."""
    on_base = [(mode.name, mode.layout) for mode in modes if mode.layout.base == base]
    encrypted = frozenset(name for name, layout in on_base if layout.encrypted)
    partitions = [name for name, layout in on_base if isinstance(layout, Partition)]
    volumes = tuple(name for name, layout in on_base if isinstance(layout, Lvm))
    thin = tuple((name, layout.chunk) for name, layout in on_base if isinstance(layout, LvmThin))
    files = [(name, layout) for name, layout in on_base if isinstance(layout, RawFile | Qcow2)]
    datasets = tuple((name, layout) for name, layout in on_base if isinstance(layout, Zvol | ZfsFile))

    layers: list[Layer] = [
        Alone(name, f"part{number}", name in encrypted) for number, name in enumerate(partitions, start=1)
    ]
    if volumes:
        layers.append(Volumes(volumes, encrypted.intersection(volumes)))
    if thin:
        layers.append(ThinVolumes(thin, encrypted.intersection(name for name, _ in thin)))
    for filesystem, below in product(_FILESYSTEMS, (False, True)):
        wanted = (filesystem, below)
        on_it = tuple((name, layout) for name, layout in files if (layout.filesystem, layout.encrypted) == wanted)
        if on_it:
            layers.append(Files(filesystem, on_it, below))
    if datasets:
        layers.append(Datasets(datasets))
    return layers
