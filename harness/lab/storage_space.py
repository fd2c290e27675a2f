"""How much space storages in use have, and whether enough of it would stay free for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.space import metadata_shortage, shortage
from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import finite, reading

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

    The types are those of Proxmox VE: `lvm` (a volume group), `lvmthin` (VG/POOL), `zfspool` (a dataset), and any other
    for a directory; `file` is a path that need not exist yet. Raises HostError if one cannot be read, or is not
    understood.
    """
    done = runner.run(["sh", "-c", _LOOK, "sh", *words], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(done.stderr.split("\n")).strip("; ") or "no reason given"
        raise HostError(f"{runner.name}: the free space on its storages cannot be read: {why}")
    with reading(f"{runner.name}: the free space on its storages"):
        return list(_parsed(done.stdout))


def shortages(places: Sequence[StorageSpace], wanted: Sequence[Allocation]) -> Iterator[str]:
    """The places where too little space would remain, as texts. Storages that share a place count together. Pure."""
    for identity in dict.fromkeys(place.identity for place in places):
        sharing = [place for place in places if place.identity == identity]
        of_storage = {place.storage: place for place in sharing}
        storages = list(of_storage)
        needed = sum(each.bytes_of(of_storage[each.storage]) for each in wanted if each.storage in of_storage)
        name = sharing[0].name
        kind = "" if all(storage.startswith("/") for storage in storages) else "storage "
        label = name if storages == [name] else f"{kind}{', '.join(storages)} ({name})"
        # Each dataset of a pool may have a quota: the smallest free space counts.
        available = min(each.available_bytes for each in sharing)
        first = sharing[0]
        if why := shortage(available, max(each.total_bytes for each in sharing), needed):
            yield f"{label}: {why}"
        if first.chunk_bytes:
            chunks = -(-needed // first.chunk_bytes)
            if why := metadata_shortage(first.metadata_share, first.metadata_bytes, chunks):
                yield f"{label}: {why}"


def _parsed(printed: str) -> Iterator[StorageSpace]:
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
