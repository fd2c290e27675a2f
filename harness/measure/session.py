"""A prepared disk: its layouts, its guests, what others read from it, and the machine and target of each arm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from harness.errors import GuestError
from harness.feature import DiskPrograms, find_brought
from harness.guest.booting import explained
from harness.guest.protocol import Backup, Guest
from harness.lab.counters import CounterFiles, MdDevice, Sample, parse_samples, read_samples
from harness.lab.facts import HealthFound
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts
from harness.measure.fio import Target
from harness.measure.platform import Clock, Clocks, Platform, choose_platform
from harness.model.attach import Attach
from harness.model.counters import Transferred
from harness.model.disk import DiskFacts
from harness.model.mode import Arm, Mode, Place
from harness.model.option import Effective
from harness.results import ConditioningRecord
from harness.scenario.setups import by_guest
from harness.scenario.timetable import ScheduledArm, backed_up

MOST_AT_ONCE = 4 * 1024**2
"""The most bytes that are allowed for a poll. What reads more is another user of the disk, and not a poll."""
LEAST_AT_ONCE = 512 * 1024
"""The bytes that are allowed for a poll if polls were seen: successive ones differ, and the count may see a small one.

On a node of Proxmox VE 9.2 they read 128 to 512 KiB: LVM reads blocks of 128 KiB, and some of them several times.
"""
_POLLS = 1.2
"""The time of the count, as a multiple of the time from one poll to the next: it has at least one poll."""
_EVERY_SECONDS = 0.5
_START_SECONDS = 1.0
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class IdleReads:
    """What other programs read from one disk while nothing was measured: bytes per second, and at most at once."""

    rate: float = 0.0
    burst: int = 0


@dataclass(frozen=True, slots=True)
class Idle:
    """What other programs read from each disk, by its kernel name. Nothing is known of a disk that is not here."""

    disks: Mapping[str, IdleReads] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, disks: Sequence[str]) -> IdleReads:
        """What they read from these disks together."""
        reads = [self.disks[disk] for disk in disks if disk in self.disks]
        return IdleReads(sum(disk_reads.rate for disk_reads in reads), sum(disk_reads.burst for disk_reads in reads))


def count_idle(runner: Runner, clock: Clock, disks: Sequence[str], poll_seconds: float) -> Idle:
    """Count what is read from the disks for a little longer than `poll_seconds`, the time between two polls.

    The caller must leave the disks alone meanwhile. Raises HostError.
    """
    seconds = poll_seconds * _POLLS
    begin = clock.uptime(time.monotonic()) + _START_SECONDS
    times = [begin + number * _EVERY_SECONDS for number in range(round(seconds / _EVERY_SECONDS) + 1)]
    files = CounterFiles(tuple(disks))
    printed = read_samples(runner, files, times, deadline=_START_SECONDS + seconds + _GRACE_SECONDS)
    samples = parse_samples(printed, files, runner.name, expected=len(times))
    return Idle({disk: estimate_idle_reads(samples, disk, poll_seconds) for disk in disks})


def estimate_idle_reads(samples: Sequence[Sample], disk: str, poll_seconds: float) -> IdleReads:
    """What the disk's counter shows. If there were polls, both figures are bounded to what a poll can be. Pure."""
    seconds = samples[-1].begun - samples[0].begun
    bursts = list(_find_bursts([reading.counters.disks[disk].read for reading in samples]))
    if not bursts or seconds <= 0:
        return IdleReads()
    rate = min(max(sum(bursts) / seconds, LEAST_AT_ONCE / poll_seconds), MOST_AT_ONCE / poll_seconds)
    return IdleReads(rate, min(max(*bursts, LEAST_AT_ONCE), MOST_AT_ONCE))


def _find_bursts(counts: Sequence[int]) -> Iterator[int]:
    so_far = 0
    for earlier, now in pairwise(counts):
        if now > earlier:
            so_far += now - earlier
        elif so_far:
            yield so_far
            so_far = 0
    if so_far:
        yield so_far


Boot = Callable[[], AbstractContextManager[Guest]]


class GuestSlot:
    """A guest that can be booted anew. `guest` is the booted one."""

    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._stack = ExitStack()
        self.guest = self._stack.enter_context(boot())
        self.measured = False
        """Whether something was measured since its boot."""

    def boot_again(self) -> None:
        """Take the guest down and boot another one. Raises GuestError, HostError."""
        self.close()
        self.guest = self._stack.enter_context(self._boot())
        self.measured = False

    def close(self) -> None:
        self._stack.close()


