"""QEMU's arguments for what drives of Proxmox VE lack (`args` of a VM): written for its disks, and read back from QEMU.

`-set` changes a property of a device that Proxmox VE writes. It can neither change an iothread nor set a list. So a
disk whose iothreads poll as requested gets iothreads of its own, and a disk with several of them is an argument as a
whole: Proxmox VE then knows nothing of it but counts its I/O by the name of its device.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import GuestError
from harness.guest.protocol import GuestDisk
from harness.guest.proxmox import list_by_arguments
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.pin import TAG
from harness.model.attach import ATTACH_OPTIONS, CACHES, Attach
from harness.model.guest import GUEST_OPTIONS, GuestOptions
from harness.model.option import Effective, IothreadInfo, Property, read_from
from harness.untrusted import parse_json, reading

_POLLING = read_from(IothreadInfo, GUEST_OPTIONS)
_POLLS = {"max": "poll-max-ns", "grow": "poll-grow", "shrink": "poll-shrink"}
"""QEMU's properties of an iothread."""
_FIELD = re.compile(r"\s+([a-z-]+)=(\d+)\s*")


def has_own_threads(attach: Attach, guest: GuestOptions) -> bool:
    """Whether the disk's iothreads are arguments of QEMU, because they poll as requested or are several."""
    return attach.iothread_vq_mapping > 0 or (attach.iothread and (attach.poll_max_ns is not None or bool(guest.polls)))


def name_queue_device(key: str) -> str:
    """The device with the queues of a drive: the controller of a SCSI disk, which has no other disk."""
    return f"virtioscsi{key.removeprefix('scsi')}" if key.startswith("scsi") else key


def build_arguments(drives: Mapping[str, GuestDisk], guest: GuestOptions) -> str:
    """The `args` for disks by the names of their drives; empty if the drives have everything."""
    words: list[str] = []
    for key, disk in drives.items():
        attach = disk.attach
        if not isinstance(attach, Attach):
            continue
        threads = [f"{TAG}-{key}-{number}" for number in range(1, attach.threads + 1)]
        settings = [
            (device, name, getattr(attach, option)) for option, _, device, name in _list_properties(key, attach)
        ]
        if has_own_threads(attach, guest):
            polls = guest.polls | ({} if attach.poll_max_ns is None else {"max": attach.poll_max_ns})
            polling = "".join(f",{_POLLS[name]}={value}" for name, value in polls.items())
            words += [word for thread in threads for word in ("-object", f"iothread,id={thread}{polling}")]
            if not attach.iothread_vq_mapping:
                settings.append((name_queue_device(key), "iothread", threads[0]))
        if attach.iothread_vq_mapping:
            words += _add_disk(key, disk, attach, threads, settings)
        else:
            words += [word for device, name, value in settings for word in ("-set", _format_set(device, name, value))]
    return shlex.join(words)


def _format_set(device: str, name: str, value: object) -> str:
    return f"device.{device}.{name}={('on' if value else 'off') if isinstance(value, bool) else value}"


def _list_properties(key: str, attach: Attach) -> Iterator[tuple[str, str, str, str]]:
    """Each option that the drive lacks: its name, the setting that shows it, and its device and property in QEMU."""
    for option in list_by_arguments(attach):
        for shown in ATTACH_OPTIONS[option].shown:
            if isinstance(place := shown.source, Property):
                name = place.names[-1] if attach.bus == "virtio-scsi" else place.names[0]
                yield option, shown.setting, name_queue_device(key) if place.of_queues else key, name


