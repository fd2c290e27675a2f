"""A backup of a guest's disk by libvirt, to a file of the host, while the guest runs."""

from __future__ import annotations

from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.guest.libvirt.binding import libvirt
from harness.guest.libvirt.connection import Connection, LibvirtRefusal
from harness.signals import wait_until
from harness.untrusted import count, reading

_CANCEL_SECONDS = 30.0
_POLL_SECONDS = 0.02


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
