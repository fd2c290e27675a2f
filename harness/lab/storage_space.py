"""How much space storages in use have, and whether enough of it would stay free for others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.errors import HostError
from harness.lab.space import metadata_shortage, shortage
from harness.lab.transport.base import Runner
from harness.untrusted import finite, reading

# Arguments per storage: its name, its type, and its volume group, VG/POOL, dataset or path. Prints a line per place
# from which its volumes take space: the storage, the place, total and available bytes; for a thin pool also its chunk,
# the bytes of its metadata and the used share of them (percent). A directory on a thin volume also takes space of the
# pool.
_LOOK = r"""
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
ask() { command=$1; shift; "$command" --noheadings --nosuffix --units b --separator ' ' "$@"; }
put() { # storage, words separated by blanks
    storage=$1; shift
    printf '%s' "$storage"; printf '\t%s' "$@"; echo
}
thin_pool() { # storage, VG/POOL
    facts=$(ask lvs -o lv_size,data_percent,chunk_size,lv_metadata_size,metadata_percent "$2") || exit 1
    set -- "$1" "$2" $facts
    [ $# -eq 7 ] || { echo "LVM does not report how full the thin pool $2 is: $facts" >&2; exit 1; }
    put "$1" "thin pool $2" "$3" "$4" "$5" "$6" "$7"
}
while [ $# -gt 0 ]; do
    name=$1 type=$2 at=$3
    shift 3
    case $type in
    lvm)
        facts=$(ask vgs -o vg_size,vg_free "$at") || exit 1
        put "$name" "volume group $at" $facts;;
    lvmthin) thin_pool "$name" "$at";;
    zfspool)
        facts=$(zfs list -Hp -o used,available "$at") || exit 1
        set -- $facts "$@"
        put "$name" "ZFS pool ${at%%/*}" "$(($1 + $2))" "$2"
        shift 2;;
    *)
        facts=$(df --block-size=1 --output=size,avail,fstype,source "$at") || exit 1
        set -- $(printf '%s\n' "$facts" | tail -n 1) "$@"
        case $3 in
        zfs) put "$name" "ZFS pool ${4%%/*}" "$1" "$2";;
        *) put "$name" "file system $4" "$1" "$2";;
        esac
        source=$4
        shift 4
        case $source in /dev/*) pool=$(ask lvs -o vg_name,pool_lv "$source" 2>/dev/null) || pool=;; *) pool=;; esac
        case $pool in *[!\ ]\ [!\ ]*) thin_pool "$name" "$(echo $pool | tr ' ' /)";; esac;;
    esac
done
"""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that a run will fill on a storage."""

    storage: str
    size_bytes: int


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


def read_space(runner: Runner, words: Sequence[str]) -> list[StorageSpace]:
    """The places of storages, each given by three `words`: its name, its type, and where it is.

    The types are those of Proxmox VE: `lvm` (a volume group), `lvmthin` (VG/POOL), `zfspool` (a dataset), and any other
    for a directory. Raises HostError if one cannot be read, or is not understood.
    """
    done = runner.run(["sh", "-c", _LOOK, "sh", *words], deadline=60, check=False)
    if done.status != 0:
        why = "; ".join(done.stderr.split("\n")).strip("; ") or "no reason given"
        raise HostError(f"{runner.name}: the free space on its storages cannot be read: {why}")
    with reading(f"{runner.name}: the free space on its storages"):
        return list(_parsed(done.stdout))


def shortages(places: Sequence[StorageSpace], wanted: Sequence[Allocation]) -> Iterator[str]:
    """The places where too little space would remain, as texts. Storages that share a place count together. Pure."""
    for name in dict.fromkeys(each.name for each in places):
        sharing = [each for each in places if each.name == name]
        storages = list(dict.fromkeys(each.storage for each in sharing))
        needed = sum(each.size_bytes for each in wanted if each.storage in storages)
        label = name if storages == [name] else f"storage {', '.join(storages)} ({name})"
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
        storage, name, *facts = line.split("\t")
        if len(facts) == 2:
            yield StorageSpace(storage, name, int(facts[0]), int(facts[1]))
            continue
        size, used, chunk, metadata, metadata_used = facts
        free = int(int(size) * (1 - finite(used) / 100))
        yield StorageSpace(storage, name, int(size), free, int(chunk), int(metadata), finite(metadata_used) / 100)
