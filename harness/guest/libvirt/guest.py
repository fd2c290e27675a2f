"""A running domain: the guest's disks, and their effective configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from harness.errors import GuestError
from harness.guest.booting import Booted, BootedGuest
from harness.guest.io_limits import read_io_limit
from harness.guest.libvirt.attachments import Attachments
from harness.guest.libvirt.backup import LibvirtBackup, target_of
from harness.guest.libvirt.disks import alias_of
from harness.guest.libvirt.effective import Running, read_effective, read_passed_through, read_vhost_user, running
from harness.guest.libvirt.last_words import last_words, qemu_log
from harness.guest.libvirt.monitor import transferred
from harness.guest.libvirt.process import PID_FILE
from harness.guest.libvirt.running import RunningDomain
from harness.guest.libvirt.vfio import plugged
from harness.guest.placement import seen_by_guest
from harness.guest.protocol import Backup
from harness.guest.storage_daemon import Daemon, read_served, turn_on_cache
from harness.guest.system import BlockDevice, block_devices, plugged_in
from harness.lab.created import CreationLog
from harness.lab.transport.base import Runner
from harness.lab.vm_threads import VmThreads
from harness.model.attach import CACHES, Attach
from harness.model.counters import Transferred
from harness.model.effective import Effective


class LibvirtGuest(BootedGuest):
    """A booted domain. `host` runs commands on its host, `runner` in the guest."""

    def __init__(
        self,
        booted: Booted[RunningDomain],
        *,
        threads: VmThreads | None,
        host: Runner,
        log: CreationLog,
        attached: Attachments,
        daemons: Mapping[str, Daemon] | None = None,
    ) -> None:
        super().__init__(booted, threads=threads)
        self._running_domain = booted.machine
        self._connection = booted.machine.connection
        self._domain = booted.machine.handle
        self._host = host
        self._log = log
        self._attached = attached
        self._daemons = daemons or {}
        self._devices = dict(block_devices(self.system, attached.lasting, self._connection.host))

        for disk in self._daemons:
            attach = attached.disks[disk].attach
            if isinstance(attach, Attach) and CACHES[attach.cache].write_cache:
                turn_on_cache(self.runner, self._device(disk).path)
        if self._daemons:
            self._devices = dict(block_devices(self.system, attached.lasting, self._connection.host))

    def device(self, disk: str) -> str:
        return self._device(disk).path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        unseen = {*self._attached.passed, *self._daemons}
        aliases = {disk: alias_of(self._attached.disks[disk]) for disk in disks if disk not in unseen}
        counted = transferred(self._connection, self._domain, aliases.values()) if aliases else {}
        return {disk: counted[aliases[disk]] if disk in aliases else None for disk in disks}

    def effective(self, disk: str) -> Effective:
        alias = alias_of(self._attached.disks[disk])
        if disk in self._attached.passed:
            pci = self._attached.passed[disk]
            found = read_passed_through(self._connection, self._domain, self._host, pci, alias)
            found = found.merged(self._running.size.whole).merged(self._running.program)
        else:
            pid_file = PID_FILE.format(name=self._running_domain.name)
            if disk in self._daemons:
                daemon = self._daemons[disk]
                pid_file = daemon.pid_file
                found = read_vhost_user(self._connection, self._domain, self._running, alias)
                found = found.merged(read_served(self._host, daemon))
            else:
                found = read_effective(self._connection, self._domain, self._running, alias)
            found = found.merged(read_io_limit(self._host, pid_file, self._attached.disks[disk].source.path))
        seen = seen_by_guest(self.evidence, found.qemu_memory)
        return found.merged(self._device(disk).effective).merged(seen)

    def backup(self, disk: str, target: str) -> Backup:
        name = target_of(self._running.live, alias_of(self._attached.disks[disk]))
        return LibvirtBackup(self._connection, self._domain, name, target)

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        attached = self._attached
        if disk not in attached.passed:
            yield
            return
        serial, alias = attached.serials[disk], alias_of(attached.disks[disk])
        pci, port = attached.passed[disk], attached.ports[disk]
        grant = attached.disks[disk].source.writable
        with plugged(self._connection, self._domain, self._log, pci, grant, bus=port, alias=alias):
            self._devices[serial] = plugged_in(self.system, serial, self._connection.host)
            try:
                yield
            finally:
                del self._devices[serial]

    def state(self) -> str:
        domain = self._running_domain
        running = domain.is_running()
        log = last_words(self._host, qemu_log(domain.name), "QEMU's log")
        return f"libvirt reports that it {'still runs' if running else 'has ended'}{domain.last_words(self._host)}{log}"

    @cached_property
    def _running(self) -> Running:
        return running(self._connection, self._domain, self._host)

    def _device(self, disk: str) -> BlockDevice:
        try:
            return self._devices[self._attached.serials[disk]]
        except KeyError:
            raise GuestError(
                f"guest on {self._connection.host}: it does not have {disk} now",
                hint="a disk that is passed through is in the guest only within holding()",
            ) from None
