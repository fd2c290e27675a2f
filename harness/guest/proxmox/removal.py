"""Removes a VM, a volume or a storage that a run created, if its identity still matches the creation log."""

from __future__ import annotations

from typing import Any

from harness.errors import HostError
from harness.guest.proxmox.client import Client, PveError
from harness.guest.proxmox.machine import VirtualMachine, exists
from harness.guest.proxmox.node import require_same_node
from harness.guest.proxmox.plugged import unplug
from harness.guest.proxmox.refusals import is_lock_timeout
from harness.guest.proxmox.store_removal import remove_store, require_node
from harness.guest.proxmox.things import CreatedStore, CreatedVm, CreatedVolume, PluggedDrive, volumes_of
from harness.guest.proxmox.vmids import require_sight
from harness.lab.created import Entry, Removal
from harness.lab.transport.base import Runner
from harness.shipped import read_script
from harness.untrusted import reading
from harness.waiting import Deadline, attempts, growing

_FREE_SECONDS = 300.0
_OWN_LOCKS = ("create", "clone")
"""The locks of the tasks by which a run creates VMs. They stay if the node ends during the task."""

IDENTITY = read_script("harness.guest.proxmox", "volume_identity.sh")
_IDENTITY = IDENTITY + '\nidentity_of "$1"\n'

# Of all nodes of the cluster: a shared storage may have volumes of their guests.
CONFIGURATIONS = "/etc/pve/nodes"

_FREE = IDENTITY + read_script("harness.guest.proxmox", "free_volume.sh")


