"""Which privilege each option of a VM's configuration needs, and which are for root's ticket alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from pve_double.errors import PveError, bad_parameters
from pve_double.formats import parse
from pve_double.permissions import ROOT
from pve_double.qemu.drives import Drive, is_drive, parse_drive
from pve_double.qemu.machine import Config
from pve_double.qemu.volumes import Request

_BY_OPTION: Mapping[str, tuple[str, ...]] = {
    privilege: tuple(names.split())
    for privilege, names in {
        "VM.Config.CPU": "cores cpu cpulimit cpuunits numa runningcpu smp sockets vcpus",
        "VM.Config.Memory": "memory balloon shares allow-ksm",
        "VM.Config.HWType": "acpi hotplug kvm machine runningmachine scsihw smbios1 tablet vga watchdog audio0 rng0",
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
    for name in sorted(names):
        if is_drive(name) or _ELSEWHERE.fullmatch(name):
            continue
        if name in _PRIVILEGE or re.fullmatch(r"numa\d+", name):
            request.require_vm(_PRIVILEGE.get(name, "VM.Config.CPU"))
            if name == "startup":
                request.require("/", "Sys.Modify")
        elif re.fullmatch(r"net\d+", name) or name == "running-nets-host-mtu":
            request.require_vm("VM.Config.Network")
        elif name in _CLOUDINIT or re.fullmatch(r"ipconfig\d+", name):
            request.require_vm("VM.Config.Cloudinit", "VM.Config.Network", any_of=True)
        elif name == "vmstate":
            request.require_vm("VM.Config.Disk", "VM.PowerMgmt")
        else:
            raise PveError(f"only root can set '{name}' config")


def require_for_device(request: Request, name: str, value: str, *, verb: str = "set", old: str = "socket") -> None:
    """The rights that a device of the host's needs by its value; nothing for options that are none."""
    kind = name.rstrip("0123456789")
    if request.user == ROOT:
        return
    if kind == "serial":
        # What the port was before counts, too.
        if (old, value) != ("socket", "socket"):
            raise PveError(f"only root can {verb} '{name}' config for real devices")
        request.require_vm("VM.Config.HWType")
    elif kind in _DEVICES:
        _DEVICES[kind](request, name, value)


def _usb(request: Request, name: str, value: str) -> None:
    request.require_vm("VM.Config.HWType")
    device = parse({"named": "usb[n]"}, value)
    if "host" in device:
        if device["host"].lower() != "spice":
            raise PveError(f"only root can set '{name}' config for real devices")
    else:
        request.require(f"/mapping/usb/{_mapping(device)}", "Mapping.Use")


def _pci(request: Request, name: str, value: str) -> None:
    device = parse("pve-qm-hostpci", value)
    if "host" in device:
        raise PveError(f"only root can set '{name}' config for non-mapped devices")
    request.require(f"/mapping/pci/{_mapping(device)}", "Mapping.Use")
    request.require_vm("VM.Config.HWType")
    if "romfile" in device:
        raise bad_parameters({name: "only root@pam can set 'romfile' option"})


def _mapping(device: Mapping[str, str]) -> str:
    if "mapping" not in device:
        raise PveError("either 'host' or 'mapping' must be set.")
    return device["mapping"]


def _random(request: Request, _name: str, value: str) -> None:
    request.require_vm("VM.Config.HWType")
    if parse("pve-qm-rng", value).get("source") == "/dev/hwrng":
        request.require("/mapping/hwrng", "Mapping.Use")


def _directory(request: Request, _name: str, value: str) -> None:
    request.require_vm("VM.Config.Disk")
    request.require(f"/mapping/dir/{parse({'named': 'virtiofs[n]'}, value)['dirid']}", "Mapping.Use")


_DEVICES: Mapping[str, Callable[[Request, str, str], None]] = {
    "usb": _usb,
    "hostpci": _pci,
    "rng": _random,
    "virtiofs": _directory,
}


def require_for_drive(request: Request, drive: Drive | None) -> None:
    if drive is None:
        return
    if drive.is_cloudinit:
        request.require_vm("VM.Config.Cloudinit", "VM.Config.CDROM")
    else:
        request.require_vm("VM.Config.CDROM" if drive.is_cdrom else "VM.Config.Disk")


def require_for_drive_text(request: Request, key: str, config: Config) -> None:
    """The rights for the drive that is at `key` now, if one is."""
    if key in config:
        require_for_drive(request, parse_drive(key, config[key]))
