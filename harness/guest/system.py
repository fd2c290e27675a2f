"""What measuring needs of the operating system in a guest. Linux is in guest_system.py, Windows in windows/."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from harness.errors import GuestError
from harness.lab.transport.base import Runner
from harness.model.attach import Attachment
from harness.model.effective import Effective
from harness.waiting import Deadline, attempts

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


def plugged_in(system: System, serial: str, host: str) -> BlockDevice:
    """The disk with this serial. Waits for it, because its driver takes a moment after it was plugged in."""
    for attempt in attempts(Deadline.after(APPEAR_SECONDS), repeat(_POLL_SECONDS)):
        try:
            return block_devices(system, [serial], host)[serial]
        except GuestError:
            if attempt.is_last:
                raise
    raise AssertionError("unreachable: the attempts have no end")
