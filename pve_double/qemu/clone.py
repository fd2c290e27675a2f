"""Templates and clones of a VM."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping

from pve_double.errors import PveError
from pve_double.qemu import network
from pve_double.qemu.copies import copied
from pve_double.qemu.drives import Drive, drives, is_unused
from pve_double.qemu.machine import Config, Machine
from pve_double.qemu.volumes import Request, check_bridges
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id, split_volume_id
from pve_double.tasks import TaskLog

_NOT_CLONED = {
    "template", "lock", "parent", "snaptime", "vmstate", "runningcpu", "runningmachine", "running-nets-host-mtu",
}  # fmt: skip


def has_feature(node: Node, feature: str, config: Config, *, of_snapshot: bool) -> bool:
    """Whether all disks of a configuration can be copied, cloned, or get a snapshot (`feature`)."""
    disks = [drive for drive in drives(config) if not drive.is_cdrom]
    return all(_has_feature(node, feature, drive, of_snapshot=of_snapshot) for drive in disks)


def _has_feature(node: Node, feature: str, drive: Drive, *, of_snapshot: bool) -> bool:
    """What the plugins' volume_has_feature say of one volume."""
    if not is_volume_id(drive.file):
        return False
    named, kind = node.store.parse(drive.file), node.store.config(split_volume_id(drive.file)[0]).kind
    thin = kind in {"lvmthin", "zfspool", "rbd"}
    match feature:
        case "snapshot":
            return not named.is_base and (thin or named.format == "qcow2")
        case "template":
            return not named.is_base and kind != "lvm"
        case "clone":
            return kind != "lvm" if named.is_base else of_snapshot and thin
    return not of_snapshot or thin or named.format == "qcow2"


def template_task(request: Request, disk: str | None = None) -> str:
    """Turn a VM's volumes, or the one of `disk`, into base volumes."""
    node, vmid = request.node, request.vmid

    def check() -> Machine:
        machine = node.machine(vmid)
        machine.check_lock()
        if machine.snapshots:
            raise PveError("unable to create template, because VM contains snapshots")
        if machine.is_template and disk is None:
            raise PveError("you can't convert a template to a template")
        if node.running(vmid):
            raise PveError("you can't convert a VM to template if VM is running")
        return machine

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            machine = check()
            machine.config["template"] = "1"
            chosen = [each for each in drives(machine.config) if not each.is_cdrom and disk in {None, each.key}]
            for drive in chosen:
                if not _has_feature(node, "template", drive, of_snapshot=False):
                    raise PveError(f"volume '{drive.file}' does not support template/clone")
            for drive in chosen:
                _, volname = split_volume_id(drive.file)
                base = node.store.rename(drive.file, re.sub("(^|/)vm-", r"\1base-", volname))
                machine.config[drive.key] = Drive(drive.key, base, drive.options).text()

    check()
    return node.tasks.start("qmtemplate", str(vmid), request.user, work)


def clone_task(request: Request, params: Mapping[str, str]) -> str:
    """A copy of a VM. A linked one, which a template gives without `full`, shares nothing in the double."""
    node, new = request.node, int(params["newid"])
    node.running(request.vmid)
    source = _check_clone(request, params)
    copy = Machine(new, {"lock": "clone"})
    if node.machines.setdefault(new, copy) is not copy:
        raise _taken(new)

    def work(log: TaskLog) -> None:
        try:
            with node.config_lock(request.vmid, log), node.config_lock(new, log, seconds=1):
                log.line(f"creating a clone of VM {request.vmid} with ID {new}")
                node.machines[new].config = _cloned(request, source, new, params, log)
        except PveError as failed:
            del node.machines[new]
            raise PveError(f"clone failed: {failed}") from None
        if pool := params.get("pool"):
            node.pool_of[new] = pool

    return node.tasks.start("qmclone", str(request.vmid), request.user, work)


def _taken(new: int) -> PveError:
    return PveError(f"unable to create VM {new}: config file already exists")


