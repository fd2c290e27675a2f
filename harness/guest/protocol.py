"""What the rest of the harness knows of guests, whoever makes them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from harness.doctor.findings import Finding
from harness.events import Events
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import Host, ReachedHost
from harness.lab.inventory import AnyDisk, HostSpec
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.layout.build import Layouts
from harness.layout.source import BlockSource
from harness.model.attach import Attachment
from harness.model.counters import KvmCounts, Transferred
from harness.model.effective import Effective
from harness.model.mode import Mode

SERIAL_CHARACTERS = 20
"""What virtio-blk and ATA have room for."""


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """A disk to attach: `name` (the mode's) becomes its serial, by which the guest finds it again.

    A disk that is handed through to the guest (`device` lun, VFIO) keeps the serial that it has.
    """

    name: str
    source: BlockSource
    attach: Attachment

    @property
    def serial(self) -> str:
        if len(self.name) <= SERIAL_CHARACTERS:
            return self.name
        # Two long names that begin alike must not become one disk.
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:6]
        return f"{self.name[: SERIAL_CHARACTERS - 7]}-{digest}"


class Guest(Protocol):
    """A running guest with all disks attached, but for those that are passed through: see `holding`."""

    @property
    def runner(self) -> Runner: ...

    @property
    def boot_seconds(self) -> float:
        """Seconds from the order to start it to an answer over SSH."""
        ...

    @property
    def evidence(self) -> Mapping[str, str]:
        """What the guest itself says of the machine under it."""
        ...

    def device(self, disk: str) -> str:
        """Path in the guest of the disk called `disk`, found by its serial."""
        ...

    def transferred(self, disk: str) -> Transferred | None:
        """What the guest's disk called `disk` has read and written so far, as the hypervisor counts it.

        None for a disk that is passed through: its requests never come to the hypervisor.
        """
        ...

    @property
    def threads(self) -> VmThreads | None:
        """The guest's process on the host; None where the hypervisor does not tell."""
        ...

    def exits(self) -> KvmCounts | None:
        """What KVM counted of all vCPUs so far. None where the hypervisor does not report it."""
        ...

    def effective(self, disk: str) -> Effective:
        """How the disk is really attached, as read back from the hypervisor and from the guest."""
        ...

    def holding(self, disk: str) -> AbstractContextManager[None]:
        """The guest has the disk called `disk` for as long as this lasts: work on it in the guest in between only.

        A disk that is passed through is plugged in for that long, and is gone from the host; after that the host has
        it back under its link, also when what was done in between fails. For every other disk it does nothing.
        """
        ...

    def post_mortem(self) -> str | None:
        """What became of the guest, in words for the end of a message; None where it still answers."""
        ...


class Remover(Protocol):
    """Removes from one host what killed runs created through its hypervisor. It needs no image and no guest."""

    def remove(self, entry: Entry) -> Removal | None:
        """Remove what a killed run created through this hypervisor, if it still is what the creation log says.

        None where the entry is of another kind. Raises HostError or GuestError where it cannot be removed.
        """
        ...


class Hypervisor(Remover, Protocol):
    """Makes guests on one host. Everything it makes is in the run's creation log before it exists."""

    def guest(self, log: CreationLog, disks: Sequence[GuestDisk]) -> AbstractContextManager[Guest]:
        """A guest with these disks, booted to SSH; gone at the end.

        Raises GuestError or HostError where it does not start or does not answer, Unsupported where a disk cannot be
        attached so.
        """
        ...

    def missing(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host cannot have `mode` on `disk`, with the remedy; None where it can. Nothing is changed for it."""
        ...

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """The layouts of `modes` on `disks`, each `span` bytes or what fits; everything is removed at the end.

        Nothing is written before the guard has issued its permission. Raises SafetyError, Unsupported or HostError.
        """
        ...


class Backend(Protocol):
    """What a kind of hypervisor offers on a host. harness/guest/hypervisors.py chooses it."""

    def hypervisor(self, host: Host, events: Events) -> AbstractContextManager[Hypervisor]:
        """What makes guests on this host. Raises LabUnavailable with the remedy where it cannot be reached."""
        ...

    def remover(self, host: ReachedHost) -> AbstractContextManager[Remover]:
        """What removes the guests and volumes that killed runs have left. Raises as `hypervisor`."""
        ...

    def findings(self, host: HostSpec, runner: Runner) -> Sequence[Finding]:
        """What the doctor says of the hypervisor itself; an unreachable one is a finding, and no error."""
        ...
