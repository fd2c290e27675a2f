"""The human monitor's answers, for an executor without a QEMU to ask."""

from __future__ import annotations

from collections.abc import Mapping

from pve_double.errors import PveError
from pve_double.qemu import blockdev, command, devices, vzdump
from pve_double.qemu.blockdev import chipset
from pve_double.qemu.drives import Drive, drives
from pve_double.qemu.hmp import require_for_command
from pve_double.qemu.machine import Machine
from pve_double.qemu.machine_type import QEMU_VERSION
from pve_double.qemu.volumes import Request
from pve_double.state import Node
from pve_double.tasks import TaskLog

_END = "\r\n"


def answer(request: Request, text: str) -> str:
    """What POST monitor returns: QEMU's text, or `ERROR: ...` with HTTP 200."""
    if text in {"", "0"}:
        raise PveError("no command specified")
    if not text.split():
        raise PveError(f"unexpected command '{text}'")
    require_for_command(request, text.split(maxsplit=1)[0])
    node, vmid = request.node, request.vmid
    machine = node.machine(vmid)
    if not node.running(vmid):
        return f"ERROR: VM {vmid} not running\n"
    if text.split() == ["info", "backup"]:
        # A command of Proxmox VE's own QEMU.
        return vzdump.describe(node, vmid)
    said = node.executor.monitor(vmid, text)
    return _from_configuration(node, machine, text) if said is None else said


def send_key(request: Request, key: str, *, skiplock: bool) -> None:
    node, vmid = request.node, request.vmid
    with node.config_lock(vmid):
        machine = node.machine(vmid)
        if not skiplock:
            machine.check_lock()
        if not node.running(vmid):
            raise PveError(f"VM {vmid} not running")
        if said := node.executor.monitor(vmid, f"sendkey {key}"):
            raise PveError(said.strip())


def _from_configuration(node: Node, machine: Machine, text: str) -> str:
    match text.split():
        case ["info", "block"]:
            found = list(drives(machine.process.config if machine.process else machine.config))
            return _END.join(_block(node, machine, drive) for drive in found)
        case ["info", "status"]:
            paused = machine.process is not None and machine.process.paused
            return f"VM status: {'paused' if paused else 'running'}{_END}"
        case ["info", "version"]:
            return f"{QEMU_VERSION}{_END}"
        case ["info", "iothreads"]:
            threads = devices.iothreads(_started_with(node, machine))
            return "".join(_iothread(name, polling) for name, polling in threads.items())
        case ["qom-get", path, name]:
            return f"{devices.get_property(_started_with(node, machine), path, name)}{_END}"
    return f"unknown command: '{text.partition(' ')[0]}'{_END}"


def _started_with(node: Node, machine: Machine) -> list[str]:
    """The command of the running QEMU."""
    config = machine.process.config if machine.process else machine.config
    return command.build(node, machine.vmid, config, TaskLog())


def _iothread(name: str, polling: Mapping[str, int]) -> str:
    lines = [f"{name}:", "  thread_id=4242", *(f"  {key}={value}" for key, value in polling.items())]
    return "".join(f"{line}{_END}" for line in lines)


def _block(node: Node, machine: Machine, drive: Drive) -> str:
    image = command.image_of(node, drive)
    if image is None:
        return f"{drive.key}: [not inserted]{_END}    Attached to:      {drive.key}{_END}"
    tree = blockdev.blockdev(drive, image) if chipset(machine.config).has_blockdev else {"driver": image.format}
    kind = str(tree["driver"]) + (", read-only" if drive.is_cdrom or drive.flag("ro") else "")
    through = drive.options.get("cache") in {"writethrough", "directsync"}
    lines = [
        f"drive-{drive.key}: {image.path} ({kind})",
        f"    Attached to:      {drive.key}",
        f"    Cache mode:       {'writethrough' if through else 'writeback'}"
        + (", direct" if blockdev.is_direct(drive) else ""),
    ]
    if not drive.is_cdrom and tree.get("detect-zeroes", "off") != "off":
        lines.append(f"    Detect zeroes:    {tree['detect-zeroes']}")
    return "".join(f"{line}{_END}" for line in lines)
