"""Programs of a host that describe its disks: smartctl and nvme their health, and storcli the volumes of a controller.

Broadcom's storcli and Dell's perccli print the same JSON; ssacli for Smart Array does not. None of them fails a run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import HarnessError
from harness.features.disk_health import RAID_TOOLS
from harness.lab.facts import DEADLINE_SECONDS, Described, HealthFound, HostFacts
from harness.lab.transport.base import Runner
from harness.model.disk import ArrayFacts, Controller, DiskFacts, DiskHealth
from harness.terminal import quoted
from harness.untrusted import finite, parse_json, reading

_UNIT_BYTES = 512_000
"""NVMe counts data in units of 1000 times 512 bytes (NVM Express Base Specification, SMART / Health Information)."""
_KELVIN = 273
_HAVE_NONE = (None, "loop", "dm", "md", "virtio")
"""Transports of disks that have no health of their own. Targets show that of no disk behind them, either."""
DRIVER = "megaraid_sas"

_SHOWN = re.compile(r"(/c[0-9]+)/v([0-9]+)")
_SIZE = re.compile(r"([0-9]{1,6}) ?([KM])B")


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a controller: the device that it is for the system, and what it is."""

    device: str
    controller: str
    array: ArrayFacts


def describe_arrays(runner: Runner, host: HostFacts, disks: Mapping[str, DiskFacts]) -> Described:
    """The disks with what the tool of their controller reports in addition."""
    behind = [name for name, disk in disks.items() if disk.controller and disk.controller.driver == DRIVER]
    tool = next((name for name in RAID_TOOLS if host.has_tool(name)), None)
    if not behind:
        return Described(disks)
    what = "cache policy and strip size of its controller are not known"
    if tool is None:
        why = f"{what}, because {runner.name} has neither storcli64 nor perccli64, which the controller's vendor offers"
        return Described(disks, dict.fromkeys(behind, why))
    try:
        controllers = dict(parse_controllers(_ask_tool(runner, host, tool, "/call")))
        volumes = list(parse_volumes(_ask_tool(runner, host, tool, "/call/vall"), tool))
    except HarnessError as error:
        return Described(disks, dict.fromkeys(behind, f"{what}: {error.message}"))
    # A disk that the controller passes through is no volume. It has neither of the two.
    volumes_of = {volume.device: volume for volume in volumes if volume.device in behind}
    return Described(
        {
            name: _add_volume(disk, volumes_of[name], controllers.get(volumes_of[name].controller))
            if name in volumes_of
            else disk
            for name, disk in disks.items()
        }
    )


def parse_controllers(document: Any) -> Iterator[tuple[str, Controller]]:
    """Model and firmware of each controller by its name (`/c0`), in the output of `storcli64 /call show J`."""
    for number, data in _split_controllers(document):
        model, firmware = data.get("Product Name"), data.get("FW Version")
        yield f"/c{number}", Controller(model=_clean_text(model), firmware=_clean_text(firmware), driver=DRIVER)


def parse_volumes(document: Any, source: str) -> Iterator[Volume]:
    """The volumes with a device, in the output of `storcli64 /call/vall show all J`."""
    for _, data in _split_controllers(document):
        for key, value in data.items():
            shown = _SHOWN.fullmatch(key)
            if shown is None:
                continue
            summary, properties = value[0], data.get(f"VD{shown[2]} Properties", {})
            device = str(properties.get("OS Drive Name", "")).removeprefix("/dev/")
            disks = data.get(f"PDs for VD {shown[2]}", [])
            policy = [_clean_text(summary.get("Cache")), _clean_text(properties.get("Write Cache(initial setting)"))]
            disk_cache = _clean_text(properties.get("Disk Cache Policy"))
            policy.append(f"disk cache: {disk_cache}" if disk_cache else None)
            array = ArrayFacts(
                level=_clean_text(summary.get("TYPE")),
                chunk_bytes=_parse_bytes(properties.get("Strip Size")),
                disks=len(disks) or None,
                cache_policy=", ".join(word for word in policy if word) or None,
                source=source,
            )
            if device:
                yield Volume(device, shown[1], array)


def _ask_tool(runner: Runner, host: HostFacts, tool: str, what: str) -> Any:
    argv = [host[f"tool_{tool}"], what, "show", *(["all"] if what != "/call" else []), "J"]
    printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False).stdout
    source = f"{runner.name}: the output of {tool} {' '.join(argv[1:])}"
    with reading(source):
        document = parse_json(printed, source)
        # Both are generators elsewhere: what is wrong in the document is found here, where it is explained.
        list(parse_controllers(document))
        list(parse_volumes(document, tool))
    return document


def _split_controllers(document: Any) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for answer in document["Controllers"]:
        status = answer["Command Status"]
        if status.get("Status") == "Success" and type(status["Controller"]) is int:
            yield status["Controller"], answer.get("Response Data", {})


def _add_volume(disk: DiskFacts, volume: Volume, known: Controller | None) -> DiskFacts:
    controller_facts = disk.controller or Controller()
    controller = (
        replace(controller_facts, model=known.model or controller_facts.model, firmware=known.firmware)
        if known
        else controller_facts
    )
    return replace(disk, disk_class="array", controller=controller, array=volume.array)


