"""Storages in use on a host: what each is, by what it is recognised, which layouts it can have, and its space.

Of the space: what is free, what the run was promised, and what must stay free for the owners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from harness.errors import HostError, Unsupported
from harness.feature import storage_scripts
from harness.files import read_script
from harness.lab.inventory import StorageKind, storage_kinds
from harness.lab.pin import FILE_IDENTITY, UNSAFE
from harness.lab.transport.base import Runner
from harness.units import format_size
from harness.untrusted import finite, reading

Place = str
"""A key of `storage_kinds`: where volumes are created. A pool of libvirt is one of these places as well."""

FILE_SERVERS = ("nfs", "nfs4", "cifs", "smb3")
FILESYSTEMS = ("ext4", "ext3", "xfs", "btrfs", "f2fs", "zfs", *FILE_SERVERS)
"""The file systems on which files of virtual machines are measured: on disks, and of file servers."""

_USUAL_SHIFT = 12
"""The power of two of a sector if a ZFS pool leaves it to its disks: today's have sectors of 4 KiB."""
_MOST_SHIFT = 16
"""The largest that ZFS has."""

IDENTITY = FILE_IDENTITY + read_script("harness.lab", "storage_identity.sh")

_INSPECT = UNSAFE + read_script("harness.lab", "inspect_storage.sh")
RESERVE_SHARE = 0.05
RESERVE_BYTES = 1 << 30
"""A storage of another owner must keep the larger of the two free. A full storage stops its owner's work."""
METADATA_SHARE = 0.80
"""How full the metadata of a thin pool may become. A pool without space for metadata stops all of its volumes."""
METADATA_BYTES_PER_CHUNK = 64
"""An upper bound of the metadata per written chunk of a thin pool. Source: kernel's admin-guide/device-mapper."""


def identity_script(place: Place) -> str:
    """The shell function `identity_of PLACE AT` for storages of this place."""
    return IDENTITY + storage_scripts(place)


