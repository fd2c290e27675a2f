"""Partitions a disk or an array into regions, so that all layouts fit on it at the same time; encrypts a region."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, Literal

from harness.errors import HostError, Unsupported
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Writable, built_on
from harness.lab.guard.writable import END_BYTES, SAMPLE_BYTES, SAMPLED, SAMPLES
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import FACTS, SECTOR, TAG, BlockPin
from harness.lab.transport.base import Runner, failed
from harness.model.layout import Layout
from harness.model.option import Effective
from harness.units import format_size
from harness.untrusted import parse_json, reading

FIND = read_script("harness.layout", "find_partition.sh")


_REMOVE = FACTS + SAMPLED + FIND + read_script("harness.layout", "remove_partition_table.sh")


class GuidPartitionTable(HostThing):
    """A GPT on a disk, found by `link` or by the `file` behind its loop device. The other fields identify it.

    `samples` are positions in bytes. The data at them are recorded at the end, see `harness.lab.guard`.
    """

    kind: Literal["partition-table"] = "partition-table"
    link: str = ""
    file: str = ""
    identity: str = ""
    sectors: int
    ptuuid: str
    partuuids: tuple[str, ...]
    samples: tuple[int, ...]

    removal: ClassVar[str] = _REMOVE
    seconds: ClassVar[float] = 600.0

    @property
    def words(self) -> str:
        return f"the partitions on {self.link or self.file}"

    def arguments(self) -> Sequence[str]:
        where = [self.link, self.file, self.identity, str(self.sectors), self.ptuuid, " ".join(self.partuuids)]
        return [*where, *(str(position) for position in self.samples)]


def choose_samples(size_bytes: int) -> tuple[int, ...]:
    """Random positions of samples between the ends of a disk, in bytes, each a multiple of the size of a sample."""
    first, last = END_BYTES // SAMPLE_BYTES, (size_bytes - END_BYTES) // SAMPLE_BYTES - 1
    chance = random.SystemRandom()
    return tuple(sorted(SAMPLE_BYTES * chance.randint(first, last) for _ in range(SAMPLES)))


MIB = 1024**2
ALIGNMENT = MIB
STEP = 4 * MIB
"""Spans are a multiple of LVM's extent, so that volumes and files have equal sizes."""
SMALLEST_SPAN = 16 * MIB
TABLE_BYTES = 2 * MIB
"""For the GPT at both ends."""

_WRITE_SECONDS = 300.0

_DISCARD = read_script("harness.layout", "discard_disk.sh")
_WRITE_TABLE = FIND + read_script("harness.layout", "write_table.sh")
_PARTITIONS = read_script("harness.layout", "list_partitions.sh")


