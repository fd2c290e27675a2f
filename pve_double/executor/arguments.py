"""PVE's QEMU command as one for a QEMU without Proxmox's patches, on a machine without its files. Pure.

Every drive stays as PVE has it: controllers, iothreads, throttle groups and -device word for word, -blockdev with the
default of PVE's own QEMU spelled out. What goes is what needs PVE around it (its event daemon, its scripts for network
cards, its picture), and what would keep QEMU from ending with its guest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from pve_double.qemu.command import KVM
from pve_double.qemu.network import Card

QEMU = "qemu-system-x86_64"
_Q35_BRIDGES = (
    "i82801b11-bridge,id=pcidmi,bus=pcie.0,addr=0x1e",
    "pci-bridge,id=pci.0,bus=pcidmi,addr=0x1,chassis_nr=11",
    "pci-bridge,id=pci.1,bus=pcidmi,addr=0x2,chassis_nr=12",
    "pci-bridge,id=pci.2,bus=pcidmi,addr=0x3,chassis_nr=13",
)
"""The bridges of pve-q35-4.0.cfg, on which PVE's addresses of devices rest."""
_PORT = (
    "pcie-root-port,id=ich9-pcie-port-{number},bus=pcie.0,addr=0x1c.{function},port={number},chassis={number},"
    "multifunction=on"
)
"""A port of the same file for a device that is passed through. Others would only slow the guest's boot."""
_ON_THE_HOST = {"file", "host_device"}
_DROPPED = {"-id", "-vnc", "-no-shutdown"}


def runnable(command: list[str], *, kvm: bool) -> list[str]:
    """The command that starts the same guest with plain QEMU, under KVM or emulated."""
    words = [QEMU, "-display", "none"]
    ports = [_PORT.format(number=number, function=int(number) - 1) for number in _find_ports(command)]
    # Before it may be the program that pins it.
    for name, value in _options(command[command.index(KVM) + 1 :]):
        words += _translated(name, value, ports, kvm=kvm)
    return words


def _find_ports(command: list[str]) -> list[str]:
    """The numbers of the ports that have a device. The first function of a slot must be there."""
    used = {match[1] for word in command if (match := re.search(r",bus=ich9-pcie-port-(\d)", word))}
    return sorted(used | {"1"}) if used else []


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each option with its value; an option without one with an empty text."""
    for place, name in enumerate(words):
        if name.startswith("-"):
            value = words[place + 1] if place + 1 < len(words) else "-"
            yield name, "" if value.startswith("-") else value


def _translated(name: str, value: str, ports: list[str], *, kvm: bool) -> list[str]:
    if name in _DROPPED or "qmp-event" in value or "qmeventd" in value:
        return []
    if not value:
        return [name]
    if name == "-readconfig":
        return [word for bridge in (*_Q35_BRIDGES, *ports) for word in ("-device", bridge)]
    return [name, _value(name, value, kvm=kvm)]


def _value(name: str, value: str, *, kvm: bool) -> str:
    match name:
        case "-boot":
            return ",".join(part for part in value.split(",") if not part.startswith("splash="))
        case "-blockdev":
            return unlocked(value)
        case "-netdev":
            return _tap(value)
        case "-machine":
            return _machine(value, kvm=kvm)
        case "-cpu" if not kvm:
            return _emulated(value)
    return value


def unlocked(blockdev: str) -> str:
    """The -blockdev without a lock on its file or device: PVE's QEMU takes none unless it is told to."""
    bottom = found = json.loads(blockdev)
    while isinstance(bottom.get("file"), dict):
        bottom = bottom["file"]
    if bottom["driver"] in _ON_THE_HOST:
        bottom["locking"] = "off"
    return json.dumps(found, separators=(",", ":"))


def _tap(value: str) -> str:
    # The card is made, and put on its bridge, before QEMU starts: PVE's own script for that is not there.
    kept = [part for part in value.split(",") if not part.startswith(("script=", "downscript=", "vhost=", "type="))]
    return ",".join(["tap", *kept, "script=no", "downscript=no"])


def _machine(value: str, *, kvm: bool) -> str:
    parts = [part for part in value.split(",") if not part.startswith("accel=")]
    return ",".join([*(re.sub(r"\+pve\d+$", "", part) for part in parts), f"accel={'kvm' if kvm else 'tcg'}"])


def _emulated(value: str) -> str:
    model = value.partition(",")[0]
    return "max" if model == "host" else model


def tap_commands(vmid: int, cards: list[Card]) -> list[list[str]]:
    """What makes the cards' ends on the node, and puts each on its bridge."""
    commands: list[list[str]] = []
    for card in cards:
        tap = f"tap{vmid}i{card.index}"
        commands.append(["ip", "tuntap", "add", "dev", tap, "mode", "tap"])
        if card.bridge:
            commands.append(["ip", "link", "set", tap, "master", card.bridge])
        commands.append(["ip", "link", "set", tap, "up"])
    return commands
