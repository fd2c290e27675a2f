"""Removes a VM, a volume or a storage that a run created, if its identity still matches the creation log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from harness.errors import HostError, SafetyError
from harness.feature import storage_scripts
from harness.features.proxmox import load_on_node
from harness.features.proxmox.client import Client, Expected, PveError, is_lock_timeout
from harness.features.proxmox.disk_users import list_children, require_same_node
from harness.features.proxmox.machine import VirtualMachine, has_vm
from harness.features.proxmox.vm_config import (
    MOUNTS,
    CreatedStore,
    CreatedVm,
    CreatedVolume,
    Maker,
    list_volumes,
    parse_drive,
)
from harness.files import read_script
from harness.lab.created import Entry, Removal
from harness.lab.transport.base import Runner
from harness.signals import Deadline, attempts, growing
from harness.untrusted import reading

STORE_SECONDS = 300.0

REMOVES: Mapping[Maker, str] = {
    "lvm": "lvmremove",
    "lvmthin": "lvmthinremove",
    "directory": "dirremove",
    "zfs": "zfsremove",
}
"""Kinds of tasks; see PVE::API2::Disks."""

LOOK = read_script("harness.features.proxmox", "inspect_store.sh")

# $1: a mount point. Prints it if it exists.
MOUNT_POINT = 'ls -d "$1" 2>/dev/null || true'
REMOVE_MOUNT_POINT = read_script("harness.features.proxmox", "remove_mount_point.sh")


def require_no_mount_point(runner: Runner, name: str) -> None:
    """Raises SafetyError if PVE's mount point for this storage already exists: the run must not remove it later."""
    printed = runner.run(["sh", "-c", MOUNT_POINT, "sh", f"{MOUNTS}/{name}"], deadline=30).stdout.strip()
    if printed:
        raise SafetyError(
            f"{runner.name}: {printed} already exists, and this run did not create it",
            hint=f"if it is empty and nothing is mounted there: rmdir {printed} on the node",
        )


@reading("Proxmox VE's answer about a storage")
def remove_store(client: Client, runner: Runner, store: CreatedStore) -> Removal:
    """Remove what PVE created under this name on the run's partition, and its entry in the storage configuration.

    It removes what exists, which may differ from the request: a failed creation of a thin pool leaves its volume group.
    Raises HostError if the storage holds something that the run did not create, or its owner is unknown, and PveError.
    """
    client.require_node(store.node)
    entries = client.storages()
    entry = entries.get(store.name)
    if entry is not None and (why := store.differs(entry)):
        return Removal("foreign", why)
    verdict = _look(client, runner, store)
    outcome, _, why = verdict.partition(": ")
    if outcome == "foreign":
        return Removal("foreign", why)
    if outcome == "absent" and entry is None:
        _remove_mount_point(runner, store)
        return Removal("absent")
    if outcome != "absent":
        _require_empty(client, store, why, entry, store.others(entries.values()))
        _unmake(client, store)
    if store.name in client.storages():
        client.write("delete", f"storage/{store.name}", {}, is_done=partial(_is_gone, client, store.name))
    _remove_mount_point(runner, store)
    return Removal("removed")


def _remove_mount_point(runner: Runner, store: CreatedStore) -> None:
    """Remove the empty directory that PVE leaves. It did not exist before the run, see `require_no_mount_point`."""
    if store.maker == "directory":
        runner.run(["sh", "-c", REMOVE_MOUNT_POINT, "sh", f"{MOUNTS}/{store.name}"], deadline=30)


def find_makers(client: Client, name: str) -> list[Maker]:
    """The kinds of things that PVE created under this name. There is more than one if a creation was interrupted."""
    thin = [str(pool["vg"]) for pool in client.list_made("lvmthin")]
    groups = [str(child["name"]) for child in list_children(client.list_made("lvm"))]
    pools = [str(pool["name"]) for pool in client.list_made("zfs")]
    makers: list[tuple[Maker, bool]] = [
        ("lvmthin", name in thin),
        ("lvm", name in groups and name not in thin),
        ("directory", _find_mounted(client, name) != ""),
        ("zfs", name in pools),
    ]
    return [maker for maker, is_there in makers if is_there]


def _find_mounted(client: Client, name: str) -> str:
    """The device that PVE mounts under this name; empty if it mounts none."""
    path = f"{MOUNTS}/{name}"
    return next((str(mount["device"]) for mount in client.list_made("directory") if mount["path"] == path), "")


def _look(client: Client, runner: Runner, store: CreatedStore) -> str:
    device = _find_mounted(client, store.name) if store.maker == "directory" else ""
    arguments = [store.maker, store.name, store.partuuid, device]
    printed = runner.run(["sh", "-c", LOOK, "sh", *arguments], deadline=60).stdout.strip()
    if printed.partition(":")[0] not in ("absent", "ours", "foreign", "holds"):
        raise HostError(f"{runner.name}: the check of storage {store.name} reported {printed or 'nothing'}")
    return printed


