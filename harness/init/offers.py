"""What a host has to measure: storages and free disks, and what is not offered with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.config.names import LONGEST_NAME
from harness.lab.inventory import STORAGE_KINDS, StorageKey
from harness.model.disk import DiskClass


@dataclass(frozen=True, slots=True)
class StorageOffer:
    """A storage in use on which a run can create volumes. `usable_bytes` of the free ones may be filled by a run."""

    name: str
    key: StorageKey
    at: str
    layouts: tuple[str, ...]
    free_bytes: int
    usable_bytes: int
    notes: tuple[str, ...] = ()
    for_vms: bool = True
    """Whether it is meant for virtual machines. Otherwise, only its owner knows whether a run may use it."""

    @property
    def words(self) -> str:
        """For example `thin pool pve/data`."""
        return f"{STORAGE_KINDS[self.key].words} {self.at}"


@dataclass(frozen=True, slots=True)
class DiskOffer:
    """A disk that nothing on its host uses. `device` is the kernel's path of it now."""

    name: str
    id: str
    serial: str
    device: str
    model: str | None = None
    size_bytes: int | None = None
    disk_class: DiskClass | None = None


@dataclass(frozen=True, slots=True)
class NotOffered:
    """A storage or a disk that is not offered: what it is, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Offers:
    """What a host has to measure. `notes` are for the reader of the lab file, one sentence each."""

    storages: tuple[StorageOffer, ...] = ()
    disks: tuple[DiskOffer, ...] = ()
    other_storages: tuple[NotOffered, ...] = ()
    other_disks: tuple[NotOffered, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ready(self) -> tuple[StorageOffer, ...]:
        """The storages that are measured without a change of the lab file."""
        return tuple(storage for storage in self.storages if storage.for_vms)

    @property
    def suggested(self) -> tuple[StorageOffer, ...]:
        """The other storages, which are comments in the lab file."""
        return tuple(storage for storage in self.storages if not storage.for_vms)


@dataclass(slots=True)
class Names:
    """Makes names for a lab file from the names that their owner uses. Each name is given once.

    `taken` are names that mean something else, as those of scenarios, which would measure the storage themselves.
    """

    taken: set[str] = field(default_factory=set)

    @classmethod
    def besides(cls, taken: Iterable[str]) -> Names:
        return cls({each.lower() for each in taken})

    def name(self, text: str, otherwise: str) -> str:
        """A valid name close to `text`, or to `otherwise` if `text` has no letter or digit."""
        plain = _plain(text) or otherwise
        found, number = plain, 1
        while found.lower() in self.taken:
            number += 1
            found = f"{plain[: LONGEST_NAME - 1 - len(str(number))]}-{number}"
        self.taken.add(found.lower())
        return found


def _plain(text: str) -> str:
    """The text with hyphens instead of other characters. Dots are replaced, too: TOML would split a key there.

    An underscore is replaced as well, because a scenario's name has it instead of a dot.
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:LONGEST_NAME].strip("-")


def shown(text: str, longest: int = 240) -> str:
    """Text of a host on one line of a comment or a terminal: without control characters, and not longer than this."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return line if len(line) <= longest else f"{line[: longest - 3]}..."
