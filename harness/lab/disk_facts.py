"""Reads what the host's kernel knows of disks, with one command for all of them: identity, links, queue, controller."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.lab.transport.base import Runner
from harness.model.disk import ArrayFacts, Controller, DiskFacts, PcieLink, SerialLink
from harness.model.disk_class import DiskClass
from harness.shipped import read_script

DEADLINE_SECONDS = 60.0
MOST_LEVELS = 8
"""Devices on top of each other: a volume on a thin pool on an array on partitions of disks has six."""

_PROGRAM = read_script("harness.lab", "read_disks.pl")

_NUMBER = re.compile(r"[0-9]{1,18}")
_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,2})?)(?![0-9])")
_TRANSPORTS = (("/usb", "usb"), ("/ata", "sata"), ("/end_device-", "sas"), ("/host", "scsi"), ("/virtio", "virtio"))
"""A part of the device's path in sysfs, and what the disk is then attached by; the first one counts."""


def read_disks(runner: Runner, disks: Sequence[str], *, root: str = "") -> dict[str, DiskFacts]:
    """The facts of these disks, and of those below them, by their kernel names (`nvme0n1`).

    Disks that are not there are left out, as one that is passed through to a guest. `root` is a directory to read
    instead of `/`. Raises HostError if the host cannot run the command.
    """
    found: dict[str, DiskFacts] = {}
    wanted = list(dict.fromkeys(disks))
    for _ in range(MOST_LEVELS):
        if not wanted:
            break
        read = _read(runner, wanted, root)
        found |= read
        wanted = list(dict.fromkeys(name for each in read.values() for name in each.members if name not in found))
    return found


def _read(runner: Runner, disks: Sequence[str], root: str) -> dict[str, DiskFacts]:
    argv = ["perl", "-", root, *disks]
    printed = runner.run(argv, stdin=_PROGRAM, deadline=DEADLINE_SECONDS, check=False).stdout
    found: dict[str, dict[str, str]] = {}
    for line in printed.splitlines():
        disk, _, rest = line.partition("\t")
        key, _, value = rest.partition("\t")
        if disk in disks and value:
            found.setdefault(disk, {})[key] = value
    return {disk: _facts(disk, found[disk]) for disk in disks if disk in found}


def _facts(device: str, values: Mapping[str, str]) -> DiskFacts:
    sectors = _number(values.get("size"))
    transport = _transport(device, values)
    array = _array(values)
    rotational = {"0": False, "1": True}.get(values.get("rotational", ""))
    link = _pcie(values)
    # SATA disks have ATA as their vendor, and virtio disks a PCI id.
    vendor = values.get("device/vendor", "")
    return DiskFacts(
        device=device,
        disk_class=_class(transport, rotational=rotational, is_array=array is not None),
        vendor=vendor if vendor and vendor != "ATA" and not vendor.startswith("0x") else None,
        model=values.get("device/model"),
        firmware=values.get("device/firmware_rev") or values.get("device/rev"),
        size_bytes=sectors * 512 if sectors is not None else None,
        logical_block_bytes=_number(values.get("logical_block_size")),
        physical_block_bytes=_number(values.get("physical_block_size")),
        rotational=rotational,
        transport=transport,
        pcie=link if transport == "nvme" else None,
        serial_link=_serial(values),
        scheduler=_chosen(values.get("scheduler", "")),
        write_cache=values.get("write_cache"),
        numa_node=_number(values.get("numa")),
        path=values.get("pci"),
        controller=_controller(values, link) if transport != "nvme" and "pci" in values else None,
        array=array,
        members=tuple(values.get("members", "").split()),
    )


def _class(transport: str | None, *, rotational: bool | None, is_array: bool) -> DiskClass | None:
    if is_array:
        return "array"
    if transport == "nvme":
        return "nvme"
    # A virtio disk rotates unless its hypervisor says otherwise, and few do.
    if transport in (None, "loop", "dm", "virtio") or rotational is None:
        return None
    return "hdd" if rotational else "ssd"


def _transport(device: str, values: Mapping[str, str]) -> str | None:
    if device.startswith("nvme"):
        return "nvme"
    for key, transport in (("md/level", "md"), ("dm/uuid", "dm"), ("loop/backing_file", "loop")):
        if key in values:
            return transport
    path = values.get("sysfs", "")
    return next((transport for part, transport in _TRANSPORTS if part in path), None)


def _array(values: Mapping[str, str]) -> ArrayFacts | None:
    if "md/level" in values:
        chunk = _number(values.get("md/chunk_size"))
        return ArrayFacts(values["md/level"], chunk or None, _number(values.get("md/raid_disks")))
    # smartpqi and hpsa show the level of a volume, and N/A for a disk that they pass through.
    level = values.get("device/raid_level", "N/A")
    return ArrayFacts(level) if level not in ("N/A", "") else None


def _controller(values: Mapping[str, str], link: PcieLink | None) -> Controller:
    return Controller(
        vendor=values.get("pci/vendor_name") or values.get("pci/vendor"),
        model=values.get("host_model") or values.get("pci/model_name") or values.get("pci/device"),
        driver=values.get("pci/driver"),
        firmware=values.get("host_firmware"),
        link=link,
    )


def _pcie(values: Mapping[str, str]) -> PcieLink | None:
    speed, lanes = _rate(values.get("pci/current_link_speed")), _number(values.get("pci/current_link_width"))
    if not speed or not lanes:
        return None
    # An emulated device shows 255 lanes as its highest number, which stands for unknown.
    most = _number(values.get("pci/max_link_width"))
    return PcieLink(speed, lanes, _rate(values.get("pci/max_link_speed")), most if most and most < 255 else None)


def _serial(values: Mapping[str, str]) -> SerialLink | None:
    if sata := _rate(values.get("sata_spd")):
        return SerialLink("SATA", sata, _rate(values.get("sata_most")))
    if sas := _rate(values.get("sas_rate")):
        return SerialLink("SAS", sas, _rate(values.get("sas_most")))
    return None


def _chosen(listed: str) -> str | None:
    """The active scheduler. The kernel lists all with the active one in brackets: `[none] mq-deadline`."""
    found = re.search(r"\[(\S+)\]", listed) or re.fullmatch(r"(\S+)", listed)
    return found[1] if found else None


def _number(text: str | None) -> int | None:
    """A number that is not negative. The kernel writes -1 for a NUMA node that does not matter."""
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _rate(text: str | None) -> float | None:
    """The number at the beginning of `8.0 GT/s PCIe`, `6.0 Gbps` or `12.0 Gbit`; None for `<unknown>`."""
    found = _RATE.match(text or "")
    return float(found[1]) if found else None
