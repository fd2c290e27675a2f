"""Plugs drives into a running VM of others and unplugs them, through the API. Its configuration is the same afterwards.

Every change has the digest of the configuration that it was made for, so it never hits what somebody else has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Literal

from harness.errors import GuestError, HarnessError, HostError, Unsupported
from harness.guest.protocol import GuestDisk
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.created_objects import PluggedDrive, smbios_uuid
from harness.guest.proxmox.drive import choose_drives, format_drive
from harness.guest.proxmox.machine import CONFIG_SECONDS, VirtualMachine, exists, require_all
from harness.lab.created import CreationLog, Removal
from harness.model.attach import Attach
from harness.units import format_duration
from harness.untrusted import reading
from harness.waiting import Deadline, attempts, growing

RELEASE_SECONDS = 120.0
_LONGEST_PAUSE = 4.0
_TRIES = 5
_CHANGED = ("checksum mismatch", "detected modified configuration")
"""PVE's words if the configuration is not the one of the digest."""
_PASSING = (*_CHANGED, "hotplug problem", "VM is locked")
"""Why a drive is not unplugged now, but may be later: the VM's system still uses it, or a task has the VM."""


@contextmanager
def drive_plugged(machine: VirtualMachine, log: CreationLog, disk: GuestDisk, source: str) -> Iterator[str]:
    """The running VM has the disk as the drive with the yielded name until the end of the block.

    It is in the creation log before it is plugged in. Raises PveError, GuestError, Unsupported if the bus has no place
    left, and HostError if the VM does not release it at the end: then it stays in the log.
    """
    client, attach = machine.client, disk.attach
    if not isinstance(attach, Attach):
        raise TypeError(f"{disk.name} is not a drive")
    # Replication jobs of the VM would copy the volume, or fail because they cannot.
    value = f"{format_drive(source, attach, disk.serial)},replicate=0"
    for attempt in range(1, _TRIES + 1):
        config, later = machine.config(), client.get(f"{machine.path}/config")
        try:
            (key,) = choose_drives({disk.name: attach.bus}, {*config, *later}).values()
        except ValueError as error:
            raise Unsupported(f"host {client.host}: VM {machine.vmid}: {error}") from None
        made = PluggedDrive(
            disks=disk.source.writable.disks,
            node=client.spec.node,
            vmid=machine.vmid,
            uuid=smbios_uuid(config),
            key=key,
            source=source,
            serial=disk.serial,
        )
        with log.making(made, partial(unplug, client, made)):
            try:
                _plug(machine, made, value, str(config["digest"]))
            except PveError as error:
                if attempt == _TRIES or not _is(error, _CHANGED):
                    raise
                continue
            yield key
            return


def unplug(client: Client, made: PluggedDrive) -> Removal:
    """Unplug the drive if the VM has it. Its volume stays. Raises HostError if the VM does not release it in time."""
    client.require_node(made.node)
    if not exists(client, made.vmid):
        _require_on_no_other_node(client, made)
        return Removal("absent")
    machine = VirtualMachine(client, made.vmid)
    # A killed run may have left it so.
    outcome: Literal["removed", "absent"] = "removed" if _take_back(machine, made) else "absent"
    why = "it is still in the configuration"
    for attempt in attempts(Deadline.after(RELEASE_SECONDS), growing(0.1, _LONGEST_PAUSE)):
        config = machine.config()
        keys = made.in_config(config)
        if not keys:
            return Removal(outcome)
        if keys != [made.key] or smbios_uuid(config) != made.uuid:
            return Removal("foreign", f"VM {made.vmid} now has {made.source} as {', '.join(keys)}, or is another VM")
        try:
            _delete(machine, made, str(config["digest"]))
        except PveError as error:
            if not _is(error, _PASSING):
                raise
            why = error.reason.strip()
        else:
            if not made.in_config(machine.config()):
                return Removal("removed")
        if attempt.is_last:
            break
    raise HostError(
        f"host {client.host}: VM {made.vmid} did not release {made.key} within {format_duration(RELEASE_SECONDS)}: "
        f"{why}",
        hint="end what uses it in the VM (lsblk, fuser), or the task that locks it, and run: "
        f"virt-overhead reap --host {client.host}",
    )


def _require_on_no_other_node(client: Client, made: PluggedDrive) -> None:
    """Raise HostError if the VM was migrated, and has the drive there."""
    listed = client.get("cluster/resources", {"type": "vm"})
    with reading(f"host {client.host}: the list of VMs of its cluster"):
        nodes = [str(vm["node"]) for vm in listed if vm["type"] == "qemu" and int(vm["vmid"]) == made.vmid]
    for node in nodes:
        config = client.get(f"nodes/{node}/qemu/{made.vmid}/config", {"current": 1})
        # A migration may give its volume another name.
        if made.serial in str(config) and smbios_uuid(config) == made.uuid:
            raise HostError(
                f"host {client.host}: VM {made.vmid} was migrated to node {node}, and still has this drive",
                hint=f"migrate it back to {made.node}, or detach {made.key} there, and run: "
                f"virt-overhead reap --host {client.host}",
            )


def _plug(machine: VirtualMachine, made: PluggedDrive, value: str, digest: str) -> None:
    try:
        end = machine.client.task(
            "post",
            f"{machine.path}/config",
            {made.key: value, "digest": digest},
            expected=Expected("qmconfig", str(machine.vmid)),
            is_done=lambda: made.key in made.in_config(machine.config()),
            deadline=CONFIG_SECONDS,
        )
    except PveError:
        with suppress(HarnessError):
            _take_back(machine, made)
        raise
    require_all(machine, end, "configure")
    if _take_back(machine, made):
        raise GuestError(
            f"host {machine.client.host}: {made.words} would be plugged in only at the next start of the VM",
            hint=f"let the VM take disks while it runs: qm set {machine.vmid} --hotplug disk,network,usb",
        )


def _delete(machine: VirtualMachine, made: PluggedDrive, digest: str) -> None:
    """Remove the drive from the VM. It is not forced, so PVE keeps the volume, which belongs to another VM."""
    machine.client.task(
        "post",
        f"{machine.path}/config",
        {"delete": made.key, "digest": digest},
        expected=Expected("qmconfig", str(machine.vmid)),
        is_done=lambda: made.key not in made.in_config(machine.config()),
        deadline=CONFIG_SECONDS,
    )


def _take_back(machine: VirtualMachine, made: PluggedDrive) -> bool:
    """Revert the change that would plug the drive in at the VM's next start. Returns whether there was one.

    Changes of others that wait for the next start stay.
    """
    waiting = machine.pending()
    if made.key not in made.in_config(waiting):
        return False
    machine.revert({made.key: waiting[made.key]})
    return True


def _is(error: PveError, words: tuple[str, ...]) -> bool:
    return any(word in error.reason for word in words)
