"""Resizing, moving and copying a VM's volumes; templates, clones and snapshots."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from tests.pve_double.errors import PveError, bad_parameters
from tests.pve_double.formats import parse_size
from tests.pve_double.qemu import network
from tests.pve_double.qemu.drives import Drive, drives, parse_drive
from tests.pve_double.qemu.machine import Config, Machine, Snapshot
from tests.pve_double.qemu.volumes import Request, copy_volume, drop_used, register_unused
from tests.pve_double.state import Node
from tests.pve_double.storage.volumes import is_volume_id, split_volume_id
from tests.pve_double.tasks import TaskLog

_NO_SAVEVM = "VM {} qmp command 'query-savevm' failed - The command query-savevm has not been found"
"""What a QEMU without Proxmox's patches says, as that of the recordings."""


def resize_task(request: Request, params: Mapping[str, str]) -> str:
    """All of it, also finding that it cannot be done, is the task's."""

    def work(log: TaskLog) -> None:
        with request.node.config_lock(request.vmid, log):
            machine = request.node.machine(request.vmid)
            machine.check_digest(params.get("digest"))
            if params.get("skiplock") != "1":
                machine.check_lock()
            _resize(request, machine, params["disk"], params["size"])

    return request.node.tasks.start("resize", str(request.vmid), request.user, work)


def _resize(request: Request, machine: Machine, key: str, text: str) -> None:
    drive = _drive(machine, key)
    request.node.store.parse(drive.file)
    if drive.is_cdrom:
        raise PveError("you can't resize a cdrom")
    storage, _ = split_volume_id(drive.file)
    request.require(f"/storage/{storage}", "Datastore.AllocateSpace")
    volume = request.node.store.activate(drive.file)
    wanted = (parse_size(text.removeprefix("+")) or 0) + (volume.size_bytes if text.startswith("+") else 0)
    if wanted < volume.size_bytes:
        raise PveError("shrinking disks is not supported")
    if wanted > volume.size_bytes:
        request.node.store.resize(drive.file, wanted)
        machine.config[key] = drive.changed(drive.file, wanted).text()


def _drive(machine: Machine, key: str) -> Drive:
    if key not in machine.config:
        raise PveError(f"disk '{key}' does not exist")
    drive = parse_drive(key, machine.config[key])
    if drive is None:
        raise PveError(f"unable to parse drive options for '{key}'")
    return drive


def move_task(request: Request, params: Mapping[str, str]) -> str:
    """POST move_disk to another storage; to another VM the double does not move."""
    key, target = params["disk"], params.get("storage")
    if target is None:
        text = "both 'storage' and 'target-vmid' missing, either needs to be set"
        raise bad_parameters({"storage": text, "target-vmid": text})
    request.require(f"/storage/{target}", "Datastore.AllocateSpace")
    format_, remove = params.get("format"), params.get("delete") == "1"

    def check() -> tuple[Machine, Drive]:
        machine = request.node.machine(request.vmid)
        machine.check_lock()
        machine.check_digest(params.get("digest"))
        drive = _drive(machine, key)
        if drive.is_cdrom and not drive.is_cloudinit:
            raise PveError("you can't move a cdrom")
        source, _ = split_volume_id(drive.file)
        old = request.node.store.parse(drive.file).format
        if source == target and format_ in {None, old}:
            raise PveError("you can't move to the same storage with same format")
        request.node.store.enabled(target)
        request.node.store.with_images(target)
        return machine, drive

    def work(log: TaskLog) -> None:
        with request.node.config_lock(request.vmid, log):
            machine, drive = check()
            _move(request.node, machine, drive, log, target=target, format_=format_, remove=remove)

    check()
    return request.node.tasks.start("qmmove", str(request.vmid), request.user, work)


def _move(
    node: Node, machine: Machine, drive: Drive, log: TaskLog, *, target: str, format_: str | None, remove: bool
) -> None:
    source, _ = split_volume_id(drive.file)
    log.line(f"copying volume '{drive.file}' from current storage '{source}' to target storage '{target}'")
    machine.config[drive.key] = _copied(node, drive, machine.vmid, log, target=target, format_=format_).text()
    if remove:
        log.line(f"removing source volume '{drive.file}' after successful copy")
        node.store.free(drive.file, log)
    elif (key := register_unused(node, machine.vmid, machine.config, drive, log)) is not None:
        log.line(f"adding source volume '{drive.file}' as '{key}' to config")


