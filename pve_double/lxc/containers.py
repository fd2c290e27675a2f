"""The life of a container: created from a template, configured, started, stopped and destroyed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pve_double.errors import PveError, bad_parameters
from pve_double.executor.base import QemuFailed
from pve_double.permissions import ROOT
from pve_double.qemu.machine import Config
from pve_double.qemu.volumes import Request, check_volume_access
from pve_double.state import Container, Node
from pve_double.storage.volumes import is_volume_id
from pve_double.tasks import TaskLog

_NEW_VOLUME = re.compile(r"([^:]+):(\d+(?:\.\d+)?)")
_MOUNT = re.compile(r"rootfs|mp\d+")
_DEVICE = re.compile(r"dev\d+")
_DEVICE_PATH = re.compile(r"/dev/(?!.*/\.\.?(?:/|$)).+")
_GIB, _MIB, _KIB = 1024**3, 1024**2, 1024
_DEFAULTS = {"arch": "amd64", "memory": "512", "swap": "512"}
_PRIVILEGES: Mapping[str, tuple[str, ...]] = {
    "VM.Config.CPU": ("cores", "cpuunits", "cpulimit"),
    "VM.Config.Memory": ("memory", "swap"),
    "VM.Config.Network": ("nameserver", "searchdomain", "hostname"),
}
"""What PVE::LXC::check_ct_modify_config_perm asks for. All other options need VM.Config.Options."""
_PRIVILEGE = {name: privilege for privilege, names in _PRIVILEGES.items() for name in names}
_NOT_OPTIONS = ("node", "vmid", "ostemplate", "storage", "unprivileged", "pool", "start", "restore", "delete", "digest")


@dataclass(frozen=True, slots=True)
class MountPoint:
    """A volume, a directory of the node, or a device, with its options."""

    source: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """As PVE::LXC::Config::classify_mountpoint names it."""
        if not self.source.startswith("/"):
            return "volume"
        return "device" if self.source.startswith("/dev/") else "bind"

    def text(self) -> str:
        return ",".join([self.source, *(f"{key}={value}" for key, value in self.options.items())])


def parse_mount_point(text: str) -> MountPoint:
    """`[volume=]SOURCE,key=value...`."""
    source, *options = text.split(",")
    return MountPoint(source.removeprefix("volume="), dict(option.split("=", 1) for option in options))


def find(node: Node, vmid: int) -> Container:
    """The container; 500 in PVE's words where there is none."""
    if vmid not in node.containers:
        raise PveError(f"Configuration file 'nodes/{node.name}/lxc/{vmid}.conf' does not exist")
    return node.containers[vmid]


def is_running(node: Node, vmid: int) -> bool:
    return node.executor.container_runs(vmid)


def create(request: Request, params: Config) -> str:
    """POST nodes/{node}/lxc: the UPID of the task that makes the volumes and unpacks the template."""
    node, vmid = request.node, request.vmid
    unprivileged = params.get("unprivileged", "1")
    if unprivileged == "0":
        request.require("/", "Sys.Modify")
    if node.has_in_cluster(vmid):
        what = "CT" if vmid in node.containers else "VM"
        raise PveError(f"{what} {vmid} already exists on node '{node.name}'")
    if not node.permissions.has(request.user, f"/vms/{vmid}", ["VM.Allocate"]):
        raise PveError("Permission check failed", status=403)
    options = {name: value for name, value in params.items() if name not in _NOT_OPTIONS}
    _check_rights(request, options)
    check_volume_access(request, params["ostemplate"], content="vztmpl")
    options.setdefault("rootfs", f"{params.get('storage', 'local')}:4")
    for name in filter(_MOUNT.fullmatch, options):
        _check_storage(request, parse_mount_point(options[name]))
    container = Container({"lock": "create"})
    if node.containers.setdefault(vmid, container) is not container:
        raise PveError(f"unable to create CT {vmid} - CT {vmid} already exists on node '{node.name}'")

    def work(log: TaskLog) -> None:
        made: list[str] = []
        try:
            node.store.activate(params["ostemplate"])
            config = {**options, "hostname": options.get("hostname", f"CT{vmid}"), "ostype": "unmanaged"}
            config |= {name: _make_volume(request, value, made, log) for name, value in _mounts(options)}
            root = node.store.path(parse_mount_point(config["rootfs"]).source)
            archive = node.store.path(params["ostemplate"])
            log.line(f"extracting archive '{archive}'")
            node.executor.fill_container(vmid, root, archive)
            node.store.deactivate(made, log)
        except PveError as failed:
            for volid in made:
                node.store.free(volid, log)
            del node.containers[vmid]
            raise PveError(f"unable to create CT {vmid} - {failed}") from None
        container.config = _DEFAULTS | config | ({"unprivileged": "1"} if unprivileged == "1" else {})

    return node.tasks.start("vzcreate", str(vmid), request.user, work)


def _mounts(options: Config) -> list[tuple[str, str]]:
    return [(name, value) for name, value in options.items() if _MOUNT.fullmatch(name)]


def _volumes(options: Config) -> list[str]:
    """The ids of the container's volumes."""
    return [source for _, value in _mounts(options) if is_volume_id(source := parse_mount_point(value).source)]


