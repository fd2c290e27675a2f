"""How much space storages in use have, and whether enough of it would stay free for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.space import metadata_shortage, shortage
from harness.lab.transport.base import Runner
from harness.untrusted import finite, reading

# Arguments per storage: its name, its type, and its volume group, VG/POOL, dataset or path. Prints a line per place
# from which its volumes take space: the storage; `own`, or `below` if the place is below a file system; what tells the
# place from others; its name; total and available bytes; for a thin pool also its chunk, the bytes of its metadata and
# the used share of them (percent). A file system on a thin volume, a zvol or a sparse file takes space there as well,
# whenever a block of it is written for the first time. The path of the type `file` need not exist yet.
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
ask() { command=$1; shift; "$command" --noheadings --nosuffix --units b --separator ' ' "$@"; }
put() { # STORAGE WORDS...
    printf '%s' "$1"; shift
    printf '\t%s' "$@"; echo
}
thin_pool() ( # STORAGE WHERE VG/POOL
    facts=$(ask lvs -o lv_size,data_percent,chunk_size,lv_metadata_size,metadata_percent "$3") || exit 1
    set -- "$@" $facts
    [ $# -eq 8 ] || { echo "LVM does not report how full the thin pool $3 is: $facts" >&2; exit 1; }
    put "$1" "$2" "thin pool $3" "thin pool $3" "$4" "$5" "$6" "$7" "$8"
)
dataset() ( # STORAGE WHERE DATASET
    facts=$(zfs list -Hp -o used,available "$3") || exit 1
    set -- "$1" "$2" "ZFS pool ${3%%/*}" $facts
    put "$1" "$2" "$3" "$3" "$(($4 + $5))" "$5"
)
directory() ( # STORAGE WHERE PATH
    facts=$(df --block-size=1 --output=size,avail,fstype,source "$3") || exit 1
    storage=$1 where=$2 path=$3
    set -- $(printf '%s\n' "$facts" | tail -n 1)
    total=$1 available=$2 kind=$3
    shift 3
    source=$*
    if [ "$kind" = zfs ]; then
        put "$storage" "$where" "ZFS pool ${source%%/*}" "ZFS pool ${source%%/*}" "$total" "$available"
        exit
    fi
    # A device may have several names. Other sources, such as `tmpfs`, are not the names of devices.
    if [ -b "$source" ]; then key=$(stat -L -c %t:%T "$source"); else key=$(stat -c %d "$path" 2>/dev/null); fi
    put "$storage" "$where" "file system ${key:-$source}" "file system $source" "$total" "$available"
    case $source in /dev/*) below "$storage" "$source";; esac
)
below() ( # STORAGE DEVICE
    pool=$(ask lvs -o vg_name,pool_lv "$2" 2>/dev/null) || pool=
    case $pool in *[!\ ]\ [!\ ]*) thin_pool "$1" below "$(echo $pool | tr ' ' /)"; exit;; esac
    name=$(readlink -f "$2") || exit 0
    name=${name##*/}
    at=/sys/class/block/$name
    [ -e "$at" ] || exit 0
    if [ -e "$at/partition" ]; then
        disk=$(readlink -f "$at/..") || exit 1
        below "$1" "/dev/${disk##*/}"
        exit
    fi
    if [ -e "$at/loop/backing_file" ]; then
        file=$(cat "$at/loop/backing_file") && facts=$(stat -c '%b %B %s' "$file") || exit 1
        set -- "$1" $facts
        [ "$(($2 * $3))" -ge "$4" ] || directory "$1" below "$file"
        exit
    fi
    case $name in zd*)
        for link in $(find /dev/zvol -type l); do
            [ "$(readlink -f "$link")" != "/dev/$name" ] || { dataset "$1" below "${link#/dev/zvol/}"; exit; }
        done
        echo "/dev/zvol has no link to $name" >&2
        exit 1;;
    esac
    for slave in "$at"/slaves/*; do
        [ -e "$slave" ] || continue
        device=/dev/${slave##*/}
        [ ! -r "$slave/dm/name" ] || device=/dev/mapper/$(cat "$slave/dm/name")
        below "$1" "$device" || exit
    done
)
while [ $# -gt 0 ]; do
    name=$1 type=$2 at=$3
    shift 3
    case $type in
    lvm)
        facts=$(ask vgs -o vg_size,vg_free "$at") || exit 1
        put "$name" own "volume group $at" "volume group $at" $facts;;
    lvmthin) thin_pool "$name" own "$at" || exit 1;;
    zfspool) dataset "$name" own "$at" || exit 1;;
    *)
        if [ "$type" = file ]; then while [ ! -d "$at" ]; do at=$(dirname "$at"); done; fi
        directory "$name" own "$at" || exit 1;;
    esac
done
"""


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