def _require_empty(
    client: Client, store: CreatedStore, holds: str, entry: Mapping[str, Any] | None, others: Sequence[str]
) -> None:
    """Raises HostError if the removal would also remove something on the storage that the run did not create."""
    things = [*filter(None, [holds]), *(f"storage {other}" for other in others)]
    if entry is not None:
        things += [str(volume["volid"]) for volume in client.get(f"{client.node}/storage/{store.name}/content")]
    if things:
        raise HostError(
            f"host {client.host}: storage {store.name} is not removed: this run did not create everything on it: "
            + ", ".join(things),
            hint=f"move these to another storage, then: virt-overhead reap --host {client.host}",
        )


def _unmake(client: Client, store: CreatedStore) -> None:
    name = store.name
    makers = find_makers(client, name)
    if not makers:
        raise HostError(
            f"host {client.host}: {name} is on the partition of this run, but Proxmox VE does not list it",
            hint=f"{client.spec.who} needs Sys.Audit on /; see also: pvesh get /nodes/{store.node}/disks/lvm",
        )
    for maker in makers:
        group = {"volume-group": name} if maker == "lvmthin" else {}
        client.task(
            "delete",
            f"{client.node}/disks/{maker}/{name}",
            {"cleanup-config": 1, "cleanup-disks": 1, **group},
            is_done=partial(_is_unmade, client, maker, name),
            expected=Expected(REMOVES[maker], f"{name}-{name}" if maker == "lvmthin" else name),
            deadline=STORE_SECONDS,
            # PVE takes the storage from its configuration after it has removed what it is on.
            undo=partial(_is_still_made, client, maker, name),
        )


def _is_still_made(client: Client, maker: Maker, name: str) -> bool:
    return maker in find_makers(client, name)


def _is_unmade(client: Client, maker: Maker, name: str) -> bool:
    return maker not in find_makers(client, name) and _is_gone(client, name)


def _is_gone(client: Client, storage: str) -> bool:
    return storage not in client.storages()


_FREE_SECONDS = 300.0
_OWN_LOCKS = ("create", "clone")
"""The locks of the tasks by which a run creates VMs. They stay if the node ends during the task."""

IDENTITY = read_script("harness.features.proxmox", "volume_identity.sh")
_IDENTITY = IDENTITY + '\nidentity_of "$@"\n'

# Of all nodes of the cluster: a shared storage may have volumes of their guests.
CONFIGURATIONS = "/etc/pve/nodes"

_FREE = IDENTITY + read_script("harness.features.proxmox", "free_volume.sh")


