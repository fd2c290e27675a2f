"""The buses of a guest that a disk can be on: what hypervisors, QEMU and guests call them, and their limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Bus = Literal["virtio-blk", "virtio-scsi", "sata", "ide", "nvme"]


class BusFacts(NamedTuple):
    """The names of a bus in libvirt, Proxmox VE, QEMU and the guest, and the most disks of a guest on it."""

    hypervisor: str
    """The name in libvirt and Proxmox VE."""
    qemu_device: str
    guest_driver: str
    guest_controller_driver: str
    windows_driver: str
    """The driver of the controller in Windows."""
    most: int
    """Disks of one guest. This is the smallest limit of all hypervisors, because a setup must fit on each of them."""


BUSES: Mapping[Bus, BusFacts] = {
    # Proxmox VE has virtio0 to virtio15 and scsi0 to scsi30. The root bus of the guest may have room for fewer.
    "virtio-blk": BusFacts("virtio", "virtio-blk-pci", "virtio_blk", "virtio-pci", "viostor", 16),
    "virtio-scsi": BusFacts("scsi", "scsi-hd", "sd", "virtio_scsi", "vioscsi", 31),
    # The ports of the controller in QEMU's q35. Proxmox VE has the same number.
    "sata": BusFacts("sata", "ide-hd", "sd", "ahci", "storahci", 6),
    # Two channels with two disks each.
    "ide": BusFacts("ide", "ide-hd", "sd", "ata_piix", "atapi", 4),
    "nvme": BusFacts("nvme", "nvme-ns", "nvme", "nvme", "stornvme", 20),
}