def remove(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Remove what the entry records; None if Proxmox VE did not create it.

    Raises HostError, GuestError, SafetyError if commands do not run on the API's node.
    """
    thing = entry.parsed((CreatedVm, CreatedVolume, CreatedStore, PluggedDrive))
    if thing is not None:
        require_same_node(client, runner)
    match thing:
        case CreatedVm():
            return remove_vm(client, runner, thing)
        case CreatedVolume():
            return remove_volume(client, runner, thing)
        case CreatedStore():
            return remove_store(client, runner, thing)
        case PluggedDrive():
            return unplug(client, thing)
    return None


def identity_of(runner: Runner, path: str) -> str:
    """The unique identity of the volume at this path of the node. Raises HostError."""
    return runner.run(["sh", "-c", _IDENTITY, "sh", path], deadline=60).stdout.strip()


@reading("Proxmox VE's answer about a VM")
def remove_vm(client: Client, runner: Runner, vm: CreatedVm) -> Removal:
    """Remove the VM. Its volumes must have been removed before.

    Raises HostError if it has volumes or snapshots that the run did not create, PveError, GuestError.
    """
    require_node(client, vm.node)
    machine = VirtualMachine(client, vm.vmid)
    if not exists(client, vm.vmid):
        return _moved(client, vm) or Removal("absent")
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
    _require_nothing_else(machine, config)
    _unlocked(runner, machine, machine.end)
    _require_nothing_else(machine, machine.config())
    _unlocked(runner, machine, machine.destroy)
    return Removal("removed")


@reading("Proxmox VE's answer about a volume")
def remove_volume(client: Client, runner: Runner, volume: CreatedVolume) -> Removal:
    """Remove the volume. Stops its VM first, if it is the VM of the run.

    Raises HostError, PveError, GuestError.
    """
    require_node(client, volume.node)
    if not _is_listed(client, volume):
        return Removal("absent")
    machine = VirtualMachine(client, volume.vmid)
    keys: list[str] = []
    if exists(client, volume.vmid):
        config = machine.config()
        keys = [key for key, value in config.items() if _file(value) == volume.volid]
        if keys and volume.token not in str(config.get("description", "")):
            return Removal("foreign", f"VM {volume.vmid} has {volume.volid}, but is not the VM of this run")
    if not keys:
        return _freed(runner, volume)
    now = identity_of(runner, _path(client, volume)) if volume.identity else ""
    if volume.identity not in (now, now.rpartition(".")[0]):
        return Removal("foreign", f"{volume.volid} is ({now}), but ({volume.identity}) was created")
    _require_unlocked(machine, config)
    _unlocked(runner, machine, machine.end)
    _unlocked(runner, machine, lambda: machine.free(keys, volume.volid))
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


def _require_nothing_else(machine: VirtualMachine, config: dict[str, Any]) -> None:
    """Raises HostError if PVE would also remove something of the VM that the run did not create."""
    client, vmid = machine.client, machine.vmid
    later: dict[str, Any] = client.get(f"{machine.path}/config")
    snapshots = [str(each["name"]) for each in client.get(f"{machine.path}/snapshot") if each["name"] != "current"]
    volumes = volumes_of(config, vmid) | volumes_of(later, vmid)
    if volumes or snapshots:
        what = [f"{volid} as {key}" for volid, key in volumes.items()] + [f"the snapshot {name}" for name in snapshots]
        raise HostError(
            f"host {client.host}: VM {vmid} is not removed: this run did not create all that it has: "
            + ", ".join(what),
            hint=f"move the volumes to another VM (qm disk reassign), remove the snapshots, then: virt-overhead reap "
            f"--host {client.host}",
        )


def _moved(client: Client, vm: CreatedVm) -> Removal | None:
    for each in client.get("cluster/resources", {"type": "vm"}):
        if int(each["vmid"]) == vm.vmid:
            return Removal("foreign", f"VM {vm.vmid} is on node {each.get('node')} of the cluster")
    return None


def _unlocked(runner: Runner, machine: VirtualMachine, change: Any) -> None:
    try:
        change()
    except PveError as error:
        if "VM is locked" not in error.reason:
            raise
        # The task that locked it has ended. A token may not ignore the lock, but root on the node may remove it.
        runner.run(["qm", "unlock", str(machine.vmid)], deadline=30)
        change()


def _is_listed(client: Client, volume: CreatedVolume) -> bool:
    if volume.storage not in {str(each["storage"]) for each in client.get(f"{client.node}/storage")}:
        if volume.in_store:
            # The removal of its storage checks what is still on the disk.
            return False
        raise HostError(
            f"host {client.host}: the node no longer has the storage {volume.storage}, so it is unknown whether "
            f"{volume.volid} still exists",
            hint="configure the storage again, or remove the volume and its file of the creation log by hand",
        )
    require_sight(client, volume.storage)
    listed = client.get(f"{client.node}/storage/{volume.storage}/content", {"vmid": volume.vmid})
    return any(each["volid"] == volume.volid for each in listed)


def _file(value: object) -> str:
    return str(value).partition(",")[0].removeprefix("file=")


def _path(client: Client, volume: CreatedVolume) -> str:
    return str(client.get(f"{client.node}/storage/{volume.storage}/content/{volume.volid}")["path"])


def _free(runner: Runner, volume: CreatedVolume) -> str:
    """Run the command, again if it did not get the storage's lock, which PVE holds while it changes a volume there."""
    for attempt in attempts(Deadline.after(_FREE_SECONDS), growing(0.5, 8.0)):
        try:
            return runner.run(
                ["sh", "-c", _FREE, "sh", volume.volid, volume.identity, CONFIGURATIONS], deadline=_FREE_SECONDS
            ).stdout
        except HostError as error:
            if not is_lock_timeout(error.message) or attempt.is_last:
                raise
    raise AssertionError("unreachable: the pauses have no end")


def _freed(runner: Runner, volume: CreatedVolume) -> Removal:
    """Remove it by root's command on the node. As no VM names it, the API requires the right to remove any volume."""
    printed = _free(runner, volume)
    outcome, _, why = (printed.splitlines() or [""])[-1].partition(": ")
    if outcome == "foreign":
        return Removal("foreign", why)
    if outcome != "removed":
        raise HostError(f"{runner.name}: the removal of {volume.volid} did not report its result: {printed.strip()!r}")
    return Removal("removed")