def _add_disk(
    key: str, disk: GuestDisk, attach: Attach, threads: Sequence[str], settings: Sequence[tuple[str, str, Any]]
) -> list[str]:
    """The arguments of a whole disk: its block devices as Proxmox VE writes them, its controller and its device."""
    flags = CACHES[attach.cache]
    properties: dict[str, dict[str, Any]] = {key: {}, name_queue_device(key): {}}
    for device, name, value in settings:
        properties[device][name] = value
    common: dict[str, Any] = {
        "cache": {"direct": flags.direct, "no-flush": flags.no_flush},
        "detect-zeroes": attach.detect_zeroes,
        "discard": attach.discard,
        "read-only": attach.read_only,
    }
    kind = "host_device" if disk.source.kind == "block" else "file"
    file = common | {"driver": kind, "filename": disk.source.path, "aio": attach.aio}
    node = common | {"driver": disk.source.format, "file": file}
    top = f"drive-{key}"
    words = []
    if attach.limits:
        limits = {name: value for of, limit in attach.limits.items() for name, value in limit.settings(of).items()}
        words += ["-object", json.dumps({"qom-type": "throttle-group", "id": f"throttle-{top}", "limits": limits})]
        node = {name: common[name] for name in ("detect-zeroes", "discard", "read-only")} | {
            "driver": "throttle",
            "throttle-group": f"throttle-{top}",
            "file": node,
        }
    words += ["-blockdev", json.dumps(node | {"node-name": top})]
    queues = properties[name_queue_device(key)] | {"iothread-vq-mapping": [{"iothread": thread} for thread in threads]}
    write_cache = "on" if flags.write_cache else "off"
    front: dict[str, Any] = {"id": key, "drive": top, "serial": disk.serial, "write-cache": write_cache}
    if attach.bus == "virtio-blk":
        return [*words, "-device", json.dumps({"driver": "virtio-blk-pci"} | front | properties[key] | queues)]
    controller = {"driver": "virtio-scsi-pci", "id": name_queue_device(key)}
    front |= {"bus": f"{controller['id']}.0"} | ({"rotation_rate": 1} if attach.ssd else {})
    words += ["-device", json.dumps(controller | queues)]
    return [*words, "-device", json.dumps({"driver": "scsi-hd"} | front | properties[key])]


def read_by_arguments(machine: VirtualMachine, key: str, attach: Attach) -> Effective:
    """The options of the drive that are arguments, as QEMU's monitor reports them. Raises GuestError, PveError."""
    with reading(f"{machine.words}: QEMU's devices of the drive {key}", GuestError):
        properties = _list_properties(key, attach)
        settings: Any = {setting: _read_property(machine, device, name) for _, setting, device, name in properties}
        threads = _list_threads(machine, name_queue_device(key)) if attach.threads else ()
        effective = Effective(qemu_iothread=bool(threads), qemu_iothreads=len(threads), **settings)
        known = parse_iothreads(machine.ask_monitor("info iothreads")) if threads else {}
        for thread in threads:
            polling = {setting: known[thread][source.key] for setting, source in _POLLING.items()}
            effective = effective.merged(Effective(**polling))  # type: ignore[arg-type] # numbers, which are checked
        return effective


def _list_threads(machine: VirtualMachine, device: str) -> tuple[str, ...]:
    """The names of the iothreads that serve a device."""
    if mapping := _read_property(machine, device, "iothread-vq-mapping"):
        return tuple(str(queues["iothread"]) for queues in mapping)
    name = str(_read_property(machine, device, "iothread") or "").rpartition("/")[2]
    return (name,) if name else ()


def _read_property(machine: VirtualMachine, device: str, name: str) -> Any:
    """The value of a property; None if the device does not have it."""
    printed = machine.ask_monitor(f"qom-get /machine/peripheral/{device} {name}").strip()
    if printed.startswith("Error:"):
        return None
    return parse_json(printed, f"{machine.words}: QEMU's monitor", GuestError)


def parse_iothreads(printed: str) -> dict[str, dict[str, int]]:
    """What QEMU's monitor prints of its iothreads (`info iothreads`), by the name of the thread. Pure."""
    threads: dict[str, dict[str, int]] = {}
    numbers: dict[str, int] = {}
    for line in printed.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            numbers = threads.setdefault(line[:-1], {})
        elif match := _FIELD.fullmatch(line):
            numbers[match[1]] = int(match[2])
    return threads
