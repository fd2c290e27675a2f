"""Thick and thin LVM volumes on a region of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from harness.lab.transport.base import Runner
from harness.layout.regions import Need, Region
from harness.layout.source import BlockSource, Sources
from harness.layout.undo import Undo

MIB = 1024**2
EXTENT = 4 * MIB
OVERHEAD = 2 * EXTENT
"""The physical volume's metadata before its first extent, and what is no whole extent after the last."""
_METADATA_PER_CHUNK = 64
"""Bytes of a thin pool's metadata per chunk, as lvmthin(7) reckons."""
_SMALLEST_METADATA = 2 * MIB

TRACELESS = "activation/monitoring=0 backup/backup=0 backup/archive=0"
"""LVM's settings. Else also commands that only look (vgs) copy metadata to /etc/lvm, and a daemon watches pools."""

_QUIET = ["--yes", "--quiet", "--config", TRACELESS]
# Else udev activates the group a second time as soon as it sees it, beside the commands that make its volumes, and
# with LVM's own settings: a daemon that watches thin pools would stay.
_OURS_TO_ACTIVATE = ["--setautoactivation", "n"]
# Neither zeroed nor wiped, for volumes are filled before anything is read.
_UNWIPED = ["--zero", "n", "--wipesignatures", "n"]
# $1: the volume group, $2: its partition, $3: LVM's settings. Tried twice, because udev may have had them open.
_REMOVE = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
config=$3
run() { command=$1; shift; "$command" --config "$config" "$@"; }
remove() { # command that removes, command that looks, what
    run "$1" --yes --quiet --force "$3" 2>/dev/null || ! run "$2" "$3" >/dev/null 2>&1 || run "$1" --yes --quiet "$3"
}
remove vgremove vgs "$1" && remove pvremove pvs "$2"
"""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Linear volumes, one per mode."""

    modes: tuple[str, ...]
    region: str = "lvm"

    @property
    def need(self) -> Need:
        return Need(OVERHEAD, len(self.modes))

    @contextmanager
    def built(self, runner: Runner, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        with _group(runner, name, region.device):
            for mode in self.modes:
                create = ["lvcreate", *_QUIET, *_UNWIPED, "--size", f"{span}b", "--name", mode, name]
                runner.run(create, deadline=60)
            yield _volumes(name, self.modes, span)


@dataclass(frozen=True, slots=True)
class ThinVolumes:
    """Thin volumes, (mode, bytes of a chunk) each; those with equal chunks share a pool."""

    modes: tuple[tuple[str, int], ...]
    region: str = "lvm-thin"

    @property
    def need(self) -> Need:
        pools = [_pool_need(len(modes), chunk) for chunk, modes in self._pools.items()]
        return Need(OVERHEAD + sum(pool.fixed for pool in pools), sum(pool.shares for pool in pools))

    @contextmanager
    def built(self, runner: Runner, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        group = f"{name}-thin"
        with _group(runner, group, region.device):
            for chunk, modes in self._pools.items():
                pool = f"pool-{chunk // 1024}k"
                chunks = len(modes) * -(-span // chunk)
                size = ["--size", f"{chunks * chunk}b", "--poolmetadatasize", f"{_metadata_bytes(chunks)}b"]
                options = ["--type", "thin-pool", "--chunksize", f"{chunk}b", *size, "--name", pool]
                runner.run(["lvcreate", *_QUIET, *options, group], deadline=60)
                for mode in modes:
                    options = ["--type", "thin", "--virtualsize", f"{span}b", "--thinpool", pool, "--name", mode]
                    runner.run(["lvcreate", *_QUIET, *options, group], deadline=60)
            yield _volumes(group, [mode for mode, _ in self.modes], span)

    @property
    def _pools(self) -> dict[int, list[str]]:
        pools: dict[int, list[str]] = {}
        for mode, chunk in self.modes:
            pools.setdefault(chunk, []).append(mode)
        return pools


def _pool_need(volumes: int, chunk: int) -> Need:
    # The metadata twice: LVM keeps a spare of the same size, with which it repairs a pool.
    fixed = volumes * chunk + 2 * (_SMALLEST_METADATA + EXTENT) + EXTENT
    return Need(fixed, volumes * (1 + 2 * _METADATA_PER_CHUNK / chunk))


def _metadata_bytes(chunks: int) -> int:
    return max(_SMALLEST_METADATA, chunks * _METADATA_PER_CHUNK)


@contextmanager
def _group(runner: Runner, group: str, partition: str) -> Iterator[None]:
    with Undo(runner) as undo:
        undo.by(
            f"the volume group {group}", ["sh", "-s", "--", group, partition, TRACELESS], stdin=_REMOVE, deadline=120
        )
        runner.run(["vgcreate", *_QUIET, *_OURS_TO_ACTIVATE, group, partition], deadline=60)
        yield


def _volumes(group: str, modes: Sequence[str], span: int) -> dict[str, Sources]:
    return {mode: Sources.same(BlockSource(f"/dev/{group}/{mode}", "block", 0, span)) for mode in modes}
