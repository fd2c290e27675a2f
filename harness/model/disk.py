"""What a disk under test is: class, identity, link and controller, and its state before and after a run. Pure.

Every value was reported by the host. None stands for what the host does not report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_args

from pydantic import Field

from harness.model.base import Shape
from harness.model.values import Name, RecordValue
from harness.units import format_size

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


def derive_class(link: str) -> DiskClass | None:
    """The class that a link below /dev/disk/by-id/ shows; None if it shows none.

    udev begins the names with the transport, `nvme-MODEL_SERIAL`. An `ata-`, `scsi-` or `usb-` disk may rotate or not,
    but many models without moving parts have the word SSD in their name.
    """
    name = link.rpartition("/")[2]
    for prefix, known in _BY_PREFIX.items():
        if name.startswith(prefix):
            return known
    return "ssd" if _SOLID_STATE.search(name.replace("_", " ")) else None


_LEVEL = re.compile(r"raid[ -]?(\d+)", re.IGNORECASE)
# RAID-1(1+0) is what smartpqi and hpsa call a RAID 10, and RAID ADG is an old name of RAID 6.
_OTHER_NAMES = {"1(1+0)": 10, "1(+0)": 10, "adg": 6}
_NESTED = {50: 5, 60: 6, 100: 10}


def _parse_level(name: str) -> tuple[int | None, bool]:
    """The RAID level by this name, and whether the name is that of a stripe over several such arrays."""
    word = re.sub(r"^raid[ -]?", "", name.strip().lower())
    if word in _OTHER_NAMES:
        return _OTHER_NAMES[word], False
    match = _LEVEL.fullmatch(name.strip()) or re.fullmatch(r"raid[ -]?(1)\(triple|adm\)", name.strip(), re.IGNORECASE)
    if match is None:
        return None, False
    number = int(match[1])
    return (_NESTED[number], True) if number in _NESTED else (number, False)


@dataclass(frozen=True, slots=True)
class PcieLink(RecordValue):
    """A PCI Express link as negotiated, and what the device could do in a better slot."""

    gt_per_s: float
    """Transfers per second of each lane, in GT/s: 8 for PCIe 3.0, 16 for PCIe 4.0."""
    lanes: int
    """The number of lanes in use."""
    most_gt_per_s: float | None = None
    """The highest speed of the device, in GT/s."""
    most_lanes: int | None = None
    """The number of lanes of the device."""

    @property
    def bytes_per_s(self) -> float:
        """What it transfers in one direction, with packet headers: 8 of 10 bits up to 5 GT/s, then 128 of 130."""
        return self.gt_per_s * 1e9 * self.lanes * (0.8 if self.gt_per_s <= 5 else 128 / 130) / 8

    @property
    def is_reduced(self) -> bool:
        """Whether the device could be faster."""
        return self.gt_per_s < (self.most_gt_per_s or 0) or self.lanes < (self.most_lanes or 0)

    def __str__(self) -> str:
        text = f"PCIe {self.gt_per_s:g} GT/s x{self.lanes}"
        if not self.is_reduced:
            return text
        return f"{text} of {self.most_gt_per_s or self.gt_per_s:g} GT/s x{self.most_lanes or self.lanes}"


@dataclass(frozen=True, slots=True)
class SerialLink(RecordValue):
    """A SATA or SAS link as negotiated, and its highest speed."""

    kind: str
    """`SATA` or `SAS`."""
    gbit_per_s: float
    """The speed in Gbit/s."""
    most_gbit_per_s: float | None = None
    """The highest speed of the host's port, in Gbit/s."""

    @property
    def bytes_per_s(self) -> float:
        """What it transfers in one direction: 8 of 10 bits up to 12 Gbit/s, then 128 of 150 (SAS-4)."""
        return self.gbit_per_s * 1e9 * (0.8 if self.gbit_per_s <= 12 else 128 / 150) / 8

    @property
    def is_reduced(self) -> bool:
        """Whether the port could be faster."""
        return self.gbit_per_s < (self.most_gbit_per_s or 0)

    def __str__(self) -> str:
        most = f" of {self.most_gbit_per_s:g} Gbit/s" if self.is_reduced else ""
        return f"{self.kind} {self.gbit_per_s:g} Gbit/s{most}"


