"""What an attachment needs of a host's libvirt and QEMU: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.guest.machine_size import too_many_queues
from harness.model.attach import Attach

NVME = 11_005_000
"""libvirt 11.5.0 knows `bus='nvme'`. Source: libvirt's NEWS, as the others."""
BLK_MAPPING = (10_000_000, 9_000_000)
"""libvirt 10.0.0 and QEMU 9.0 spread the queues of virtio-blk over several iothreads."""
SCSI_MAPPING = (11_002_000, 10_000_000)
"""libvirt 11.2.0 and QEMU 10.0 do so for virtio-scsi."""


@dataclass(frozen=True, slots=True)
class Versions:
    """As libvirt counts them: 1,000,000 x major + 1,000 x minor + release."""

    libvirt: int
    qemu: int


def missing_for(attach: Attach, has: Versions, cpus: int) -> str | None:
    """Why a host of these versions and so many CPUs cannot attach a disk so, with the remedy; None where it can."""
    if why := too_many_queues(attach, cpus):
        return why
    needs = [
        f"{what} needs {program} {_shown(least)}, it has {_shown(version)}"
        for what, program, least, version in _needs(attach, has)
        if version < least
    ]
    return f"{'; '.join(needs)}: upgrade it, or measure on another host" if needs else None


def _needs(attach: Attach, has: Versions) -> Iterator[tuple[str, str, int, int]]:
    """What asks for a version, of which program, the least one, and the one there is."""
    if attach.bus == "nvme":
        yield 'bus = "nvme"', "libvirt", NVME, has.libvirt
    if attach.iothread_vq_mapping:
        what = f'iothread_vq_mapping with bus = "{attach.bus}"'
        libvirt, qemu = SCSI_MAPPING if attach.bus == "virtio-scsi" else BLK_MAPPING
        yield what, "libvirt", libvirt, has.libvirt
        yield what, "QEMU", qemu, has.qemu


def _shown(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"
