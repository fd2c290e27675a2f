"""A storage in use, on which volumes of a run are: the disks below it, and what was found about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness.layout.source import BlockSource

_COUNTED = ("dm-", "rbd")
"""Devices whose own counters show what reached the disks. ZFS serves reads of a zvol from its cache, so zd is none."""


class Reserve(Protocol):
    """Keeps the reserve of a storage in use free while a run fills its volumes there and measures them."""

    def require(self, size_bytes: int) -> None:
        """Raise SafetyError if `size_bytes` more would leave too little free now, or if the free space is unknown."""
        ...

    def require_for(self, path: str, size_bytes: int, part_bytes: int) -> None:
        """The same before `part_bytes` of the volume at `path` are written, which has `size_bytes`.

        What the volume has already been allocated is not needed again. Raises SafetyError, HostError.
        """
        ...


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """The storage in use that the layouts of a run are on.

    `disks` are the kernel's names of the disks below it, which others use, too. Empty if the host has none (NFS).
    """

    words: str
    """For example `thin pool pve/data`."""
    disks: tuple[str, ...]
    room: Reserve
    """Asked before each part of the volumes is filled, and before each group is measured."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the results say about it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """How the volume of a mode differs from what the mode requests, by the mode's name."""

    def counted(self, source: BlockSource) -> tuple[str, ...]:
        """The device of the volume, if its counters show which bytes reached the disks. Only this run uses it."""
        name = source.grant.name if source.grant is not None else ""
        return (name,) if name.startswith(_COUNTED) else ()

    def how_counted(self, source: BlockSource) -> str:
        """How the bytes of this volume are checked, in words."""
        if self.counted(source):
            return "counted on the volume itself"
        if self.disks:
            return f"counted on the disks below ({', '.join(self.disks)}), together with those of others"
        return "not counted on a disk, because the host has none below it: fio is only compared with QEMU"
