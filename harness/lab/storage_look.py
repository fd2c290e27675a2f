"""Looks at a storage in use on its host: what it is, by what it is recognised, and which layouts it can have."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import Unsupported
from harness.feature import storage_scripts
from harness.files import read_script
from harness.lab.inventory import StorageKind, storage_kinds
from harness.lab.pin import FILE_IDENTITY, UNSAFE
from harness.lab.transport.base import Runner
from harness.untrusted import reading

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

_LOOK = UNSAFE + read_script("harness.lab", "inspect_storage.sh")


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
    done = runner.run(["sh", "-c", identity_script(place) + _LOOK, "sh", place, at], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip()) or "no reason given"
        raise Unsupported(f"{what} cannot be used: {why}", hint=kind.hint)
    with reading(what):
        storage = _parse(place, at, done.stdout)
    if not storage.identity:
        raise Unsupported(f"{what} cannot be used: the host does not report its identity", hint=kind.hint)
    if storage.place == "directory" and storage.filesystem not in FILESYSTEMS:
        raise Unsupported(
            f"{what} is on a file system of the type {storage.filesystem or '(unknown)'}",
            hint=f"name a directory on one of: {', '.join(FILESYSTEMS)}",
        )
    return storage


def _parse(place: Place, at: str, printed: str) -> FoundStorage:
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
