"""The protocols of guests, of the systems in them and of hypervisors, by which the rest of the harness uses them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from harness.errors import GuestError
from harness.events import Events
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import Host, ReachedHost
from harness.lab.inventory import AnyDisk
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.model.attach import Attachment
from harness.model.counters import Transferred
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.signals import Deadline, attempts

SERIAL_CHARACTERS = 20
"""The length of a serial number in virtio-blk and ATA."""


@dataclass(frozen=True, slots=True)
class GuestDisk:
    """A disk to attach. `name` (the mode's) becomes its serial, by which the guest finds the disk.

    A disk that is passed through to the guest (`device` lun, VFIO) has its own serial.
    """

    name: str
    source: BlockSource
    attach: Attachment
    shared: bool = False
    """Whether another guest has the same source at the same time."""

    @property
    def serial(self) -> str:
        if len(self.name) <= SERIAL_CHARACTERS:
            return self.name
        # Two long names with the same beginning must get different serials.
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:6]
        return f"{self.name[: SERIAL_CHARACTERS - 7]}-{digest}"


class Backup(Protocol):
    """Copies of one disk of a guest to a file on its host, which the hypervisor makes while the guest runs."""

    def begin(self) -> None:
        """Begin a copy. Raises HostError."""
        ...

    def copied(self) -> int | None:
        """The bytes that the running copy has copied so far; None if it has ended. Raises GuestError if it failed."""
        ...

    def cancel(self) -> None:
        """End the copy if one runs, and wait until it has ended. Raises HostError, GuestError."""
        ...


class Guest(Protocol):
    """A running guest. All disks are attached, except those that are passed through: see `holding`."""

    @property
    def runner(self) -> Runner: ...

    @property
    def windows(self) -> bool:
        """Whether it runs Windows."""
        ...

    @property
    def fio(self) -> str:
        """The program fio in a Linux: a path, or a name that the guest searches for."""
        ...

    @property
    def boot_seconds(self) -> float | None:
        """Seconds from the start to the first answer over SSH; None if it ran already."""
        ...

    @property
    def evidence(self) -> Mapping[str, str]:
        """The facts that the guest reports of its machine."""
        ...

    def device(self, disk: str) -> str:
        """The path in the guest of the disk `disk`, found by its serial."""
        ...

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        """The bytes that each of these disks of the guest has read and written so far, as the hypervisor counts them.

        The hypervisor is asked once. None for a disk that is passed through: its requests bypass the hypervisor.
        """
        ...

    @property
    def threads(self) -> VmThreads | None:
        """The threads of the guest's process on the host; None if they are unknown."""
        ...

    def effective(self, disk: str) -> Effective:
        """The effective configuration of disk and guest, read back from the hypervisor, the host and the guest."""
        ...

    def holding(self, disk: str) -> AbstractContextManager[None]:
        """The guest has the disk `disk` until the end of the block: use it in the guest only within the block.

        A disk that is passed through is plugged in for the block, and the host does not have it. Afterwards, also after
        a failure, the host has it again under its link. For every other disk this does nothing.
        """
        ...

    def backup(self, disk: str, target: str) -> Backup:
        """Copies of the disk `disk` to the file `target` of its host. None has begun. Raises Unsupported."""
        ...

    def post_mortem(self) -> str | None:
        """The state of a lost guest, as text for the end of a message; None if it still answers."""
        ...


class Remover(Protocol):
    """Removes from one host what killed runs created through its hypervisor. It needs neither an image nor a guest."""

    def remove(self, entry: Entry) -> Removal | None:
        """Remove what a killed run created through this hypervisor, if its identity still matches the creation log.

        None if the entry is of another kind. Raises HostError or GuestError if it cannot be removed.
        """
        ...


class Hypervisor(Remover, Protocol):
    """Makes guests on one host. It records everything in the run's creation log before it creates it."""

    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> AbstractContextManager[Guest]:
        """A guest with these disks, of this size, that answers over SSH. It is removed at the end.

        `variant` distinguishes it from the other guests of the run.

        Raises GuestError or HostError if it does not start or does not answer, Unsupported if a disk cannot be attached
        in this way.
        """
        ...

    @property
    def poll_seconds(self) -> float:
        """The time from one poll to the next in which its own services read the disks of its storages; 0 without."""
        ...

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host does not support `mode` on `disk`, with the remedy; None if it does. Changes nothing."""
        ...

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the system of the mode's guest lacks for measuring it, with the remedy; None if nothing.

        A system of the user's own is booted once in a run to find out, without disks under test. virt-overhead's own
        lacks nothing. Ask `unsupported_by_host` first. Raises GuestError, HostError or Unsupported if it does not
        start.
        """
        ...

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """The layouts of `modes` on `disks`, each `span` bytes or what fits. Everything is removed at the end.

        Nothing is written before the guard has issued its permission. Raises SafetyError, Unsupported or HostError.
        """
        ...


class Backend(Protocol):
    """What the harness needs of one kind of hypervisor. harness/guest/__init__.py chooses the backend."""

    def hypervisor(self, host: Host, events: Events) -> AbstractContextManager[Hypervisor]:
        """Makes guests on this host. Raises LabUnavailable, with the remedy, if the hypervisor is unreachable."""
        ...

    def remover(self, host: ReachedHost) -> AbstractContextManager[Remover]:
        """Removes the guests and volumes that killed runs left. Raises the same errors as `hypervisor`."""
        ...


APPEAR_SECONDS = 30.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A disk as the guest sees it. Sizes in bytes."""

    path: str
    effective: Effective


class System(Protocol):
    """The operating system in a guest. All of it is read over SSH. Each method raises HostError and GuestError."""

    @property
    def runner(self) -> Runner: ...

    @property
    def windows(self) -> bool: ...

    def disks(self) -> Mapping[str, BlockDevice]:
        """Its disks by serial number."""
        ...

    def paths(self) -> Mapping[str, str]:
        """The paths of its disks by serial number. Quicker than `disks`, because it is asked before each timetable."""
        ...

    def evidence(self) -> dict[str, str]:
        """The facts that it reports of its machine. `hypervisor` is from CPUID: `KVM`, or empty under emulation."""
        ...

    def look_inside(self) -> Inside:
        """What it has for measuring."""
        ...

    def notes(self, evidence: Mapping[str, str]) -> Iterable[str]:
        """What in its `evidence` makes figures differ from those of a quiet system of its kind, with the remedy."""
        ...

    def opened(self, serials: Mapping[str, bool], tell: Callable[[str], None]) -> AbstractContextManager[None]:
        """The disks with these serial numbers take I/O of fio until the end of the block; `True` for writes as well.

        `tell` gets what could not be set back at the end.
        """
        ...


class Inside(Protocol):
    """What the system in a VM has, before anything is plugged into it."""

    def unsupported_by_guest_os(self, vm: str, attach: Attachment) -> str | None:
        """What it lacks for measuring a disk that is attached in this way, with the remedy; else None."""
        ...


def block_devices(system: System, serials: Sequence[str], host: str) -> Mapping[str, BlockDevice]:
    """The guest's disks by serial. Raises GuestError if the guest does not have one of `serials`."""
    disks = system.disks()
    missing = [serial for serial in serials if serial not in disks]
    if missing:
        raise GuestError(
            f"guest on {host}: no disk with serial {', '.join(missing)}; it sees {', '.join(disks) or 'none'}",
            hint="the guest image lacks the driver of this bus, or the hypervisor did not attach the disk",
        )
    return disks


def wait_for_disk(system: System, serial: str, host: str) -> BlockDevice:
    """The disk with this serial. Waits for it, because its driver takes a moment after it was plugged in."""
    for attempt in attempts(Deadline.after(APPEAR_SECONDS), repeat(_POLL_SECONDS)):
        try:
            return block_devices(system, [serial], host)[serial]
        except GuestError:
            if attempt.is_last:
                raise
    raise AssertionError("unreachable: the attempts have no end")
