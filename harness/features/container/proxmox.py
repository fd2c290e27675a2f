"""Containers of a node of Proxmox VE by its API: created from a template of the run, configured, started, removed.

The API runs no commands in a container, so they come from the node, by LXC's own program. The volume under test is a
device of the container (`dev0`), not a mount point: Proxmox VE would put a file system on that.
"""

from __future__ import annotations

import gzip
import io
import re
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness.errors import GuestError, HostError, LabUnavailable, Unsupported
from harness.events import Events
from harness.features.container.lxc import ContainerRunner, RunningContainer, list_program_directories
from harness.features.proxmox import GuestRules, OnNode, ProxmoxSpec
from harness.features.proxmox.client import Client, Expected, PveError
from harness.features.proxmox.creation import PveVolume, list_used_ids
from harness.features.proxmox.disk_users import require_same_node
from harness.features.proxmox.vm_config import build_marks, free_ids, name_vm, parse_drive, parse_owner
from harness.guest.protocol import GuestDisk, Hypervisor
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.guard.writable import run_all
from harness.lab.hosts import Host
from harness.lab.pin import TAG, BlockPin
from harness.lab.transport.base import Runner
from harness.model.guest import GUEST_MEMORY, GuestOptions
from harness.model.layout import Lvm, LvmThin, Zvol
from harness.model.mode import Mode
from harness.terminal import quoted
from harness.untrusted import reading

MIB = 1024**2
ROOT_GIB = "0.25"
"""The volume of its root, which has almost no files: all programs are those of the node."""
_TASK_SECONDS = 180.0
_DEVICES = (Lvm, LvmThin, Zvol)
_LINKS = ("bin", "lib", "lib32", "lib64", "libx32")
_DIRECTORIES = ("proc", "sys", "dev", "run", "tmp", "root", "etc", "usr", "opt", "sbin")
_VOLUME = re.compile(r"rootfs|(mp|unused)\d+")
_NUMBER = 'printf "%d:%d\n" $(stat -L -c "0x%t 0x%T" "$1")'
# Proxmox VE starts this instead of a system. Without lxcfs, whose /proc/uptime is not the clock of fio's jobs.
_INIT = """#!/bin/sh
PATH=/usr/bin:/usr/sbin
umount /proc/uptime
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
exec sleep infinity
"""


class CreatedContainer(Thing):
    """A container of a node, and the template that it was made from. `token` is random, in the notes of the container
    from its beginning, and in the name of the template."""

    kind: Literal["pve-container"] = "pve-container"
    node: str
    vmid: int
    name: str
    token: str
    storage: str
    """The storage of the template."""

    @property
    def words(self) -> str:
        return f"the container {self.vmid} of Proxmox VE"

    @property
    def file(self) -> str:
        """The name of the template."""
        return f"{TAG}-{self.token}.tar.gz"

    @property
    def template(self) -> str:
        """The template as a volume."""
        return f"{self.storage}:vztmpl/{self.file}"


def find_client(host: Host, vms: Hypervisor) -> Client | None:
    """The API, which makes the containers of the node, of its hypervisor; None if commands on the node make them."""
    spec = host.spec.hypervisor
    assert isinstance(spec, ProxmoxSpec), "no other hypervisor is on such a host"
    by_api = spec.boots_guests and spec.guest.container_storage is not None
    return getattr(vms, "client", None) if by_api else None


