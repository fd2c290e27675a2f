"""A running VM: its disks, and the effective configuration of disks and guest in Proxmox VE, QEMU and the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from harness.errors import GuestError, HostError
from harness.feature import PassedDevice
from harness.features.proxmox import BackupsOnNode
from harness.features.proxmox.beyond_drives import read_by_arguments, read_passed
from harness.features.proxmox.machine import VirtualMachine
from harness.features.proxmox.vm_config import list_by_arguments, parse_drive
from harness.guest.booting import Booted, BootedGuest
from harness.guest.protocol import Backup, GuestDisk, block_devices
from harness.guest.qemu_process import (
    NETWORK_DRIVERS,
    InspectedProcess,
    Placement,
    look_at_process,
    parse_inspected,
    read_guest_facts,
    read_io_limit,
    read_placement,
)
from harness.lab.counters import VmThreads
from harness.lab.pin import TAG
from harness.lab.transport.base import Runner
from harness.model.attach import CACHES, Attach, Cache
from harness.model.counters import Transferred
from harness.model.option import Effective
from harness.model.values import format_limits, normalise_list
from harness.untrusted import parse_json, reading

PID_FILE = "/var/run/qemu-server/{vmid}.pid"


def read_process(runner: Runner, vmid: int) -> InspectedProcess:
    """The process of a running VM. Raises GuestError if neither the process nor PVE shows its arguments.

    If the process cannot be read, the arguments come from `qm showcmd`, which prints how PVE would start it.
    """
    pid_file = PID_FILE.format(vmid=vmid)
    done = look_at_process(runner, pid_file, would_be=["qm", "showcmd", str(vmid)])
    with reading(f"{runner.name}: the command line of QEMU, VM {vmid},", GuestError):
        process = parse_inspected(done.stdout)
    if not process.arguments:
        raise GuestError(
            f"{runner.name}: neither {pid_file} nor `qm showcmd {vmid}` shows how QEMU was started: "
            f"{done.stderr.strip()}"
        )
    return process


def find_drive(process: InspectedProcess, key: str) -> Resolved:
    """QEMU's effective options of the drive. Raises GuestError if it has no such drive."""
    with reading(f"QEMU's arguments for the drive {key}", GuestError):
        drive = parse_resolved(process.arguments, key)
    if drive is None:
        raise GuestError(f"QEMU was started without the drive {key}")
    return drive


