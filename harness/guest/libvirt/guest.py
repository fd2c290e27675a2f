"""A guest of libvirt: its start, its disks, and devices that are passed through to it (VFIO)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError, HostError
from harness.events import Events
from harness.feature import ServedDisk, backup_maker
from harness.guest.booting import Booted, BootedGuest, Started, logging_in
from harness.guest.libvirt.binding import libvirt
from harness.guest.libvirt.connection import Connection, LibvirtRefusal, transferred
from harness.guest.libvirt.domain import GuestSpec, build_domain_xml, name_alias
from harness.guest.libvirt.effective import (
    PID_FILE,
    Running,
    find_disk,
    name_log,
    read_effective,
    read_passed_through,
    read_vhost_user,
    running,
)
from harness.guest.libvirt.requirements import Attachments
from harness.guest.protocol import Backup, BlockDevice, block_devices, wait_for_disk
from harness.guest.qemu_process import read_guest_facts, read_io_limit
from harness.lab.counters import VmThreads
from harness.lab.created import CreationLog
from harness.lab.guard import require_leading_to
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.counters import Transferred
from harness.model.option import Effective


def last_words(runner: Runner, file: str, whose: str = "its console") -> str:
    """The last lines of the file, as text for the end of a message; empty if it is empty or cannot be read."""
    with suppress(HostError):
        lines = runner.run(["tail", "-c", "400", file], deadline=20, check=False).stdout.strip()
        if lines:
            return f"; {whose} ends with:\n     " + "\n     ".join(lines.splitlines()[-4:])
    return ""


def explain_end(runner: Runner, host: str, console: str, log: str) -> GuestError:
    """The error for a guest that ended before the login, with everything that is known about the cause."""
    known = last_words(runner, console) + last_words(runner, log, whose="QEMU's log")
    return GuestError(
        f"host {host}: the guest ended while it was booting{known or '; its console and QEMU printed nothing'}",
        hint=f"see {console} and {log} on {host}",
    )


@dataclass(frozen=True, slots=True)
class RunningDomain:
    """A transient domain by libvirt's handle. `console` is the file on the host with the output of its console."""

    connection: Connection
    handle: Any
    name: str
    console: str

    def is_running(self) -> bool:
        """Whether it runs. Raises HostError if libvirt does not answer."""
        try:
            return bool(self.connection.call("report the guest's state", self.handle.isActive, deadline=30))
        except LibvirtRefusal as error:
            if error.gone:
                return False
            raise

    def last_words(self, host: Runner) -> str:
        """The last lines of its console, for the end of a message."""
        return last_words(host, self.console)

    def destroy(self) -> None:
        # The domain may already have ended by itself or with its connection.
        with suppress(HostError):
            self.connection.call("destroy the guest", self.handle.destroy, deadline=60)


BOOT_SECONDS = {"kvm": 60.0, "tcg": 180.0}
CREATE_SECONDS = 120.0
_PORTS = range(20000, 30000)
_PORT_TRIES = 5
_PORT_TAKEN = "host forwarding"


@dataclass(frozen=True, slots=True)
class ToStart:
    """A guest that is started: where, what it is, and what logs it."""

    host: Host
    connection: Connection
    spec: GuestSpec
    log: CreationLog
    events: Events


@contextmanager
def start_guest(guest: ToStart) -> Iterator[Started[RunningDomain]]:
    """A guest from the guest image, or from the kernel and initramfs that are requested. It ends with the block.

    Raises HostError or GuestError if it does not start or does not answer.
    """
    with log_in(guest, guest.host.guest_files.host_key, BOOT_SECONDS) as (domain, runner):
        yield Started(domain, runner, fio=guest.spec.options.fio or "fio")


@contextmanager
def log_in(guest: ToStart, host_key: str, seconds: Mapping[str, float]) -> Iterator[tuple[RunningDomain, SshRunner]]:
    """The running domain, and commands in it. `seconds` limits the boot, by the host's acceleration."""
    host, connection, spec = guest.host, guest.connection, guest.spec
    handle, port = _create(connection, spec)
    domain = RunningDomain(connection, handle, spec.name, spec.console)
    try:
        target = SshTarget("127.0.0.1", port, "root", host.guest_files.key, host_key)
        runner = _connect(host, domain, target, seconds[host.acceleration.accel])
        try:
            yield domain, runner
        finally:
            runner.close()
    finally:
        domain.destroy()


