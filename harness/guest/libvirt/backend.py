"""Guests by libvirt: a transient domain from our image, reached over SSH through its host."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Literal

import libvirt

from harness.errors import GuestError, HostError
from harness.events import Events, Note, StepFinished, StepStarted
from harness.guest.guest_system import GuestSystem, evidence
from harness.guest.libvirt.attachments import Attachments, missing, resolved
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.domain import GuestSpec, domain_xml
from harness.guest.libvirt.guest import LibvirtGuest
from harness.guest.libvirt.monitor import query_exits
from harness.guest.libvirt.requirements import Versions
from harness.guest.machine_size import vcpus_for
from harness.guest.protocol import Guest, GuestDisk
from harness.guest.qemu_process import qemu_threads
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.guard import require_leading_to
from harness.lab.hosts import Host
from harness.lab.inventory import AnyDisk, DiskByStorage
from harness.lab.paths import CONSOLE_DIRECTORY, TAG
from harness.lab.transport.base import Runner
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.layout.build import Layouts, built
from harness.layout.prerequisites import missing_prerequisite
from harness.run_id import RunId
from harness.scenario.model import Mode
from harness.units import format_duration

BOOT_SECONDS = {"kvm": 60.0, "tcg": 180.0}
BOOT_TRIES = 3
"""A kernel that starts under nested, emulated virtualisation now and then hangs or resets; nothing is measured yet."""
CREATE_SECONDS = 120.0
_EXPECTED_BOOT_SECONDS = 12.0
_PORTS = range(20000, 30000)
_PORT_TRIES = 5
_PORT_TAKEN = "host forwarding"
PID_FILE = "/run/libvirt/qemu/{name}.pid"


class Domain(Thing):
    """A transient domain by its UUID, and the file with what its console said."""

    kind: Literal["domain"] = "domain"
    name: str
    uuid: str
    console: str

    @property
    def words(self) -> str:
        return f"the guest {self.name}"


class LibvirtRemover:
    """Ends the guests that runs have left on one host."""

    def __init__(self, runner: Runner, connection: Connection) -> None:
        self._runner = runner
        self._connection = connection

    def remove(self, entry: Entry) -> Removal | None:
        """End the guest of the entry; None where the entry is not of a guest."""
        made = entry.parsed([Domain])
        return None if made is None else self.removed(made)

    def removed(self, made: Domain) -> Removal:
        """End this guest, if it still runs."""
        self._runner.run(["rm", "-f", made.console], deadline=20)
        look = partial(self._connection.handle.lookupByUUIDString, made.uuid)
        try:
            domain = self._connection.call(f"look for the guest {made.name}", look)
        except Refused as error:
            if error.gone:
                return Removal("absent")
            raise
        destroy = domain.destroy
        try:
            self._connection.call(f"end the guest {made.name}", destroy, deadline=60)
        except Refused as error:
            if not error.gone:
                raise
        return Removal("removed")


class LibvirtHypervisor(LibvirtRemover):
    """Makes guests on one host through its libvirt."""

    def __init__(self, host: Host, connection: Connection, events: Events) -> None:
        super().__init__(host.runner, connection)
        self._host = host
        self._events = events

    @contextmanager
    def guest(self, log: CreationLog, disks: Sequence[GuestDisk]) -> Iterator[Guest]:
        """A guest with these disks, booted to SSH; destroyed at the end, whatever came in between."""
        name = f"{TAG}-{log.run_id}"
        console = f"{CONSOLE_DIRECTORY}/{name}.log"
        attached = resolved(self._host.runner, self._host.name, disks)
        self._host.runner.run(["mkdir", "-p", CONSOLE_DIRECTORY], deadline=20)
        made = Domain(disks=_on(disks), name=name, uuid=str(uuid.uuid4()), console=console)
        with log.making(made, lambda: self.removed(made)):
            yield from self._booted_guest(log, made, disks, attached)

    def _booted_guest(
        self, log: CreationLog, made: Domain, disks: Sequence[GuestDisk], attached: Attachments
    ) -> Iterator[Guest]:
        console = made.console
        for attempt in range(1, BOOT_TRIES + 1):
            self._events(StepStarted("boot the guest", _EXPECTED_BOOT_SECONDS))
            started = time.monotonic()
            domain, port = self._create(made, log.run_id, disks)
            runner = None
            try:
                try:
                    runner = self._log_in(domain, port, console)
                    boot_seconds = time.monotonic() - started
                    GuestSystem(runner).wait_ready()
                except GuestError as error:
                    if attempt == BOOT_TRIES:
                        raise
                    self._events(Note(f"{error.message}; starting it again ({attempt + 1} of {BOOT_TRIES})"))
                    continue
                self._events(StepFinished("boot the guest", boot_seconds))
                post_mortem = partial(self._post_mortem, domain, runner, made.name, console)
                yield self._booted(log, domain, runner, attached, boot_seconds=boot_seconds, post_mortem=post_mortem)
                return
            finally:
                if runner is not None:
                    runner.close()
                self._destroy(domain)

    def layouts(
        self, log: CreationLog, disks: Sequence[AnyDisk], modes: Sequence[Mode], *, span: int
    ) -> AbstractContextManager[Layouts]:
        """The layouts of `modes`, built by commands on the host; everything is removed at the end."""
        ours = [disk for disk in disks if not isinstance(disk, DiskByStorage)]
        return built(log, self._host.facts, ours, modes, span=span, events=self._events)

    def missing(self, mode: Mode, disk: AnyDisk) -> str | None:
        """Why the host cannot have `mode` on `disk`, with the remedy; None where it can."""
        if isinstance(disk, DiskByStorage):
            return f"{disk.identity} is one of Proxmox VE's, and this host is reached through libvirt"
        if (why := missing_prerequisite(mode.layout, self._host.facts)) or mode.attach is None:
            return why
        versions = Versions(
            self._connection.call("tell its version", self._connection.handle.getLibVersion),
            self._connection.call("tell QEMU's version", self._connection.handle.getVersion),
        )
        return missing(self._host.runner, versions, int(self._host.facts["cpus"] or 1), mode.attach, disk)

    def _booted(
        self,
        log: CreationLog,
        domain: Any,
        runner: SshRunner,
        attached: Attachments,
        *,
        boot_seconds: float,
        post_mortem: Callable[[], str | None],
    ) -> LibvirtGuest:
        system = GuestSystem(runner)
        return LibvirtGuest(
            runner=runner,
            boot_seconds=boot_seconds,
            evidence=evidence(system),
            threads=qemu_threads(self._host.runner, PID_FILE.format(name=domain.name()), self._events),
            tells_exits=self._tells_exits(domain),
            connection=self._connection,
            domain=domain,
            host=self._host.runner,
            log=log,
            system=system,
            attached=attached,
            post_mortem=post_mortem,
        )

    def _tells_exits(self, domain: Any) -> bool:
        """Whether this QEMU tells what KVM counts: from 7.1 on, and under KVM."""
        try:
            return bool(query_exits(self._connection, domain))
        except GuestError:
            return False

    def _create(self, made: Domain, run_id: RunId, disks: Sequence[GuestDisk]) -> tuple[Any, int]:
        """Start the domain on a free port of the host; the domain and the port."""
        files = self._host.guest_files
        require_leading_to({disk.source.path: disk.source.writable for disk in disks})
        for attempt in range(1, _PORT_TRIES + 1):
            port = random.choice(_PORTS)
            spec = GuestSpec(
                name=made.name,
                uuid=made.uuid,
                run_id=run_id,
                accel=self._host.acceleration.accel,
                kernel=files.kernel,
                initramfs=files.initramfs,
                ssh_port=port,
                console=made.console,
                disks=tuple(disks),
                vcpus=vcpus_for(self._host.facts, [disk.attach for disk in disks]),
                # Emulated guests that run on more than one CPU crash, and crash their host (docs/lab.md). The last CPU
                # is used, because the first one handles most of the host's interrupts.
                kept_on=int(self._host.facts["cpus"] or 1) - 1 if self._host.spec.simulated else None,
            )
            create = partial(self._connection.handle.createXML, domain_xml(spec), libvirt.VIR_DOMAIN_START_AUTODESTROY)
            hint = f"see /var/log/libvirt/qemu/{made.name}.log there"
            try:
                return self._connection.call("start the guest", create, deadline=CREATE_SECONDS, hint=hint), port
            except Refused as error:
                if _PORT_TAKEN not in error.message or attempt == _PORT_TRIES:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _log_in(self, domain: Any, port: int, console: str) -> SshRunner:
        host = self._host
        deadline = BOOT_SECONDS[host.acceleration.accel]
        target = SshTarget("127.0.0.1", port, "root", host.guest_files.key, host.guest_files.host_key)

        def still_running(_cause: str) -> None:
            if not self._is_running(domain):
                raise GuestError(f"host {host.name}: the guest ended while it was booting{self._last_words(console)}")

        try:
            return SshRunner.connect_when_up(
                target, name=f"guest on {host.name}", via=host.ssh, deadline=deadline, on_wait=still_running
            )
        except HostError as error:
            raise GuestError(
                f"host {host.name}: the guest did not answer over SSH within {format_duration(deadline)}: "
                f"{error.message}{self._last_words(console)}",
                hint=f"its console is in {console} on {host.name}",
            ) from error

    def _post_mortem(self, domain: Any, runner: SshRunner, name: str, console: str) -> str | None:
        """Of a guest that no longer answers its state, and what it and QEMU said last."""
        if runner.alive:
            return None
        try:
            running = self._is_running(domain)
        except HostError as error:
            return error.message
        log = f"/var/log/libvirt/qemu/{name}.log"
        said = self._last_words(console) + self._last_words(log, whose="QEMU's log")
        return f"libvirt says that it {'still runs' if running else 'has ended'}{said}"

    def _is_running(self, domain: Any) -> bool:
        """HostError where libvirt does not answer."""
        try:
            return bool(self._connection.call("tell the guest's state", domain.isActive, deadline=30))
        except Refused as error:
            if error.gone:
                return False
            raise

    def _last_words(self, file: str, whose: str = "its console") -> str:
        with suppress(HostError):
            said = self._host.runner.run(["tail", "-c", "400", file], deadline=20, check=False).stdout.strip()
            if said:
                return f"; {whose} ends with:\n     " + "\n     ".join(said.splitlines()[-4:])
        return ""

    def _destroy(self, domain: Any) -> None:
        # A domain that has ended by itself, or with its connection, is as gone as one that is destroyed.
        with suppress(HostError):
            self._connection.call("destroy the guest", domain.destroy, deadline=60)


def _on(disks: Sequence[GuestDisk]) -> tuple[str, ...]:
    """The serial numbers of the disks under test that these are on."""
    return tuple(dict.fromkeys(serial for disk in disks for serial in disk.source.writable.disks))