class ProxmoxGuest(BootedGuest):
    """A booted VM. `node` runs commands on its host. `keys` has the VM's drives by the disks' names."""

    def __init__(
        self,
        booted: Booted[VirtualMachine],
        *,
        threads: VmThreads | None,
        node: Runner,
        disks: Sequence[GuestDisk],
        keys: Mapping[str, str],
        passed: Mapping[str, PassedDevice] | None = None,
        back_up: BackupsOnNode | None = None,
    ) -> None:
        """`passed` has the devices that are passed through to it, by the names of the disks.

        `back_up` makes its backups; None if nothing does.
        """
        super().__init__(booted, threads=threads)
        self._machine = booted.machine
        self._node = node
        self._disks = {disk.name: disk for disk in disks}
        self._keys = keys
        self._passed = passed or {}
        self._back_up = back_up
        serials = {disk.name: disk.serial for disk in disks} | {name: pci.serial for name, pci in self._passed.items()}
        devices = block_devices(self.system, list(serials.values()), booted.machine.client.host)
        self._devices = {name: devices[serial] for name, serial in serials.items()}

    @property
    def machine(self) -> VirtualMachine:
        """The VM."""
        return self._machine

    def device(self, disk: str) -> str:
        return self._devices[disk].path

    def transferred(self, disks: Sequence[str]) -> Mapping[str, Transferred | None]:
        drives = [self._keys[disk] for disk in disks if disk not in self._passed]
        counted: Mapping[str, Transferred | None] = self._machine.transferred(drives) if drives else {}
        return {disk: counted.get(self._keys[disk]) for disk in disks}

    def effective(self, disk: str) -> Effective:
        key, vmid, attach = self._keys[disk], self._machine.vmid, self._disks[disk].attach
        config = self._machine.config()
        if disk in self._passed:
            return self._read_passed(disk, config)
        arguments = str(config.get("args", ""))
        in_arguments = f"{TAG}-{key}-" in arguments or bool(list_by_arguments(attach))
        if key not in config and not in_arguments:
            raise GuestError(
                f"{self._node.name}: VM {self._machine.vmid} no longer has the drive {key}",
                hint="it was detached while the guest was running: see the task log of the node",
            )
        process = read_process(self._node, vmid)
        with reading(f"{self._node.name}: VM {vmid}: how QEMU serves the drive {key}", GuestError):
            drives = self._with_drives(process)
            effective = _merge_effective(config, drives, key)
            size = read_size(self._node, vmid, process, self.threads)
            with suppress(HostError):
                # Without the process, only the arguments that it would get are known.
                filename = find_drive(drives, key).filename
                effective = effective.merged(read_io_limit(self._node, PID_FILE.format(vmid=vmid), filename))
        if in_arguments and isinstance(attach, Attach):
            effective = effective.merged(read_by_arguments(self._machine, key, attach))
        return self._add_guest(effective, size, disk)

    def _read_passed(self, disk: str, config: Mapping[str, Any]) -> Effective:
        """The configuration of a disk that is passed through."""
        key, vmid = self._keys[disk], self._machine.vmid
        process = read_process(self._node, vmid)
        with reading(f"{self._node.name}: VM {vmid}: how QEMU passes {key} through", GuestError):
            effective = read_passed(self._node, self._passed[disk], key, config, find_device(process.arguments, key))
            return self._add_guest(effective, read_size(self._node, vmid, process, self.threads), disk)

    def _add_guest(self, effective: Effective, size: Effective, disk: str) -> Effective:
        seen = read_guest_facts(self.evidence, size.qemu_memory)
        return effective.merged(size).merged(self._devices[disk].effective).merged(seen)

    def _with_drives(self, process: InspectedProcess) -> InspectedProcess:
        """The process with the arguments that show its drives."""
        return process

    def backup(self, disk: str, target: str) -> Backup:
        if self._back_up is None:
            return super().backup(disk, target)
        drives = [key for name, key in self._keys.items() if name not in self._passed]
        return self._back_up(self._keys[disk], drives)

    @contextmanager
    def holding(self, disk: str) -> Iterator[None]:  # noqa: ARG002 - a Guest
        """Nothing to do: a device that is passed through is the guest's from its start to its end."""
        yield

    def state(self) -> str:
        status = self._machine.status()
        return f"Proxmox VE reports that VM {self._machine.vmid} is {status.get('qmpstatus', status.get('status'))}"


def _merge_effective(config: Mapping[str, Any], process: InspectedProcess, key: str) -> Effective:
    qemu = find_drive(process, key)
    arguments = str(config.get("args", ""))
    # A disk that is an argument as a whole is no drive.
    options = parse_drive(str(config[key])) if key in config else {"cache": qemu.cache, "aio": qemu.aio}
    lines = [f"{name}: {config[name]}" for name in (key, "args") if name in config]
    return Effective(
        bus=key.rstrip("0123456789"),
        cache=options.get("cache"),
        aio=options.get("aio"),
        iothread=options.get("iothread") == "1" or f"iothread,id={TAG}-{key}-" in arguments,
        machine=str(config.get("machine", "")),
        pve_drive="\n".join(lines),
        qemu_device=qemu.device,
        qemu_format=qemu.format,
        qemu_aio=process.engines.in_effect(qemu.aio, qemu.format) if qemu.network is None else None,
        qemu_block_driver=qemu.network,
        qemu_cache_direct=qemu.direct,
        qemu_cache_no_flush=qemu.no_flush,
        qemu_write_cache=qemu.write_cache,
        qemu_iothread=qemu.iothread,
        qemu_discard=qemu.discard,
        qemu_detect_zeroes=qemu.detect_zeroes,
        qemu_read_only=qemu.read_only,
        qemu_queues=qemu.queues,
        qemu_rotation_rate=qemu.rotation_rate,
        controller_disks=qemu.controller_disks,
        qemu_iops_limit=format_limits(qemu.limits, "iops"),
        qemu_bw_limit=format_limits(qemu.limits, "bps"),
    )


