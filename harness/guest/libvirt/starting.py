"""Starts a guest and logs in: its domain, whether it still runs, and its last output if it ends by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import libvirt

from harness.errors import GuestError, HostError
from harness.events import Events
from harness.guest.booting import Started, logging_in
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.domain import GuestSpec, build_domain_xml
from harness.lab.created import CreationLog
from harness.lab.guard import require_leading_to
from harness.lab.hosts import Host
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner, SshTarget

_LOGS = "/var/log/libvirt/qemu"


def qemu_log(name: str, directory: str = _LOGS) -> str:
    """The file to which libvirt writes the output of this guest's QEMU. Its last line says why the guest ended."""
    return f"{directory}/{name}.log"


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
        except Refused as error:
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
        hint = f"see {qemu_log(spec.name)} there"
        try:
            return connection.call("start the guest", create, deadline=CREATE_SECONDS, hint=hint, creates=True), port
        except Refused as error:
            if _PORT_TAKEN not in error.message or attempt == _PORT_TRIES:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


def _connect(host: Host, domain: RunningDomain, target: SshTarget, seconds: float) -> SshRunner:
    def require_booting(_cause: str) -> None:
        if not domain.is_running():
            raise explain_end(host.runner, host.name, domain.console, qemu_log(domain.name))

    hint = f"its console is in {domain.console} on {host.name}"
    with logging_in(f"host {host.name}: the guest", hint=hint, last_words=lambda: domain.last_words(host.runner)):
        return SshRunner.connect_when_up(
            target, name=f"guest on {host.name}", via=host.ssh, deadline=seconds, on_wait=require_booting
        )