def _clean_text(value: object) -> str | None:
    return " ".join(value.split())[:100] if isinstance(value, str) and value.strip() else None


def _parse_bytes(value: object) -> int | None:
    """`256 KB` in bytes. The tool writes KB for 1024 bytes."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(match[1]) << {"K": 10, "M": 20}[match[2]] if match else None


def read_health(runner: Runner, host: HostFacts, disk: DiskFacts) -> HealthFound:
    """The health of this disk now. The reason why it is not known names the package to install."""
    if disk.transport in _HAVE_NONE or disk.network is not None:
        return HealthFound()
    device = f"/dev/{disk.device}"
    is_nvme = disk.transport == "nvme"
    if host.has_tool("smartctl"):
        statistics = [] if is_nvme else ["-l", "devstat"]
        return _read_health(
            runner, [host["tool_smartctl"], "--json=c", "-i", "-A", *statistics, device], parse_smartctl
        )
    if is_nvme and host.has_tool("nvme"):
        return _read_health(runner, [host["tool_nvme"], "smart-log", device, "-o", "json"], parse_nvme)
    command = host.install("smartmontools")
    return HealthFound(why=f"temperature and wear are not known, because {runner.name} has no smartctl: {command}")


def parse_smartctl(document: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `smartctl --json`, of NVMe, SATA and SAS disks. Keys: smartmontools 7.0 and newer.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    if "device" not in document:
        raise ValueError(_read_message(document))
    nvme = document.get("nvme_smart_health_information_log", {})
    written = nvme.get("data_units_written")
    used = (
        nvme.get("percentage_used"),
        document.get("endurance_used", {}).get("current_percent"),
        document.get("scsi_percentage_used_endurance_indicator"),
        _read_statistic(document, "Percentage Used Endurance Indicator"),
    )
    health = DiskHealth(
        at=at,
        source="smartctl",
        celsius=_parse_number(document.get("temperature", {}).get("current")),
        used_percent=next((number for text in used if (number := _parse_number(text)) is not None), None),
        written_bytes=_parse_whole(written) * _UNIT_BYTES if written is not None else _read_written(document),
        hours=_parse_whole_or_none(document.get("power_on_time", {}).get("hours")),
        errors=_parse_whole_or_none(nvme.get("media_errors")),
    )
    return HealthFound(
        health, None, _clean_text(document.get("model_name")), _clean_text(document.get("firmware_version"))
    )


def parse_nvme(document: Mapping[str, Any], at: float) -> HealthFound:
    """The health in the output of `nvme smart-log -o json`, which has the temperature in kelvin.

    Raises ValueError, TypeError or LookupError if it is not such an output.
    """
    return HealthFound(
        DiskHealth(
            at=at,
            source="nvme",
            celsius=_parse_whole(document["temperature"]) - _KELVIN,
            used_percent=_parse_number(document["percent_used"]),
            written_bytes=_parse_whole(document["data_units_written"]) * _UNIT_BYTES,
            hours=_parse_whole_or_none(document.get("power_on_hours")),
            errors=_parse_whole_or_none(document.get("media_errors")),
        )
    )


def _read_health(
    runner: Runner, argv: list[str], parse: Callable[[Mapping[str, Any], float], HealthFound]
) -> HealthFound:
    source = f"{runner.name}: the output of {' '.join(argv)}"
    try:
        # The exit status of smartctl has a bit for each finding, and is not checked.
        printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False)
        with reading(source):
            return parse(parse_json(printed.stdout, source), time.time())
    except HarnessError as error:
        return HealthFound(why=f"temperature and wear are not known: {error.message}")


def _read_written(document: Mapping[str, Any]) -> int | None:
    """The bytes written by ATA's device statistics, or by the error counters of SCSI, which count gigabytes."""
    sectors = _read_statistic(document, "Logical Sectors Written")
    if sectors is not None:
        return _parse_whole(sectors) * _parse_whole(document.get("logical_block_size", 512))
    gigabytes = document.get("scsi_error_counter_log", {}).get("write", {}).get("gigabytes_processed")
    return round(finite(str(gigabytes)) * 1e9) if gigabytes is not None else None


def _read_statistic(document: Mapping[str, Any], name: str) -> object:
    """A value of ATA's device statistics (`-l devstat`)."""
    pages = document.get("ata_device_statistics", {}).get("pages", [])
    return next((row.get("value") for page in pages for row in page.get("table", []) if row.get("name") == name), None)


def _read_message(document: Mapping[str, Any]) -> str:
    messages = document.get("smartctl", {}).get("messages", [])
    return str(messages[0]["string"])[:200] if messages else "it describes no device"


def _parse_whole(value: object) -> int:
    """A count. nvme-cli writes large counts as floating-point numbers or text, depending on its version."""
    number = _parse_number(value)
    if number is None or not 0 <= number < 1 << 64:
        raise ValueError(f"{quoted(str(value))} is not a count")
    return int(number)


def _parse_whole_or_none(value: object) -> int | None:
    return None if value is None else _parse_whole(value)


def _parse_number(value: object) -> float | None:
    if value is None or isinstance(value, bool):
        return None
    return finite(str(value).replace(",", ""))
