"""A prepared disk: its layouts, its guests, and the machine and the target of each arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from harness.errors import GuestError
from harness.guest.protocol import Backup, Guest
from harness.lab.disk_health import HealthFound
from harness.lab.hosts import Host
from harness.lab.md_devices import MdDevice
from harness.layout.build import Layouts
from harness.measure.clock import Clocks
from harness.measure.fio import Target
from harness.measure.guests import Guests
from harness.measure.idle import Idle
from harness.measure.platform import Platform, platform_of
from harness.model.cell import Arm, Place
from harness.model.counters import Transferred
from harness.model.disk import DiskFacts
from harness.model.effective import Effective
from harness.model.mode import Mode
from harness.results import ConditioningRecord
from harness.scenario.setups import by_guest
from harness.scenario.timetable import backed_up

SETTLE_SECONDS = 600.0
"""The longest time to write a page cache with many small writes back to a slow disk."""


@dataclass(frozen=True, slots=True)
class Session:
    """A prepared disk: the machine and the target of each arm.

    `skipped` has the reason for each mode that is skipped. `effective` has the effective attachment of each mode.
    `conditioning` records how all regions were prepared.
    """

    host: Host
    layouts: Layouts
    guests: Guests | None
    skipped: Mapping[str, str]
    effective: Mapping[str, Effective]
    conditioning: ConditioningRecord
    clocks: Clocks = field(default_factory=Clocks)
    names: Mapping[str, str] = field(default_factory=dict)
    """The name in the lab of each disk under test, by its kernel name."""
    disks: Mapping[str, DiskFacts] = field(default_factory=dict)
    """What the host reports of each disk, and of the disks below it, by kernel names."""
    health: Mapping[str, HealthFound] = field(default_factory=dict)
    """The health of each disk under test before it was conditioned, by its kernel name."""
    block: int = 512
    """The smallest I/O in bytes that every arm can do: the largest logical block size."""
    idle: Idle = field(default_factory=Idle)
    """What other programs read from the disks before anything was measured, when the guest was up."""
    md: Mapping[str, tuple[MdDevice, ...]] = field(default_factory=dict)
    """The md devices of each array by its kernel name: those that the run built, and the disk if it is one."""
    backup_files: Mapping[str, str] = field(default_factory=dict)
    """The file on the host for the backup of each disk that is backed up, by the disk's name."""
    reference: Session | None = None
    """The single disk that the array is compared with; None without one. It has no guest and no modes."""

    def compared_with(self, reference: Session) -> Session:
        """The session with this reference. Both use spans of the same size, and I/Os that both can do."""
        block = max(self.block, reference.block)
        narrow = replace(reference, layouts=reference.layouts.narrowed(self.layouts.span), block=block)
        return replace(self, reference=narrow, block=block)

    def of(self, arm: Arm) -> Session:
        """The session with the disk of this arm: that of the reference, or this one."""
        return self.reference if arm.place is Place.REFERENCE and self.reference is not None else self

    @property
    def rotates(self) -> bool:
        """Whether one of its disks is a hard disk, which needs longer pauses between slices."""
        own = self.disks.get(self.layouts.disk)
        others = self.reference is not None and self.reference.rotates
        return others or (own is not None and own.rotational is True)

    @property
    def paths(self) -> dict[str, str]:
        """The PCI address of the controller of each disk by its kernel name, if the kernel shows one."""
        return {name: disk.path for name, disk in self.disks.items() if disk.path}

    def guest(self, arm: Arm) -> Guest | None:
        """The guest in which the arm runs; None if it runs on the host."""
        return self._guests.of(arm.mode.guest_name) if arm.in_guest and arm.mode is not None else None

    def platform(self, arm: Arm) -> Platform:
        """That of the machine on which the arm runs: Linux, if its guest could not start. Boots nothing."""
        if not arm.in_guest or arm.mode is None or self.guests is None:
            return platform_of(windows=False)
        return platform_of(windows=self.guests.windows.get(arm.mode.guest_name, False))

    def guest_evidence(self, arm: Arm) -> Mapping[str, str]:
        """What the guest of the arm reported of its machine; empty if it runs on the host, or could not start."""
        if not arm.in_guest or arm.mode is None or self.guests is None:
            return {}
        return self.guests.evidence.get(arm.mode.guest_name, {})

    def backup(self, arm: Arm) -> Backup | None:
        """The backup of the arm's disk that runs during its slices, not yet begun; None for all other arms."""
        guest = self.guest(arm) if backed_up(arm) else None
        if guest is None or arm.mode is None:
            return None
        disk = arm.mode.attached.name
        return guest.backup(disk, self.backup_files[disk])

    def boot_again(self) -> None:
        """Boot the guests anew, if there are any and something was measured since their boot.

        Raises GuestError if their disks are attached in another way than before.
        """
        if self.guests is not None:
            self.guests.boot_again()

    def target(self, arm: Arm) -> Target:
        """The target of fio on this arm. All arms have the same span."""
        if (guest := self.guest(arm)) is not None and arm.mode is not None:
            source = self.layouts.guest(arm.mode)
            return Target(
                guest.device(arm.mode.attached.name), source.offset, source.size, direct=True, block=self.block
            )
        source = self.layouts.twin(arm.mode)
        attach = arm.mode.attach if arm.mode else None
        direct = attach.direct if attach else True
        return Target(source.writable.path, source.offset, source.size, direct=direct, block=self.block)

    def counted_disks(self, arm: Arm) -> tuple[str, ...]:
        """The kernel names of the bare disks whose counters show the arm's I/O. Empty if the guest has the disk."""
        attach = arm.mode.attach if arm.place is Place.GUEST and arm.mode else None
        if attach is not None and not attach.host_counts:
            return ()
        volumes = arm.mode.volumes if arm.mode else (None,)
        return tuple(dict.fromkeys(disk for volume in volumes for disk in self.layouts.disks(volume)))

    @property
    def shared_disks(self) -> tuple[str, ...]:
        """The kernel names of the disks that this run shares with others. Empty on disks that only this run uses."""
        return self.layouts.shared.disks if self.layouts.shared else ()

    def transferred(self, arms: Sequence[Arm]) -> dict[Arm, Transferred | None]:
        """The bytes that QEMU has counted so far on the disks of each arm, with those of a neighbour; None on the host,
        or if the hypervisor does not count."""
        disks = by_guest(arm.mode for arm in arms if arm.in_guest and arm.mode is not None)
        counted = {
            name: moved
            for guest, own in disks.items()
            for name, moved in self._guests.of(guest).transferred([mode.name for mode in own]).items()
        }
        return {arm: _together(counted, arm.mode) if arm.in_guest and arm.mode else None for arm in arms}

    @contextmanager
    def holding(self, arm: Arm) -> Iterator[None]:
        """The arm has its disk during the block. The guest has a passed-through disk only during this time.

        If a guest is lost meanwhile, the error explains what happened to it, also for an arm of the host.
        """
        if arm.in_guest and arm.mode is not None:
            with self._guests.holding(arm.mode.guest_name, arm.mode.attached.name):
                yield
        else:
            with self.guests.without() if self.guests is not None else nullcontext():
                yield

    def arrays(self, arm: Arm) -> tuple[MdDevice, ...]:
        """The md devices that the arm is on: its array, or that of the disk, and the arrays below; empty without."""
        own = self.layouts.arrays.get(arm.mode.stored.name) if arm.mode else None
        return self.md.get(own or self.layouts.disk, ())

    @contextmanager
    def rebuilding(self, arm: Arm, seconds: float) -> Iterator[None]:
        """If the arm's array is to be rebuilding, its recovery runs in the block, for at least `seconds`."""
        rebuild = self.layouts.rebuilds.get(arm.mode.stored.name) if arm.mode else None
        with rebuild.running(seconds) if rebuild else nullcontext():
            yield

    def settle(self, arm: Arm) -> None:
        """Write the host's cached data of a buffered arm to the disk, before the next arm uses the disk."""
        if arm.mode is not None and arm.mode.attach is not None and not arm.mode.attach.direct:
            paths = [self.layouts.guest(volume).path for volume in arm.mode.volumes]
            self.host.runner.run(["sync", *paths], deadline=SETTLE_SECONDS)

    @property
    def _guests(self) -> Guests:
        if self.guests is None:
            raise GuestError(f"host {self.host.name}: no guest was started, because no selected mode needs one")
        return self.guests


def _together(counted: Mapping[str, Transferred | None], mode: Mode) -> Transferred | None:
    """The bytes of all disks that the mode uses at the same time; None if one of them is not counted."""
    found = [counted[volume.name] for volume in mode.volumes]
    known = [each for each in found if each is not None]
    return sum(known, Transferred()) if len(known) == len(found) else None