MIB = 1024**2
_POLICIES = {"bind": "strict"}
"""The name of a policy for memory in lab files, where it differs from QEMU's."""


def read_size(node: Runner, vmid: int, process: InspectedProcess, threads: VmThreads | None) -> Effective:
    """What QEMU's arguments request, and where the node runs the threads of these roles.

    Without the process or the roles, only the arguments count. Raises ValueError for arguments of another form.
    """
    size = parse_size(process.arguments)
    try:
        placement = read_placement(node, PID_FILE.format(vmid=vmid), size.qemu_memory or 0)
    except HostError:
        return size
    return size.merged(_add_placement(placement, threads))


def parse_size(arguments: Sequence[str]) -> Effective:
    """The size in QEMU's arguments: `-smp`, `-m`, `-cpu`, and the backends of the guest's memory. Pure."""
    options = [(first, second) for first, second in pairwise(arguments) if first.startswith("-")]
    given = dict(options)
    count, smp = _split_options(given.get("-smp", ""))
    memory, of_memory = _split_options(given.get("-m", ""))
    size = int(of_memory.get("size", memory).removesuffix("M") or 0) * MIB
    backends = [
        _split_options(text) for option, text in options if option == "-object" and text.startswith("memory-backend")
    ]
    nodes, policy = next(_find_bound_nodes(backends), (None, None))
    return Effective(
        qemu_cpu=_split_options(given.get("-cpu", ""))[0] or None,
        qemu_vcpus=int(count) if count else None,
        # Proxmox VE passes no threads, and QEMU's default is one.
        qemu_sockets=int(smp.get("sockets", 1)) if count else None,
        qemu_cores=int(smp.get("cores", 1)) if count else None,
        qemu_threads=int(smp.get("threads", 1)) if count else None,
        qemu_memory=size or None,
        qemu_numa_nodes=nodes,
        qemu_numa_mode=policy,
    )


def _find_bound_nodes(backends: Sequence[tuple[str, Mapping[str, str]]]) -> Iterator[tuple[str, str]]:
    """The host's nodes of each backend, and their policy with the name that it has in lab files."""
    for _, options in backends:
        if nodes := options.get("host-nodes"):
            policy = options.get("policy", "default")
            yield normalise_list(nodes), _POLICIES.get(policy, policy)


def _split_options(text: str) -> tuple[str, dict[str, str]]:
    """The first word of an option's value, and its further `KEY=VALUE`. A part without `=` belongs to the list before.

    PVE writes lists of nodes as `host-nodes=0,host-nodes=2-3` or `host-nodes=0,2-3`.
    """
    first, *rest = text.split(",")
    options: dict[str, str] = {}
    for part in [first, *rest] if "=" in first else rest:
        key, separator, value = part.partition("=")
        if not separator and options:
            key, value = next(reversed(options)), part
        options[key] = f"{options[key]},{value}" if key == "host-nodes" and key in options else value
    return first, options


def _add_placement(placement: Placement, threads: VmThreads | None) -> Effective:
    roles = threads.roles if threads is not None else {}
    serving = placement.of(thread for thread, role in roles.items() if role == "iothread")
    vcpus = [thread for thread, role in roles.items() if role == "vcpu"]
    return placement.effective(vcpus).merged(Effective(host_iothread_cpus=serving))


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
    rotation_rate: int
    read_only: bool
    limits: Mapping[str, int]
    """Its limits, by the names of QEMU's throttle groups."""
    controller_disks: int
    """How many disks share its SCSI controller; 1 without one."""
    network: str | None = None
    """The driver of QEMU that is a client of a network; None if a file or a device of the node has the data."""

    @property
    def cache(self) -> str:
        """The cache mode of these three flags, with PVE's and libvirt's name."""
        flags_of_drive = (self.direct, self.no_flush, self.write_cache)
        return next((name for name, flags in CACHES.items() if flags == flags_of_drive), "none of its modes")


