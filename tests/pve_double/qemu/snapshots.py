"""Snapshots of a VM. One that runs is left locked: the QEMU of the recordings has no command for saving its state."""

from __future__ import annotations

import time

from tests.pve_double.errors import PveError
from tests.pve_double.qemu.drives import Drive, drives
from tests.pve_double.qemu.machine import Machine, Snapshot
from tests.pve_double.qemu.power import NO_COMMAND
from tests.pve_double.qemu.volumes import drop_used
from tests.pve_double.state import Node
from tests.pve_double.storage.volumes import is_volume_id, split_volume_id
from tests.pve_double.tasks import TaskLog


def snapshot_task(node: Node, user: str, vmid: int, name: str, description: str) -> str:
    if name in {"current", "pending"}:
        raise PveError(f"unable to use snapshot name '{name}' (reserved name)")
    machine = node.machine(vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            _snapshot(node, machine, name, description, log)

    return node.tasks.start("qmsnapshot", str(vmid), user, work)


def _snapshot(node: Node, machine: Machine, name: str, description: str, log: TaskLog) -> None:
    machine.check_lock()
    if name in machine.snapshots:
        raise PveError(f"snapshot name '{name}' already used")
    for drive in drives(machine.config):
        if not drive.is_cdrom and not has_snapshots(node, drive):
            raise PveError("snapshot feature is not available")
    machine.snapshots[name] = Snapshot(dict(machine.config), int(time.time()), description, "prepare")
    machine.config["lock"] = "snapshot"
    if node.running(machine.vmid):
        log.line("skipping guest filesystem freeze - disabled in VM options")
        log.line(NO_COMMAND.format(vmid=machine.vmid, command="savevm-end"))
        raise PveError(NO_COMMAND.format(vmid=machine.vmid, command="query-savevm"))
    machine.snapshots[name].state = ""
    del machine.config["lock"]


def has_snapshots(node: Node, drive: Drive) -> bool:
    """Whether the storage of the drive's volume can take snapshots of it."""
    if not is_volume_id(drive.file):
        return False
    storage = node.store.config(split_volume_id(drive.file)[0])
    return storage.kind in {"lvmthin", "zfspool"} or node.store.parse(drive.file).format == "qcow2"


def delete_snapshot_task(node: Node, user: str, vmid: int, name: str, *, force: bool) -> str:
    machine = node.machine(vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            if not force:
                machine.check_lock()
            if machine.snapshots.pop(name, None) is None:
                raise PveError(f"snapshot '{name}' does not exist")
            if machine.config.get("lock") == "snapshot":
                del machine.config["lock"]
            drop_used(machine)

    return node.tasks.start("qmdelsnapshot", str(vmid), user, work)


def rollback_task(node: Node, user: str, vmid: int, name: str) -> str:
    machine = node.machine(vmid)

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            machine.check_lock()
            if name not in machine.snapshots:
                raise PveError(f"snapshot '{name}' does not exist")
            if node.running(vmid):
                node.executor.kill(vmid)
                machine.process = None
            machine.config = dict(machine.snapshots[name].config)

    return node.tasks.start("qmrollback", str(vmid), user, work)
