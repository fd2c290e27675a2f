"""Starts a guest and logs in: from the guest image, or from a disk image of others, which is never written to."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import libvirt

from harness.errors import GuestError, HostError, Unsupported
from harness.events import Events
from harness.guest.booting import Started, logging_in
from harness.guest.cloud_init import HostKey, install_fio, user_data, wait_until_set_up
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.domain import GuestSpec, SystemFiles, build_domain_xml
from harness.image.keys import create_key, public_key
from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import require_leading_to
from harness.lab.hosts import Host
from harness.lab.paths import STATE_DIRECTORY, why_unsafe
from harness.lab.transport.base import Runner, whole
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.model.guest import INSTALL, INSTALLED_FIO, GuestOptions
from harness.shipped import read_script
from harness.untrusted import parse_json

_GUESTS = f"{STATE_DIRECTORY}/guests"
_FORMATS = ("qcow2", "raw")
_SEED = "seed"
_NO_PROGRAM, _NO_FAT = 3, 4

_READ_IMAGE = rf"""
command -v qemu-img >/dev/null || exit {_NO_PROGRAM}
qemu-img --help | grep -qw vvfat || exit {_NO_FAT}
exec qemu-img info --force-share --output=json "$1"
"""

_MAKE_IMAGE = read_script("harness.guest.libvirt", "create_own_image.sh")


class GuestSystemFiles(HostThing):
    """The directory with what a guest of a disk image boots from. Its name is known to nobody else."""

    kind: Literal["guest-system"] = "guest-system"
    directory: str

    removal: ClassVar[str] = r"""
[ -d "$1" ] || { echo absent; exit 0; }
cd "$1" && rm -rf seed && rm -f seed.img system.qcow2 variables.fd && cd / || exit
rmdir "$1" 2>/dev/null && echo removed || echo "foreign: $1 has files of others"
"""

    @property
    def words(self) -> str:
        return f"the system of a guest in {self.directory}"

    def arguments(self) -> Sequence[str]:
        return [self.directory]


def refuse_image(options: GuestOptions, runner: Runner) -> str | None:
    """Why the host cannot boot guests from the requested image, with the remedy; None if it can or need not."""
    if options.image is None:
        return None
    try:
        image_format(runner, options.image)
    except Unsupported as error:
        return error.message
    return None


def image_format(runner: Runner, image: str) -> str:
    """The format of the image on the host. Raises Unsupported, with the remedy, if guests cannot be booted from it."""
    done = runner.run(["sh", "-c", _READ_IMAGE, "sh", image], deadline=60, check=False)
    why = {
        _NO_PROGRAM: "qemu-img is not installed there, which makes the guest's disks: apt-get install qemu-utils",
        _NO_FAT: "qemu-img there cannot make a FAT disk for cloud-init (vvfat): measure on a host whose QEMU has it, "
        "such as Debian's, Ubuntu's or Fedora's",
    }.get(done.status)
    if why is None and done.status != 0:
        why = f"qemu-img cannot read it: {done.stderr.strip() or 'it gave no reason'}: correct the path, or the image"
    if why is None:
        image_info = parse_json(done.stdout, f"{runner.name}: qemu-img about {image}", HostError)
        format_name = image_info.get("format") if isinstance(image_info, dict) else None
        unsafe = why_unsafe(runner, image)
        if format_name in _FORMATS and unsafe is None:
            return str(format_name)
        why = unsafe and (
            f"another user could exchange it for one that refers to files of root: {unsafe}: copy it to a directory "
            "that only root can change"
        )
        why = why or f"its format is {format_name}: convert it with qemu-img convert -O qcow2"
    raise Unsupported(f'image = "{image}": {why}')


@contextmanager
def system_files(
    log: CreationLog, options: GuestOptions, authorized_key: str, host_key: HostKey
) -> Iterator[SystemFiles]:
    """What a new guest of the requested image boots from. It is removed at the end. Raises Unsupported, HostError."""
    if options.image is None:
        raise GuestError("no image is requested for this guest")
    source_format = image_format(log.runner, options.image)
    files = SystemFiles(f"{_GUESTS}/{uuid.uuid4()}", options.firmware or "bios")
    # QEMU shows a directory as a FAT disk. cloud-init looks for this label.
    seed = {"driver": "vvfat", "dir": _SEED, "floppy": True, "label": "cidata"}
    with log.making_here(GuestSystemFiles(directory=files.directory)) as entry:
        make = [
            "sh",
            "-c",
            _MAKE_IMAGE,
            "sh",
            files.directory,
            options.image,
            source_format,
            f"json:{json.dumps(seed)}",
        ]
        given = user_data(authorized_key, host_key)
        log.runner.run(fenced(entry, whole(make, given)), stdin=given, deadline=120)
        yield files


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
IMAGE_BOOT_SECONDS = {"kvm": 240.0, "tcg": 900.0}
"""The same for a disk image: cloud-init prepares the system before its SSH server starts."""
CREATE_SECONDS = 120.0
_PORTS = range(20000, 30000)
_PORT_TRIES = 5
_PORT_TAKEN = "host forwarding"


@contextmanager
def started(host: Host, connection: Connection, spec: GuestSpec) -> Iterator[Started[RunningDomain]]:
    """A guest from the guest image, or from the kernel and initramfs that are requested. It ends with the block.

    Raises HostError or GuestError if it does not start or does not answer.
    """
    with _logged_in(host, connection, spec, host.guest_files.host_key, BOOT_SECONDS) as (domain, runner):
        yield Started(domain, runner, fio=spec.options.fio or "fio")


@contextmanager
def start_from_image(
    host: Host, connection: Connection, spec: GuestSpec, *, log: CreationLog, events: Events
) -> Iterator[Started[RunningDomain]]:
    """A guest from the requested disk image, when cloud-init is done. It ends with the block, and its layer is removed.

    Raises Unsupported, with the remedy, if no guest can be booted from the image, and errors as `started`.
    """
    key = HostKey(*create_key())
    options = spec.options
    with ExitStack() as stack:
        files = stack.enter_context(system_files(log, options, public_key(host.guest_files.key), key))
        spec = replace(spec, system=files)
        login = _logged_in(host, connection, spec, key.public, IMAGE_BOOT_SECONDS)
        domain, runner = stack.enter_context(login)
        wait_until_set_up(runner, events)
        fio = options.fio or "fio"
        if fio == INSTALL:
            install_fio(runner, host.guest_files.fio)
            fio = INSTALLED_FIO
        yield Started(domain, runner, fio=fio)


@contextmanager
def _logged_in(
    host: Host, connection: Connection, spec: GuestSpec, host_key: str, seconds: dict[str, float]
) -> Iterator[tuple[RunningDomain, SshRunner]]:
    handle, port = _create(connection, spec)
    domain = RunningDomain(connection, handle, spec.name, spec.console)
    try:
        target = SshTarget("127.0.0.1", port, "root", host.guest_files.key, host_key)
        runner = _log_in(host, domain, target, seconds[host.acceleration.accel])
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


def _log_in(host: Host, domain: RunningDomain, target: SshTarget, seconds: float) -> SshRunner:
    def require_booting(_cause: str) -> None:
        if not domain.is_running():
            raise explain_end(host.runner, host.name, domain.console, qemu_log(domain.name))

    hint = f"its console is in {domain.console} on {host.name}"
    with logging_in(f"host {host.name}: the guest", hint=hint, last_words=lambda: domain.last_words(host.runner)):
        return SshRunner.connect_when_up(
            target, name=f"guest on {host.name}", via=host.ssh, deadline=seconds, on_wait=require_booting
        )
