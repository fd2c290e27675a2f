"""The hypervisor of a host with file systems in its guests: made with the layouts, mounted in each guest that boots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import MappingProxyType

from harness.errors import GuestError, HostError, Unsupported
from harness.features.filesystem.volumes import (
    FILE,
    Prepared,
    build_with_filesystems,
    get_read_ahead,
    read_mount,
    set_read_ahead,
)
from harness.files import read_script
from harness.guest.protocol import Backup, Guest, GuestDisk, Hypervisor
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk
from harness.lab.pin import MOUNT_DIRECTORY
from harness.lab.transport.base import Runner
from harness.layout.build import Layouts
from harness.model.counters import Transferred
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.model.layout import RawFile, find_missing_requirement
from harness.model.mode import Mode
from harness.model.option import NOTHING, Effective
from harness.signals import cleaning_up
from harness.untrusted import reading

_MOUNT = read_script("harness.features.filesystem", "mount_in_guest.sh")
# $1: the disk, $2: KiB. Prints what the kernel then has.
_SET_AHEAD = """
queue=/sys/class/block/${1##*/}/queue/read_ahead_kb
echo "$2" >"$queue" && cat "$queue"
"""
_SECONDS = 120.0
"""For a command in a guest that may have to write or to replay a journal."""


class FilesystemsInGuests:
    """A `Hypervisor`: what `below` does, with the file systems of modes that have one."""

    def __init__(self, host: Host, below: Hypervisor) -> None:
        self._host = host
        self._below = below
        self._prepared: Mapping[str, Prepared] = {}
        """Those of the layouts that are built now, by the name of the disk."""

    @contextmanager
    def guest(
        self, log: CreationLog, disks: Sequence[GuestDisk], options: GuestOptions = ANY_GUEST, *, variant: str = ""
    ) -> Iterator[Guest]:
        """A guest in which the file systems of these disks are mounted until the end of the block.

        Raises GuestError or HostError, also if one cannot be mounted there, and Unsupported in Windows.
        """
        inner = {disk.name: self._prepared[disk.name] for disk in disks if disk.name in self._prepared}
        ahead = {disk.name: wanted for disk in disks if (wanted := get_read_ahead(disk.attach)) is not None}
        with self._below.guest(log, disks, options, variant=variant) as guest:
            if not inner and not ahead:
                yield guest
                return
            if guest.windows:
                raise Unsupported(
                    f"{guest.runner.name}: it runs Windows, which has no such file systems and no such read-ahead",
                    hint="leave out filesystem and read_ahead_kb in the modes, or measure a guest with Linux",
                )
            mounted = MountedGuest(guest, inner, ahead)
            try:
                yield mounted
            finally:
                # Its end would leave a journal, which the next mount only has to replay.
                with cleaning_up(), suppress(HostError, GuestError):
                    mounted.unmount()

    def remove(self, entry: Entry) -> Removal | None:
        """As without file systems: commands on the host unmount those."""
        return self._below.remove(entry)

    @property
    def poll_seconds(self) -> float:
        """As without file systems."""
        return self._below.poll_seconds

    def unsupported_by_host(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host does not support `mode` on `disk`, with the remedy; None if it does."""
        why = self._below.unsupported_by_host(mode, disk)
        if why is not None or mode.filesystem is None:
            return why
        if not self._host.spec.hypervisor.boots_guests:
            return "virt-overhead mounts no file system in a VM of others: leave out filesystem in the mode"
        return find_missing_requirement(RawFile(mode.filesystem.kind), self._host.facts)

    def unsupported_by_guest_os(self, log: CreationLog, mode: Mode) -> str | None:
        """What the system of the mode's guest lacks. Whether it has a file system shows when it mounts it."""
        return self._below.unsupported_by_guest_os(log, mode)

    @contextmanager
    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> Iterator[Layouts]:
        """The layouts, with the file systems of the modes that have one. Raises as without them."""

        def build(more: Sequence[Mode], larger: int) -> AbstractContextManager[Layouts]:
            return self._below.layouts(log, disks, more, span=larger)

        with ExitStack() as stack:
            if any(mode.filesystem is not None for mode in modes):
                whole = build_with_filesystems(log, modes, build, span=span, fio=self._host.spec.fio)
                built, prepared = stack.enter_context(whole)
                self._prepared = {**self._prepared, **prepared}
            else:
                built = stack.enter_context(build(modes, span))
            for mode in modes:
                if (wanted := get_read_ahead(mode.attach)) is not None:
                    set_read_ahead(built, mode, wanted)
            yield built


class MountedGuest:
    """A `Guest` with the file systems of some of its disks mounted, and with the read-ahead of some set.

    Both by the name of the disk: `prepared` file systems, and `ahead` in KiB.
    """

    def __init__(
        self,
        guest: Guest,
        prepared: Mapping[str, Prepared],
        ahead: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._guest = guest
        self._mounted = tuple(prepared)
        self._effective = {disk: self._set_read_ahead(disk, size) for disk, size in ahead.items()}
        for disk, inner in prepared.items():
            self._effective[disk] = self._effective.get(disk, NOTHING).merged(self._mount(disk, inner))

    def _set_read_ahead(self, disk: str, size: int) -> Effective:
        printed = self.runner.run(
            ["sh", "-c", _SET_AHEAD, "sh", self._guest.device(disk), str(size)], deadline=30
        ).stdout
        with reading(f"{self.runner.name}: the read-ahead of {disk}", GuestError):
            return Effective(guest_read_ahead_kb=int(printed))

    def _mount(self, disk: str, inner: Prepared) -> Effective:
        point, kind = _place(disk), inner.inside.kind
        words = ["sh", "-s", "--", point, self._guest.device(disk), kind, inner.options]
        done = self.runner.run(words, stdin=_MOUNT, deadline=_SECONDS, check=False)
        if done.status != 0:
            raise GuestError(
                f"{self.runner.name}: {kind} cannot be mounted: {done.stderr.strip()[-300:] or 'no reason given'}",
                hint="the guest's kernel lacks this file system, a mount option or a feature that the host's mkfs has; "
                "virt-overhead's own guest has ext4 and xfs",
            )
        mounted, options = read_mount(self.runner, point)
        return inner.twin.merged(Effective(guest_filesystem=mounted, guest_mount_options=options))

    def unmount(self) -> None:
        """Unmount all of them. Raises HostError."""
        if self._mounted:
            self.runner.run(["umount", *map(_place, self._mounted)], deadline=_SECONDS)

    def device(self, disk: str) -> str:
        """The path of what fio uses: the file on the mounted file system, or the disk."""
        return f"{_place(disk)}/{FILE}" if disk in self._mounted else self._guest.device(disk)

    def effective(self, disk: str) -> Effective:
        """As of the guest itself, with the file system."""
        return self._guest.effective(disk).merged(self._effective.get(disk, NOTHING))

    @property
    def runner(self) -> Runner:
        """As of the guest itself, like all that follows."""
        return self._guest.runner

    @property
    def windows(self) -> bool:
        return self._guest.windows

    @property
    def fio(self) -> str:
        return self._guest.fio

    @property
    def boot_seconds(self) -> float | None:
        return self._guest.boot_seconds

    @property
    def evidence(self) -> Mapping[str, str]:
        return self._guest.evidence

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        """As of the guest itself."""
        return self._guest.transferred(disks)

    @property
    def threads(self) -> VmThreads | None:
        return self._guest.threads

    def holding(self, disk: str) -> AbstractContextManager[None]:
        """As of the guest itself."""
        return self._guest.holding(disk)

    def backup(self, disk: str, target: str) -> Backup:
        """As of the guest itself."""
        return self._guest.backup(disk, target)

    def post_mortem(self) -> str | None:
        """As of the guest itself."""
        return self._guest.post_mortem()


def _place(disk: str) -> str:
    return f"{MOUNT_DIRECTORY}/{disk}"
