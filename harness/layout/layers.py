"""The layers of a base: partitions, LVM volumes and files. Modes of one kind share a group or a file system.

A new kind of layout is a class in model/layout.py and a `LayerKind`: in `LAYERS`, or a `FeatureLayer` of a feature.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from harness.errors import Unsupported
from harness.feature import FeatureLayer, list_brought
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on
from harness.layout import BlockSource, Sources
from harness.layout.regions import FIND, LUKS_NEED, CryptDevice, Need, Region, encrypt_device
from harness.layout.storage_files import Files
from harness.model.base import Base, Device, Md
from harness.model.layout import Layout, Lvm, LvmThin, Partition
from harness.model.mode import Mode

MIB = 1024**2
EXTENT = 4 * MIB
OVERHEAD = 2 * EXTENT
"""The physical volume's metadata before its first extent, and an incomplete extent at its end."""
_METADATA_PER_CHUNK = 64
"""Bytes of a thin pool's metadata per chunk, according to lvmthin(7)."""
_SMALLEST_METADATA = 2 * MIB
_POOL_SPARE = Need(32 * MIB, 0.25)
"""What a thin pool has beside its volumes: blocks that were trimmed can be written again after its next commit only."""

TRACELESS = "activation/monitoring=0 backup/backup=0 backup/archive=0"
"""LVM's settings. Without them even vgs copies metadata to /etc/lvm, and a daemon monitors the pools."""

_QUIET = ["--yes", "--quiet", "--config", TRACELESS]
# Without this, udev also activates the group as soon as it appears, while the volumes are created, and with LVM's own
# settings. Then a daemon that monitors thin pools would remain.
_OURS_TO_ACTIVATE = ["--setautoactivation", "n"]
# Neither zeroed nor wiped, because volumes are filled before anything is read.
_UNWIPED = ["--zero", "n", "--wipesignatures", "n"]
_REMOVE_GROUP = FIND + read_script("harness.layout", "remove_lvm.sh")

_LVM_GROUPS = (6, 4, 4, 4, 4, 4, 6)


def make_lvm_uuid() -> str:
    """A UUID in LVM's format: 32 letters and digits."""
    letters = string.ascii_letters + string.digits
    return "-".join("".join(secrets.choice(letters) for _ in range(count)) for count in _LVM_GROUPS)


class VolumeGroup(HostThing):
    """A volume group, identified by the UUID of its only physical volume, on the partition with the UUID `partuuid`."""

    kind: Literal["volume-group"] = "volume-group"
    name: str
    pv_uuid: str
    volumes: tuple[str, ...]
    partuuid: str

    removal: ClassVar[str] = _REMOVE_GROUP

    @property
    def words(self) -> str:
        return f"the volume group {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.name, self.pv_uuid, " ".join(self.volumes), self.partuuid, TRACELESS]


@dataclass(frozen=True, slots=True)
class Volumes:
    """Linear volumes, one per mode. Those of the modes in `encrypted` are."""

    modes: tuple[str, ...]
    encrypted: frozenset[str] = frozenset()
    region: str = "lvm"

    things: ClassVar[tuple[type[HostThing], ...]] = (VolumeGroup, CryptDevice)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Volumes]:
        volumes = {mode: layout.encrypted for mode, layout in layouts if isinstance(layout, Lvm)}
        if volumes:
            yield cls(tuple(volumes), frozenset(filter(volumes.get, volumes)))

    @property
    def need(self) -> Need:
        return Need(OVERHEAD + len(self.encrypted) * LUKS_NEED.fixed, len(self.modes))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with _create_group(log, name, region, self.modes):
            for mode in self.modes:
                size = span + _count_header(mode, self.encrypted)
                create = ["lvcreate", *_QUIET, *_UNWIPED, "--size", f"{size}b", "--name", mode, name]
                region.device.run(create, deadline=60)
            wanted = {mode: mode in self.encrypted for mode in self.modes}
            with _open_volumes(log, region.device, name, wanted, span) as sources:
                yield sources


