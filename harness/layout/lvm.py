"""Thick and thin LVM volumes on a region."""

from __future__ import annotations

import secrets
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on
from harness.layout import luks
from harness.layout.regions import FIND, Need, Region
from harness.layout.source import BlockSource, Sources
from harness.model.layout import Layout, Lvm, LvmThin
from harness.shipped import read_script

MIB = 1024**2
EXTENT = 4 * MIB
OVERHEAD = 2 * EXTENT
"""The physical volume's metadata before its first extent, and an incomplete extent at its end."""
_METADATA_PER_CHUNK = 64
"""Bytes of a thin pool's metadata per chunk, according to lvmthin(7)."""
_SMALLEST_METADATA = 2 * MIB

TRACELESS = "activation/monitoring=0 backup/backup=0 backup/archive=0"
"""LVM's settings. Without them even vgs copies metadata to /etc/lvm, and a daemon monitors the pools."""

_QUIET = ["--yes", "--quiet", "--config", TRACELESS]
# Without this, udev also activates the group as soon as it appears, while the volumes are created, and with LVM's own
# settings. Then a daemon that monitors thin pools would remain.
_OURS_TO_ACTIVATE = ["--setautoactivation", "n"]
# Neither zeroed nor wiped, because volumes are filled before anything is read.
_UNWIPED = ["--zero", "n", "--wipesignatures", "n"]
_REMOVE = FIND + read_script("harness.layout", "remove_lvm.sh")

_LVM_GROUPS = (6, 4, 4, 4, 4, 4, 6)


def lvm_uuid() -> str:
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

    removal: ClassVar[str] = _REMOVE

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

    things: ClassVar[tuple[type[HostThing], ...]] = (VolumeGroup, luks.CryptDevice)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Volumes]:
        volumes = {mode: layout.encrypted for mode, layout in layouts if isinstance(layout, Lvm)}
        if volumes:
            yield cls(tuple(volumes), frozenset(filter(volumes.get, volumes)))

    @property
    def need(self) -> Need:
        return Need(OVERHEAD + len(self.encrypted) * luks.NEED.fixed, len(self.modes))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with _group(log, name, region, self.modes):
            for mode in self.modes:
                size = span + _header(mode, self.encrypted)
                create = ["lvcreate", *_QUIET, *_UNWIPED, "--size", f"{size}b", "--name", mode, name]
                region.device.run(create, deadline=60)
            wanted = {mode: mode in self.encrypted for mode in self.modes}
            with _volumes(log, region.device, name, wanted, span) as sources:
                yield sources


@dataclass(frozen=True, slots=True)
class ThinVolumes:
    """Thin volumes as (mode, bytes of a chunk). Volumes with equal chunks share a pool. `encrypted` as above."""

    modes: tuple[tuple[str, int], ...]
    encrypted: frozenset[str] = frozenset()
    region: str = "lvm-thin"

    things: ClassVar[tuple[type[HostThing], ...]] = (VolumeGroup, luks.CryptDevice)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[ThinVolumes]:
        volumes = {mode: layout for mode, layout in layouts if isinstance(layout, LvmThin)}
        if volumes:
            chunks = tuple((mode, layout.chunk) for mode, layout in volumes.items())
            yield cls(chunks, frozenset(mode for mode, layout in volumes.items() if layout.encrypted))

    @property
    def need(self) -> Need:
        pools = [_pool_need(modes, chunk, self.encrypted) for chunk, modes in self._pools.items()]
        return Need(OVERHEAD + sum(pool.fixed for pool in pools), sum(pool.shares for pool in pools))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        group = f"{name}-thin"
        names = [mode for mode, _ in self.modes]
        with _group(log, group, region, [*names, *(_pool_name(chunk) for chunk in self._pools)]):
            for chunk, modes in self._pools.items():
                pool = _pool_name(chunk)
                chunks = sum(-(-(span + _header(mode, self.encrypted)) // chunk) for mode in modes)
                size = ["--size", f"{chunks * chunk}b", "--poolmetadatasize", f"{_metadata_bytes(chunks)}b"]
                options = ["--type", "thin-pool", "--chunksize", f"{chunk}b", *size, "--name", pool]
                region.device.run(["lvcreate", *_QUIET, *options, group], deadline=60)
                for mode in modes:
                    virtual = span + _header(mode, self.encrypted)
                    options = ["--type", "thin", "--virtualsize", f"{virtual}b", "--thinpool", pool, "--name", mode]
                    region.device.run(["lvcreate", *_QUIET, *options, group], deadline=60)
            wanted = {mode: mode in self.encrypted for mode in names}
            with _volumes(log, region.device, group, wanted, span) as sources:
                yield sources

    @property
    def _pools(self) -> dict[int, list[str]]:
        pools: dict[int, list[str]] = {}
        for mode, chunk in self.modes:
            pools.setdefault(chunk, []).append(mode)
        return pools


def _header(mode: str, encrypted: Collection[str]) -> int:
    return luks.NEED.fixed if mode in encrypted else 0


def _pool_need(modes: Sequence[str], chunk: int, encrypted: Collection[str]) -> Need:
    headers = sum(_header(mode, encrypted) for mode in modes)
    # Twice the metadata: LVM reserves a spare of the same size, to repair a pool.
    fixed = headers + len(modes) * chunk + 2 * (_SMALLEST_METADATA + EXTENT) + EXTENT
    return Need(fixed, len(modes) * (1 + 2 * _METADATA_PER_CHUNK / chunk))


def _metadata_bytes(chunks: int) -> int:
    return max(_SMALLEST_METADATA, chunks * _METADATA_PER_CHUNK)


@contextmanager
def _group(log: CreationLog, name: str, region: Region, volumes: Sequence[str]) -> Iterator[None]:
    device = region.device
    group = VolumeGroup(
        disks=device.disks, name=name, pv_uuid=lvm_uuid(), volumes=tuple(volumes), partuuid=region.partuuid
    )
    with log.making_here(group):
        device.run(
            ["pvcreate", *_QUIET, "--uuid", group.pv_uuid, "--norestorefile", device.path],
            deadline=60,
        )
        device.run(["vgcreate", *_QUIET, *_OURS_TO_ACTIVATE, name, device.path], deadline=60)
        yield


def _pool_name(chunk: int) -> str:
    return f"pool-{chunk // 1024}k"


@contextmanager
def _volumes(
    log: CreationLog, device: Writable, group: str, wanted: Mapping[str, bool], span: int
) -> Iterator[dict[str, Sources]]:
    """The source of each mode in `wanted`, which says whether its volume is encrypted."""
    paths = {mode: f"/dev/{group}/{mode}" for mode in wanted}
    granted = dict(zip(wanted, built_on([device], list(paths.values())), strict=True))
    with ExitStack() as stack:
        for mode in filter(wanted.get, wanted):
            granted[mode] = stack.enter_context(luks.encrypted(log, granted[mode], f"{group}.{mode}"))
            paths[mode] = f"/dev/mapper/{group}.{mode}"
        yield {mode: Sources.same(BlockSource(paths[mode], "block", 0, span, grant=granted[mode])) for mode in wanted}