def refuse_container(client: Client, host: Host, mode: Mode) -> str | None:
    """Why the node cannot have the container of a mode by the API, with the remedy; None if it can."""
    rules = _get_rules(host)
    key = f"host.{client.host}.guest"
    otherwise = f"or leave out {key}.container_storage: virt-overhead then starts it with the node's LXC"
    if not client.spec.may_pass_devices:
        return (
            "a container of Proxmox VE gets a volume as a device (dev0), which Proxmox VE accepts only from root@pam "
            f"with a password, not from {client.spec.who}: log in as root@pam without a token, {otherwise}"
        )
    if not isinstance(mode.layout, _DEVICES):
        return (
            f"a container of Proxmox VE gets a volume as a device, and {mode.layout.kind} is none: measure lvm, "
            f"lvm-thin or zvol, {otherwise}"
        )
    if mode.guest.pin_vcpus:
        return f"Proxmox VE chooses the CPUs of a container itself: leave out pin_vcpus, {otherwise}"
    cpus = int(host.facts["cpus"] or 1)
    if (vcpus := mode.guest.vcpu_count or 1) > cpus:
        return f"the container needs {vcpus} CPUs, but the host has {cpus}: request fewer vcpus"
    for storage, content, setting in (
        (str(rules.container_storage), "rootdir", "container_storage"),
        (rules.iso_storage, "vztmpl", "iso_storage"),
    ):
        entry = client.storages(of_node=True).get(storage)
        if entry is None or content not in str(entry.get("content", "")).split(","):
            what = "does not exist there" if entry is None else f"does not accept {content}"
            return f"storage {storage} {what}: name another one as {key}.{setting}"
    return None


