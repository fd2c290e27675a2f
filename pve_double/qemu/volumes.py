"""What creating and changing a VM does to volumes: checking access, allocating, importing, registering as unused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from pve_double import schema
from pve_double.errors import PveError, bad_parameters, forbidden
from pve_double.formats import parse
from pve_double.permissions import ROOT
from pve_double.qemu.drives import Drive, drives, is_drive, is_unused, parse_drive, require_drive
from pve_double.qemu.machine import Config, Machine
from pve_double.state import IMPORTED_BYTES, Node
from pve_double.storage.volumes import is_volume_id, split_volume_id
from pve_double.tasks import TaskLog

GIB = 1024**3
CLOUDINIT_BYTES = 4 * 1024**2
FIRMWARE_BYTES = 4 * 1024**2
"""What a disk for EFI variables or TPM state gets, whatever size was asked for."""
ONLY_ROOT = "Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651."
_IMPORT_SYNTAX = "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>"
_CONTENT = "content type needs to be 'images' or 'iso'"


@dataclass(frozen=True, slots=True)
class Request:
    """Whose call about which VM it is.

    `default_storage` is for new disks that name none. `pool` is where a VM that is being created goes: what may be done
    with the pool may be done with the VM.
    """

    node: Node
    user: str
    vmid: int
    default_storage: str | None = None
    pool: str | None = None

    def require(self, path: str, *privileges: str) -> None:
        self.node.permissions.require(self.user, path, privileges)

    def require_vm(self, *privileges: str, any_of: bool = False) -> None:
        may, path = self.node.permissions, f"/vms/{self.vmid}"
        if self.pool is None or not may.has(self.user, f"/pool/{self.pool}", privileges, any_of=any_of):
            may.require(self.user, path, privileges, any_of=any_of)


def check_drives(request: Request, options: Config) -> None:
    """Check and complete the drive strings among `options`, in place. 400 where one makes no sense."""
    for key in sorted(filter(is_drive, options)):
        drive = require_drive(key, options[key])
        if "import-from" in drive.options and (drive.new_disk is None or drive.new_disk[1] != 0):
            raise bad_parameters({key: _IMPORT_SYNTAX})
        drive = _with_volume_id(request.node, drive)
        is_volume = is_volume_id(drive.file) and drive.new_disk is None and not drive.file.endswith(":cloudinit")
        if is_volume and request.node.store.parse(drive.file).content == "iso" and not drive.is_cdrom:
            raise bad_parameters({key: "explicit 'media=cdrom' is required for iso images"})
        options[key] = drive.text()


def _with_volume_id(node: Node, drive: Drive) -> Drive:
    if drive.file in {"none", "cdrom"} and "media" not in drive.options:
        return Drive(drive.key, drive.file, {**drive.options, "media": "cdrom"})
    if not drive.file.startswith("/") or drive.file.startswith("/dev/"):
        return drive
    found = node.store.id_of_path(drive.file)
    if found is None:
        raise bad_parameters({drive.key: f"unable to associate path '{drive.file}' to any storage"})
    content, volid = found
    media = drive.options.get("media", "cdrom" if content == "iso" else None)
    expected = {"disk": "images", "cdrom": "iso"}.get(media or "")
    if expected is not None and expected != content:
        raise bad_parameters({drive.key: f"unexpected media type ({content} != {expected})"})
    return Drive(drive.key, volid, {**drive.options, **({"media": media} if media else {})})


def check_storage_access(request: Request, options: Config) -> None:
    """Whether the caller may use every volume and storage that `options` name."""
    for key in sorted(filter(is_drive, options)):
        drive = parse_drive(key, options[key])
        if drive is None:
            continue
        _check_target(request, drive)
        if source := drive.options.get("import-from"):
            _check_source(request, drive, source)
    for key in sorted(filter(is_unused, options)):
        check_volume_access(request, options[key], content="images")
    if storage := options.get("vmstatestorage"):
        request.require(f"/storage/{storage}", "Datastore.AllocateSpace")
    for volid in sorted(parse("pve-qm-cicustom", options.get("cicustom", "")).values()):
        check_volume_access(request, volid, content="snippets")


def _check_target(request: Request, drive: Drive) -> None:
    if drive.file == "none" or drive.file.partition(":")[2] == "cloudinit":
        return
    if drive.is_cdrom and drive.file == "cdrom":
        request.require("/", "Sys.Console")
        return
    if drive.new_disk is not None and not drive.is_cdrom:
        storage = _storage_for(request, drive)
        request.require(f"/storage/{storage}", "Datastore.AllocateSpace")
        request.node.store.with_images(storage)
        return
    check_volume_access(request, drive.file)
    if is_volume_id(drive.file) and request.node.store.parse(drive.file).content not in {"images", "iso"}:
        raise bad_parameters({drive.key: _CONTENT})


def _check_source(request: Request, drive: Drive, source: str) -> None:
    if is_volume_id(source):
        named = request.node.store.parse(source)
        if named.content not in {"images", "import"}:
            text = f"{source} has wrong type '{named.content}' - needs to be 'images' or 'import'"
            raise bad_parameters({drive.key: text})
        if named.vmid is not None:
            request.require(f"/vms/{named.vmid}", "VM.Clone")
            return
    check_volume_access(request, source)


def check_volume_access(request: Request, volid: str, *, content: str | None = None) -> None:
    """Whether the caller may use a volume; a path is for root's ticket alone."""
    if not is_volume_id(volid):
        if request.user != ROOT:
            raise PveError(ONLY_ROOT)
        return
    storage, _ = split_volume_id(volid)
    named = request.node.store.parse(volid)
    if content is not None and named.content != content:
        raise PveError(f"unable to use volume {volid} - content type needs to be '{content}'")
    may = request.node.permissions
    if may.has(request.user, f"/storage/{storage}", ["Datastore.Allocate"]):
        return
    if named.content in {"iso", "vztmpl", "import"}:
        may.require(request.user, f"/storage/{storage}", ["Datastore.AllocateSpace", "Datastore.Audit"], any_of=True)
    elif named.content == "images" and named.vmid:
        if named.vmid != request.vmid:
            request.require(f"/storage/{storage}", "Datastore.Audit")
            request.require(f"/vms/{named.vmid}", "VM.Config.Disk")
    else:
        raise PveError(f"missing privileges to access {volid}")