def _check_clone(request: Request, params: Mapping[str, str]) -> Config:
    """The configuration to copy, fit for it, in the order of qemu-server's own checks."""
    node, storage, name = request.node, params.get("storage"), params.get("snapname")
    if (pool := params.get("pool")) is not None and pool not in node.pools:
        raise PveError(f"pool '{pool}' does not exist")
    if (target := params.get("target", node.name)) not in {node.name, "localhost"}:
        raise PveError(f"no such cluster node '{target}'")
    if storage is not None:
        node.store.enabled(storage)
        node.store.with_images(storage)
    machine = node.machine(request.vmid)
    machine.check_lock()
    if name is not None and name not in machine.snapshots:
        raise PveError(f"snapshot '{name}' does not exist")
    full = params.get("full", "0" if machine.is_template else "1") == "1"
    for parameter in ("storage", "format"):
        if parameter in params and not full:
            raise PveError(f"parameter '{parameter}' not allowed for linked clones")
    config = machine.config if name is None else machine.snapshots[name].config
    _check_clone_access(request, config, storage)
    check_bridges(request, config)
    if int(params["newid"]) in node.machines:
        raise _taken(int(params["newid"]))
    for drive in [each for each in drives(config) if each.is_disk]:
        copies = full or drive.is_cloudinit or drive.key == "tpmstate0"
        if not _has_feature(node, "copy" if copies else "clone", drive, of_snapshot=name is not None):
            of = " a snapshot of" if name is not None else ""
            kind = "Full" if copies else "Linked"
            raise PveError(f"{kind} clone feature is not supported for{of} '{drive.file}' ({drive.key})")
    return config


def _check_clone_access(request: Request, config: Config, storage: str | None) -> None:
    for drive in [each for each in drives(config) if each.file != "none"]:
        if drive.is_cdrom and drive.file == "cdrom":
            request.require("/", "Sys.Console")
            continue
        source, _ = split_volume_id(drive.file)
        request.node.store.config(source)
        if not drive.is_cdrom:
            request.require(f"/storage/{storage or source}", "Datastore.AllocateSpace")
    if place := config.get("vmstatestorage"):
        request.require(f"/storage/{place}", "Datastore.AllocateSpace")


def _names_its_base(node: Node, storage: str, volname: str, target: str) -> bool:
    """Whether a clone of this volume has its base in its name: that of a base volume on a directory or on ZFS."""
    of = node.store.config(storage)
    return storage == target and of.parse(volname).is_base and (bool(of.path) or of.kind in ("zfspool", "rbd"))


def _cloned(request: Request, source: Config, new: int, params: Mapping[str, str], log: TaskLog) -> Config:
    config = {name: value for name, value in source.items() if name not in _NOT_CLONED and not is_unused(name)}
    for drive in [each for each in drives(config) if each.is_disk]:
        target = params.get("storage") or split_volume_id(drive.file)[0]
        made = copied(request.node, drive, new, log, target=target, format_=params.get("format"))
        storage, volname = split_volume_id(drive.file)
        if params.get("full") != "1" and _names_its_base(request.node, storage, volname, target):
            made = Drive(drive.key, request.node.store.linked(made.file, volname), made.options)
        config[drive.key] = made.text()
    for name in filter(network.is_card, list(config)):
        card = network.cards({name: config[name]})[0]
        config[name] = network.with_address(config[name].replace(f"{card.model}={card.address}", card.model))
    config["name"] = params.get("name") or f"Copy-of-VM-{source.get('name', request.vmid)}"
    others = re.sub(r"(^|,)uuid=[^,]*", "", config.get("smbios1", "")).strip(",")
    config["smbios1"] = ",".join(part for part in (others, f"uuid={uuid.uuid4()}") if part)
    config |= {"vmgenid": str(uuid.uuid4())} if config.get("vmgenid", "0") != "0" else {}
    return config | ({"description": params["description"]} if params.get("description") else {})