def _check_rights(request: Request, options: Config) -> None:
    """PVE::LXC::check_ct_modify_config_perm, and the formats of devices."""
    for name, value in sorted(options.items()):
        if _DEVICE.fullmatch(name):
            path = value.split(",")[0].removeprefix("path=")
            if not _DEVICE_PATH.fullmatch(path):
                raise bad_parameters(
                    {name: f"invalid format - format error\n{name}.path: {path} is not a valid path\n"}
                )
    if request.user == ROOT:
        return
    for name, value in sorted(options.items()):
        if _MOUNT.fullmatch(name):
            request.require_vm("VM.Config.Disk")
            if (kind := parse_mount_point(value).type) != "volume":
                raise PveError(f"mount point type {kind} is only allowed for root@pam", status=403)
        elif _DEVICE.fullmatch(name):
            raise PveError("configuring device passthrough is only allowed for root@pam", status=403)
        else:
            request.require_vm(_PRIVILEGE.get(name, "VM.Config.Options"))


def _check_storage(request: Request, mount: MountPoint) -> None:
    if mount.type != "volume":
        return
    storage_id = mount.source.partition(":")[0]
    storage = request.node.store.enabled(storage_id)
    if "rootdir" not in storage.content:
        raise bad_parameters({"storage": f"storage '{storage_id}' does not support container directories"})
    request.require(f"/storage/{storage_id}", "Datastore.AllocateSpace")
    if storage.kind == "zfspool":
        raise PveError("the double has no subvolumes of ZFS", status=501)


def _make_volume(request: Request, text: str, made: list[str], log: TaskLog) -> str:
    mount = parse_mount_point(text)
    if (new := _NEW_VOLUME.fullmatch(mount.source)) is None:
        return text
    size = int(float(new[2]) * _KIB) * _MIB
    volid = request.node.store.allocate(new[1], request.vmid, log, size_bytes=size)
    made.append(volid)
    request.node.store.relabel(volid, "rootdir")
    shown = f"{size // _GIB}G" if size % _GIB == 0 else f"{size // _MIB}M"
    return MountPoint(volid, {**mount.options, "size": shown}).text()


def configure(request: Request, params: Config) -> None:
    """PUT config: of a container that does not run, everything applies at once."""
    container = find(request.node, request.vmid)
    options = {name: value for name, value in params.items() if name not in _NOT_OPTIONS}
    _check_rights(request, options)
    if is_running(request.node, request.vmid):
        raise PveError("the double changes no container that runs", status=501)
    _check_lock(container)
    gone = params.get("delete", "").split(",")
    container.config = {name: value for name, value in container.config.items() if name not in gone} | options


def status(node: Node, vmid: int) -> dict[str, Any]:
    """As status/current and the list have it."""
    config = find(node, vmid).config
    return {
        "vmid": vmid,
        "type": "lxc",
        "name": config.get("hostname", f"CT{vmid}"),
        "status": "running" if is_running(node, vmid) else "stopped",
        "cpus": int(config.get("cores", node.settings.cpus)),
        "maxmem": int(config.get("memory", "512")) * _MIB,
    } | ({"lock": config["lock"]} if "lock" in config else {})


def start_task(request: Request) -> str:
    node, vmid = request.node, request.vmid
    container = find(node, vmid)
    if is_running(node, vmid):
        raise PveError(f"CT {vmid} already running")

    def work(_log: TaskLog) -> None:
        _check_lock(container)
        for name, value in container.config.items():
            path = value.split(",")[0].removeprefix("path=")
            if _DEVICE.fullmatch(name) and not node.executor.has_device(path):
                raise PveError(f"startup for container '{vmid}' failed")
        for volid in _volumes(container.config):
            node.store.activate(volid)
        root = node.store.path(parse_mount_point(container.config["rootfs"]).source)
        try:
            node.executor.start_container(vmid, container.config, root)
        except QemuFailed:
            raise PveError(f"startup for container '{vmid}' failed") from None

    return node.tasks.start("vzstart", str(vmid), request.user, work)


def stop_task(request: Request) -> str:
    node, vmid = request.node, request.vmid
    container = find(node, vmid)
    if not is_running(node, vmid):
        raise PveError(f"CT {vmid} not running")

    def work(log: TaskLog) -> None:
        _check_lock(container)
        node.executor.stop_container(vmid)
        # PVE::LXC::vm_stop_cleanup, by the hook lxc-pve-poststop-hook.
        node.store.deactivate(_volumes(container.config), log)

    return node.tasks.start("vzstop", str(vmid), request.user, work)


def destroy_task(request: Request, *, force: bool, unreferenced: bool) -> str:
    node, vmid = request.node, request.vmid
    container = find(node, vmid)
    _check_protection(container, vmid)
    _check_lock(container)
    if not force and is_running(node, vmid):
        raise PveError(f"unable to destroy CT {vmid} - container is running")

    def work(log: TaskLog) -> None:
        if is_running(node, vmid):
            node.executor.stop_container(vmid)
        named = [parse_mount_point(value).source for _, value in _mounts(container.config)]
        own = [volid for volid in named if is_volume_id(volid) and node.store.parse(volid).vmid == vmid]
        if unreferenced:
            own += [
                volume.id for storage in node.store.storages for volume in node.store.of(storage, vmid=vmid)
                if volume.content == "rootdir"
            ]  # fmt: skip
        for volid in dict.fromkeys(own):
            if volid in node.store.volumes:
                node.store.free(volid, log)
        del node.containers[vmid]
        node.permissions.forget_path(f"/vms/{vmid}")

    return node.tasks.start("vzdestroy", str(vmid), request.user, work)


def _check_lock(container: Container) -> None:
    if lock := container.config.get("lock"):
        raise PveError(f"CT is locked ({lock})")


def _check_protection(container: Container, vmid: int) -> None:
    if container.config.get("protection") == "1":
        raise PveError(f"can't remove CT {vmid} - protection mode enabled")