def check_bridges(request: Request, options: Config) -> None:
    """Whether the caller may use the bridges of the network cards among `options`."""
    if request.user == ROOT:
        return
    for index in range(schema.COUNTS["net"]):
        bridge = _net(options.get(f"net{index}", "")).get("bridge")
        if bridge and not request.node.permissions.has(request.user, f"/sdn/zones/localnetwork/{bridge}", ["SDN.Use"]):
            raise forbidden(f"/sdn/zones/localnetwork/{bridge}, SDN.Use")


def _net(text: str) -> Mapping[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)


def _storage_for(request: Request, drive: Drive) -> str:
    named, _ = drive.new_disk or ("", 0.0)
    storage = named or request.default_storage
    if not storage:
        raise PveError("no storage ID specified (and no default storage)")
    return storage


def create_disks(request: Request, config: Config, options: Config, log: TaskLog) -> Config:
    """Make the volumes that the drives among `options` ask for; the drive strings to keep.

    Where one fails, those made for the others are freed again.
    """
    made: list[str] = []
    kept: Config = {}
    try:
        for key in sorted(filter(is_drive, options)):
            drive = parse_drive(key, options[key])
            if drive is not None:
                kept[key] = _create_disk(request, {**config, **kept}, drive, log, made).text()
    except PveError:
        for volid in made:
            request.node.store.free(volid, log)
        raise
    return kept


def _create_disk(request: Request, config: Config, drive: Drive, log: TaskLog, made: list[str]) -> Drive:
    if drive.file in {"none", "cdrom"}:
        return drive.changed(drive.file)
    if drive.file.partition(":")[2] == "cloudinit":
        return _create_cloudinit(request, config, drive, log, made)
    if drive.new_disk is None:
        return _existing(request, drive)
    source = drive.options.get("import-from")
    kept = _imported(request, drive, source, log, made) if source else _allocated(request, drive, log, made)
    log.line(f"{drive.key}: successfully created disk '{kept.text()}'")
    return kept


def _create_cloudinit(request: Request, config: Config, drive: Drive, log: TaskLog, made: list[str]) -> Drive:
    other = next((each.key for each in drives(config) if each.is_cloudinit and each.key != drive.key), None)
    if other is not None:
        raise PveError(f"{drive.key} - cloud-init drive is already attached at '{other}'")
    storage = request.node.store.config(drive.storage or "")
    format_ = drive.options.get("format", "qcow2" if storage.path else "raw")
    name = f"vm-{request.vmid}-cloudinit" + (f".{format_}" if storage.path else "")
    volid = request.node.store.allocate(
        storage.id, request.vmid, log, size_bytes=CLOUDINIT_BYTES, format_=format_, name=name
    )
    made.append(volid)
    options = {**drive.changed(volid, without=("format",)).options, "media": "cdrom"}
    kept = Drive(drive.key, volid, options)
    log.line(f"{drive.key}: successfully created disk '{kept.text()}'")
    return kept


