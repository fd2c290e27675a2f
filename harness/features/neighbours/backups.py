"""Backups of a guest's disk by libvirt while the guest runs, and the files of the host that they are written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.guest.libvirt.binding import libvirt
from harness.guest.libvirt.connection import Connection, LibvirtRefusal
from harness.lab.created import CreationLog
from harness.lab.guard import created
from harness.lab.guard.room import no_space
from harness.lab.hosts import Host
from harness.lab.inventory import HostSpec
from harness.lab.pin import BACKUP_DIRECTORY, TAG, why_unsafe
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.layout.disks import own_file
from harness.signals import wait_until
from harness.untrusted import count, reading

# $1: a device or a file. Its size in bytes.
_SIZE = 'if [ -b "$1" ]; then PATH="$PATH:/usr/sbin:/sbin" blockdev --getsize64 "$1"; else stat -L -c %s "$1"; fi'
_ALLOCATE_SECONDS = 120.0
_CANCEL_SECONDS = 30.0
_POLL_SECONDS = 0.02


def _choose_backup_directory(spec: HostSpec) -> str:
    """Where the backups of the host's guests are written to."""
    return str(spec.backup_directory or BACKUP_DIRECTORY)


def find_no_room(runner: Runner, spec: HostSpec, size_bytes: int) -> str | None:
    """Why so many bytes of backups cannot be written on a host, with the remedy; None if they can. Raises HostError."""
    directory = _choose_backup_directory(spec)
    if spec.backup_directory and runner.run(["test", "-d", directory], deadline=20, check=False).status != 0:
        return f"there is no directory {directory}: create it, or correct backup_directory in the lab file"
    if why := why_unsafe(runner, directory):
        return (
            f"another user could exchange what is written to {directory}: {why}. Name a directory that only root can "
            "change as backup_directory of the host in the lab file"
        )
    if why := no_space(runner, directory, size_bytes):
        return (
            f"a backup does not fit into {directory}: {why}. Name a directory with more space as backup_directory of "
            "the host in the lab file"
        )
    return None


@contextmanager
def open_files(log: CreationLog, host: Host, sources: Mapping[str, BlockSource]) -> Iterator[dict[str, str]]:
    """A file on the host for the backup of each of these disks, by the disk's name. They are removed at the end.

    Raises the errors of `backup_file`.
    """
    with ExitStack() as stack:
        yield {name: stack.enter_context(backup_file(log, host.spec, name, source)) for name, source in sources.items()}


@contextmanager
def backup_file(log: CreationLog, spec: HostSpec, name: str, source: BlockSource) -> Iterator[str]:
    """The path of a new file with the size of what `source` is on. It is removed at the end.

    Raises SafetyError if less than the reserve would stay free, or if another user could exchange the file, HostError.
    """
    runner, directory = log.runner, _choose_backup_directory(spec)
    size = source.size
    if source.format == "raw":
        printed = runner.run(["sh", "-c", _SIZE, "sh", source.path], deadline=30).stdout
        with reading(f"{runner.name}: the size of {source.path}"):
            size = count(int(printed))
    if not spec.backup_directory:
        runner.run(["mkdir", "-p", directory], deadline=20)
    path = f"{directory}/{TAG}-{log.run_id}-{name}.raw"
    refused = f"{runner.name}: the backup of {name} will not be made: "
    with own_file(log, path, size, (), refused) as (_, entry):
        (writable,) = created(runner, entry, [path])
        writable.run(["fallocate", "-l", str(size), path], deadline=_ALLOCATE_SECONDS)
        yield path


def build_backup_xml(disk: str, target: str) -> str:
    """A full backup of the one disk that libvirt calls `disk`, to a RAW file that exists."""
    backup = ET.Element("domainbackup", mode="push")
    element = ET.SubElement(ET.SubElement(backup, "disks"), "disk", name=disk, backup="yes", type="file")
    ET.SubElement(element, "driver", type="raw")
    ET.SubElement(element, "target", file=target)
    return ET.tostring(backup, encoding="unicode")


class LibvirtBackup:
    """A `Backup` of the disk that libvirt calls `disk`."""

    def __init__(self, connection: Connection, domain: Any, disk: str, target: str) -> None:
        self._connection = connection
        self._domain = domain
        self._disk = disk
        self._xml = build_backup_xml(disk, target)

    def begin(self) -> None:
        flags = libvirt.VIR_DOMAIN_BACKUP_BEGIN_REUSE_EXTERNAL
        self._connection.call("begin a backup", partial(self._domain.backupBegin, self._xml, None, flags), deadline=60)

    def copied(self) -> int | None:
        job = self._read_job(0)
        with reading(f"host {self._connection.host}: libvirt's progress of the backup of {self._disk}", GuestError):
            if job["type"] != libvirt.VIR_DOMAIN_JOB_NONE:
                return count(job.get(libvirt.VIR_DOMAIN_JOB_DISK_PROCESSED, 0))
            done = self._read_job(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED)
            if done["type"] != libvirt.VIR_DOMAIN_JOB_FAILED:
                return None
            why = done.get("errmsg", "no reason given")
        raise GuestError(
            f"host {self._connection.host}: the backup of {self._disk} failed: {why}",
            hint="see QEMU's log on the host, and the free space for the backup",
        )

    def cancel(self) -> None:
        try:
            self._connection.call("cancel the backup", self._domain.abortJob, deadline=_CANCEL_SECONDS)
        except LibvirtRefusal:
            # It may have ended by itself meanwhile.
            if self.copied() is not None:
                raise
        if not wait_until(self._has_ended, deadline=_CANCEL_SECONDS, every=_POLL_SECONDS):
            raise GuestError(
                f"host {self._connection.host}: the backup of {self._disk} did not end after it was cancelled",
                hint="see on the host: virsh domjobinfo",
            )

    def _has_ended(self) -> bool:
        return bool(self._read_job(0)["type"] == libvirt.VIR_DOMAIN_JOB_NONE)

    def _read_job(self, flags: int) -> dict[str, Any]:
        job: dict[str, Any] = self._connection.call(
            "report the backup", partial(self._domain.jobStats, flags), deadline=30
        )
        return job
