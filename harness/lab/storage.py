"""Storages in use as a lab file names them, and arrays that are there already, as their owner describes them.

A run creates only its own volumes on a storage.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.config.names import choices
from harness.config.values import absolute_path, one_line
from harness.lab.fields import Endurance, Name, Word, fio_path
from harness.lab.proxmox import StoredLayout
from harness.model.base import Chunk, RaidLevel, Shape
from harness.model.disk import ArrayFacts
from harness.model.values import Table, whole_number

SOURCE = "the lab file"
_Text = Annotated[str, AfterValidator(one_line), Field(max_length=100)]


@dataclass(frozen=True, slots=True)
class StatedArray:
    """What the lab file says about an array. What the host reports itself wins over it."""

    facts: ArrayFacts
    reference: str = ""
    """The disk or storage of the same host with a single disk of the same model; empty without one."""


class ArrayTable(Table):
    """`[host.NAME.disk.X.array]` and `[host.NAME.storage.X.array]`: what the host may not report about an array."""

    level: Annotated[RaidLevel, BeforeValidator(whole_number)] | None = None
    disks: Annotated[int, Field(ge=2, le=1024)] | None = None
    legs: Annotated[int, Field(ge=1, le=64)] = 1
    chunk: Chunk | None = None
    controller: _Text | None = None
    cache: _Text | None = None
    reference: Name | None = None


def make_stated_array(where: str, table: ArrayTable | None, problems: list[str]) -> StatedArray | None:
    """What the table says. If it contradicts itself, `problems` gets a message below `where`."""
    if table is None:
        return None
    missing = [key for key in ("level", "disks") if getattr(table, key) is None]
    if len(missing) == 1:
        problems.append(f"{where}.{missing[0]}: missing; level and disks together say what the array can deliver")
    elif missing and table.legs > 1:
        problems.append(f"{where}.legs = {table.legs}: cannot be used without level and disks")
    elif table.level is not None and table.disks is not None:
        try:
            Shape(table.level, table.disks, table.legs)
        except ValueError as error:
            problems.append(f"{where}: {error}")
    facts = ArrayFacts(
        level=f"raid{table.level}" if table.level is not None else None,
        chunk_bytes=table.chunk,
        disks=table.disks,
        cache_policy=table.cache,
        source=SOURCE,
        legs=table.legs if table.level is not None else None,
        controller=table.controller,
    )
    return StatedArray(facts, table.reference or "")


def check_references(
    arrays: Mapping[str, StatedArray], singles: Mapping[str, bool], name_of: Mapping[str, str]
) -> Iterator[str]:
    """One line for each array whose reference cannot be measured.

    `arrays` are those of a host by name. `singles` has its other disks and storages, and whether a run may write to
    them. `name_of` is where each of them is in the lab file.
    """
    for name, array in arrays.items():
        key = f'{name_of[name]}.array.reference = "{array.reference}"'
        if not array.reference:
            continue
        if array.reference == name or array.reference in arrays:
            yield f"{key}: is an array itself; allowed: a single disk of the same model, or a storage on one"
        elif array.reference not in singles:
            yield f"{key}: not on this host; {choices(array.reference, list(singles) or ['(none)'])}"
        elif not singles[array.reference]:
            yield f"{key}: a run overwrites it, but it does not have `destroy = true`; allowed: with it, or a storage"


StorageKey = Literal["volume_group", "thin_pool", "directory", "pool", "dataset", "storage"]
"""The keys of a table, exactly one of which says where the volumes are created."""

Allocates = Literal["at once", "as a file", "when written"]
"""When a volume takes its space: when it is created, as its file is filled, or at each write to a new place."""


@dataclass(frozen=True, slots=True)
class StorageKind:
    """What a key of a table names: in words, and what is the same for all such storages."""

    words: str
    layouts: tuple[str, ...] = ()
    """The kinds of layouts of its volumes. Empty for a pool or a storage of Proxmox VE: only the host knows them."""
    space: str = ""
    """Its type for `harness.lab.space`."""
    allocates: Allocates = "at once"
    hint: str = ""
    """What to do if it cannot be used."""
    of_hypervisor: bool = False
    """Whether it is for hosts whose hypervisor has storages of its own. The others are for hosts with libvirt."""


STORAGE_KINDS: Mapping[StorageKey, StorageKind] = {
    "volume_group": StorageKind(
        "volume group",
        ("lvm",),
        space="lvm",
        hint="see vgs and pvs on the host, and correct the name in the lab file",
    ),
    "thin_pool": StorageKind(
        "thin pool",
        ("lvm-thin",),
        space="lvmthin",
        allocates="when written",
        hint="see lvs -a on the host, and correct the name in the lab file",
    ),
    "directory": StorageKind(
        "directory",
        ("raw", "qcow2"),
        space="dir",
        allocates="as a file",
        hint="see findmnt and ls -ld on the host, and name a directory that only root can change, with everything "
        "above it",
    ),
    "pool": StorageKind("libvirt pool"),
    "dataset": StorageKind(
        "ZFS dataset",
        ("zvol", "zfs"),
        space="zfspool",
        allocates="when written",
        hint="see zfs list on the host, and correct the name in the lab file",
    ),
    "storage": StorageKind("storage", of_hypervisor=True),
}

_NOT_STORAGE = ("/dev", "/proc", "/sys", "/run")
# lvm(8): the names of volume groups and volumes; a hyphen cannot be first.
_LVM = r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*"
_DATASET = re.compile(r"[A-Za-z][\w.:-]*(/[\w.:-]+)*")


@dataclass(frozen=True, slots=True)
class DiskByStorage:
    """Storage in use. A run writes only to volumes that it creates there.

    `key` is the key of the lab file, and `at` its value. `storages` has the storage of Proxmox VE for each kind of
    layout (`raw`, `lvm`). It is empty if the storage itself shows which layouts it can have.
    """

    name: str
    storages: Mapping[StoredLayout, str] = field(default_factory=dict)
    key: StorageKey = "storage"
    at: str = ""
    endurance: int | None = None
    """The rated endurance in bytes of the disk below the storage."""
    array: StatedArray | None = None
    """What the lab file says about the array that the storage is on; None if it says nothing of one."""

    @property
    def layouts(self) -> tuple[str, ...] | None:
        """The kinds of layouts that its volumes have; None if that is not known without asking the host."""
        return STORAGE_KINDS[self.key].layouts or tuple(self.storages) or None

    @property
    def identity(self) -> str:
        """Its description, which is also its name in the creation log."""
        return f"{STORAGE_KINDS[self.key].words} {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """The value of `at`, or the names of the storages of Proxmox VE, each once."""
        return (self.at,) if self.at else tuple(dict.fromkeys(self.storages.values()))


def _check_group(text: str) -> str:
    if not re.fullmatch(_LVM, text):
        raise ValueError('allowed: the name of a volume group, for example "pve" (vgs lists them)')
    return text


def _check_thin_pool(text: str) -> str:
    if not re.fullmatch(f"{_LVM}/{_LVM}", text):
        raise ValueError('allowed: volume group and thin pool, for example "pve/data" (lvs lists them)')
    return text


def _check_directory(value: object) -> str:
    path = str(absolute_path(value))
    if os.path.normpath(path) != path or path == "/" or path.startswith("//"):
        raise ValueError("allowed: an absolute path without `..`, and not the root directory")
    if any(path == each or path.startswith(f"{each}/") for each in _NOT_STORAGE):
        raise ValueError("is not on a disk; allowed: a directory for files of virtual machines")
    fio_path(path)
    return path


def _check_dataset(text: str) -> str:
    if not _DATASET.fullmatch(text):
        raise ValueError('allowed: a ZFS pool or dataset, for example "tank/vms" (zfs list shows them)')
    return text


class StorageTable(Table):
    """`[host.NAME.storage.X]`: exactly one of the keys in STORAGE_KINDS, the endurance of its disk, and its array."""

    volume_group: Annotated[str, AfterValidator(_check_group)] | None = None
    thin_pool: Annotated[str, AfterValidator(_check_thin_pool)] | None = None
    directory: Annotated[str, BeforeValidator(_check_directory)] | None = None
    pool: Annotated[str, AfterValidator(one_line)] | None = None
    dataset: Annotated[str, AfterValidator(_check_dataset)] | None = None
    storage: Word | None = None
    endurance: Endurance | None = None
    array: ArrayTable | None = None


def make_storage(
    where: str, name: str, table: StorageTable, *, of_hypervisor: bool, problems: list[str]
) -> DiskByStorage | None:
    """The storage. If it is not valid, `problems` gets a message below `where`, and the result is None.

    `of_hypervisor` says whether the hypervisor of the host has storages of its own.
    """
    allowed = [key for key, kind in STORAGE_KINDS.items() if kind.of_hypervisor is of_hypervisor]
    named = [(key, value) for key in STORAGE_KINDS if (value := getattr(table, key)) is not None]
    if len(named) != 1:
        problems.append(f"{where}: allowed: exactly one of {', '.join(allowed)}")
        return None
    ((key, at),) = named
    if key not in allowed:
        problems.append(f"{where}.{key}: cannot be used on this kind of host; allowed: {', '.join(allowed)}")
        return None
    array = make_stated_array(f"{where}.array", table.array, problems)
    return DiskByStorage(name, key=key, at=at, endurance=table.endurance, array=array)
