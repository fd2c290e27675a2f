"""The machine type of a VM: which ones go together with the rest of it, and pinning it for Windows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pve_double.errors import PveError
from pve_double.formats import parse
from pve_double.qemu.machine import Config

QEMU_VERSION = "10.0.2"
"""That of the recorded node: Debian's QEMU, without Proxmox's patches."""
NEWEST = "10.0+pve1"
"""The version that PVE pins with the QEMU of the recordings."""
_VERSION = re.compile(r"-(\d+)\.(\d+)(?:\.\d+)*(?:\+pve(\d+))?(?:\.pxe)?")
_WINDOWS = re.compile("w(xp|2k|2k3|2k8|vista)|win(7|8|10|11)")
_CLIPBOARD = re.compile("(std|cirrus|vmware|virtio|qxl)")


def check_machine(text: str) -> Mapping[str, str]:
    """The parts of a machine string, in the words of QemuServer::Machine where they do not fit each other."""
    parts = parse({"named": "machine"}, text)
    bits = float(parts.get("aw-bits", "0"))
    if parts.get("viommu") == "intel":
        if "q35" not in parts.get("type", ""):
            raise PveError("to use Intel vIOMMU please set the machine type to q35")
        if bits and bits not in {39, 48}:
            raise PveError("Intel vIOMMU supports only 39 or 48 bits as address width")
    if bits and "viommu" not in parts:
        raise PveError("cannot set aw-bits if no vIOMMU is configured")
    return parts


def check_version(config: Config, node_name: str) -> None:
    """Whether the node's QEMU and its qemu-server are new enough for the machine version, in the words of a start."""
    kind = check_machine(config.get("machine", "")).get("type", "")
    wanted, newest = _VERSION.search(kind), _VERSION.search(f"-{NEWEST}")
    if wanted is None or newest is None:
        return
    upgrade = f"is too old to run machine type '{kind}', please upgrade node '{node_name}'"
    have, need = ([int(part or 0) for part in found.groups()] for found in (newest, wanted))
    if need[:2] > have[:2]:
        raise PveError(f"Installed QEMU version '{QEMU_VERSION}' {upgrade}")
    if need[:2] == have[:2] and need[2] > have[2]:
        raise PveError(f"Installed qemu-server (max feature level for {have[0]}.{have[1]} is pve{have[2]}) {upgrade}")


def pinned(config: Config) -> str | None:
    """The machine string that a Windows VM without a version gets; None where nothing is pinned."""
    parts = check_machine(config.get("machine", ""))
    kind = parts.get("type", "pc")
    if kind not in {"pc", "q35"} or not _WINDOWS.fullmatch(config.get("ostype", "")):
        return None
    model = {"pc": "i440fx"}.get(kind, kind)
    others = [f"{name}={value}" for name, value in sorted(parts.items()) if name != "type"]
    return ",".join([f"pc-{model}-{NEWEST}", *others])


def pinning(machine: str) -> str:
    return f"pinning machine type to '{machine.partition(',')[0]}' for Windows guest OS"


def check_clipboard(vga: str) -> None:
    """VNC's clipboard does not go with every display."""
    parts = parse({"named": "vga"}, vga)
    kind = parts.get("type", "std")
    if parts.get("clipboard") == "vnc" and not _CLIPBOARD.match(kind):
        raise PveError(f"vga type {kind} is not compatible with VNC clipboard")