def _allocated(request: Request, drive: Drive, log: TaskLog, made: list[str]) -> Drive:
    _, gib = drive.new_disk or ("", 0.0)
    size_bytes = FIRMWARE_BYTES if drive.key in {"efidisk0", "tpmstate0"} else int(gib * 1024**2) * 1024
    storage = _storage_for(request, drive)
    volid = request.node.store.allocate(
        storage, request.vmid, log, size_bytes=size_bytes, format_=drive.options.get("format")
    )
    made.append(volid)
    return drive.changed(volid, size_bytes, without=("format",))


def _imported(request: Request, drive: Drive, source: str, log: TaskLog, made: list[str]) -> Drive:
    node, target = request.node, _storage_for(request, drive)
    size_bytes = _source_bytes(node, source)
    log.line(f"create full clone of drive ({source})")
    volid = node.store.allocate(target, request.vmid, log, size_bytes=size_bytes, format_=drive.options.get("format"))
    made.append(volid)
    copy_volume(node, source, volid, size_bytes, log)
    return drive.changed(volid, size_bytes, without=("format", "import-from"))


def _source_bytes(node: Node, source: str) -> int:
    """The virtual size of what is imported: a volume, a device, or a file by its path."""
    if node.disks.exists(source):
        return node.disks.find(source).size_bytes
    if not is_volume_id(source):
        found = node.store.id_of_path(source)
        if found is None:
            raise PveError(f"can't find file '{source}'")
        source = found[1]
    if node.store.parse(source).content == "import":
        if source not in node.store.volumes:
            raise PveError(f"failed to stat '{node.store.path(source)}'")
        known = node.store.volumes[source].virtual_bytes
        return IMPORTED_BYTES if known is None else known
    try:
        return node.store.activate(source).size_bytes
    except PveError as missing:
        raise PveError(f"cannot import from '{source}' - {missing}") from None


def copy_volume(node: Node, source: str, target: str, size_bytes: int, log: TaskLog) -> None:
    """Copy one volume into another that was made for it, with the progress that PVE prints."""
    log.line(f"allocated target volume '{target}'")
    if is_volume_id(source):
        node.store.copy(source, target)
    total = f"{size_bytes / 1024**2:.1f} MiB" if size_bytes < GIB else f"{size_bytes / GIB:.1f} GiB"
    log.line(f"transferred 0.0 B of {total} (0.00%)")
    log.line(f"transferred {total} of {total} (100.00%)")


def _existing(request: Request, drive: Drive) -> Drive:
    check_volume_access(request, drive.file)
    if is_volume_id(drive.file):
        named = request.node.store.parse(drive.file)
        if (wanted := drive.options.get("format")) and wanted != named.format:
            raise PveError(
                f"drive '{drive.key}' - volume '{drive.file}' - 'format={wanted}' option different from storage "
                f"format '{named.format}'"
            )
        return drive.changed(drive.file, request.node.store.activate(drive.file).size_bytes)
    if not request.node.disks.exists(drive.file):
        raise PveError(f"volume {drive.file} does not exist")
    return drive.changed(drive.file, request.node.disks.find(drive.file).size_bytes)


def owned_by(node: Node, vmid: int, volid: str) -> bool:
    """Whether a volume belongs to the VM: a device that is passed through belongs to nobody."""
    return is_volume_id(volid) and node.store.parse(volid).vmid == vmid


def register_unused(node: Node, vmid: int, config: Config, drive: Drive, log: TaskLog) -> str | None:
    """Keep a detached volume as `unusedN`; the cloud-init image is freed. The key, if there is one."""
    if drive.is_cloudinit:
        node.store.free(drive.file, log)
        return None
    if drive.is_cdrom or not owned_by(node, vmid, drive.file) or drive.file in config.values():
        return None
    key = next(f"unused{index}" for index in itertools.count() if f"unused{index}" not in config)
    config[key] = drive.file
    return key


def drop_used(machine: Machine) -> None:
    """Forget an `unusedN` whose volume a drive uses, now or soon: writing the configuration does that."""
    configs = (machine.config, machine.pending, *(snapshot.config for snapshot in machine.snapshots.values()))
    used = {drive.file for config in configs for drive in drives(config)}
    for key in [key for key, value in machine.config.items() if is_unused(key) and value in used]:
        del machine.config[key]
