"""Disks that a VM of Proxmox VE gets by more than a drive: by QEMU's arguments (`args`), as PCI devices (`hostpciN`).

`args` has what drives lack, and is read back from QEMU. `-set` changes a property of a device that Proxmox VE writes.
It can neither change an iothread nor set a list. So a disk whose iothreads poll as requested gets iothreads of its own,
and a disk with several of them is an argument as a whole: Proxmox VE then knows nothing of it but counts its I/O by the
name of its device.

Proxmox VE gives a PCI device to a VM when it starts it, by its address or by a resource mapping of the node, and not
while it runs. It takes the device from its driver on the node, and never returns it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.errors import GuestError, SafetyError, Unsupported
from harness.feature import PassedDevice, find_passed_device
from harness.features.proxmox import ROOT
from harness.features.proxmox.client import Client
from harness.features.proxmox.disk_users import require_unshared
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import list_by_arguments
from harness.guest.protocol import GuestDisk
from harness.lab.created import CreationLog
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.model.attach import ATTACH_OPTIONS, CACHES, Attach, Vfio
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


_USE = "Mapping.Use"
_PCIE = "pcie=1"
"""Behind a PCIe port, as on hardware. Guests of runs are q35."""


def refuse_device(client: Client, runner: Runner, path: str) -> str | None:
    """Why the disk at `path` cannot be passed through with this login, with the remedy; None if it can."""
    disk = find_passed_device(runner, path)
    return disk if isinstance(disk, str) else _refuse_login(client, disk)


def _refuse_login(client: Client, disk: PassedDevice) -> str | None:
    if client.spec.may_pass_devices:
        return None
    name = find_mapping(client, disk.address)
    of_node = f"{disk.address} of node {client.spec.node}"
    if name is None:
        return (
            f"Proxmox VE accepts the address of a PCI device only from {ROOT} with a password, and {client.spec.who} "
            f"sees no resource mapping of {of_node} alone: add one in Datacenter > Resource Mappings, and give {_USE} "
            "on it"
        )
    if _USE not in client.privileges(f"/mapping/pci/{name}"):
        return (
            f"{client.spec.who} may not use the resource mapping {name} of {of_node}: give it {_USE} on "
            f"/mapping/pci/{name}, for example with the role PVEMappingUser"
        )
    return None


def find_mapping(client: Client, address: str) -> str | None:
    """The resource mapping that has only this device of the node; None if the login sees none."""
    with reading(f"host {client.host}: Proxmox VE's resource mappings", SafetyError):
        for mapping in client.get("cluster/mapping/pci"):
            entries = [dict(part.partition("=")[::2] for part in str(entry).split(",")) for entry in mapping["map"]]
            paths = [entry.get("path") for entry in entries if entry.get("node") == client.spec.node]
            if paths == [address]:
                return str(mapping["id"])
    return None


@contextmanager
def pass_disks(client: Client, log: CreationLog, disks: Sequence[GuestDisk]) -> Iterator[Mapping[str, PassedDevice]]:
    """The devices to pass through, by the names of their disks, for a VM that exists within the block only.

    Then the node has the disks again under their links. Raises Unsupported, SafetyError, HostError.
    """
    passed: dict[str, PassedDevice] = {}
    with ExitStack() as stack:
        for disk in disks:
            if not isinstance(disk.attach, Vfio):
                continue
            path = disk.source.path
            if why := refuse_device(client, log.runner, path):
                raise Unsupported(f"host {client.host}: {disk.name}: {why}")
            device = find_passed_device(log.runner, path)
            assert not isinstance(device, str), "refused above"
            require_unshared(client, log.runner, path, vmid=None)
            stack.enter_context(device.lent(log, disk.source.writable))
            passed[disk.name] = device
        yield passed


def name_key(number: int) -> str:
    """The setting of a VM for its device with this number, and the id of the device in QEMU."""
    return f"hostpci{number}"


def format_devices(client: Client, passed: Mapping[str, PassedDevice]) -> dict[str, str]:
    """The settings of a VM that gets these devices."""
    settings = {}
    for number, disk in enumerate(passed.values()):
        name = None if client.spec.may_pass_devices else find_mapping(client, disk.address)
        settings[name_key(number)] = f"{disk.address if name is None else f'mapping={name}'},{_PCIE}"
    return settings


def read_passed(
    node: Runner, disk: PassedDevice, key: str, config: Mapping[str, Any], device: Mapping[str, str]
) -> Effective:
    """How QEMU passes the device through. `device` is its device in QEMU's arguments. Raises HostError."""
    shown = Effective(
        machine=str(config.get("machine", "")),
        pve_drive=f"{key}: {config.get(key)}",
        qemu_device=device.get("driver"),
        qemu_host=device.get("host"),
    )
    return shown.merged(disk.read_effective(node))
