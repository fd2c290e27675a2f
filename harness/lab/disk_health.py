"""Reads temperature and wear of a disk with smartctl or nvme, if the host has one of them. Never fails a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError
from harness.lab.facts import HostFacts
from harness.lab.transport.base import Runner
from harness.model.disk import DiskFacts, DiskHealth
from harness.untrusted import finite, parse_json, reading

DEADLINE_SECONDS = 60.0
"""A disk that sleeps needs seconds to answer."""
_UNIT_BYTES = 512_000
"""NVMe counts data in units of 1000 times 512 bytes (NVM Express Base Specification, SMART / Health Information)."""
_KELVIN = 273
_HAVE_NONE = (None, "loop", "dm", "md", "virtio")
"""Transports of disks that have no health of their own."""


@dataclass(frozen=True, slots=True)
class HealthFound:
    """The health of a disk, or why it is not known. smartctl knows names of SATA disks that the kernel shortens."""

    health: DiskHealth | None = None
    why: str | None = None
    model: str | None = None
    firmware: str | None = None


def read_health(runner: Runner, host: HostFacts, disk: DiskFacts) -> HealthFound:
    """The health of this disk now. The reason why it is not known names the package to install."""
    if disk.transport in _HAVE_NONE:
        return HealthFound()
    device = f"/dev/{disk.device}"
    is_nvme = disk.transport == "nvme"
    if host.has_tool("smartctl"):
        statistics = [] if is_nvme else ["-l", "devstat"]
        return _read(runner, [host["tool_smartctl"], "--json=c", "-i", "-A", *statistics, device], of_smartctl)
    if is_nvme and host.has_tool("nvme"):
        return _read(runner, [host["tool_nvme"], "smart-log", device, "-o", "json"], of_nvme)
    command = host.install("smartmontools")
    return HealthFound(why=f"temperature and wear are not known, because {runner.name} has no smartctl: {command}")


def of_smartctl(found: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `smartctl --json`, of NVMe, SATA and SAS disks. Keys: smartmontools 7.0 and newer.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    if "device" not in found:
        raise ValueError(_message(found))
    nvme = found.get("nvme_smart_health_information_log", {})
    written = nvme.get("data_units_written")
    used = (
        nvme.get("percentage_used"),
        found.get("endurance_used", {}).get("current_percent"),
        found.get("scsi_percentage_used_endurance_indicator"),
        _statistic(found, "Percentage Used Endurance Indicator"),
    )
    health = DiskHealth(
        at=at,
        source="smartctl",
        celsius=_number(found.get("temperature", {}).get("current")),
        used_percent=next((number for each in used if (number := _number(each)) is not None), None),
        written_bytes=_whole(written) * _UNIT_BYTES if written is not None else _written(found),
        hours=_whole_or_none(found.get("power_on_time", {}).get("hours")),
        errors=_whole_or_none(nvme.get("media_errors")),
    )
    return HealthFound(health, None, _text(found.get("model_name")), _text(found.get("firmware_version")))


def of_nvme(found: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `nvme smart-log -o json`, which has the temperature in kelvin.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    return HealthFound(
        DiskHealth(
            at=at,
            source="nvme",
            celsius=_whole(found["temperature"]) - _KELVIN,
            used_percent=_number(found["percent_used"]),
            written_bytes=_whole(found["data_units_written"]) * _UNIT_BYTES,
            hours=_whole_or_none(found.get("power_on_hours")),
            errors=_whole_or_none(found.get("media_errors")),
        )
    )


def _read(runner: Runner, argv: list[str], parse: Callable[[Mapping[str, Any], float], HealthFound]) -> HealthFound:
    source = f"{runner.name}: the output of {' '.join(argv)}"
    try:
        # The exit status of smartctl has a bit for each finding, and is not checked.
        printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False)
        with reading(source):
            return parse(parse_json(printed.stdout, source), time.time())
    except HarnessError as error:
        return HealthFound(why=f"temperature and wear are not known: {error.message}")


def _written(found: Mapping[str, Any]) -> int | None:
    """The bytes written by ATA's device statistics, or by the error counters of SCSI, which count gigabytes."""
    sectors = _statistic(found, "Logical Sectors Written")
    if sectors is not None:
        return _whole(sectors) * _whole(found.get("logical_block_size", 512))
    gigabytes = found.get("scsi_error_counter_log", {}).get("write", {}).get("gigabytes_processed")
    return round(finite(str(gigabytes)) * 1e9) if gigabytes is not None else None


def _statistic(found: Mapping[str, Any], name: str) -> object:
    """A value of ATA's device statistics (`-l devstat`)."""
    pages = found.get("ata_device_statistics", {}).get("pages", [])
    return next(
        (each.get("value") for page in pages for each in page.get("table", []) if each.get("name") == name), None
    )


def _message(found: Mapping[str, Any]) -> str:
    messages = found.get("smartctl", {}).get("messages", [])
    return str(messages[0]["string"])[:200] if messages else "it describes no device"


def _whole(value: object) -> int:
    """A count. nvme-cli writes large counts as floating-point numbers or text, depending on its version."""
    number = _number(value)
    if number is None or not 0 <= number < 1 << 64:
        raise ValueError(f"{str(value)[:40]!r} is not a count")
    return int(number)


def _whole_or_none(value: object) -> int | None:
    return None if value is None else _whole(value)


def _number(value: object) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    return finite(str(value).replace(",", ""))


def _text(value: object) -> str | None:
    return " ".join(value.split())[:100] if isinstance(value, str) and value.strip() else None