@dataclass(frozen=True, slots=True)
class ThinVolumes:
    """Thin volumes as (mode, bytes of a chunk). Volumes with equal chunks share a pool. `encrypted` as above."""

    modes: tuple[tuple[str, int], ...]
    encrypted: frozenset[str] = frozenset()
    region: str = "lvm-thin"

    things: ClassVar[tuple[type[HostThing], ...]] = (VolumeGroup, CryptDevice)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[ThinVolumes]:
        volumes = {mode: layout for mode, layout in layouts if isinstance(layout, LvmThin)}
        if volumes:
            chunks = tuple((mode, layout.chunk) for mode, layout in volumes.items())
            yield cls(chunks, frozenset(mode for mode, layout in volumes.items() if layout.encrypted))

    @property
    def need(self) -> Need:
        pools = [_compute_pool_need(modes, chunk, self.encrypted) for chunk, modes in self._pools.items()]
        return Need(OVERHEAD + sum(pool.fixed for pool in pools), sum(pool.shares for pool in pools))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        group = f"{name}-thin"
        names = [mode for mode, _ in self.modes]
        with _create_group(log, group, region, [*names, *(_name_pool(chunk) for chunk in self._pools)]):
            for chunk, modes in self._pools.items():
                pool = _name_pool(chunk)
                chunks = sum(-(-(span + _count_header(mode, self.encrypted)) // chunk) for mode in modes)
                spare = _POOL_SPARE.fixed + int(_POOL_SPARE.shares * span)
                metadata = max(_SMALLEST_METADATA, chunks * _METADATA_PER_CHUNK)
                size = ["--size", f"{chunks * chunk + spare}b", "--poolmetadatasize", f"{metadata}b"]
                options = ["--type", "thin-pool", "--chunksize", f"{chunk}b", *size, "--name", pool]
                region.device.run(["lvcreate", *_QUIET, *options, group], deadline=60)
                for mode in modes:
                    virtual = span + _count_header(mode, self.encrypted)
                    options = ["--type", "thin", "--virtualsize", f"{virtual}b", "--thinpool", pool, "--name", mode]
                    region.device.run(["lvcreate", *_QUIET, *options, group], deadline=60)
            wanted = {mode: mode in self.encrypted for mode in names}
            with _open_volumes(log, region.device, group, wanted, span) as sources:
                yield sources

    @property
    def _pools(self) -> dict[int, list[str]]:
        pools: dict[int, list[str]] = {}
        for mode, chunk in self.modes:
            pools.setdefault(chunk, []).append(mode)
        return pools


def _count_header(mode: str, encrypted: Collection[str]) -> int:
    return LUKS_NEED.fixed if mode in encrypted else 0


def _compute_pool_need(modes: Sequence[str], chunk: int, encrypted: Collection[str]) -> Need:
    headers = sum(_count_header(mode, encrypted) for mode in modes)
    # Twice the metadata: LVM reserves a spare of the same size, to repair a pool.
    fixed = headers + len(modes) * chunk + 2 * (_SMALLEST_METADATA + EXTENT) + EXTENT + _POOL_SPARE.fixed
    return Need(fixed, len(modes) * (1 + 2 * _METADATA_PER_CHUNK / chunk) + _POOL_SPARE.shares)


@contextmanager
def _create_group(log: CreationLog, name: str, region: Region, volumes: Sequence[str]) -> Iterator[None]:
    device = region.device
    group = VolumeGroup(
        disks=device.disks, name=name, pv_uuid=make_lvm_uuid(), volumes=tuple(volumes), partuuid=region.partuuid
    )
    with log.making_here(group):
        device.run(["pvcreate", *_QUIET, "--uuid", group.pv_uuid, "--norestorefile", device.path], deadline=60)
        device.run(["vgcreate", *_QUIET, *_OURS_TO_ACTIVATE, name, device.path], deadline=60)
        yield


def _name_pool(chunk: int) -> str:
    return f"pool-{chunk // 1024}k"


@contextmanager
def _open_volumes(
    log: CreationLog, device: Writable, group: str, wanted: Mapping[str, bool], span: int
) -> Iterator[dict[str, Sources]]:
    """The source of each mode in `wanted`, which says whether its volume is encrypted."""
    paths = {mode: f"/dev/{group}/{mode}" for mode in wanted}
    granted = dict(zip(wanted, built_on([device], list(paths.values())), strict=True))
    with ExitStack() as stack:
        for mode in filter(wanted.get, wanted):
            granted[mode] = stack.enter_context(encrypt_device(log, granted[mode], f"{group}.{mode}"))
            paths[mode] = f"/dev/mapper/{group}.{mode}"
        yield {mode: Sources.same(BlockSource(paths[mode], "block", 0, span, grant=granted[mode])) for mode in wanted}


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

    things: ClassVar[tuple[type[HostThing], ...]] = (CryptDevice,)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Alone]:
        partitions = [(mode, layout) for mode, layout in layouts if isinstance(layout, Partition)]
        for number, (mode, layout) in enumerate(partitions, start=1):
            yield cls(mode, f"part{number}", layout.encrypted)

    @property
    def need(self) -> Need:
        return Need(LUKS_NEED.fixed if self.encrypted else 0, 1)

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        if not self.encrypted:
            yield {self.mode: Sources.same(BlockSource(region.device.path, "block", 0, span, grant=region.device))}
            return
        name = f"{name}.{self.mode}"
        with encrypt_device(log, region.device, name, region.partuuid) as device:
            yield {self.mode: Sources.same(BlockSource(f"/dev/mapper/{name}", "block", 0, span, grant=device))}


LAYERS: tuple[type[LayerKind], ...] = (Alone, Volumes, ThinVolumes, Files)
"""The kinds of layers of the kernel, in the order of their regions on a base. Those of features come after them."""


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


def plan_bases(modes: Sequence[Mode]) -> list[BasePlan]:
    """The disk, always first, and each array that a mode uses."""
    arrays = dict.fromkeys(base for mode in modes if isinstance(base := mode.layout.base, Md))
    labelled: dict[Base, str] = {Device(): "", **{base: f"m{number}" for number, base in enumerate(arrays)}}
    return [
        BasePlan(
            base, label, tuple(mode.name for mode in modes if mode.layout == base), tuple(_list_layers(base, modes))
        )
        for base, label in labelled.items()
    ]


def _list_layers(base: Base, modes: Sequence[Mode]) -> list[LayerBuilder]:
    """The layers of the modes whose layout is built on this base, in the order of their regions.

    Raises Unsupported for a layout that no installed feature builds.
    """
    layouts = [(mode.name, mode.layout) for mode in modes if mode.layout.base == base]
    kinds = (*LAYERS, *(layer.load() for layer in list_brought(FeatureLayer)))
    for mode, layout in layouts:
        if not layout.is_base and not any(list(kind.group([(mode, layout)])) for kind in kinds):
            raise Unsupported(
                f"this installation builds no layout {layout.kind} on a disk",
                hint="install the feature that builds it, or select other modes",
            )
    return [layer for kind in kinds for layer in kind.group(layouts)]