class Guests:
    """The guests of a session by name: that of the variant, or `g2` and so on for further guests of a mode.

    The first guest without a variant has an empty name. All of them are booted at first.

    `disks` are the names of the disks of each guest. With `alternating`, at most one guest runs at a time: it is booted
    when an arm needs it, and taken down before another one, or the host, is measured.
    """

    def __init__(
        self, host: str, boots: Mapping[str, Boot], disks: Mapping[str, Sequence[str]], *, alternating: bool = False
    ) -> None:
        self._host = host
        self._boots = boots
        self._disks = disks
        self._alternating = alternating
        self._slots: dict[str, GuestSlot] = {}
        self.effective: dict[str, Effective] = {}
        """What was read back of each disk."""
        self.evidence: dict[str, Mapping[str, str]] = {}
        """What each guest reported of its machine, by name."""
        self.windows: dict[str, bool] = {}
        """Whether each guest runs Windows, by name."""
        self.boot_seconds: dict[str, float | None] = {}
        try:
            for name in boots:
                self._read_back(name, self.of(name))
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> dict[str, Guest]:
        return {name: slot.guest for name, slot in self._slots.items()}

    def of(self, name: str) -> Guest:
        """The guest of this name, which is booted if it does not run. Raises GuestError, HostError."""
        if name not in self._slots:
            if self._alternating:
                self.close()
            self._slots[name] = GuestSlot(self._boots[name])
            if name in self.evidence:
                self._read_back(name, self._slots[name].guest)
        return self._slots[name].guest

    @contextmanager
    def holding(self, name: str, disk: str) -> Iterator[None]:
        """The guest of this name has its disk during the block, and runs alone if the guests alternate."""
        guest = self.of(name)
        with self.explained(), guest.holding(disk):
            yield

    @contextmanager
    def without(self) -> Iterator[None]:
        """A block for the host's arms: guests that alternate do not run, so nothing on the host is set for them."""
        if self._alternating:
            self.close()
        with self.explained():
            yield

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explains an error in the block by a guest that was lost meanwhile."""
        with ExitStack() as stack:
            for guest in self.running.values():
                stack.enter_context(explained(guest))
            yield

    def measured(self) -> None:
        for slot in self._slots.values():
            slot.measured = True

    def boot_again(self) -> None:
        """Boot the guests anew that have measured something since their boot.

        Raises GuestError if their disks are attached in another way than before.
        """
        for name, slot in list(self._slots.items()):
            if not slot.measured:
                continue
            if self._alternating:
                self.close()
                return
            slot.boot_again()
            self._read_back(name, slot.guest)

    def close(self) -> None:
        with ExitStack() as stack:
            for slot in self._slots.values():
                stack.callback(slot.close)
            self._slots = {}

    def _read_back(self, name: str, guest: Guest) -> None:
        self.evidence[name], self.boot_seconds[name] = guest.evidence, guest.boot_seconds
        self.windows[name] = guest.windows
        for disk in self._disks[name]:
            with explained(guest), guest.holding(disk):
                now = guest.effective(disk)
            if now != self.effective.setdefault(disk, now):
                raise GuestError(
                    f"guest on {self._host}: disk {disk} is attached in another way than at the boot before: {now}",
                    hint="the rounds of the two boots cannot be compared; find out what changes",
                )


_MIB = 1024**2
SLOWEST_READ = 2 * _MIB
"""Bytes per second. A slower disk is broken."""
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
    cached: bool = False
    """Whether one of its modes is cached. Then nothing may empty the page cache."""
    idle: Idle = field(default_factory=Idle)
    """What other programs read from the disks before anything was measured, when the guest was up."""
    md: Mapping[str, tuple[MdDevice, ...]] = field(default_factory=dict)
    """The md devices of each array by its kernel name: those that the run built, and the disk if it is one."""
    backup_files: Mapping[str, str] = field(default_factory=dict)
    """The file on the host for the backup of each disk that is backed up, by the disk's name. Empty with vzdump."""
    trims: bool = False
    """Whether a job trims. Then all jobs keep to their parts of the regions."""
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
        facts = self.disks.get(self.layouts.disk)
        others = self.reference is not None and self.reference.rotates
        return others or (facts is not None and facts.rotational is True)

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
            return choose_platform()
        return choose_platform(system="windows" if self.guests.windows.get(arm.mode.guest_name) else "linux")

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
        return guest.backup(disk, self.backup_files.get(disk, ""))

    def boot_again(self) -> None:
        """Boot the guests anew, if there are any and something was measured since their boot.

        Raises GuestError if their disks are attached in another way than before.
        """
        if self.guests is not None:
            self.guests.boot_again()

    def target(self, arm: Arm) -> Target:
        """The target of fio on this arm. All arms have the same span."""
        warm = arm.mode is not None and arm.mode.cached
        if (guest := self.guest(arm)) is not None and arm.mode is not None:
            source = self.layouts.guest(arm.mode)
            path = guest.device(arm.mode.attached.name)
            where = (path, source.offset, source.size)
            return Target(*where, direct=True, block=self.block, apart=self.trims, warm=warm)
        source = self.layouts.twin(arm.mode)
        direct = arm.mode is None or arm.mode.is_direct
        where = (source.writable.path, source.offset, source.size)
        engine, apart, cold = find_cached_engine(arm), self.trims, not self.cached
        return Target(*where, direct=direct, block=self.block, apart=apart, invalidate=cold, engine=engine, warm=warm)

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
            for guest, modes in disks.items()
            for name, moved in self._guests.of(guest).transferred([mode.name for mode in modes]).items()
        }
        return {arm: _sum_transferred(counted, arm.mode) if arm.in_guest and arm.mode else None for arm in arms}

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
        array = self.layouts.arrays.get(arm.mode.stored.name) if arm.mode else None
        return self.md.get(array or self.layouts.disk, ())

    @contextmanager
    def rebuilding(self, arm: Arm, seconds: float) -> Iterator[None]:
        """If the arm's array is to be rebuilding, its recovery runs in the block, for at least `seconds`."""
        rebuild = self.layouts.rebuilds.get(arm.mode.stored.name) if arm.mode else None
        with rebuild.running(seconds) if rebuild else nullcontext():
            yield

    def settle(self, arm: Arm) -> None:
        """Write what the host has in its cache for this arm to the disk, before the next arm uses the disk."""
        if arm.mode is not None and arm.mode.filesystem is not None:
            runner = guest.runner if (guest := self.guest(arm)) is not None else self.host.runner
            runner.run(["sync"], deadline=SETTLE_SECONDS)
        elif arm.mode is not None and arm.mode.writes_later:
            # What changed the tables of btrfs is in its log after fsync. Only a transaction writes the tables.
            what = ["--file-system"] if arm.mode.layout.writes_later else []
            paths = [self.layouts.guest(volume).path for volume in arm.mode.volumes]
            self.host.runner.run(["sync", *what, *paths], deadline=SETTLE_SECONDS)

    def warm(self, arms: Iterable[Arm], *, buffered: bool = False) -> None:
        """Read what cached arms use once on the host, so that twin and guest begin in the same state of its cache.

        With `buffered`, jobs go through the page cache of their machine: then each guest reads its file as well.
        """
        cached = [(arm, mode) for arm in arms if (mode := arm.mode) is not None and mode.cached]
        modes = {volume.stored.name: volume for _, mode in cached for volume in mode.volumes}
        for arm, _ in cached if buffered else ():
            if (guest := self.guest(arm)) is not None:
                inside = self.target(arm)
                # The guest's dd may be that of busybox, which counts in blocks. Regions are multiples of 4 MiB.
                part = [f"skip={inside.offset // _MIB}", f"count={inside.size // _MIB}"]
                read = ["dd", f"if={inside.path}", "of=/dev/null", "bs=1M", *part]
                guest.runner.run(read, deadline=60 + inside.size / SLOWEST_READ)
        for mode in modes.values():
            # The file of a guest with a file system is in the cache of the guest alone.
            sources = [self.layouts.twin(mode), *([self.layouts.guest(mode)] if mode.filesystem is None else [])]
            for source in dict.fromkeys(sources):
                # The cache below a zvol is not asked again for what is in the page cache. A file of ZFS has no other
                # cache, and direct reads do not fill it.
                below = source.kind == "block" and mode.attach is not None and mode.attach.direct
                how = "direct,skip_bytes,count_bytes" if below else "skip_bytes,count_bytes"
                part = [f"skip={source.offset}", f"count={source.size}", f"iflag={how}"]
                read = ["dd", f"if={source.path}", "of=/dev/null", "bs=1M", *part, "status=none"]
                self.host.runner.run(read, deadline=60 + source.size / SLOWEST_READ)

    @property
    def _guests(self) -> Guests:
        if self.guests is None:
            raise GuestError(f"host {self.host.name}: no guest was started, because no selected mode needs one")
        return self.guests


