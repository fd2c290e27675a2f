"""The versions of libvirt and QEMU that an attachment or a guest needs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.guest.machine_size import too_many_queues
from harness.model.attach import Attach
from harness.model.guest import GuestOptions
from harness.model.layout import Qcow2
from harness.model.mode import Mode

NVME = 11_005_000
"""libvirt 11.5.0 supports `bus='nvme'`. Source of these three: libvirt's NEWS."""
BLK_MAPPING = (10_000_000, 9_000_000)
"""libvirt 10.0.0 and QEMU 9.0 spread the queues of virtio-blk over several iothreads."""
SCSI_MAPPING = (11_002_000, 10_000_000)
"""libvirt 11.2.0 and QEMU 10.0 do the same for virtio-scsi."""

_MODEL = re.compile(r"[A-Za-z0-9_.-]+")
POLLING = 9_004_000
"""libvirt 9.4.0 has the polling of iothreads in its XML. Source: libvirt's "Domain XML format"."""

PACKED = 6_003_000
"""libvirt 6.3.0 has packed rings. Source of these three: libvirt's "Domain XML format" and NEWS."""
METADATA_CACHE = 7_000_000
THROTTLE_GROUP = 3_000_000
DATA_FILE = 10_010_000
"""libvirt 10.10.0 has the data file of a qcow2 image (`<dataStore>`)."""
BACKUP = 6_000_000
"""libvirt 6.0.0 has virDomainBackupBegin. Source: libvirt's NEWS."""
VHOST_USER = (7_001_000, 7_000_000)
"""libvirt 7.1.0 has disks of vhost-user-blk. The storage daemon of QEMU 7.0 can become a daemon (`--daemonize`)."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions as libvirt encodes them: 1,000,000 x major + 1,000 x minor + release."""

    libvirt: int
    qemu: int


def missing_for(attach: Attach, has: Versions, cpus: int) -> str | None:
    """Why a host with these versions and CPUs cannot attach a disk in this way, with the remedy; None if it can."""
    if why := too_many_queues(attach, cpus):
        return why
    return lacking(_needs(attach, has))


def guest_missing(guest: GuestOptions, has: Versions) -> str | None:
    """Why a host with these versions cannot have a guest with these options, with the remedy; None if it can."""
    if guest.cpu is not None and not _MODEL.fullmatch(guest.cpu):
        return f'cpu = "{guest.cpu}" is an option of Proxmox VE; with libvirt, request the model only'
    return lacking(("polling of iothreads", "libvirt", POLLING, has.libvirt) for _ in guest.polls)


def mode_missing(mode: Mode, has: Versions) -> str | None:
    """Why a host with these versions cannot have what a mode requests beside its attachment; None if it can."""
    needs = []
    if mode.backup:
        needs.append(("backup", "libvirt", BACKUP, has.libvirt))
    if isinstance(mode.layout, Qcow2) and mode.layout.data_file:
        needs.append(("data_file", "libvirt", DATA_FILE, has.libvirt))
    return lacking(needs)


def lacking(needs: Iterable[tuple[str, str, int, int]]) -> str | None:
    """Which of these versions a host lacks, as text: what, the program, the oldest suitable version and the host's."""
    found = dict.fromkeys(
        f"{what} needs {program} {_shown(least)}, but the host has {_shown(version)}"
        for what, program, least, version in needs
        if version < least
    )
    return f"{'; '.join(found)}: upgrade the host, or measure on another one" if found else None


def _needs(attach: Attach, has: Versions) -> Iterator[tuple[str, str, int, int]]:
    """Each option that needs a version: the option, the program, the oldest suitable version and the host's version."""
    if attach.bus == "nvme":
        yield 'bus = "nvme"', "libvirt", NVME, has.libvirt
    if attach.packed is not None:
        yield "packed", "libvirt", PACKED, has.libvirt
    if attach.metadata_cache is not None:
        yield "metadata_cache", "libvirt", METADATA_CACHE, has.libvirt
    if attach.throttle_group is not None:
        yield "throttle_group", "libvirt", THROTTLE_GROUP, has.libvirt
    if not attach.in_qemu:
        yield f'server = "{attach.server}"', "libvirt", VHOST_USER[0], has.libvirt
        yield f'server = "{attach.server}"', "QEMU", VHOST_USER[1], has.qemu
    if attach.poll_max_ns is not None and attach.in_qemu:
        yield "polling of iothreads", "libvirt", POLLING, has.libvirt
    if attach.iothread_vq_mapping:
        what = f'iothread_vq_mapping with bus = "{attach.bus}"'
        libvirt, qemu = SCSI_MAPPING if attach.bus == "virtio-scsi" else BLK_MAPPING
        yield what, "libvirt", libvirt, has.libvirt
        yield what, "QEMU", qemu, has.qemu


def _shown(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"