def parse_resolved(arguments: Sequence[str], key: str) -> Resolved | None:
    """The options of the drive `key` in QEMU's arguments; None if they have no such drive.

    Reads `-blockdev` with JSON (machine types from 10.0), and `-drive` (older ones). Raises ValueError if the drive has
    neither.
    """
    options = [(first.lstrip("-"), second) for first, second in pairwise(arguments) if first.startswith("-")]
    devices = [_parse_device(text) for option, text in options if option == "device"]
    for name, value in (text.partition("=")[::2] for option, text in options if option == "set"):
        for changed in devices:
            if name.startswith(prefix := f"device.{changed.get('id')}."):
                changed[name.removeprefix(prefix)] = value
    device = next((device for device in devices if device.get("id") == key), None)
    if device is None:
        return None
    buses = {device["id"]: device for device in devices if "id" in device}
    controller = buses.get(device.get("bus", "").partition(".")[0], {})
    owner = controller if controller.get("driver", "").startswith("virtio-scsi") else device
    queues = owner.get("num_queues") or owner.get("num-queues")
    block = _parse_blockdev(options, key) or _parse_drive(options, key)
    if block is None:
        raise ValueError(f"QEMU's arguments have a device {key}, but no drive for it")
    write_cache = block.pop("write_cache", None)
    return Resolved(
        **block,
        device=device["driver"],
        write_cache=device.get("write-cache", "on") == "on" if write_cache is None else write_cache,
        iothread=bool({"iothread", "iothread-vq-mapping"} & owner.keys()),
        queues=int(queues) if queues else None,
        rotation_rate=int(device.get("rotation_rate", 0)),
        controller_disks=sum(other.get("bus") == device.get("bus") for other in devices) if controller else 1,
    )


def find_device(arguments: Sequence[str], id_: str) -> Mapping[str, str]:
    """The device with this id in QEMU's arguments; empty if there is none."""
    devices = (_parse_device(second) for first, second in pairwise(arguments) if first == "-device")
    return next((device for device in devices if device.get("id") == id_), {})


def _parse_device(text: str) -> dict[str, str]:
    if text.startswith("{"):
        return {str(name): str(value) for name, value in parse_json(text, "QEMU's -device", GuestError).items()}
    driver, _, rest = text.partition(",")
    pairs = (part.partition("=") for part in rest.split(",") if part)
    return {"driver": driver} | {name: value for name, _, value in pairs}


def _parse_blockdev(options: Sequence[tuple[str, str]], key: str) -> dict[str, Any] | None:
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
            "limits": _find_limits(options, node.get("throttle-group")),
            "network": bottom["driver"] if bottom.get("driver") in NETWORK_DRIVERS else None,
        }
    return None


def _parse_drive(options: Iterable[tuple[str, str]], key: str) -> dict[str, Any] | None:
    for option, text in options:
        given = _parse_device(f"drive,{text}")
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
            "network": next((name for name in NETWORK_DRIVERS if given.get("file", "").startswith(f"{name}:")), None),
        }
    return None


def _find_limits(options: Iterable[tuple[str, str]], name: str | None) -> dict[str, int]:
    """The limits of the throttle group that a block device refers to."""
    for option, text in options:
        if option == "object" and text.startswith("{"):
            group = parse_json(text, "QEMU's -object", GuestError)
            if group.get("qom-type") == "throttle-group" and group.get("id") == name:
                return {key: int(value) for key, value in group.get("limits", {}).items()}
    return {}