def make_template() -> bytes:
    """A template without programs: what it is made of is bound from the node, or created by Proxmox VE. Pure."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:

        def add(name: str, kind: bytes, *, mode: int = 0o755, link: str = "", data: bytes = b"") -> None:
            member = tarfile.TarInfo(f"./{name}")
            member.type, member.mode, member.linkname, member.size = kind, mode, link, len(data)
            archive.addfile(member, io.BytesIO(data))

        for name in _DIRECTORIES:
            add(name, tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
        for name in _LINKS:
            add(name, tarfile.SYMTYPE, link=f"usr/{name}")
        add("etc/os-release", tarfile.SYMTYPE, link="../usr/lib/os-release")
        add("etc/passwd", tarfile.REGTYPE, mode=0o644, data=b"root:x:0:0:root:/root:/bin/sh\n")
        add("sbin/init", tarfile.REGTYPE, data=_INIT.encode())
    return gzip.compress(content.getvalue(), mtime=0)


@contextmanager
def start_on_node(
    host: Host,
    client: Client,
    log: CreationLog,
    disks: Sequence[GuestDisk],
    options: GuestOptions,
    *,
    cpus: int,
    events: Events,
) -> Iterator[RunningContainer]:
    """A container of Proxmox VE with these disks and so many CPUs. It is destroyed at the end, also after a failure.

    Raises SafetyError if a disk is no longer the one that was checked, Unsupported, HostError and GuestError.
    """
    rules = _get_rules(host)
    for disk in disks:
        if not isinstance(disk.source, PveVolume):
            raise Unsupported(f"host {host.name}: {disk.name}: {disk.source.path} is no volume of Proxmox VE")
    serials = dict.fromkeys(serial for disk in disks for serial in disk.source.writable.disks)
    taken: list[int] = []
    for vmid in free_ids(rules.vmids, list_used_ids(client)):
        thing = CreatedContainer(
            disks=tuple(serials),
            node=client.spec.node,
            vmid=vmid,
            name=name_vm(log.run_id),
            token=secrets.token_hex(16),
            storage=rules.iso_storage,
        )
        with log.making(thing, partial(_remove_own, client, thing, taken)):
            _upload(client, thing)
            if not _create(client, rules, log, thing, cpus=cpus, memory=options.memory or GUEST_MEMORY):
                taken.append(vmid)
                continue
            _configure(client, host, thing, disks)
            run_all([disk.source.writable for disk in disks], ["true"], deadline=60)
            with events.step("start the container", 5.0) as step:
                _run_task(client, thing, "vzstart", "/status/start")
                seconds = step.seconds
            yield _enter(host, thing, disks, seconds)
            return
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no id from {first} to {last} is free for a container",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _get_rules(host: Host) -> GuestRules:
    assert isinstance(host.spec.hypervisor, ProxmoxSpec), "only such a host has a client of the API"
    return host.spec.hypervisor.guest


def _remove_own(client: Client, thing: CreatedContainer, taken: list[int]) -> Removal:
    """Remove it. What has its id belongs to somebody else if the id was taken."""
    return _remove_template(client, thing) if thing.vmid in taken else remove_container(client, thing)


def _upload(client: Client, thing: CreatedContainer) -> None:
    with tempfile.TemporaryDirectory(prefix="virt-overhead-") as directory:
        # PVE gives the volume the name of the file, which proxmoxer takes from the file object.
        file = Path(directory) / thing.file
        file.write_bytes(make_template())
        with file.open("rb") as content:
            client.task(
                "post",
                f"{client.node}/storage/{thing.storage}/upload",
                {"content": "vztmpl", "filename": content},
                is_done=partial(_has_template, client, thing),
                expected=Expected("imgcopy", ""),
                deadline=_TASK_SECONDS,
            )


def _create(
    client: Client, rules: GuestRules, log: CreationLog, thing: CreatedContainer, *, cpus: int, memory: int
) -> bool:
    """Create it without a device. False if another client has its id. Raises PveError."""
    marks = build_marks(log.run_id, thing.token)
    settings = {
        "vmid": thing.vmid,
        "hostname": marks["name"],
        "tags": marks["tags"],
        "description": marks["description"],
        "ostemplate": thing.template,
        "ostype": "unmanaged",
        "arch": "amd64",
        "unprivileged": 1,
        "rootfs": f"{rules.container_storage}:{ROOT_GIB}",
        "cores": cpus,
        "memory": memory // MIB,
        "swap": 0,
        "onboot": 0,
    }
    try:
        client.task(
            "post",
            f"{client.node}/lxc",
            settings,
            is_done=lambda: _has_container(client, thing.vmid),
            expected=Expected("vzcreate", str(thing.vmid)),
            deadline=_TASK_SECONDS,
        )
    except PveError as error:
        if "already exists" in error.reason:
            return False
        raise
    return True


def _configure(client: Client, host: Host, thing: CreatedContainer, disks: Sequence[GuestDisk]) -> None:
    """Give it the programs of the node and the devices. Its template is unpacked before, so it cannot reach them."""
    directories = ["/usr", *list_program_directories(host.spec.fio, ("/usr", "/bin", "/sbin"))]
    settings = {f"mp{number}": f"{path},mp={path},ro=1" for number, path in enumerate(directories)}
    settings |= {f"dev{number}": f"path={disk.source.path},mode=0660" for number, disk in enumerate(disks)}
    wanted = {key: value.partition(",")[0] for key, value in settings.items()}

    def is_done() -> bool:
        config = read_config(client, thing.vmid)
        return all(str(config.get(key, "")).startswith(value) for key, value in wanted.items())

    client.write("put", f"{_path(client, thing)}/config", settings, is_done=is_done, deadline=_TASK_SECONDS)


def _enter(host: Host, thing: CreatedContainer, disks: Sequence[GuestDisk], seconds: float | None) -> RunningContainer:
    name = str(thing.vmid)
    info = ["lxc-info", "--name", name, "--no-humanize", "--pid"]
    pid = host.runner.run(info, deadline=30).stdout.strip()
    if not pid.isdecimal():
        raise GuestError(f"host {host.name}: LXC does not report the process of {thing.words}: {quoted(pid)}")
    runner = ContainerRunner(f"container {name} on {host.name}", host.runner, ("lxc-attach", "--name", name, "--"))
    for disk in disks:
        pin = disk.source.writable.pin
        number = runner.run(["sh", "-c", _NUMBER, "sh", disk.source.path], deadline=30).stdout.strip()
        if isinstance(pin, BlockPin) and number != pin.number:
            raise GuestError(
                f"host {host.name}: {thing.words} has the device {number} as {disk.source.path}, not {pin.number}"
            )
    places = {disk.name: disk.source.path for disk in disks}
    return RunningContainer(
        host, disks, words=thing.words, runner=runner, pid=pid, places=places, seconds=seconds, by="Proxmox VE"
    )


def remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Remove the container of a killed run; None if the entry is none. Raises HostError, GuestError and PveError."""
    thing = entry.parsed((CreatedContainer,))
    if thing is None:
        return None
    require_same_node(client, runner)
    return remove_container(client, thing)


