"""The classes of disks: what a scenario can ask for instead of the name of a disk. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

DiskClass = Literal["nvme", "ssd", "hdd", "array"]
"""What a disk is: an NVMe disk, another disk without moving parts, a rotating disk, or an array of disks that is there
already (md, or the volume of a controller). A disk has one class."""

RequestedClass = Literal["any", "nvme", "ssd", "hdd", "array", "storage"]
ANY: RequestedClass = "any"
ARRAY: DiskClass = "array"
STORAGE: RequestedClass = "storage"
REQUESTED_CLASSES: tuple[RequestedClass, ...] = get_args(RequestedClass)
"""What a scenario can ask for: `any` disk, the disks of a class, or the storages that hosts have."""

WRITE_RATES: Mapping[str, int] = {"nvme": 14 << 30, "ssd": 2400 << 20, "hdd": 550 << 20}
"""Bytes per second that a disk of the class cannot exceed: PCIe 5.0 with four lanes; a link of SAS 24 Gb/s; two
actuators at the outer tracks."""

_BY_PREFIX: Mapping[str, DiskClass] = {"nvme-": "nvme", "md-": "array"}
_SOLID_STATE = re.compile(r"(?<![A-Za-z])SSD(?![A-Za-z])")


def class_of_link(link: str) -> DiskClass | None:
    """The class that a link below /dev/disk/by-id/ shows; None if it shows none.

    udev begins the names with the transport, `nvme-MODEL_SERIAL`. An `ata-`, `scsi-` or `usb-` disk may rotate or not,
    but many models without moving parts have the word SSD in their name.
    """
    name = link.rpartition("/")[2]
    for prefix, known in _BY_PREFIX.items():
        if name.startswith(prefix):
            return known
    return "ssd" if _SOLID_STATE.search(name.replace("_", " ")) else None