@dataclass(frozen=True, slots=True)
class Need:
    """The size of a region: `shares` spans, and `fixed` bytes for any span.

    `shares` is the number of spans, including what a layer needs in proportion (1.05 for a file with its file system).
    """

    fixed: int
    shares: float

    def bytes(self, span: int) -> int:
        """Whole MiB."""
        return _round_up(self.fixed + ceil(self.shares * span), ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Region:
    """A partition of the run, with the UUID that the run gave it. `offset` is in bytes from the start of its base."""

    what: str
    device: Writable
    offset: int
    size: int
    partuuid: str


def add_needs(needs: Iterable[Need], *, alignment: int = ALIGNMENT) -> Need:
    """The size of all these regions together, if each begins at a multiple of `alignment` bytes."""
    needs = tuple(needs)
    return Need(sum(need.fixed + alignment for need in needs), sum(need.shares for need in needs))


def choose_span(disk_bytes: int, *, fixed: int, shares: float, wanted: int) -> int:
    """The span in bytes: `wanted`, or what fits. `fixed` bytes are for the layers; `shares` spans must fit.

    Raises Unsupported if even the smallest span does not fit.
    """
    room = int((disk_bytes - TABLE_BYTES - fixed) / shares)
    span = min(wanted, room) // STEP * STEP
    if span < SMALLEST_SPAN:
        raise Unsupported(
            f"a disk of {format_size(disk_bytes)} has no room for {shares:g} regions of {format_size(SMALLEST_SPAN)}",
            hint="select fewer modes with -k, or use a larger disk",
        )
    return span


@contextmanager
def partition_disk(
    log: CreationLog, disk: DiskSpec, device: Writable, sizes: Sequence[tuple[str, int]]
) -> Iterator[PartitionedDisk]:
    """A new partition table on the disk, with one partition per (what, bytes). The table is removed at the end.

    Every block between the ends is discarded before and after, if the disk supports it: an SSD then starts from the
    same state in every run (SNIA calls it purged). Raises SafetyError, HostError.
    """
    plan = _Plan.of(sizes, ALIGNMENT)
    table = GuidPartitionTable(
        disks=device.disks,
        link="" if isinstance(disk, DiskByFile) else disk.id,
        file=str(disk.file) if isinstance(disk, DiskByFile) else "",
        identity=device.pin.identity if isinstance(device.pin, BlockPin) else "",
        sectors=device.size_bytes // SECTOR,
        ptuuid=plan.ptuuid,
        partuuids=tuple(part.partuuid for part in plan.parts),
        samples=choose_samples(device.size_bytes),
    )
    with log.making_here(table):
        _write_table(device, plan, log.run_id, "unused")
        device.run(["sh", "-c", _DISCARD, "sh", device.path], deadline=_WRITE_SECONDS)
        yield PartitionedDisk(device, table.link or device.path, _find_regions(device, plan))


@contextmanager
def partition_array(
    log: CreationLog, device: Writable, sizes: Sequence[tuple[str, int]], *, alignment: int
) -> Iterator[dict[str, Region]]:
    """The same on an array; the table is removed with the array. Regions begin at multiples of `alignment` bytes."""
    plan = _Plan.of(sizes, alignment)
    _write_table(device, plan, log.run_id, "new")
    yield _find_regions(device, plan)


@dataclass(frozen=True, slots=True)
class PartitionedDisk:
    """A disk with the run's partition table, its link, which survives a reboot, and its regions by purpose."""

    device: Writable
    link: str
    regions: dict[str, Region]


@dataclass(frozen=True, slots=True)
class _PlannedPartition:
    what: str
    offset: int
    size: int
    partuuid: str


@dataclass(frozen=True, slots=True)
class _Plan:
    """A partition table to write, with unique UUIDs."""

    ptuuid: str
    parts: tuple[_PlannedPartition, ...]

    @classmethod
    def of(cls, sizes: Sequence[tuple[str, int]], alignment: int) -> _Plan:
        offset = alignment
        parts = []
        for what, size in sizes:
            whole = _round_up(size, ALIGNMENT)
            parts.append(_PlannedPartition(what, offset, whole, str(uuid.uuid4())))
            offset = _round_up(offset + whole, alignment)
        return cls(str(uuid.uuid4()), tuple(parts))

    def script(self, run_id: str, sector: int) -> str:
        """The input of sfdisk, in sectors: it aligns other units to the optimal I/O size. Names are for readers."""
        parts = (
            f"start={part.offset // sector}, size={part.size // sector}, uuid={part.partuuid}, "
            f'name="{TAG}:{run_id}:{part.what}"\n'
            for part in self.parts
        )
        return f"label: gpt\nlabel-id: {self.ptuuid}\nfirst-lba: {ALIGNMENT // sector}\n{''.join(parts)}"


def _write_table(device: Writable, plan: _Plan, run_id: str, before: Literal["unused", "new"]) -> None:
    """Write the table. A disk must still be unused, as the guard found it; a new array may have old contents."""
    sector = int(device.run(["blockdev", "--getss", device.path], deadline=60).stdout)
    table = plan.script(run_id, sector)
    done = device.run(["sh", "-c", _WRITE_TABLE, "sh", device.path, before], stdin=table, deadline=60, check=False)
    if done.status != 0:
        raise failed(device.runner.name, replace(done, argv=("sfdisk", device.path)))


def _find_regions(device: Writable, plan: _Plan) -> dict[str, Region]:
    listed = _list_partitions(device)
    if len(listed) != len(plan.parts):
        # A kernel without support for GPT gets the partitions from partx.
        device.run(["partx", "--update", device.path], deadline=60, check=False)
        listed = _list_partitions(device)
    wanted = [(part.offset, part.size) for part in plan.parts]
    if [extent for _, extent in listed] != wanted:
        raise HostError(
            f"{device.runner.name}: the kernel shows {len(listed)} partitions of {device.path} at {listed}, but "
            f"{len(wanted)} were written",
            hint="see dmesg there; a loop device needs partition scanning (losetup -P)",
        )
    partuuids = [part.partuuid for part in plan.parts]
    partitions = built_on([device], [path for path, _ in listed], partuuids) if listed else []
    return {
        part.what: Region(part.what, partition, part.offset, part.size, part.partuuid)
        for part, partition in zip(plan.parts, partitions, strict=True)
    }


def _list_partitions(device: Writable) -> list[tuple[str, tuple[int, int]]]:
    """Path, and start and size in bytes, of each partition that the kernel shows, in order of their start."""
    printed = device.runner.run(["sh", "-c", _PARTITIONS, "sh", device.path], deadline=60).stdout
    source = f"{device.runner.name}: lsblk's list for {device.path}"
    with reading(source):
        children = parse_json(printed, source)["blockdevices"][0].get("children", ())
        parts = [
            (str(child["path"]), (int(child["start"]) * SECTOR, int(child["size"])))
            for child in children
            if child["type"] == "part"
        ]
    return sorted(parts, key=lambda part: part[1])


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


LUKS_NEED = Need(16 * MIB, 0)
"""The header: the offset of the data that cryptsetup(8) chooses for LUKS2."""

_MAKE_LUKS = read_script("harness.layout", "create_luks.sh")
_REMOVE_LUKS = FIND + read_script("harness.layout", "remove_luks.sh")
_READ_LUKS = read_script("harness.layout", "read_luks.sh")


class CryptDevice(HostThing):
    """A device of dm-crypt with its name, and the LUKS header with the UUID `uuid` on a partition or a volume."""

    kind: Literal["crypt-device"] = "crypt-device"
    name: str
    uuid: str
    partuuid: str = ""

    removal: ClassVar[str] = _REMOVE_LUKS

    @property
    def words(self) -> str:
        return f"the encrypted device {self.name}"


@contextmanager
def encrypt_device(log: CreationLog, device: Writable, name: str, partuuid: str = "") -> Iterator[Writable]:
    """The permission for a new encrypted device `name` on `device`, which is smaller by the header.

    `partuuid` is that of the partition that `device` is, if it is one. Closed at the end, without its header. Raises
    SafetyError, HostError.
    """
    thing = CryptDevice(disks=device.disks, name=name, uuid=str(uuid.uuid4()), partuuid=partuuid)
    with log.making_here(thing):
        device.run(["sh", "-c", _MAKE_LUKS, "sh", device.path, thing.uuid, name], deadline=120)
        (grant,) = built_on([device], [f"/dev/mapper/{name}"])
        yield grant


def read_encryption(runner: Runner, layout: Layout, path: str) -> Effective | None:
    """How an encrypted device or file at `path` is, as `cryptsetup status` says. Raises HostError."""
    if not layout.encrypted:
        return None
    printed = runner.run(["sh", "-s", "--", path], stdin=_READ_LUKS, deadline=60).stdout
    with reading(f"{runner.name}: cryptsetup's status of what {path} is on"):
        return parse_encryption(printed)


def parse_encryption(printed: str) -> Effective:
    """What `cryptsetup status` says of one device; `none` without one. Raises ValueError for other output."""
    lines = (line.partition(":") for line in printed.splitlines())
    facts = {key.strip(): value.strip() for key, colon, value in lines if colon}
    if not facts:
        return Effective(host_encryption="none")
    # "512 bits"; "512", or from cryptsetup 2.8 on "512 [bytes]".
    return Effective(
        host_encryption=facts["type"].lower(),
        host_cipher=facts["cipher"],
        host_key_bits=int(facts["keysize"].split()[0]),
        host_encryption_sector=int(facts["sector size"].split()[0]),
    )