def _create(connection: Connection, spec: GuestSpec) -> tuple[Any, int]:
    """Start the domain with a free port of the host. Returns the domain and the port."""
    require_leading_to({disk.source.path: disk.source.writable for disk in spec.disks})
    for attempt in range(1, _PORT_TRIES + 1):
        port = random.choice(_PORTS)
        xml = build_domain_xml(replace(spec, ssh_port=port))
        create = partial(connection.handle.createXML, xml, libvirt.VIR_DOMAIN_START_AUTODESTROY)
        hint = f"see {name_log(spec.name)} there"
        try:
            return connection.call("start the guest", create, deadline=CREATE_SECONDS, hint=hint, creates=True), port
        except LibvirtRefusal as error:
            if _PORT_TAKEN not in error.message or attempt == _PORT_TRIES:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _connect(host: Host, domain: RunningDomain, target: SshTarget, seconds: float) -> SshRunner:
    def require_booting(_cause: str) -> None:
        if not domain.is_running():
            raise explain_end(host.runner, host.name, domain.console, name_log(domain.name))

    hint = f"its console is in {domain.console} on {host.name}"
    with logging_in(f"host {host.name}: the guest", hint=hint, last_words=lambda: domain.last_words(host.runner)):
        return SshRunner.connect_when_up(
            target, name=f"guest on {host.name}", via=host.ssh, deadline=seconds, on_wait=require_booting
        )


def find_target(live: ET.Element, alias: str) -> str:
    """libvirt's name of the disk with this alias in a running guest: `vda`. Raises GuestError."""
    target = find_disk(live, alias).find("target")
    name = target.get("dev") if target is not None else None
    if not name:
        raise GuestError(f"guest {live.findtext('name')}: libvirt shows no name of the disk {alias}")
    return name


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
        served: Mapping[str, ServedDisk] | None = None,
    ) -> None:
        super().__init__(booted, threads=threads)
        self._running_domain = booted.machine
        self._connection = booted.machine.connection
        self._domain = booted.machine.handle
        self._host = host
        self._log = log
        self._attached = attached
        self._served = served or {}
        self._devices = dict(block_devices(self.system, attached.lasting, self._connection.host))

        for disk, serving in self._served.items():
            serving.set_up(self.runner, self._get_device(disk).path)
        if self._served:
            self._devices = dict(block_devices(self.system, attached.lasting, self._connection.host))

    def device(self, disk: str) -> str:
        return self._get_device(disk).path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        unseen = {*self._attached.passed, *self._served}
        aliases = {disk: name_alias(self._attached.disks[disk]) for disk in disks if disk not in unseen}
        counted = transferred(self._connection, self._domain, aliases.values()) if aliases else {}
        return {disk: counted[aliases[disk]] if disk in aliases else None for disk in disks}

    def effective(self, disk: str) -> Effective:
        alias = name_alias(self._attached.disks[disk])
        if disk in self._attached.passed:
            pci = self._attached.passed[disk]
            effective = read_passed_through(self._connection, self._domain, self._host, pci, alias)
            effective = effective.merged(self._running.size.whole).merged(self._running.program)
        else:
            pid_file = PID_FILE.format(name=self._running_domain.name)
            if (serving := self._served.get(disk)) is not None:
                pid_file = serving.pid_file
                effective = read_vhost_user(self._connection, self._domain, self._running, alias)
                effective = effective.merged(serving.read_effective(self._host))
            else:
                effective = read_effective(self._connection, self._domain, self._running, alias)
            effective = effective.merged(read_io_limit(self._host, pid_file, self._attached.disks[disk].source.path))
        seen = read_guest_facts(self.evidence, effective.qemu_memory)
        return effective.merged(self._get_device(disk).effective).merged(seen)

    def backup(self, disk: str, target: str) -> Backup:
        name = find_target(self._running.live, name_alias(self._attached.disks[disk]))
        return backup_maker().by_libvirt(self._connection, self._domain, name, target)

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:
        attached = self._attached
        if disk not in attached.passed:
            yield
            return
        serial, alias = attached.serials[disk], name_alias(attached.disks[disk])
        pci, port = attached.passed[disk], attached.ports[disk]
        grant = attached.disks[disk].source.writable
        with pci.plugged(self._connection, self._domain, self._log, grant, bus=port, alias=alias):
            self._devices[serial] = wait_for_disk(self.system, serial, self._connection.host)
            try:
                yield
            finally:
                del self._devices[serial]

    def state(self) -> str:
        domain = self._running_domain
        running = domain.is_running()
        log = last_words(self._host, name_log(domain.name), "QEMU's log")
        return f"libvirt reports that it {'still runs' if running else 'has ended'}{domain.last_words(self._host)}{log}"

    @cached_property
    def _running(self) -> Running:
        return running(self._connection, self._domain, self._host)

    def _get_device(self, disk: str) -> BlockDevice:
        try:
            return self._devices[self._attached.serials[disk]]
        except KeyError:
            raise GuestError(
                f"guest on {self._connection.host}: it does not have {disk} now",
                hint="a disk that is passed through is in the guest only within holding()",
            ) from None
