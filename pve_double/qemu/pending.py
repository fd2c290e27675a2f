"""Applying what is pending of a configuration: hot, to a running VM, or cold, to one that is stopped."""

from __future__ import annotations

from collections.abc import Iterable

from pve_double.errors import PveError
from pve_double.formats import parse
from pve_double.qemu import command, network
from pve_double.qemu.drives import Drive, boot_disks, is_drive, parse_drive
from pve_double.qemu.machine import Config, Machine
from pve_double.qemu.volumes import drop_used, owned_by, register_unused
from pve_double.state import Node
from pve_double.tasks import TaskLog

_FAST = {
    "description", "hookscript", "lock", "migrate_downtime", "migrate_speed", "name", "onboot", "protection", "shares",
    "startup", "tags", "vmstatestorage", "cicustom", "cipassword", "citype", "ciuser", "ciupgrade", "nameserver",
    "searchdomain", "sshkeys", *(f"ipconfig{index}" for index in range(32)),
}  # fmt: skip
"""Options without any effect on a running VM."""
_LIVE = {"cpuunits", "cpulimit", "balloon"}
_DEFAULT_HOTPLUG = {"network", "disk", "usb"}
_FIXED = ("aio", "discard", "iothread", "queues", "product", "cache", "ssd", "vendor", "ro")
"""Options of a drive that a running VM cannot change."""


class _Later(Exception):
    """The change waits for the VM's next start."""


def hotplug(node: Node, machine: Machine, modified: Iterable[str], log: TaskLog) -> dict[str, str]:
    """Apply what a running VM can take of `modified`; the errors by option. The rest stays pending."""
    errors: dict[str, str] = {}
    chosen = set(modified)
    for name in sorted(_FAST & machine.pending.keys()):
        machine.config[name] = machine.pending.pop(name)
    for name in sorted(chosen & machine.deletions.keys()):
        try:
            _unplug(node, machine, name, log)
        except _Later:
            continue
        except PveError as failed:
            errors[name] = f"hotplug problem - {failed}\n"
            continue
        machine.config.pop(name, None)
        del machine.deletions[name]
    for name in sorted(chosen & machine.pending.keys()):
        try:
            _plug(node, machine, name, log)
        except _Later:
            continue
        except PveError as failed:
            errors[name] = f"hotplug problem - {failed}\n"
            continue
        machine.config[name] = machine.pending.pop(name)
    drop_used(machine)
    return errors


def apply(node: Node, machine: Machine, log: TaskLog) -> None:
    """Apply all that is pending to a VM that does not run."""
    for name, force in sorted(machine.deletions.items()):
        if name in machine.config and is_drive(name):
            _detach(node, machine, name, log, force=force)
        machine.config.pop(name, None)
    machine.deletions.clear()
    machine.drop_nothing_pending()
    for name, value in sorted(machine.pending.items()):
        old = parse_drive(name, machine.config[name]) if is_drive(name) and name in machine.config else None
        machine.config[name] = value
        if old is not None:
            register_unused(node, machine.vmid, machine.config, old, log)
    machine.pending.clear()
    drop_used(machine)


def _features(config: Config) -> set[str]:
    text = config.get("hotplug", "1")
    return _DEFAULT_HOTPLUG if text == "1" else set(text.split(","))


def _unplug(node: Node, machine: Machine, name: str, log: TaskLog) -> None:
    features = _features(machine.config)
    if name in _FAST or name in _LIVE:
        return
    if network.is_card(name) and "network" in features:
        return
    if not is_drive(name) or "disk" not in features or name.startswith(("ide", "sata", "efidisk", "tpmstate")):
        raise _Later
    if name not in machine.config:
        return
    _unplug_drive(node, machine, name)
    _detach(node, machine, name, log, force=machine.deletions[name])


def _unplug_drive(node: Node, machine: Machine, name: str) -> None:
    if name in boot_disks(machine.config):
        raise PveError(f"can't unplug bootdisk '{name}'")
    if node.faults.take("unplug-fails", f"{machine.vmid} {name}"):
        raise PveError(f"error on hot-unplugging device '{name}' - still busy in guest?")
    drive = parse_drive(name, machine.config[name])
    if drive is not None:
        node.executor.unplug(machine.vmid, drive)


def _detach(node: Node, machine: Machine, name: str, log: TaskLog, *, force: bool) -> None:
    drive = parse_drive(name, machine.config.pop(name))
    if drive is None:
        return
    if force and drive.is_disk and owned_by(node, machine.vmid, drive.file):
        node.store.free(drive.file, log)
    elif not force:
        register_unused(node, machine.vmid, machine.config, drive, log)


def _plug(node: Node, machine: Machine, name: str, log: TaskLog) -> None:
    features, value = _features(machine.config), machine.pending[name]
    if name in _LIVE:
        return
    if network.is_card(name) and "network" in features:
        for card in network.cards({name: value}):
            if card.bridge and card.bridge not in node.settings.bridges:
                raise PveError(f"bridge '{card.bridge}' does not exist")
        return
    if name == "agent" and _same_agent(machine.config, value):
        return
    if not is_drive(name) or name in {"efidisk0", "tpmstate0"}:
        raise _Later
    drive = parse_drive(name, value)
    if drive is None:
        raise PveError("unable to parse drive options")
    _plug_drive(node, machine, drive, log, allowed="disk" in features)


def _same_agent(config: Config, value: str) -> bool:
    if "agent" not in config:
        return False
    kept = [
        {name: text for name, text in parse({"named": "agent"}, each).items() if name != "fstrim_cloned_disks"}
        for each in (config["agent"], value)
    ]
    return kept[0] == kept[1]


def _plug_drive(node: Node, machine: Machine, drive: Drive, log: TaskLog, *, allowed: bool) -> None:
    old = parse_drive(drive.key, machine.config[drive.key]) if drive.key in machine.config else None
    if old is not None:
        if old.is_cdrom != drive.is_cdrom:
            raise PveError("unable to change media type")
        if old.is_cdrom:
            return
        if old.file == drive.file:
            _update_drive(old, drive)
            return
        if not allowed:
            raise _Later
        _unplug_drive(node, machine, drive.key)
        del machine.config[drive.key]
        register_unused(node, machine.vmid, machine.config, old, log)
    if not allowed or drive.bus in {"ide", "sata"}:
        raise _Later
    config = {**machine.config, drive.key: drive.text()}
    command.check_blockdev(drive, config, f"VM {machine.vmid} qmp command 'blockdev-add' failed - ")
    node.executor.plug(machine.vmid, drive, command.drive_command(node, config, drive, log))


def _update_drive(old: Drive, new: Drive) -> None:
    if any(old.options.get(name) != new.options.get(name) for name in _FIXED):
        raise _Later
