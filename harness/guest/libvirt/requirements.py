"""What a host must have for a guest and its disks, the disks resolved there, and the PCI devices behind them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from xml.etree import ElementTree as ET

from harness.errors import GuestError, Unsupported
from harness.feature import DiskServer, PassedDevice, find_brought, find_passed_device
from harness.guest.booting import refuse_queues
from harness.guest.libvirt.connection import Connection, LibvirtRefusal
from harness.guest.libvirt.domain import CPU_MODES, assign_root_ports
from harness.guest.protocol import GuestDisk
from harness.lab.facts import HostFacts
from harness.lab.inventory import AnyDisk, DiskById
from harness.lab.transport.base import Runner
from harness.model.attach import Attach, Attachment, Vfio
from harness.model.guest import GUEST_OPTIONS, GuestOptions
from harness.model.layout import Qcow2
from harness.model.mode import Mode
from harness.model.option import Since
from harness.untrusted import reading

_MODEL = re.compile(r"[A-Za-z0-9_.-]+")
DATA_FILE = 10_010_000
"""libvirt 10.10.0 has the data file of a qcow2 image (`<dataStore>`)."""
BACKUP = 6_000_000
"""libvirt 6.0.0 has virDomainBackupBegin. Source: libvirt's NEWS."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions as libvirt encodes them: 1,000,000 x major + 1,000 x minor + release."""

    libvirt: int
    qemu: int


def refuse_attach(attach: Attach, has: Versions, cpus: int) -> str | None:
    """Why a host with these versions and CPUs cannot attach a disk in this way, with the remedy; None if it can."""
    if why := refuse_queues(attach, cpus):
        return why
    return describe_old_versions(
        need for name, since in _find_requirements(attach) for need in _needs(name, since, has)
    )


def refuse_unoffered(attach: Attach, has: Versions) -> str | None:
    """Why no host offers an option today, with the remedy; None if hosts with these or later versions may."""
    for name, since in _find_requirements(attach):
        if since.lacking:
            return describe_old_versions(_needs(name, since, has)) or f"{since.what}: {since.lacking}"
    return None


def refuse_guest(guest: GuestOptions, has: Versions) -> str | None:
    """Why a host with these versions cannot have a guest with these options, with the remedy; None if it can."""
    if guest.cpu is not None and not _MODEL.fullmatch(guest.cpu):
        return f'cpu = "{guest.cpu}" is an option of Proxmox VE; with libvirt, request the model only'
    requested = ((name, GUEST_OPTIONS[name].needs(guest)) for name in guest.requested)
    return describe_old_versions(
        need for name, since in requested if since is not None for need in _needs(name, since, has)
    )


def refuse_mode(mode: Mode, has: Versions) -> str | None:
    """Why a host with these versions cannot have what a mode requests beside its attachment; None if it can."""
    needs = []
    if mode.backup:
        needs.append(("backup", "libvirt", BACKUP, has.libvirt))
    if isinstance(mode.layout, Qcow2) and mode.layout.data_file:
        needs.append(("data_file", "libvirt", DATA_FILE, has.libvirt))
    return describe_old_versions(needs)


def describe_old_versions(needs: Iterable[tuple[str, str, int, int]]) -> str | None:
    """Which of these versions a host lacks, as text: what, the program, the oldest suitable version and the host's."""
    reasons = dict.fromkeys(
        f"{what} needs {program} {_format_version(least)}, but the host has {_format_version(version)}"
        for what, program, least, version in needs
        if version < least
    )
    return f"{'; '.join(reasons)}: upgrade the host, or measure on another one" if reasons else None


def _find_requirements(attach: Attach) -> Iterator[tuple[str, Since]]:
    """What each option that is used needs, by the name of the option."""
    for name, row in attach.used.items():
        if (since := row.needs(attach)) is not None:
            yield name, since


def _needs(name: str, since: Since, has: Versions) -> Iterator[tuple[str, str, int, int]]:
    """The option, the program, the oldest suitable version and the host's, for each program that needs one."""
    for program, text, version in (("libvirt", since.libvirt, has.libvirt), ("QEMU", since.qemu, has.qemu)):
        if text:
            major, minor, release = map(int, text.split("."))
            yield since.what or name, program, 1_000_000 * major + 1_000 * minor + release, version


def _format_version(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1_000 % 1_000}.{version % 1_000}"


def refuse_hardware(connection: Connection, guest: GuestOptions, accel: str) -> str | None:
    """Why QEMU on the host lacks the requested machine type, firmware or CPU model, with the remedy; else None."""
    any_cpu = guest.cpu is None or guest.cpu in CPU_MODES
    if guest.machine is None and guest.emulator is None and guest.firmware != "uefi" and any_cpu:
        return None
    kind = "kvm" if accel == "kvm" else "qemu"
    look = partial(connection.handle.getDomainCapabilities, guest.emulator, "x86_64", guest.machine, kind, 0)
    try:
        described = connection.call("show what its QEMU can do", look)
    except LibvirtRefusal as error:
        if guest.emulator is not None:
            command = f"virsh domcapabilities --emulatorbin {guest.emulator}"
            return f'emulator = "{guest.emulator}": {error.message}; see `{command}` there'
        return f"{error.message}; `virsh capabilities` on {connection.host} lists the machine types"
    with reading(f"host {connection.host}: libvirt's list of firmware and CPU models", GuestError):
        capabilities = ET.fromstring(described)
        return _refuse_firmware(capabilities, guest, connection.host) or _refuse_model(
            capabilities, guest, connection.host
        )


