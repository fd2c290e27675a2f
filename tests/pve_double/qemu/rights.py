"""Which privilege each option of a VM's configuration needs, and which are for root's ticket alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from tests.pve_double.errors import PveError
from tests.pve_double.formats import parse
from tests.pve_double.permissions import ROOT
from tests.pve_double.qemu.drives import Drive, is_drive, parse_drive
from tests.pve_double.qemu.machine import Config
from tests.pve_double.qemu.volumes import Request

_BY_OPTION: Mapping[str, tuple[str, ...]] = {
    privilege: tuple(names.split())
    for privilege, names in {
        "VM.Config.CPU": "cores cpu cpulimit cpuunits numa smp sockets vcpus",
        "VM.Config.Memory": "memory balloon shares allow-ksm",
        "VM.Config.HWType": "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
        "VM.Config.Options": "agent autostart bios description keyboard localtime migrate_downtime migrate_speed name "
        "onboot ostype protection reboot startdate startup tdf template",
        "VM.PowerMgmt": "freeze",
        "VM.Config.Disk": "boot bootdisk vmstatestorage",
    }.items()
}
_PRIVILEGE = {name: privilege for privilege, names in _BY_OPTION.items() for name in names}
_CLOUDINIT = {"cicustom", "cipassword", "citype", "ciuser", "ciupgrade", "nameserver", "searchdomain", "sshkeys"}
_ELSEWHERE = re.compile(r"cdrom|tags|(unused|serial|usb|hostpci|virtiofs)\d+")
"""Options whose rights depend on their value, and those that need none of their own."""


def require_for_options(request: Request, names: Iterable[str]) -> None:
    """403, or PVE's 500, unless the caller may set (or delete) every one of these options."""
    if request.user == ROOT:
        return
    path = f"/vms/{request.vmid}"
    for name in sorted(names):
        if is_drive(name) or _ELSEWHERE.fullmatch(name):
            continue
        if name in _PRIVILEGE or re.fullmatch(r"numa\d+", name):
            request.require(path, _PRIVILEGE.get(name, "VM.Config.CPU"))
        elif re.fullmatch(r"net\d+", name):
            request.require(path, "VM.Config.Network")
        elif name in _CLOUDINIT or re.fullmatch(r"ipconfig\d+", name):
            either = ["VM.Config.Cloudinit", "VM.Config.Network"]
            request.node.permissions.require(request.user, path, either, any_of=True)
        else:
            raise PveError(f"only root can set '{name}' config")


def require_for_device(request: Request, name: str, value: str, *, verb: str = "set", old: str = "socket") -> None:
    """The rights that a serial port, a USB or a PCI device needs by its value; nothing for other options."""
    if request.user == ROOT:
        return
    path = f"/vms/{request.vmid}"
    if re.fullmatch(r"serial\d+", name):
        if (old, value) != ("socket", "socket"):
            raise PveError(f"only root can {verb} '{name}' config for real devices")
        request.require(path, "VM.Config.HWType")
    elif re.fullmatch(r"usb\d+", name):
        request.require(path, "VM.Config.HWType")
        host = parse({"named": "usb[n]"}, value).get("host", "spice")
        if host.lower() != "spice":
            raise PveError(f"only root can set '{name}' config for real devices")
    elif re.fullmatch(r"hostpci\d+", name):
        device = parse("pve-qm-hostpci", value)
        if "host" in device:
            raise PveError(f"only root can set '{name}' config for non-mapped devices")
        request.require(f"/mapping/pci/{device.get('mapping', '')}", "Mapping.Use")


def require_for_drive(request: Request, drive: Drive | None) -> None:
    if drive is None:
        return
    path = f"/vms/{request.vmid}"
    if drive.is_cloudinit:
        request.require(path, "VM.Config.Cloudinit", "VM.Config.CDROM")
    else:
        request.require(path, "VM.Config.CDROM" if drive.is_cdrom else "VM.Config.Disk")


def require_for_drive_text(request: Request, key: str, config: Config) -> None:
    """The rights for the drive that is at `key` now, if one is."""
    if key in config:
        require_for_drive(request, parse_drive(key, config[key]))
