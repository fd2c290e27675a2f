"""Looks at a storage in use on its host: what it is, by what it is recognised, and which layouts it can have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import Unsupported
from harness.lab.file_identity import FILE_IDENTITY
from harness.lab.safe_path import UNSAFE
from harness.lab.storage import LAYOUTS, WORDS
from harness.lab.transport.base import Runner
from harness.untrusted import reading

Place = Literal["volume_group", "thin_pool", "directory", "dataset"]
"""Where volumes are created. A pool of libvirt is one of these as well."""

FILESYSTEMS = ("ext4", "ext3", "xfs", "btrfs", "f2fs", "zfs", "nfs", "nfs4", "cifs", "smb3")
"""The file systems on which files of virtual machines are measured: on disks, and of file servers."""

# Shell function `identity_of PLACE AT`: prints what no other storage of this host has. The number of a directory's
# device is not part of it, because it changes when the disk is attached or mounted again.
IDENTITY = (
    FILE_IDENTITY
    + r"""
lvm_fact() { # COMMAND FIELD NAME
    "$1" --noheadings -o "$2" "$3" | tr -d ' '
}
identity_of() {
    case $1 in
    volume_group) lvm_fact vgs vg_uuid "$2";;
    thin_pool) lvm_fact lvs lv_uuid "$2";;
    directory) file_of "$2/." | tr '\n' ' ' && filesystem_of "$2/.";;
    dataset) zfs get -Hp -o value guid "$2";;
    esac
}
"""
)

# $1: the place, $2: where it is. Prints lines KEY=VALUE.
_LOOK = (
    IDENTITY
    + UNSAFE
    + r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
refuse() { echo "$1" >&2; exit 1; }
case $1 in
volume_group)
    [ "$(lvm_fact vgs vg_missing_pv_count "$2")" = 0 ] || refuse "LVM does not report that all its disks are there"
    [ "$(lvm_fact vgs vg_permissions "$2")" = writeable ] || refuse "it is read-only"
    echo "extent=$(vgs --noheadings --nosuffix --units b -o vg_extent_size "$2" | tr -d ' ')"
    pvs --noheadings --nosuffix --units b --separator ' ' -o pv_name,pv_free --select "vg_name=$2" |
        while read -r device free; do echo "part=$free $device"; done;;
thin_pool)
    [ "$(lvm_fact lvs segtype "$2")" = thin-pool ] || refuse "it is not a thin pool"
    health=$(lvm_fact lvs lv_health_status "$2")
    [ -z "$health" ] || refuse "LVM reports $health"
    [ "$(lvm_fact lvs lv_active "$2")" = active ] || refuse "it is not active"
    echo "extent=$(vgs --noheadings --nosuffix --units b -o vg_extent_size "${2%%/*}" | tr -d ' ')"
    echo "chunk=$(lvs --noheadings --nosuffix --units b -o chunk_size "$2" | tr -d ' ')";;
directory)
    [ -d "$2" ] || refuse "there is no such directory"
    why=$(unsafe "$2") || refuse "its owners cannot be found out"
    [ -z "$why" ] || refuse "another user could exchange the files of a run there: $why"
    set -- "$1" "$2" $(findmnt --noheadings --output FSTYPE,OPTIONS,SOURCE --target "$2" | tail -n 1)
    case ,$4, in *,ro,*) refuse "it is mounted read-only";; esac
    echo "filesystem=$3"
    echo "source=$5"
    case $3 in btrfs)
        # Only with this attribute does a write stay in the blocks that the file has.
        case $(lsattr -d "$2" 2>/dev/null) in *C*\ *) ;; *) echo copies=2;; esac;;
    zfs) echo copies=2;;
    esac;;
dataset)
    [ "$(zfs get -Hp -o value type "$2")" = filesystem ] || refuse "it is not a dataset"
    [ "$(zfs get -Hp -o value readonly "$2")" = off ] || refuse "it is read-only";;
esac
case $1 in volume_group|thin_pool) echo "group=$(lvm_fact vgs vg_uuid "${2%%/*}")";; esac
echo "identity=$(identity_of "$1" "$2")"
"""
)


@dataclass(frozen=True, slots=True)
class FoundStorage:
    """A storage in use, as its host shows it. Sizes in bytes.

    `identity` is what no other storage of the host has. `group` is the UUID of LVM's volume group. `filesystem` and
    `source` are those of a directory. `extent` is the unit of LVM's allocations, and `chunk` that of a thin pool.
    `parts` has the free bytes of each physical volume of a volume group. `copies` is the space that a file takes at
    most, as a multiple of its size: more than 1 if a write goes to a new place.
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

    @property
    def words(self) -> str:
        """For example `thin pool pve/data`."""
        return f"{WORDS[self.place]} {self.at}"

    @property
    def layouts(self) -> tuple[str, ...]:
        """The kinds of layouts that its volumes have."""
        return LAYOUTS[self.place]


def look_at(runner: Runner, place: Place, at: str) -> FoundStorage:
    """The storage. Raises Unsupported if it is not there, or if its state is not fit for new volumes or is unknown."""
    what = f"{runner.name}: {WORDS[place]} {at}"
    done = runner.run(["sh", "-c", _LOOK, "sh", place, at], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip()) or "no reason given"
        raise Unsupported(f"{what} cannot be used: {why}", hint=_HINTS[place])
    with reading(what):
        found = _parsed(place, at, done.stdout)
    if not found.identity:
        raise Unsupported(f"{what} cannot be used: the host does not report its identity", hint=_HINTS[place])
    if found.place == "directory" and found.filesystem not in FILESYSTEMS:
        raise Unsupported(
            f"{what} is on a file system of the type {found.filesystem or '(unknown)'}",
            hint=f"name a directory on one of: {', '.join(FILESYSTEMS)}",
        )
    return found


_HINTS: dict[Place, str] = {
    "volume_group": "see vgs and pvs on the host, and correct the name in the lab file",
    "thin_pool": "see lvs -a on the host, and correct the name in the lab file",
    "directory": "see findmnt and ls -ld on the host, and name a directory that only root can change, with everything "
    "above it",
    "dataset": "see zfs list on the host, and correct the name in the lab file",
}


def _parsed(place: Place, at: str, printed: str) -> FoundStorage:
    lines = [line.partition("=")[::2] for line in printed.splitlines() if "=" in line]
    facts = dict(lines)
    parts = [value.partition(" ")[::2] for key, value in lines if key == "part"]
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
    )
