"""Creating and destroying VMs."""

from __future__ import annotations

import base64
import itertools
import time
import uuid
from urllib.parse import unquote

from pve_double.errors import PveError, bad_parameters
from pve_double.permissions import ROOT
from pve_double.qemu import network
from pve_double.qemu.drives import default_boot_devices, drives, is_drive
from pve_double.qemu.machine import Config, Machine, printed_boot_order
from pve_double.qemu.machine_type import QEMU_VERSION, check_clipboard, pinned, pinning
from pve_double.qemu.power import start_task
from pve_double.qemu.rights import require_for_device, require_for_options
from pve_double.qemu.volumes import (
    Request,
    check_bridges,
    check_drives,
    check_storage_access,
    check_volume_access,
    create_disks,
    owned_by,
)
from pve_double.state import Node
from pve_double.storage.volumes import is_volume_id
from pve_double.tasks import TaskLog

_NOT_OPTIONS = (
    "node", "vmid", "archive", "bwlimit", "force", "pool", "start", "ha-managed", "storage", "unique", "live-restore",
    "import-working-storage",
)  # fmt: skip


def create(node: Node, user: str, params: Config) -> str:
    """POST nodes/{node}/qemu: the UPID of the task that makes the volumes."""
    vmid = int(params["vmid"])
    options = {name: value for name, value in params.items() if name not in _NOT_OPTIONS}
    request = Request(node, user, vmid, params.get("storage"), params.get("pool"))
    validate_ssh_keys(options)
    clamp_cpu_units(options)
    _check_rights(request, params)
    if archive := params.get("archive"):
        _refuse_archive(request, archive, options)
    resolve_cdrom(options)
    check_storage_access(request, options)
    require_for_options(request, options)
    for name in sorted(options):
        require_for_device(request, name, options[name])
    check_bridges(request, options)
    check_drives(request, options)
    network.add_addresses(options)
    machine = Machine(vmid, {"lock": "create"})
    if node.machines.setdefault(vmid, machine) is not machine:
        raise PveError(f"unable to create VM {vmid} - VM {vmid} already exists on node '{node.name}'")

    def work(log: TaskLog) -> None:
        try:
            with node.config_lock(vmid, log, seconds=1):
                _make(request, options, log)
        except PveError as failed:
            del node.machines[vmid]
            raise PveError(f"unable to create VM {vmid} - {failed}") from None
        if pool := params.get("pool"):
            node.pool_of[vmid] = pool
        if params.get("start") == "1":
            log.line("Execute autostart")
            start_task(node, user, vmid, {})

    return node.tasks.start("qmcreate", str(vmid), user, work)


def _check_rights(request: Request, params: Config) -> None:
    pool, path = params.get("pool"), f"/vms/{request.vmid}"
    if pool is not None and pool not in request.node.pools:
        raise PveError(f"pool '{pool}' does not exist")
    if storage := params.get("storage"):
        request.require(f"/storage/{storage}", "Datastore.AllocateSpace")
    if params.get("ha-managed") == "1":
        request.require("/", "Sys.Console")
    if params.get("start") == "1":
        request.require_vm("VM.PowerMgmt")
    may = request.node.permissions
    if not may.has(request.user, path, ["VM.Allocate"]) and not (
        pool and may.has(request.user, f"/pool/{pool}", ["VM.Allocate"])
    ):
        raise PveError("Permission check failed", status=403)


def _refuse_archive(request: Request, archive: str, options: Config) -> None:
    """There are no backups on the double's storages: whatever is to be restored is missing, or is none."""
    for name in sorted(filter(is_drive, options)):
        raise bad_parameters({name: "option conflicts with option 'archive'"})
    if archive == "-":
        raise PveError("pipe requires cli environment")
    check_volume_access(request, archive, content="backup")
    if is_volume_id(archive):
        request.node.store.activate(archive)
    raise PveError(f"can't find file '{archive}'")


def _make(request: Request, options: Config, log: TaskLog) -> None:
    config = {**options, "meta": f"creation-qemu={QEMU_VERSION},ctime={int(time.time())}"}
    config |= create_disks(request, config, options, log)
    config.setdefault("boot", printed_boot_order(default_boot_devices(config)))
    check_clipboard(config.get("vga", ""))
    config.setdefault("smbios1", f"uuid={uuid.uuid4()}")
    if (machine := pinned(config)) is not None:
        log.line(pinning(machine))
        config["machine"] = machine
    if config.get("vmgenid", "1") == "1":
        config["vmgenid"] = str(uuid.uuid4())
    if "tags" in config:
        config["tags"] = unique_tags(config["tags"])
    request.node.machines[request.vmid].config = config


def clamp_cpu_units(options: Config) -> None:
    """Into what version 2 of the kernel's control groups takes."""
    if "cpuunits" in options:
        options["cpuunits"] = str(max(1, min(10_000, int(options["cpuunits"]))))


def resolve_cdrom(options: Config) -> None:
    """`cdrom` is another word for ide2."""
    if value := options.pop("cdrom", None):
        options["ide2"] = value if "media=" in value else f"{value},media=cdrom"


def unique_tags(tags: str) -> str:
    return ";".join(sorted({tag.lower() for tag in tags.replace(",", ";").replace(" ", ";").split(";") if tag}))


def validate_ssh_keys(options: Config) -> None:
    """PVE unquotes the keys once and asks ssh-keygen: what was quoted twice is no key, and a 500."""
    for line in unquote(options.get("sshkeys", "")).splitlines():
        if line.strip() and not any(_is_public_key(kind, blob) for kind, blob in _pairs(line.split())):
            raise PveError("SSH public key validation error")


def _pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(itertools.pairwise(words))


def _is_public_key(kind: str, text: str) -> bool:
    try:
        blob = base64.b64decode(text, validate=True)
    except ValueError:
        return False
    length = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + length] == kind.encode() and len(blob) > 4 + length


def destroy(node: Node, user: str, vmid: int, *, skiplock: bool, purge: bool, unreferenced: bool) -> str:
    """DELETE nodes/{node}/qemu/{vmid}: the UPID of the task that frees the VM's own volumes."""
    if skiplock and user != ROOT:
        raise bad_parameters({"skiplock": "Only root may use this option."})

    def early_checks() -> Machine:
        machine = node.machine(vmid)
        machine.check_protection(f"can't remove VM {vmid}")
        if node.running(vmid):
            raise PveError(f"VM {vmid} is running - destroy failed")
        return machine

    def work(log: TaskLog) -> None:
        with node.config_lock(vmid, log):
            machine = early_checks()
            if not skiplock:
                machine.check_lock()
            for volid in _own_volumes(node, machine):
                node.store.free(volid, log)
            if unreferenced:
                for storage in list(node.store.storages):
                    for volume in node.store.of(storage, vmid=vmid, content="images"):
                        node.store.free(volume.id, log)
            if purge:
                log.line(f"purging VM {vmid} from related configurations..")
            del node.machines[vmid]
            node.pool_of.pop(vmid, None)
            node.permissions.forget_path(f"/vms/{vmid}")

    early_checks()
    return node.tasks.start("qmdestroy", str(vmid), user, work)


def _own_volumes(node: Node, machine: Machine) -> list[str]:
    """The VM's volumes, each once: of its drives, its unused ones, those pending, those of snapshots."""
    configs = [machine.config, machine.pending, *(snapshot.config for snapshot in machine.snapshots.values())]
    found = [
        drive.file
        for config in configs
        for drive in drives(config, unused=True)
        if drive.is_disk and owned_by(node, machine.vmid, drive.file) and drive.file in node.store.volumes
    ]
    return list(dict.fromkeys(found))