@dataclass(frozen=True, slots=True)
class FoundStorage:
    """A storage in use, as its host shows it. Sizes in bytes.

    `identity` is what no other storage of the host has. `group` is the UUID of LVM's volume group. `filesystem` and
    `source` are those of a directory. `extent` is the unit of LVM's allocations, and `chunk` that of a thin pool.
    `parts` has the free bytes of each physical volume of a volume group. `copies` is the space that a file takes at
    most, as a multiple of its size: more than 1 if a write goes to a new place. `raidz` has parity, disks and bytes of
    a sector for each raidz of a ZFS pool. `facts` are others, for the results.
    `disks` are the kernel's names of the disks below it; None if they are those below its volumes.
    """

    place: Place
    at: str
    identity: str
    group: str = ""
    filesystem: str = ""
    source: str = ""
    extent: int = 1
    chunk: int = 0
    copies: int = 1
    parts: tuple[tuple[str, int], ...] = ()
    raidz: tuple[tuple[int, int, int], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    disks: tuple[str, ...] | None = None

    @property
    def kind(self) -> StorageKind:
        return storage_kinds()[self.place]

    @property
    def words(self) -> str:
        """For example `thin pool pve/data`."""
        return f"{self.kind.words} {self.at}"

    @property
    def layouts(self) -> tuple[str, ...]:
        """The kinds of layouts that its volumes have."""
        return self.kind.layouts


def look_at(runner: Runner, place: Place, at: str) -> FoundStorage:
    """The storage. Raises Unsupported if it is not there, or if its state is not fit for new volumes or is unknown."""
    kind = storage_kinds()[place]
    what = f"{runner.name}: {kind.words} {at}"
    done = runner.run(["sh", "-c", identity_script(place) + _INSPECT, "sh", place, at], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip()) or "no reason given"
        raise Unsupported(f"{what} cannot be used: {why}", hint=kind.hint)
    with reading(what):
        storage = _parse_storage(place, at, done.stdout)
    if not storage.identity:
        raise Unsupported(f"{what} cannot be used: the host does not report its identity", hint=kind.hint)
    if storage.place == "directory" and storage.filesystem not in FILESYSTEMS:
        raise Unsupported(
            f"{what} is on a file system of the type {storage.filesystem or '(unknown)'}",
            hint=f"name a directory on one of: {', '.join(FILESYSTEMS)}",
        )
    return storage


def _parse_storage(place: Place, at: str, printed: str) -> FoundStorage:
    lines = [line.partition("=")[::2] for line in printed.splitlines() if "=" in line]
    facts = dict(lines)
    parts = [value.partition(" ")[::2] for key, value in lines if key == "part"]
    further = tuple((key.removeprefix("fact "), value) for key, value in lines if key.startswith("fact "))
    return FoundStorage(
        place,
        at,
        facts["identity"].strip(),
        group=facts.get("group", ""),
        filesystem=facts.get("filesystem", ""),
        source=facts.get("source", ""),
        extent=int(facts.get("extent", 1)),
        chunk=int(facts.get("chunk", 0)),
        copies=int(facts.get("copies", 1)),
        parts=tuple((device, int(free)) for free, device in parts),
        raidz=tuple(_parse_raidz(value) for key, value in lines if key == "raidz"),
        facts=further,
        disks=tuple(facts["disks"].split()) if "disks" in facts else None,
    )


def _parse_raidz(text: str) -> tuple[int, int, int]:
    parity, disks, shift = map(int, text.split())
    if not 0 < parity < disks or shift > _MOST_SHIFT:
        raise ValueError(f"raidz with parity {parity} over {disks} disks, and sectors of 2^{shift} bytes")
    return parity, disks, 1 << (shift or _USUAL_SHIFT)


def reserve_bytes(total_bytes: int) -> int:
    """The bytes that must stay free on a storage of this size."""
    return max(int(total_bytes * RESERVE_SHARE), RESERVE_BYTES)


def shortage(available_bytes: int, total_bytes: int, needed_bytes: int) -> str | None:
    """Why `needed_bytes` more cannot be allocated, as text; None if the reserve stays free."""
    reserve = reserve_bytes(total_bytes)
    if available_bytes - needed_bytes >= reserve:
        return None
    return (
        f"the run needs {format_size(needed_bytes)}, {format_size(max(available_bytes, 0))} are free, and "
        f"{format_size(reserve)} of them must stay free for others"
    )


def metadata_shortage(used_share: float, total_bytes: int, chunks: int) -> str | None:
    """Why a thin pool cannot record `chunks` more, as text; None if its metadata stays below METADATA_SHARE.

    `total_bytes` is the size of its metadata, and `used_share` of it (0 to 1) is in use.
    """
    needed = chunks * METADATA_BYTES_PER_CHUNK
    if total_bytes > 0 and used_share + needed / total_bytes <= METADATA_SHARE:
        return None
    return (
        f"its metadata of {format_size(total_bytes)} is {used_share:.0%} full, the run needs {format_size(needed)} "
        f"more, and it must not become more than {METADATA_SHARE:.0%} full"
    )


_ALLOCATED = read_script("harness.lab", "read_allocated_bytes.sh")


@dataclass(frozen=True, slots=True)
class Promise:
    """`size_bytes` on the storage `name`, with its type and place as for `read_space`.

    `path` is the file or directory that takes the space. It is empty if nothing shows how much of it is taken.
    """

    name: str
    type: str
    at: str
    size_bytes: int
    path: str = ""

    @property
    def words(self) -> tuple[str, str, str]:
        return self.name, self.type, self.at


@contextmanager
def promising(promises: list[Promise], further: Sequence[Promise]) -> Iterator[None]:
    """`further` are among the promises of a run until the end of the block."""
    promises.extend(further)
    try:
        yield
    finally:
        for promise in further:
            promises.remove(promise)


def outstanding(runner: Runner, promises: Sequence[Promise]) -> list[Promise]:
    """What is still to be taken of the promises, without those that are taken completely. Raises HostError."""
    files = [promise for promise in promises if promise.path]
    if not files:
        return list(promises)
    printed = runner.run(["sh", "-c", _ALLOCATED, "sh", *(promise.path for promise in files)], deadline=60).stdout
    with reading(f"{runner.name}: what its file systems have allocated"):
        taken = {promise.path: int(line) for promise, line in zip(files, printed.split(), strict=True)}
    left = [replace(promise, size_bytes=promise.size_bytes - taken.get(promise.path, 0)) for promise in promises]
    return [promise for promise in left if promise.size_bytes > 0]


_LOOK = read_script("harness.lab", "read_storage_space.sh")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that a run will fill on a storage: `size_bytes` of itself, and `below_bytes` of what is below it.

    A file system may have allocated blocks that the thin pool below it has not. Without `below_bytes`, both are equal.
    """

    storage: str
    size_bytes: int
    below_bytes: int | None = None

    def bytes_of(self, place: StorageSpace) -> int:
        """The bytes that it takes of this place of its storage."""
        return self.below_bytes if place.is_below and self.below_bytes is not None else self.size_bytes


@dataclass(frozen=True, slots=True)
class StorageSpace:
    """The place from which volumes of a storage take space: a volume group, a pool or a file system. Sizes in bytes.

    `chunk_bytes` is 0 except for thin pools. `metadata_share` (0 to 1) is the used share of the pool's metadata.
    """

    storage: str
    name: str
    total_bytes: int
    available_bytes: int
    chunk_bytes: int = 0
    metadata_bytes: int = 0
    metadata_share: float = 0.0
    is_below: bool = False
    """Whether it is below the file system of the storage."""
    key: str = ""
    """What tells the place from others, because it may have several names; empty if the name does."""

    @property
    def identity(self) -> str:
        return self.key or self.name


def read_space(runner: Runner, words: Sequence[str]) -> list[StorageSpace]:
    """The places of storages, each given by three `words`: its name, its type, and where it is.

    The types are those of Proxmox VE: `lvm` (a volume group), `lvmthin` (VG/POOL), `zfspool` (a dataset), those of
    features, and any other for a directory; `file` is a path that need not exist yet. Raises HostError if one cannot be
    read, or is not understood.
    """
    done = runner.run(["sh", "-c", storage_scripts(*words[1::3]) + _LOOK, "sh", *words], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(done.stderr.split("\n")).strip("; ") or "no reason given"
        raise HostError(f"{runner.name}: the free space on its storages cannot be read: {why}")
    with reading(f"{runner.name}: the free space on its storages"):
        return list(_parse(done.stdout))


def shortages(places: Sequence[StorageSpace], wanted: Sequence[Allocation]) -> Iterator[str]:
    """The places where too little space would remain, as texts. Storages that share a place count together. Pure."""
    for identity in dict.fromkeys(place.identity for place in places):
        sharing = [place for place in places if place.identity == identity]
        of_storage = {place.storage: place for place in sharing}
        storages = list(of_storage)
        needed = sum(place.bytes_of(of_storage[place.storage]) for place in wanted if place.storage in of_storage)
        name = sharing[0].name
        kind = "" if all(storage.startswith("/") for storage in storages) else "storage "
        label = name if storages == [name] else f"{kind}{', '.join(storages)} ({name})"
        # Each dataset of a pool may have a quota: the smallest free space counts.
        available = min(place.available_bytes for place in sharing)
        first = sharing[0]
        if why := shortage(available, max(place.total_bytes for place in sharing), needed):
            yield f"{label}: {why}"
        if first.chunk_bytes:
            chunks = -(-needed // first.chunk_bytes)
            if why := metadata_shortage(first.metadata_share, first.metadata_bytes, chunks):
                yield f"{label}: {why}"


def _parse(printed: str) -> Iterator[StorageSpace]:
    """The places in the output of the script. Raises ValueError for other lines."""
    for line in printed.splitlines():
        storage, where, key, name, *facts = line.split("\t")
        below = where == "below"
        if len(facts) == 2:
            yield StorageSpace(storage, name, int(facts[0]), int(facts[1]), is_below=below, key=key)
            continue
        size, used, chunk, metadata, metadata_used = facts
        free = int(int(size) * (1 - finite(used) / 100))
        share = finite(metadata_used) / 100
        yield StorageSpace(storage, name, int(size), free, int(chunk), int(metadata), share, below, key)
