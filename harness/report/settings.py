"""How to set a guest's disk up as a mode had it: a line of `qm set`, or libvirt's XML, from what was read back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.results import CellRecord

_OF_THE_RUN = ("serial", "size", "backup", "file")
"""Options of a drive that belong to the run's own guest."""
_BY_ID = "/dev/disk/by-id/"
"""A whole disk is no volume of a storage of Proxmox VE, and its /dev/sdX may be another disk after a boot."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What to set, and with what."""

    tool: str
    text: str


def setting_of(cells: Iterable[CellRecord], mode: str) -> Setting | None:
    """How the disk of a mode was attached, as its hypervisor takes it; None if no guest was read back."""
    effective = next((cell.effective for cell in cells if cell.mode == mode), None)
    if effective is None:
        return None
    if effective.pve_drive is not None:
        return Setting("qm set", _qm_set(effective.pve_drive))
    return Setting("libvirt's XML", effective.libvirt_disk) if effective.libvirt_disk is not None else None


def _qm_set(drive: str) -> str:
    """For example "qm set VMID --scsihw virtio-scsi-single --scsi0 STORAGE:VOLUME,cache=none,iothread=1"."""
    key, _, value = drive.partition(": ")
    volume, *options = value.split(",")
    options = [option for option in options if option.partition("=")[0] not in _OF_THE_RUN]
    controller = "--scsihw virtio-scsi-single " if key.startswith("scsi") else ""
    return f"qm set VMID {controller}--{key} {','.join((_volume(volume), *options))}"


def _volume(volume: str) -> str:
    """What to give to the VM: a disk by its stable path, as it was in the run, or a volume of the user's own."""
    if not volume.startswith("/"):
        return "STORAGE:VOLUME"
    is_disk = volume.startswith(_BY_ID) and not re.search(r"-part[0-9]+$", volume)
    return volume if is_disk else f"{_BY_ID}DISK"
