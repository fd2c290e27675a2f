"""Resizing a VM's volumes, and moving them to another storage or another VM."""

from __future__ import annotations

from collections.abc import Mapping

from pve_double.errors import PveError, bad_parameters
from pve_double.formats import parse_size
from pve_double.qemu.drives import Drive, drives, is_drive, parse_drive
from pve_double.qemu.machine import Machine, boot_order, printed_boot_order
from pve_double.qemu.volumes import Request, copy_volume, register_unused
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id, split_volume_id
from pve_double.tasks import TaskLog


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
    """POST move_disk: to another storage, or to another VM."""
    key, target = params["disk"], params.get("storage")
    if target is not None and "target-vmid" in params:
        text = "either set 'storage' or 'target-vmid', but not both"
        raise bad_parameters({"storage": text, "target-vmid": text})
    if target is None and "target-vmid" in params:
        return _reassign_task(request, params)
    if target is None:
        text = "both 'storage' and 'target-vmid' missing, either needs to be set"
        raise bad_parameters({"storage": text, "target-vmid": text})
    request.require(f"/storage/{target}", "Datastore.AllocateSpace")
    format_, remove = params.get("format"), params.get("delete") == "1"

    def check() -> tuple[Machine, Drive]:
        machine = request.node.machine(request.vmid)
        machine.check_lock()
        machine.check_unmodified(params.get("digest"))
        drive = _drive(machine, key)
        if drive.is_cdrom and not drive.is_cloudinit:
            raise PveError("you can't move a cdrom")
        source, _ = split_volume_id(drive.file)
        old = request.node.store.parse(drive.file).format
        if source == target and format_ in {None, old}:
            raise PveError("you can't move to the same storage with same format")
        request.node.store.enabled(target)
        request.node.store.with_images(target)
        if remove and any(drive.file == each.file for each in _in_snapshots(machine)):
            raise PveError("you can't move a disk with snapshots and delete the source")
        return machine, drive

    def work(log: TaskLog) -> None:
        with request.node.config_lock(request.vmid, log):
            machine, drive = check()
            _move(request.node, machine, drive, log, target=target, format_=format_, remove=remove)

    check()
    return request.node.tasks.start("qmmove", str(request.vmid), request.user, work)


def _in_snapshots(machine: Machine) -> list[Drive]:
    return [drive for snapshot in machine.snapshots.values() for drive in drives(snapshot.config)]


def _move(
    node: Node, machine: Machine, drive: Drive, log: TaskLog, *, target: str, format_: str | None, remove: bool
) -> None:
    source, _ = split_volume_id(drive.file)
    log.line(f"copying volume '{drive.file}' from current storage '{source}' to target storage '{target}'")
    node.store.activate(drive.file)
    try:
        moved = copied(node, drive, machine.vmid, log, target=target, format_=format_)
    except PveError as failed:
        raise PveError(f"storage migration failed: {failed}") from None
    machine.config[drive.key] = moved.text()
    if remove:
        log.line(f"removing source volume '{drive.file}' after successful copy")
        node.store.free(drive.file, log)
    elif (key := register_unused(node, machine.vmid, machine.config, drive, log)) is not None:
        log.line(f"adding source volume '{drive.file}' as '{key}' to config")


def copied(node: Node, drive: Drive, vmid: int, log: TaskLog, *, target: str, format_: str | None) -> Drive:
    """A full copy of the drive's volume for a VM. A format that the target does not have is left to the target."""
    volume = node.store.activate(drive.file)
    log.line(f"create full clone of drive {drive.key} ({drive.file})")
    storage = node.store.config(target)
    chosen = (format_ or volume.format) if storage.path else None
    name = f"vm-{vmid}-cloudinit" + (f".{chosen}" if chosen else "") if drive.is_cloudinit else ""
    new = node.store.allocate(target, vmid, log, size_bytes=volume.size_bytes, format_=chosen, name=name)
    copy_volume(node, drive.file, new, volume.size_bytes, log)
    return drive.changed(new) if drive.is_cloudinit else drive.changed(new, volume.size_bytes)


def _reassign_task(request: Request, params: Mapping[str, str]) -> str:
    """Give a volume to another VM, under a name of that one."""
    node, key, vmid = request.node, params["disk"], int(params["target-vmid"])
    target_key = params.get("target-disk", key)
    request.require(f"/vms/{vmid}", "VM.Config.Disk")
    if vmid == request.vmid:
        raise bad_parameters({"target-vmid": "must be different than source VMID to reassign disk"})

    def check() -> tuple[Machine, Machine, Drive]:
        for each, what in ((request.vmid, "VM"), (vmid, "target VM")):
            if each not in node.machines:
                raise PveError(f"could not find {what} {each}")
        source, target = node.machine(request.vmid), node.machine(vmid)
        source.check_lock()
        target.check_lock()
        if source.is_template or target.is_template:
            raise PveError("Can't move disks from or to template VMs")
        source.check_unmodified(params.get("digest"), f"VM {request.vmid}: ")
        target.check_unmodified(params.get("target-digest"), f"VM {vmid}: ")
        if key not in source.config:
            raise PveError(f"Disk '{key}' for VM '{request.vmid}' does not exist")
        if target_key in target.config:
            raise PveError(f"Target disk key '{target_key}' is already in use for VM '{vmid}'")
        drive = _drive(source, key)
        if drive.is_cdrom and not drive.is_cloudinit:
            raise PveError("CD drive contents can't be moved to another VM")
        if not is_volume_id(drive.file):
            raise PveError(f"Volume '{drive.file}' not managed by PVE")
        if any(drive.file == each.file for each in _in_snapshots(source)):
            raise PveError("Can't move disk used by a snapshot to another VM")
        if node.running(request.vmid) and is_drive(key):
            raise PveError("Cannot move disk to another VM while the source VM is running - detach first")
        return source, target, drive

    def work(log: TaskLog) -> None:
        with node.config_lock(request.vmid, log), node.config_lock(vmid, log):
            source, target, drive = check()
            log.line(f"reassign disk '{key}' from VM '{request.vmid}' as '{target_key}' to VM '{vmid}'")
            volid = node.store.reassign(drive.file, vmid)
            if key in (order := boot_order(source.config)):
                log.line(f"removing disk '{key}' from boot order config")
                source.config["boot"] = printed_boot_order([each for each in order if each != key])
            del source.config[key]
            log.line(f"removing disk '{key}' from VM '{request.vmid}' config")
            moved = Drive(target_key, volid, drive.options)
            target.config[target_key] = moved.text() if is_drive(target_key) else volid

    _, _, drive = check()
    request.require(f"/storage/{split_volume_id(drive.file)[0]}", "Datastore.AllocateSpace")
    return node.tasks.start("qmmove", f"{request.vmid}-{key}>{vmid}-{target_key}", request.user, work)
