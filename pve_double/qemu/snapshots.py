"""Snapshots of a VM, after PVE::AbstractConfig.

That of a running VM fails and leaves it locked, because the QEMU of the recordings has no command for saving its state.
A node whose executor `saves_state` stops the VM while its storages take the snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pve_double.errors import PveError
from pve_double.qemu.drives import Drive, drives, is_unused
from pve_double.qemu.machine import Config, Machine, Snapshot, presented
from pve_double.qemu.power import NO_COMMAND, start_task
from pve_double.qemu.volumes import Request, drop_used, register_unused
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id, split_volume_id
from pve_double.tasks import TaskLog

_NOT_KEPT = {"lock", "description"}
"""What a snapshot does not keep of the configuration, apart from the unused disks."""


def listing(node: Node, machine: Machine) -> list[dict[str, Any]]:
    """Every snapshot, and `current`, which is where the VM is now."""
    found = []
    for name, snapshot in machine.snapshots.items():
        entry = {"name": name, "snaptime": snapshot.taken, "vmstate": 0, "description": snapshot.description}
        entry |= {"snapstate": snapshot.state} if snapshot.state else {}
        found.append(entry | _parent(snapshot.config))
    here = {"name": "current", "description": "You are here!", "digest": machine.digest}
    return [*found, here | {"running": int(node.running(machine.vmid))} | _parent(machine.config)]


def _parent(config: Config) -> dict[str, str]:
    return {"parent": config["parent"]} if "parent" in config else {}


def existing(machine: Machine, name: str) -> Snapshot:
    if name not in machine.snapshots:
        raise PveError(f"snapshot '{name}' does not exist")
    return machine.snapshots[name]


def shown(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot's configuration as the API answers it."""
    entry = presented(snapshot.config) | {"snaptime": snapshot.taken}
    entry |= {"description": snapshot.description} if snapshot.description else {}
    return entry | ({"snapstate": snapshot.state} if snapshot.state else {})


def describe(node: Node, vmid: int, name: str, description: str) -> None:
    with node.config_lock(vmid):
        machine = node.machine(vmid)
        machine.check_lock()
        existing(machine, name).description = description


def snapshot_task(node: Node, user: str, vmid: int, name: str, description: str) -> str:
    if name == "current" or name.lower() == "pending":
        raise PveError(f"unable to use snapshot name '{name.lower()}' (reserved name)")
    machine = node.machine(vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            _snapshot(node, machine, name, description, log)

    return node.tasks.start("qmsnapshot", str(vmid), user, work)


def _snapshot(node: Node, machine: Machine, name: str, description: str, log: TaskLog) -> None:
    if machine.is_template:
        raise PveError("you can't take a snapshot if it's a template")
    machine.check_lock()
    if name in machine.snapshots:
        raise PveError(f"snapshot name '{name}' already used")
    disks = [drive for drive in drives(machine.config) if not drive.is_cdrom]
    if not all(has_snapshots(node, drive) for drive in disks):
        raise PveError("snapshot feature is not available")
    for each in machine.snapshots.values():
        if each.config.get("parent") == name:
            del each.config["parent"]
    machine.snapshots[name] = Snapshot(_kept(machine.config), int(time.time()), description, "prepare")
    machine.config["lock"] = "snapshot"
    running = node.running(machine.vmid)
    if running and not node.executor.saves_state:
        log.line("skipping guest filesystem freeze - disabled in VM options")
        log.line(NO_COMMAND.format(vmid=machine.vmid, command="savevm-end"))
        raise PveError(NO_COMMAND.format(vmid=machine.vmid, command="query-savevm"))
    if running:
        node.executor.pause(machine.vmid, resume=False)
    try:
        for drive in disks:
            node.store.take_snapshot(drive.file, name)
            for line in _taken(node, drive, name):
                log.line(line)
    finally:
        if running:
            node.executor.pause(machine.vmid, resume=True)
    machine.snapshots[name].state = ""
    del machine.config["lock"]
    machine.config["parent"] = name


def _kept(config: Mapping[str, str]) -> Config:
    return {name: value for name, value in config.items() if name not in _NOT_KEPT and not is_unused(name)}


def _taken(node: Node, drive: Drive, name: str) -> list[str]:
    """What a storage prints while it takes a snapshot of a volume."""
    storage, volname = split_volume_id(drive.file)
    vgname = node.store.config(storage).vgname
    return [f'  Logical volume "snap_{volname}_{name}" created.'] if vgname else []


def has_snapshots(node: Node, drive: Drive) -> bool:
    """Whether the storage of the drive's volume can take snapshots of it."""
    if not is_volume_id(drive.file):
        return False
    storage = node.store.config(split_volume_id(drive.file)[0])
    return storage.kind in {"lvmthin", "zfspool", "rbd"} or node.store.parse(drive.file).format == "qcow2"


def delete_snapshot_task(node: Node, user: str, vmid: int, name: str) -> str:
    """With or without force: a lock that is held already is in the way of both."""

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            machine = node.machine(vmid)
            gone = existing(machine, name)
            machine.check_lock()
            if machine.is_template:
                machine.config["lock"] = "snapshot-delete"
                raise PveError("you can't delete a snapshot if vm is a template")
            for drive in drives(gone.config):
                if not drive.is_cdrom and is_volume_id(drive.file) and not gone.state:
                    node.store.drop_snapshot(drive.file, name)
            del machine.snapshots[name]
            for config in (machine.config, *(each.config for each in machine.snapshots.values())):
                if config.get("parent") == name:
                    del config["parent"]
                    config.update(_parent(gone.config))
            drop_used(machine)

    return node.tasks.start("qmdelsnapshot", str(vmid), user, work)


def rollback_task(request: Request, name: str, *, start: bool) -> str:
    node, vmid = request.node, request.vmid
    if start:
        request.require(f"/vms/{vmid}", "VM.PowerMgmt")

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            _roll_back(node, node.machine(vmid), name, log)
        if start and not node.running(vmid):
            start_task(node, request.user, vmid, {})

    return node.tasks.start("qmrollback", str(vmid), request.user, work)


def _roll_back(node: Node, machine: Machine, name: str, log: TaskLog) -> None:
    if machine.is_template:
        raise PveError("you can't rollback if vm is a template")
    snapshot = existing(machine, name)
    if snapshot.state:
        raise PveError(f"unable to rollback to incomplete snapshot (snapstate = {snapshot.state})")
    machine.check_lock()
    if node.running(machine.vmid):
        node.executor.kill(machine.vmid)
        machine.process = None
    staying = {key: value for key, value in machine.config.items() if is_unused(key) or key == "description"}
    found = {drive.file for drive in drives(snapshot.config)}
    lost = [drive for drive in drives(machine.config) if drive.file not in found]
    machine.config = {**staying, **snapshot.config, "parent": name}
    for drive in lost:
        register_unused(node, machine.vmid, machine.config, drive, log)
    drop_used(machine)
