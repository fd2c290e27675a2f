"""Whether a host's QEMU has the requested machine type, firmware and CPU model, as libvirt reports it."""

from __future__ import annotations

from functools import partial
from xml.etree import ElementTree as ET

from harness.errors import GuestError
from harness.guest.libvirt.connection import Connection, Refused
from harness.guest.libvirt.placing import CPU_MODES
from harness.model.guest import GuestOptions
from harness.untrusted import reading


def unknown_hardware(connection: Connection, guest: GuestOptions, accel: str) -> str | None:
    """Why QEMU on the host lacks the requested machine type, firmware or CPU model, with the remedy; else None."""
    any_cpu = guest.cpu is None or guest.cpu in CPU_MODES
    if guest.machine is None and guest.emulator is None and guest.firmware != "uefi" and any_cpu:
        return None
    kind = "kvm" if accel == "kvm" else "qemu"
    look = partial(connection.handle.getDomainCapabilities, guest.emulator, "x86_64", guest.machine, kind, 0)
    try:
        found = connection.call("show what its QEMU can do", look)
    except Refused as error:
        if guest.emulator is not None:
            command = f"virsh domcapabilities --emulatorbin {guest.emulator}"
            return f'emulator = "{guest.emulator}": {error.message}; see `{command}` there'
        return f"{error.message}; `virsh capabilities` on {connection.host} lists the machine types"
    with reading(f"host {connection.host}: libvirt's list of firmware and CPU models", GuestError):
        capabilities = ET.fromstring(found)
        return _no_firmware(capabilities, guest, connection.host) or _unknown_model(
            capabilities, guest, connection.host
        )


def _no_firmware(found: ET.Element, guest: GuestOptions, host: str) -> str | None:
    if guest.firmware != "uefi" or "efi" in {value.text for value in found.iterfind("os/enum[@name='firmware']/value")}:
        return None
    return f'firmware = "uefi": libvirt finds no UEFI for QEMU on {host}: apt-get install ovmf'


def _unknown_model(found: ET.Element, guest: GuestOptions, host: str) -> str | None:
    if guest.cpu is None or guest.cpu in CPU_MODES:
        return None
    models = {model.text: model.get("usable") for model in found.iterfind("cpu/mode[@name='custom']/model")}
    if guest.cpu not in models:
        return f'cpu = "{guest.cpu}": not a CPU model of the QEMU on {host}; `virsh domcapabilities` lists them'
    if models[guest.cpu] == "no":
        return f'cpu = "{guest.cpu}": the CPU of {host} lacks features of it; `virsh domcapabilities` lists usable ones'
    return None
