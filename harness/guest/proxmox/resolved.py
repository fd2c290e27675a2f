"""The effective options of a drive of Proxmox VE, read back from QEMU's arguments. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from harness.errors import GuestError
from harness.model.attach import CACHES, Cache
from harness.untrusted import parse_json

_THROTTLING = "throttling."


@dataclass(frozen=True, slots=True)
class Resolved:
    """QEMU's options of a drive that affect figures, including PVE's defaults."""

    device: str
    filename: str
    format: str
    aio: str
    direct: bool
    no_flush: bool
    write_cache: bool
    detect_zeroes: str
    discard: str
    iothread: bool
    queues: int | None
    read_only: bool
    limits: Mapping[str, int]
    """Its limits, by the names of QEMU's throttle groups."""
    controller_disks: int
    """How many disks share its SCSI controller; 1 without one."""

    @property
    def cache(self) -> str:
        """The cache mode of these three flags, with PVE's and libvirt's name."""
        flags_of_drive = (self.direct, self.no_flush, self.write_cache)
        return next((name for name, flags in CACHES.items() if flags == flags_of_drive), "none of its modes")


def resolved(arguments: Sequence[str], key: str) -> Resolved | None:
    """The options of the drive `key` in QEMU's arguments; None if they have no such drive.

    Reads `-blockdev` with JSON (machine types from 10.0), and `-drive` (older ones). Raises ValueError if the drive has
    neither.
    """
    options = [(first.lstrip("-"), second) for first, second in pairwise(arguments) if first.startswith("-")]
    devices = [_device(text) for option, text in options if option == "device"]
    device = next((device for device in devices if device.get("id") == key), None)
    if device is None:
        return None
    buses = {device["id"]: device for device in devices if "id" in device}
    controller = buses.get(device.get("bus", "").partition(".")[0], {})
    owner = controller if controller.get("driver", "").startswith("virtio-scsi") else device
    queues = owner.get("num_queues") or owner.get("num-queues")
    block = _blockdev(options, key) or _drive(options, key)
    if block is None:
        raise ValueError(f"QEMU's arguments have a device {key}, but no drive for it")
    write_cache = block.pop("write_cache", None)
    return Resolved(
        **block,
        device=device["driver"],
        write_cache=device.get("write-cache", "on") == "on" if write_cache is None else write_cache,
        iothread="iothread" in owner,
        queues=int(queues) if queues else None,
        controller_disks=sum(other.get("bus") == device.get("bus") for other in devices) if controller else 1,
    )


def _device(text: str) -> dict[str, str]:
    driver, _, rest = text.partition(",")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    return {"driver": driver} | {name: value for name, _, value in pairs}


def _blockdev(options: Sequence[tuple[str, str]], key: str) -> dict[str, Any] | None:
    for option, text in options:
        if option != "blockdev" or not text.startswith("{"):
            continue
        node = parse_json(text, "QEMU's -blockdev", GuestError)
        if node.get("node-name") != f"drive-{key}":
            continue
        layers = [node]
        while isinstance(layers[-1].get("file"), dict):
            layers.append(layers[-1]["file"])
        bottom = layers[-1]
        cache = bottom.get("cache", {})
        return {
            "filename": bottom.get("filename", ""),
            "format": next(layer["driver"] for layer in layers if layer["driver"] != "throttle"),
            "aio": bottom.get("aio", "threads"),
            "direct": bool(cache.get("direct")),
            "no_flush": bool(cache.get("no-flush")),
            "detect_zeroes": node.get("detect-zeroes", "off"),
            "discard": bottom.get("discard", "ignore"),
            "read_only": bool(node.get("read-only")),
            "limits": _group(options, node.get("throttle-group")),
        }
    return None


def _drive(options: Iterable[tuple[str, str]], key: str) -> dict[str, Any] | None:
    for option, text in options:
        given = _device(f"drive,{text}")
        if option != "drive" or given.get("id") != f"drive-{key}":
            continue
        # Without `cache`, QEMU's default applies. For an unset cache mode, PVE writes cache=none.
        direct, no_flush, write_cache = CACHES[cast("Cache", given.get("cache", "writeback"))]
        return {
            "filename": given.get("file", ""),
            "format": given.get("format", ""),
            "aio": given.get("aio", "threads"),
            "direct": direct,
            "no_flush": no_flush,
            "write_cache": write_cache,
            "detect_zeroes": given.get("detect-zeroes", "off"),
            "discard": "unmap" if given.get("discard") == "on" else "ignore",
            "read_only": given.get("readonly") == "on",
            "limits": {
                name.removeprefix(_THROTTLING): int(value)
                for name, value in given.items()
                if name.startswith(_THROTTLING)
            },
        }
    return None


def _group(options: Iterable[tuple[str, str]], name: str | None) -> dict[str, int]:
    """The limits of the throttle group that a block device refers to."""
    for option, text in options:
        if option == "object" and text.startswith("{"):
            group = parse_json(text, "QEMU's -object", GuestError)
            if group.get("qom-type") == "throttle-group" and group.get("id") == name:
                return {key: int(value) for key, value in group.get("limits", {}).items()}
    return {}