@dataclass(frozen=True, slots=True)
class NetworkPath(RecordValue):
    """The network through which the host reaches a disk of another machine."""

    protocol: str
    """`iSCSI`, `NVMe/TCP`, `NVMe/RDMA`, `NVMe/FC` or `NVMe/loop`."""
    target: str | None = None
    """The name of the target: its IQN, or the NQN of the NVMe subsystem."""
    addresses: tuple[str, ...] = ()
    """Address and port of the target, of each path that the kernel uses."""

    def __str__(self) -> str:
        at = f" at {' and '.join(self.addresses)}" if self.addresses else ""
        return f"{self.protocol}{at}{f' ({self.target})' if self.target else ''}"


@dataclass(frozen=True, slots=True)
class Controller(RecordValue):
    """The PCI device that disks are behind. An NVMe disk is its own controller and has none."""

    vendor: str | None = None
    """The vendor's name, or its PCI id."""
    model: str | None = None
    """The model's name, or its PCI id."""
    driver: str | None = None
    """The kernel's driver."""
    firmware: str | None = None
    """The version of its firmware."""
    link: PcieLink | None = None
    """Its own link, which all of its disks share."""


@dataclass(frozen=True, slots=True)
class ArrayFacts(RecordValue):
    """An array that was there before the run: of md, or a volume of a controller."""

    level: str | None = None
    """The RAID level as its source names it, for example `raid5` or `RAID 1`."""
    chunk_bytes: int | None = None
    """Bytes on one disk before the next one follows: md's chunk, or the controller's strip size."""
    disks: int | None = None
    """The number of its disks."""
    cache_policy: str | None = None
    """The controller's cache policy of the volume, in the words of its tool."""
    source: str = "sysfs"
    """What reported this: `sysfs`, the controller's tool, or `the lab file` if the host reports nothing."""
    legs: int | None = None
    """The number of arrays of this level that are striped, for example 2 for RAID 50; null for one."""
    controller: str | None = None
    """The controller or appliance that provides it, in the words of the lab file."""

    @property
    def shape(self) -> Shape | None:
        """Its shape for the analysis of scaling. None if it is not known, or if it is not one of the usual levels."""
        level, is_nested = _parse_level(self.level or "")
        if level is None or self.disks is None or (is_nested and not self.legs):
            return None
        try:
            return Shape(level, self.disks, self.legs or 1)
        except ValueError:
            return None

    def completed(self, stated: ArrayFacts) -> ArrayFacts:
        """The array with what only `stated` knows."""
        return replace(
            self,
            level=self.level or stated.level,
            chunk_bytes=self.chunk_bytes or stated.chunk_bytes,
            disks=self.disks or stated.disks,
            cache_policy=self.cache_policy or stated.cache_policy,
            legs=self.legs or stated.legs,
            controller=stated.controller,
        )

    def contradictions(self, stated: ArrayFacts) -> Iterator[str]:
        """What `stated` says in another way, in words. The same level may have several names."""
        if self.level and stated.level and _parse_level(self.level)[0] != _parse_level(stated.level)[0]:
            yield f"{stated.level} instead of {self.level}"
        if self.disks and stated.disks and self.disks != stated.disks:
            yield f"{stated.disks} disks instead of {self.disks}"
        if self.chunk_bytes and stated.chunk_bytes and self.chunk_bytes != stated.chunk_bytes:
            yield f"strips of {format_size(stated.chunk_bytes)} instead of {format_size(self.chunk_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts(RecordValue):
    """A disk as its host describes it."""

    device: str
    """The kernel's name of the device, which may change when the host boots."""
    disk_class: DiskClass | None = None
    """What it is; null for a loop device, a volume, and what the host does not describe."""
    vendor: str | None = None
    """The vendor, unless it is a part of the model's name."""
    model: str | None = None
    """The model."""
    firmware: str | None = None
    """The version of the firmware."""
    size_bytes: int | None = None
    """The capacity in bytes."""
    logical_block_bytes: int | None = None
    """The smallest I/O in bytes."""
    physical_block_bytes: int | None = None
    """The smallest I/O in bytes that the disk writes without reading first."""
    rotational: bool | None = None
    """Whether the kernel treats it as a rotating disk."""
    transport: str | None = None
    """`nvme`, `sata`, `sas`, `usb`, `virtio`, `scsi`, `iscsi`, `nvme-tcp` (or `-rdma`, `-fc`, `-loop`), `md`, `dm`,
    `loop`; null for others."""
    pcie: PcieLink | None = None
    """The link of an NVMe disk."""
    serial_link: SerialLink | None = None
    """The link of a SATA or SAS disk."""
    scheduler: str | None = None
    """The I/O scheduler."""
    write_cache: str | None = None
    """`write back` if the kernel sends flushes, `write through` if no write is lost without one."""
    numa_node: int | None = None
    """The NUMA node that it is attached to; null on a host with one node."""
    path: str | None = None
    """The PCI address of its controller, or of the NVMe disk."""
    controller: Controller | None = None
    """The controller that it is behind; null for an NVMe disk, which is its own."""
    array: ArrayFacts | None = None
    """The array that it is; null for a single disk."""
    members: tuple[str, ...] = ()
    """The kernel's names of the devices below an array or a volume."""
    network: Annotated[NetworkPath | None, Field(exclude_if=lambda network: network is None)] = None
    """How the host reaches a disk of another machine; null for one of its own."""

    @property
    def link(self) -> PcieLink | SerialLink | None:
        """The link of the disk itself."""
        return self.pcie or self.serial_link

    @property
    def name(self) -> str | None:
        """Vendor and model in words; None without a model."""
        if self.model is None:
            return None
        vendor = self.vendor or ""
        return self.model if self.model.lower().startswith(vendor.lower()) else f"{vendor} {self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskHealth(RecordValue):
    """Temperature and wear of a disk at one moment."""

    at: float
    """When it was read, in seconds since 1970-01-01 UTC."""
    source: str
    """The program that read it: `smartctl` or `nvme`."""
    celsius: float | None = None
    """The temperature in degrees Celsius."""
    used_percent: float | None = None
    """The used part of the endurance that the vendor rates, in percent. It can exceed 100."""
    written_bytes: int | None = None
    """The bytes that hosts have written to it in its life."""
    hours: int | None = None
    """The hours that it was powered on."""
    errors: int | None = None
    """Errors of its media that it could not correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRecord(RecordValue):
    """A disk that a run measured on: what it is, and how the run changed it."""

    name: Name
    """Its name in the lab file."""
    facts: DiskFacts
    """What the host reports about it."""
    below: tuple[DiskFacts, ...] = ()
    """The disks below an array or a volume."""
    before: DiskHealth | None = None
    """Before the first measurement; null if no tool could read it."""
    after: DiskHealth | None = None
    """After the last measurement."""
    notes: tuple[str, ...] = ()
    """What a reader must know about the disk, one sentence each: contradictions, reduced links, what is not known."""


def merge_disk_records(before: DiskRecord | None, now: DiskRecord) -> DiskRecord:
    """One record of a disk that was seen before: its first health, its last health, and all notes."""
    if before is None:
        return now
    notes = tuple(dict.fromkeys((*before.notes, *now.notes)))
    return replace(now, before=before.before or now.before, after=now.after or before.after, notes=notes)