def read_health(host: Host, disks: Iterable[DiskFacts]) -> dict[str, HealthFound]:
    """The health of these disks now, by their kernel names. A simulated disk has neither temperature nor wear."""
    programs = find_brought(DiskPrograms)
    if programs is None or host.spec.simulated:
        return {}
    return {disk.device: programs.read_health(host.runner, host.facts, disk) for disk in disks}


def find_cached_engine(arm: Arm) -> str:
    """fio's engine for the twin of a cached mode: io_uring, if QEMU uses it as well; empty for the usual one."""
    mode = arm.mode if arm.place is Place.TWIN else None
    attach = mode.attach if mode is not None and mode.cached else None
    return attach.aio if isinstance(attach, Attach) and not attach.direct and attach.aio == "io_uring" else ""


SessionFor = Callable[[ScheduledArm], Session]
"""The session of a turn. In a calibration on the host, the turns have different disks."""


def _sum_transferred(counted: Mapping[str, Transferred | None], mode: Mode) -> Transferred | None:
    """The bytes of all disks that the mode uses at the same time; None if one of them is not counted."""
    moved = [counted[volume.name] for volume in mode.volumes]
    known = [transferred for transferred in moved if transferred is not None]
    return sum(known, Transferred()) if len(known) == len(moved) else None