def _refuse_firmware(capabilities: ET.Element, guest: GuestOptions, host: str) -> str | None:
    if guest.firmware != "uefi" or "efi" in {
        value.text for value in capabilities.iterfind("os/enum[@name='firmware']/value")
    }:
        return None
    return f'firmware = "uefi": libvirt finds no UEFI for QEMU on {host}: apt-get install ovmf'


def _refuse_model(capabilities: ET.Element, guest: GuestOptions, host: str) -> str | None:
    if guest.cpu is None or guest.cpu in CPU_MODES:
        return None
    models = {model.text: model.get("usable") for model in capabilities.iterfind("cpu/mode[@name='custom']/model")}
    if guest.cpu not in models:
        return f'cpu = "{guest.cpu}": not a CPU model of the QEMU on {host}; `virsh domcapabilities` lists them'
    if models[guest.cpu] == "no":
        return f'cpu = "{guest.cpu}": the CPU of {host} lacks features of it; `virsh domcapabilities` lists usable ones'
    return None


# $1: a disk's link or device. Prints the serial number in SCSI page 0x80; nothing if the device is not a SCSI disk.
_SERIAL = (
    'name=$(readlink -f "$1"); tail -c +5 "/sys/block/${name##*/}/device/vpd_pg80" 2>/dev/null | tr -d "\\000 "; true'
)


@dataclass(frozen=True, slots=True)
class Attachments:
    """The disks of a guest by name, and the serial numbers by which the guest finds them.

    `passed` has the devices that are passed through, `ports` the PCIe bus of the guest that each is plugged into.
    """

    disks: Mapping[str, GuestDisk]
    serials: Mapping[str, str]
    passed: Mapping[str, PassedDevice]
    ports: Mapping[str, int]

    @property
    def lasting(self) -> list[str]:
        """The serial numbers of the disks that the guest has during its whole lifetime."""
        return [self.serials[name] for name in self.disks if name not in self.passed]


def resolve_attachments(runner: Runner, host: str, disks: Sequence[GuestDisk]) -> Attachments:
    """The attachments of a guest on `host`. Raises Unsupported if a disk cannot be passed through."""
    serials = {}
    passed = {}
    for disk in disks:
        if why := _refuse_handing(runner, disk.attach, disk.source.path):
            raise Unsupported(f"host {host}: {disk.name}: {why}")
        serials[disk.name] = disk.serial
        if isinstance(disk.attach, Vfio):
            device = find_passed_device(runner, disk.source.path)
            assert not isinstance(device, str), "refused above"
            passed[disk.name] = device
            serials[disk.name] = device.serial
        elif (server := find_server(disk.attach)) is not None:
            serials[disk.name] = server.serial
        elif disk.attach.device == "lun":
            serials[disk.name] = _read_scsi_serial(runner, disk.source.path)
    return Attachments({disk.name: disk for disk in disks}, serials, passed, assign_root_ports(tuple(disks)))


def find_server(attach: Attachment) -> DiskServer | None:
    """What serves a disk that is attached in this way, if not the guest's QEMU."""
    return find_brought(DiskServer, name=attach.server) if isinstance(attach, Attach) else None


def refuse_disk(runner: Runner, facts: HostFacts, versions: Versions, attach: Attachment, disk: AnyDisk) -> str | None:
    """Why the host cannot attach `disk` in this way, with the remedy; None if it can."""
    cpus = int(facts["cpus"] or 1)
    if isinstance(attach, Attach) and (why := refuse_unoffered(attach, versions)):
        return why
    if isinstance(attach, Attach) and (why := _refuse_server(facts, attach) or refuse_attach(attach, versions, cpus)):
        return why
    if isinstance(disk, DiskById):
        return _refuse_handing(runner, attach, disk.id)
    if isinstance(attach, Vfio) or attach.device == "lun":
        return f"{disk.identity} is not a device, so it cannot be passed through to a guest"
    return None


def _refuse_server(facts: HostFacts, attach: Attach) -> str | None:
    server = find_server(attach)
    if server is None:
        return None if attach.in_qemu else f'server = "{attach.server}": no feature of virt-overhead starts it'
    if not facts.has_tool(server.program):
        return f"{server.program} is not installed there: apt-get install {server.package}"
    return None


def _refuse_handing(runner: Runner, attach: Attachment, path: str) -> str | None:
    if isinstance(attach, Vfio):
        device = find_passed_device(runner, path)
        return device if isinstance(device, str) else None
    if attach.device == "lun" and not _read_scsi_serial(runner, path):
        return f'device = "lun" passes SCSI commands through, but {path} is not a SCSI disk with a serial number'
    return None


def _read_scsi_serial(runner: Runner, path: str) -> str:
    return runner.run(["sh", "-c", _SERIAL, "sh", path], deadline=30).stdout.strip()