def _copied(node: Node, drive: Drive, vmid: int, log: TaskLog, *, target: str, format_: str | None) -> Drive:
    volume = node.store.activate(drive.file)
    log.line(f"create full clone of drive {drive.key} ({drive.file})")
    storage = node.store.config(target)
    new = node.store.allocate(
        target, vmid, log, size_bytes=volume.size_bytes, format_=(format_ or volume.format) if storage.path else None
    )
    copy_volume(node, drive.file, new, volume.size_bytes, log)
    return drive.changed(new, volume.size_bytes)


def template_task(node: Node, user: str, vmid: int) -> str:
    machine = node.machine(vmid)
    machine.check_lock()
    if machine.snapshots:
        raise PveError("unable to create template, because VM contains snapshots")
    if machine.is_template:
        raise PveError("you can't convert a template to a template")
    if node.running(vmid):
        raise PveError("you can't convert a VM to template if VM is running")

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            for drive in [each for each in drives(machine.config) if not each.is_cdrom and is_volume_id(each.file)]:
                _, volname = split_volume_id(drive.file)
                base = node.store.rename(drive.file, volname.replace("vm-", "base-", 1))
                machine.config[drive.key] = Drive(drive.key, base, drive.options).text()
            machine.config["template"] = "1"

    return node.tasks.start("qmtemplate", str(vmid), user, work)


def clone_task(request: Request, params: Mapping[str, str]) -> str:
    """A full clone. A linked one, which a template gives without `full`, shares nothing in the double."""
    node, new = request.node, int(params["newid"])
    machine = node.machine(request.vmid)
    if storage := params.get("storage"):
        node.store.enabled(storage)
        node.store.with_images(storage)
    machine.check_lock()
    full = params.get("full", "0" if machine.is_template else "1") == "1"
    for name in ("storage", "format"):
        if name in params and not full:
            raise PveError(f"parameter '{name}' not allowed for linked clones")
    for drive in drives(machine.config):
        if not drive.is_cdrom:
            target, _ = split_volume_id(drive.file)
            request.require(f"/storage/{params.get('storage', target)}", "Datastore.AllocateSpace")
    copy = Machine(new, {"lock": "clone"})
    if node.machines.setdefault(new, copy) is not copy:
        raise PveError(f"unable to create VM {new}: config file already exists")

    def work(log: TaskLog) -> None:
        try:
            with node.config_lock(request.vmid, log), node.config_lock(new, log, seconds=1):
                log.line(f"creating a clone of VM {request.vmid} with ID {new}")
                node.machines[new].config = _cloned(node, machine, new, params, log)
        except PveError as failed:
            del node.machines[new]
            raise PveError(f"clone failed: {failed}") from None

    return node.tasks.start("qmclone", str(request.vmid), request.user, work)


def _cloned(node: Node, machine: Machine, new: int, params: Mapping[str, str], log: TaskLog) -> Config:
    config = {
        name: value for name, value in machine.config.items() if name != "template" and not name.startswith("unused")
    }
    for drive in [each for each in drives(config) if each.is_disk]:
        target = params.get("storage") or split_volume_id(drive.file)[0]
        config[drive.key] = _copied(node, drive, new, log, target=target, format_=params.get("format")).text()
    for name in filter(network.is_card, list(config)):
        card = network.cards({name: config[name]})[0]
        config[name] = network.with_address(config[name].replace(f"{card.model}={card.address}", card.model))
    config |= {"name": params.get("name", f"Copy-of-VM-{machine.config.get('name', machine.vmid)}")}
    config |= {"smbios1": f"uuid={uuid.uuid4()}", "vmgenid": str(uuid.uuid4())}
    return config | ({"description": params["description"]} if "description" in params else {})


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
        if not drive.is_cdrom and not _has_snapshots(node, drive):
            raise PveError("snapshot feature is not available")
    machine.snapshots[name] = Snapshot(dict(machine.config), int(time.time()), description, "prepare")
    machine.config["lock"] = "snapshot"
    if node.running(machine.vmid):
        log.line("skipping guest filesystem freeze - disabled in VM options")
        log.line(f"VM {machine.vmid} qmp command 'savevm-end' failed - The command savevm-end has not been found")
        raise PveError(_NO_SAVEVM.format(machine.vmid))
    machine.snapshots[name].state = ""
    del machine.config["lock"]


def _has_snapshots(node: Node, drive: Drive) -> bool:
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
