"""Reads model, firmware, cache policy and strip size of MegaRAID controllers and their volumes. Never fails a run.

Broadcom's storcli and Dell's perccli print this as JSON. ssacli for Smart Array controllers prints no JSON; their
driver shows the level of a volume and the firmware in sysfs (disk_facts.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.errors import HarnessError
from harness.lab.facts import RAID_TOOLS, HostFacts
from harness.lab.transport.base import Runner
from harness.model.disk import ArrayFacts, Controller, DiskFacts
from harness.untrusted import parse_json, reading

DEADLINE_SECONDS = 60.0
DRIVER = "megaraid_sas"

_SHOWN = re.compile(r"(/c[0-9]+)/v([0-9]+)")
_SIZE = re.compile(r"([0-9]{1,6}) ?([KM])B")


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of a controller: the device that it is for the system, and what it is."""

    device: str
    controller: str
    array: ArrayFacts


@dataclass(frozen=True, slots=True)
class Described:
    """Disks by their kernel names, with what a controller's tool reports; and by disk why something is not known."""

    disks: Mapping[str, DiskFacts]
    notes: Mapping[str, str] = field(default_factory=dict)


def described(runner: Runner, host: HostFacts, disks: Mapping[str, DiskFacts]) -> Described:
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
        controllers = dict(controllers_in(_shown(runner, host, tool, "/call")))
        volumes = list(volumes_in(_shown(runner, host, tool, "/call/vall"), tool))
    except HarnessError as error:
        return Described(disks, dict.fromkeys(behind, f"{what}: {error.message}"))
    # A disk that the controller passes through is no volume. It has neither of the two.
    found = {volume.device: volume for volume in volumes if volume.device in behind}
    return Described(
        {
            name: _with(disk, found[name], controllers.get(found[name].controller)) if name in found else disk
            for name, disk in disks.items()
        }
    )


def controllers_in(document: Any) -> Iterator[tuple[str, Controller]]:
    """Model and firmware of each controller by its name (`/c0`), in the output of `storcli64 /call show J`."""
    for number, data in _of_controllers(document):
        model, firmware = data.get("Product Name"), data.get("FW Version")
        yield f"/c{number}", Controller(model=_text(model), firmware=_text(firmware), driver=DRIVER)


def volumes_in(document: Any, source: str) -> Iterator[Volume]:
    """The volumes with a device, in the output of `storcli64 /call/vall show all J`."""
    for _, data in _of_controllers(document):
        for key, value in data.items():
            shown = _SHOWN.fullmatch(key)
            if shown is None:
                continue
            summary, properties = value[0], data.get(f"VD{shown[2]} Properties", {})
            device = str(properties.get("OS Drive Name", "")).removeprefix("/dev/")
            disks = data.get(f"PDs for VD {shown[2]}", [])
            policy = [_text(summary.get("Cache")), _text(properties.get("Write Cache(initial setting)"))]
            disk_cache = _text(properties.get("Disk Cache Policy"))
            policy.append(f"disk cache: {disk_cache}" if disk_cache else None)
            array = ArrayFacts(
                level=_text(summary.get("TYPE")),
                chunk_bytes=_bytes(properties.get("Strip Size")),
                disks=len(disks) or None,
                cache_policy=", ".join(word for word in policy if word) or None,
                source=source,
            )
            if device:
                yield Volume(device, shown[1], array)


def _shown(runner: Runner, host: HostFacts, tool: str, what: str) -> Any:
    argv = [host[f"tool_{tool}"], what, "show", *(["all"] if what != "/call" else []), "J"]
    printed = runner.run(argv, deadline=DEADLINE_SECONDS, check=False).stdout
    source = f"{runner.name}: the output of {tool} {' '.join(argv[1:])}"
    with reading(source):
        document = parse_json(printed, source)
        # Both are generators elsewhere: what is wrong in the document is found here, where it is explained.
        list(controllers_in(document))
        list(volumes_in(document, tool))
    return document


def _of_controllers(document: Any) -> Iterable[tuple[int, Mapping[str, Any]]]:
    for each in document["Controllers"]:
        status = each["Command Status"]
        if status.get("Status") == "Success" and type(status["Controller"]) is int:
            yield status["Controller"], each.get("Response Data", {})


def _with(disk: DiskFacts, volume: Volume, known: Controller | None) -> DiskFacts:
    own = disk.controller or Controller()
    controller = replace(own, model=known.model or own.model, firmware=known.firmware) if known else own
    return replace(disk, disk_class="array", controller=controller, array=volume.array)


def _text(value: object) -> str | None:
    return " ".join(value.split())[:100] if isinstance(value, str) and value.strip() else None


def _bytes(value: object) -> int | None:
    """`256 KB` in bytes. The tool writes KB for 1024 bytes."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) << {"K": 10, "M": 20}[found[2]] if found else None
