"""Backups of running VMs, after PVE::VZDump and PVE::VZDump::QemuServer: in mode snapshot, to a storage with files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import uuid4

from pve_double.errors import PveError, bad_parameters
from pve_double.permissions import ROOT
from pve_double.qemu.drives import Drive, drives
from pve_double.qemu.machine import Machine, VmBackup
from pve_double.state import Node
from pve_double.storage.volumes import Storage
from pve_double.tasks import TaskLog

_FOR_ROOT = ("tmpdir", "dumpdir", "script", "job-id")
_FOR_MODIFIERS = ("bwlimit", "ionice", "performance")
_POLL_SECONDS = 0.05
INTERRUPTED = "interrupted by signal"


def backup_task(node: Node, user: str, params: Mapping[str, str]) -> str:
    """Back a VM up in the background; the UPID. Raises PveError where PVE refuses it at once."""
    if user != ROOT:
        for name in _FOR_ROOT:
            if name in params:
                raise bad_parameters({name: "Only root may set this option."})
        if set(_FOR_MODIFIERS) & params.keys():
            node.permissions.require(user, "/", ["Sys.Modify"])
        if "prune-backups" in params:
            node.permissions.require(user, f"/storage/{params.get('storage', 'local')}", ["Datastore.Allocate"])
    if params.get("mode", "snapshot") != "snapshot":
        raise PveError("not implemented", status=501)
    storage = params.get("storage", "local")
    node.permissions.require(user, f"/storage/{storage}", ["Datastore.AllocateSpace"])
    vmid = int(params["vmid"])
    return node.tasks.start("vzdump", str(vmid), user, lambda log: _run(node, user, vmid, params, log))


def _run(node: Node, user: str, vmid: int, params: Mapping[str, str], log: TaskLog) -> None:
    storage = node.store.enabled(params.get("storage", "local"))
    if "backup" not in storage.content:
        why = f"storage '{storage.id}' is not configured for content-type 'backup'"
        raise PveError(f"could not get storage information for '{storage.id}': {why}")
    words = " ".join(f"--{name} {value}" for name, value in params.items() if name not in {"vmid", "node"})
    log.line(f"INFO: starting new backup job: vzdump {vmid} {words}")
    node.permissions.require(user, f"/vms/{vmid}", ["VM.Backup"])
    log.line(f"INFO: Starting Backup of VM {vmid} (qemu)")
    log.line(f"INFO: Backup started at {time.strftime('%Y-%m-%d %H:%M:%S')}")
    began = time.monotonic()
    try:
        # Of all vzdump of a node, one runs at a time.
        with node.backup_lock:
            _back_up(node, vmid, storage, params, log)
    except PveError as failed:
        log.line(f"ERROR: Backup of VM {vmid} failed - {failed}")
        log.line(f"INFO: Failed at {time.strftime('%Y-%m-%d %H:%M:%S')}")
        log.line("INFO: Backup job finished with errors")
        raise PveError("job errors") from failed
    took = time.strftime("%H:%M:%S", time.gmtime(time.monotonic() - began))
    log.line(f"INFO: Finished Backup of VM {vmid} ({took})")
    log.line("INFO: Backup job finished successfully")


def _back_up(node: Node, vmid: int, storage: Storage, params: Mapping[str, str], log: TaskLog) -> None:
    running = node.running(vmid)
    machine = node.machine(vmid)
    log.line(f"INFO: status = {'running' if running else 'stopped'}")
    if not running:
        raise PveError("not implemented: the backup of a VM that does not run")
    log.line(f"INFO: VM Name: {machine.name}")
    chosen = []
    for drive in drives(machine.config):
        if drive.is_cdrom:
            continue
        if drive.options.get("backup") == "0":
            log.line(f"INFO: exclude disk '{drive.key}' '{drive.file}' (backup=no)")
            continue
        log.line(f"INFO: include disk '{drive.key}' '{drive.file}'")
        chosen.append(drive)
    log.line("INFO: backup mode: snapshot")
    name = f"vzdump-qemu-{vmid}-{time.strftime('%Y_%m_%d-%H_%M_%S')}.vma"
    path = storage.path_of(f"backup/{name}")
    log.line(f"INFO: creating vzdump archive '{path}'")
    with node.config_lock(vmid, log):
        machine.check_lock()
        machine.config["lock"] = "backup"
    try:
        _copy(node, machine, chosen, path, log)
    finally:
        machine.config.pop("lock", None)
    size = sum(int(drive.options.get("size", "0")) for drive in chosen)
    node.store.add_backup(storage.id, name, size, vmid, params.get("notes-template", ""))
    log.line(f"INFO: archive file size: {size // 1024**2}MB")
    if "notes-template" in params:
        log.line("INFO: adding notes to backup")


def _copy(node: Node, machine: Machine, chosen: list[Drive], path: str, log: TaskLog) -> None:
    total = sum(int(drive.options.get("size", "0")) for drive in chosen)
    copy = node.backups[machine.vmid] = VmBackup(str(uuid4()), path, time.time(), total)
    log.line("INFO: starting backup via QMP command")
    node.executor.begin_backup(machine.vmid, [drive.key for drive in chosen], path, total)
    log.line(f"INFO: started backup task '{copy.uuid}'")
    while (transferred := node.executor.backed_up(machine.vmid)) is not None:
        copy.transferred = transferred
        if log.stop.wait(_POLL_SECONDS):
            log.line(f"ERROR: {INTERRUPTED}")
            log.line("INFO: aborting backup job")
            node.executor.cancel_backup(machine.vmid)
            copy.status = "error"
            raise PveError(INTERRUPTED)
    copy.transferred, copy.status = total, "done"
    log.line(f"INFO: transferred {total / 1024**3:.2f} GiB in 1 seconds")


def describe(node: Node, vmid: int) -> str:
    """What QEMU's monitor prints of the last backup."""
    copy = node.backups.get(vmid)
    if copy is None:
        return "Backup status: not initialized\r\n"
    if copy.status == "active" and (transferred := node.executor.backed_up(vmid)) is not None:
        copy.transferred = transferred
    return copy.text()