def remove(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Remove what the entry records; None if Proxmox VE did not create it.

    Raises HostError, GuestError, SafetyError if commands do not run on the API's node.
    """
    thing = entry.parsed((CreatedVm, CreatedVolume, CreatedStore))
    if thing is not None:
        require_same_node(client, runner)
    match thing:
        case CreatedVm():
            return remove_vm(client, runner, thing)
        case CreatedVolume():
            return remove_volume(client, runner, thing)
        case CreatedStore():
            return remove_store(client, runner, thing)
    removals = (added.remove(client, runner, entry) for added in load_on_node())
    return next((removal for removal in removals if removal is not None), None)


def read_identity(runner: Runner, path: str, volume: CreatedVolume) -> str:
    """The unique identity of the volume, which Proxmox VE has at this path of the node. Raises HostError."""
    script = storage_scripts(*volume.place[:1]) + _IDENTITY
    return runner.run(["sh", "-c", script, "sh", path, volume.name, *volume.place], deadline=60).stdout.strip()


@reading("Proxmox VE's answer about a VM")
def remove_vm(client: Client, runner: Runner, vm: CreatedVm) -> Removal:
    """Remove the VM. Its volumes must have been removed before.

    Raises HostError if it has volumes or snapshots that the run did not create, PveError, GuestError.
    """
    client.require_node(vm.node)
    machine = VirtualMachine(client, vm.vmid)
    if not has_vm(client, vm.vmid):
        return _find_moved(client, vm) or Removal("absent")
    config = machine.config()
    if why := vm.differs(config):
        if config.get("lock") in _OWN_LOCKS and vm.token not in str(config.get("description", "")):
            raise HostError(
                f"host {client.host}: VM {vm.vmid} is locked ({config['lock']}) and has no notes yet, so its owner is "
                "unknown",
                hint=f"if none of its tasks runs any more: qm unlock {vm.vmid}; qm destroy {vm.vmid} on {vm.node}",
            )
        return Removal("foreign", why)
    _require_unlocked(machine, config)
    _require_no_other_volumes(machine, config)
    _retry_unlocked(runner, machine, machine.end)
    _require_no_other_volumes(machine, machine.config())
    _retry_unlocked(runner, machine, machine.destroy)
    return Removal("removed")


@reading("Proxmox VE's answer about a volume")
def remove_volume(client: Client, runner: Runner, volume: CreatedVolume) -> Removal:
    """Remove the volume. Stops its VM first, if it is the VM of the run.

    Raises HostError, PveError, GuestError.
    """
    client.require_node(volume.node)
    if not _is_listed(client, volume):
        return Removal("absent")
    machine = VirtualMachine(client, volume.vmid)
    keys: list[str] = []
    if has_vm(client, volume.vmid):
        config = machine.config()
        keys = [key for key, value in config.items() if parse_drive(str(value))["file"] == volume.volid]
        if keys and volume.token not in str(config.get("description", "")):
            return Removal("foreign", f"VM {volume.vmid} has {volume.volid}, but is not the VM of this run")
    if not keys:
        return _free_volume(runner, volume)
    now = read_identity(runner, client.find_path(volume.volid), volume) if volume.identity else ""
    if volume.identity not in (now, now.rpartition(".")[0]):
        return Removal("foreign", f"{volume.volid} is ({now}), but ({volume.identity}) was created")
    _require_unlocked(machine, config)
    _retry_unlocked(runner, machine, machine.end)
    if volume.place:
        release = f'{storage_scripts(volume.place[0])}release_volume_{volume.place[0]} "$@"\n'
        runner.run(["sh", "-c", release, "sh", volume.place[1], volume.name], deadline=_FREE_SECONDS)
    _retry_unlocked(runner, machine, lambda: machine.free(keys, volume.volid))
    return Removal("removed")


def _require_unlocked(machine: VirtualMachine, config: dict[str, Any]) -> None:
    """Raises HostError if somebody else has locked the VM: only tasks that create a VM are the run's own."""
    host, vmid, lock = machine.client.host, machine.vmid, config.get("lock")
    if lock and lock not in _OWN_LOCKS:
        raise HostError(
            f"host {host}: VM {vmid} is locked ({lock})",
            hint="wait for the task that holds the lock; if it has ended: "
            f"qm unlock {vmid} on {machine.client.spec.node}, then: virt-overhead reap --host {host}",
        )


def _require_no_other_volumes(machine: VirtualMachine, config: dict[str, Any]) -> None:
    """Raises HostError if PVE would also remove something of the VM that the run did not create."""
    client, vmid = machine.client, machine.vmid
    later: dict[str, Any] = client.get(f"{machine.path}/config")
    snapshots = [
        str(snapshot["name"]) for snapshot in client.get(f"{machine.path}/snapshot") if snapshot["name"] != "current"
    ]
    volumes = list_volumes(config, vmid) | list_volumes(later, vmid)
    if volumes or snapshots:
        what = [f"{volid} as {key}" for volid, key in volumes.items()] + [f"the snapshot {name}" for name in snapshots]
        raise HostError(
            f"host {client.host}: VM {vmid} is not removed: this run did not create all that it has: "
            + ", ".join(what),
            hint=f"move the volumes to another VM (qm disk reassign), remove the snapshots, then: virt-overhead reap "
            f"--host {client.host}",
        )


def _find_moved(client: Client, vm: CreatedVm) -> Removal | None:
    for listed in client.get("cluster/resources", {"type": "vm"}):
        if int(listed["vmid"]) == vm.vmid:
            return Removal("foreign", f"VM {vm.vmid} is on node {listed.get('node')} of the cluster")
    return None


def _retry_unlocked(runner: Runner, machine: VirtualMachine, change: Any) -> None:
    try:
        change()
    except PveError as error:
        if "VM is locked" not in error.reason:
            raise
        # The task that locked it has ended. A token may not ignore the lock, but root on the node may remove it.
        runner.run(["qm", "unlock", str(machine.vmid)], deadline=30)
        change()


def _is_listed(client: Client, volume: CreatedVolume) -> bool:
    if volume.storage not in client.storages(of_node=True):
        if volume.in_store:
            # The removal of its storage checks what is still on the disk.
            return False
        raise HostError(
            f"host {client.host}: the node no longer has the storage {volume.storage}, so it is unknown whether "
            f"{volume.volid} still exists",
            hint="configure the storage again, or remove the volume and its file of the creation log by hand",
        )
    client.require_volumes_visible(volume.storage)
    listed = client.get(f"{client.node}/storage/{volume.storage}/content", {"vmid": volume.vmid})
    return any(entry["volid"] == volume.volid for entry in listed)


def _run_free(runner: Runner, volume: CreatedVolume) -> str:
    """Run the command, again if it did not get the storage's lock, which PVE holds while it changes a volume there."""
    for attempt in attempts(Deadline.after(_FREE_SECONDS), growing(0.5, 8.0)):
        try:
            script = storage_scripts(*volume.place[:1]) + _FREE
            words = [volume.volid, volume.identity, CONFIGURATIONS, *volume.place]
            return runner.run(["sh", "-c", script, "sh", *words], deadline=_FREE_SECONDS).stdout
        except HostError as error:
            if not is_lock_timeout(error.message) or attempt.is_last:
                raise
    raise AssertionError("unreachable: the pauses have no end")


def _free_volume(runner: Runner, volume: CreatedVolume) -> Removal:
    """Remove it by root's command on the node. As no VM names it, the API requires the right to remove any volume."""
    printed = _run_free(runner, volume)
    outcome, _, why = (printed.splitlines() or [""])[-1].partition(": ")
    if outcome == "foreign":
        return Removal("foreign", why)
    if outcome != "removed":
        raise HostError(f"{runner.name}: the removal of {volume.volid} reported {printed.strip() or 'nothing'}")
    return Removal("removed")