@reading("Proxmox VE's answer about a container")
def remove_container(client: Client, thing: CreatedContainer) -> Removal:
    """End and destroy the container, and remove its template, if both are still those of the run.

    Raises HostError if it has something that the run did not create, and PveError.
    """
    client.require_node(thing.node)
    if not _has_container(client, thing.vmid):
        return _remove_template(client, thing)
    config = read_config(client, thing.vmid)
    if thing.token not in str(config.get("description", "")):
        if config.get("lock") == "create":
            raise HostError(
                f"host {client.host}: container {thing.vmid} is locked (create) and has no notes yet, so its owner is "
                "unknown",
                hint=f"if none of its tasks runs any more: pct unlock {thing.vmid}; pct destroy {thing.vmid} on "
                f"{thing.node}",
            )
        _remove_template(client, thing)
        return Removal("foreign", f"the notes of container {thing.vmid} do not contain the run's token")
    _require_own(client, thing, config)
    if client.get(f"{_path(client, thing)}/status/current").get("status") == "running":
        _run_task(client, thing, "vzstop", "/status/stop")
    client.task(
        "delete",
        _path(client, thing),
        {"purge": 0, "destroy-unreferenced-disks": 0},
        is_done=lambda: not _has_container(client, thing.vmid),
        expected=Expected("vzdestroy", str(thing.vmid)),
        deadline=_TASK_SECONDS,
    )
    _remove_template(client, thing)
    return Removal("removed")


def _require_own(client: Client, thing: CreatedContainer, config: Mapping[str, Any]) -> None:
    """Raises HostError if Proxmox VE would also remove something that the run did not create."""
    volumes = {key: parse_drive(str(value))["file"] for key, value in config.items() if _VOLUME.fullmatch(key)}
    others = [f"{volume} as {key}" for key, volume in volumes.items() if key != "rootfs" and parse_owner(volume)]
    listed = client.get(f"{_path(client, thing)}/snapshot")
    others += [f"the snapshot {entry['name']}" for entry in listed if entry["name"] != "current"]
    if others:
        raise HostError(
            f"host {client.host}: container {thing.vmid} is not removed: this run did not create all that it has: "
            + ", ".join(others),
            hint=f"move the volumes to another container, remove the snapshots, then: virt-overhead reap --host "
            f"{client.host}",
        )


def _remove_template(client: Client, thing: CreatedContainer) -> Removal:
    if not _has_template(client, thing):
        return Removal("absent")
    client.task(
        "delete",
        f"{client.node}/storage/{thing.storage}/content/{thing.template}",
        {},
        is_done=lambda: not _has_template(client, thing),
        expected=Expected("imgdel", thing.storage),
        deadline=_TASK_SECONDS,
    )
    return Removal("removed")


def _has_template(client: Client, thing: CreatedContainer) -> bool:
    listed = client.get(f"{client.node}/storage/{thing.storage}/content", {"content": "vztmpl"})
    return any(volume["volid"] == thing.template for volume in listed)


def _has_container(client: Client, vmid: int) -> bool:
    return any(int(container["vmid"]) == vmid for container in client.get(f"{client.node}/lxc"))


def read_config(client: Client, vmid: int) -> Mapping[str, Any]:
    """The configuration of a container. Raises PveError."""
    config: Mapping[str, Any] = client.get(f"{client.node}/lxc/{vmid}/config")
    return config


def _path(client: Client, thing: CreatedContainer) -> str:
    return f"{client.node}/lxc/{thing.vmid}"


def _run_task(client: Client, thing: CreatedContainer, kind: str, below: str) -> None:
    state = "running" if kind == "vzstart" else "stopped"

    def is_done() -> bool:
        return bool(client.get(f"{_path(client, thing)}/status/current").get("status") == state)

    expected = Expected(kind, str(thing.vmid))
    client.task(
        "post", f"{_path(client, thing)}{below}", {}, is_done=is_done, expected=expected, deadline=_TASK_SECONDS
    )


ON_NODE = OnNode(things=(CreatedContainer,), remove=remove_from_node)
