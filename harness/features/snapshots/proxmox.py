"""Snapshots of a whole VM by the API of Proxmox VE, without its memory: taken, removed, and reaped."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

from harness.errors import GuestError, Unsupported
from harness.features.proxmox import OnNode
from harness.features.proxmox.client import Client, Expected
from harness.features.proxmox.creation import PveVolume
from harness.features.proxmox.disk_users import require_same_node
from harness.features.proxmox.guest import ProxmoxGuest
from harness.features.proxmox.layouts import require_room
from harness.features.proxmox.machine import VirtualMachine, has_vm
from harness.features.proxmox.vm_config import read_token
from harness.features.snapshots.request import PlannedSnapshots
from harness.lab.created import CreationLog, Entry, Removal, Thing
from harness.lab.pin import TAG
from harness.lab.storages import Allocation
from harness.lab.transport.base import Runner
from harness.measure.session import Session
from harness.untrusted import reading

_SECONDS = 180.0
_PRIVILEGE = "VM.Snapshot"


class VmSnapshot(Thing):
    """A snapshot of the VM of a run. `token` is in the notes of the VM, `name` is random."""

    kind: Literal["pve-snapshot"] = "pve-snapshot"
    node: str
    vmid: int
    token: str
    name: str

    @property
    def words(self) -> str:
        return f"the snapshot {self.name} of VM {self.vmid}"


@dataclass(frozen=True, slots=True)
class VmTaker:
    """Takes snapshots of a running VM, which Proxmox VE stops while its storages take them."""

    machine: VirtualMachine
    thing: VmSnapshot
    kind: str = "snapshot of the VM by Proxmox VE, without its memory"

    def take(self) -> None:
        wanted = {"snapname": self.thing.name, "vmstate": 0, "description": self.thing.token}
        end = self.machine.run_task("qmsnapshot", "/snapshot", wanted, partial(has_snapshot, self), _SECONDS)
        if end.warnings:
            raise GuestError(f"{self.machine.words}: no snapshot as requested: {'; '.join(end.warnings)}")

    def remove(self) -> None:
        remove_snapshot(self.machine, self.thing)


def has_snapshot(taker: VmTaker) -> bool:
    """Whether the VM has the snapshot."""
    return _is_listed(taker.machine, taker.thing)


def _is_listed(machine: VirtualMachine, thing: VmSnapshot) -> bool:
    listed = machine.client.get(f"{machine.path}/snapshot")
    with reading(f"{machine.words}: its snapshots", GuestError):
        return any(snapshot["name"] == thing.name for snapshot in listed)


def remove_snapshot(machine: VirtualMachine, thing: VmSnapshot) -> None:
    """Remove it, and with it what its storages have of it. Raises PveError."""
    machine.client.task(
        "delete",
        f"{machine.path}/snapshot/{thing.name}",
        {},
        is_done=lambda: not _is_listed(machine, thing),
        expected=Expected("qmdelsnapshot", str(machine.vmid)),
        deadline=_SECONDS,
    )


def refuse_snapshots(client: Client, vmid: int) -> str | None:
    """Why this login cannot take snapshots of the VM, with the remedy; None if it can."""
    if _PRIVILEGE in client.privileges(f"/vms/{vmid}"):
        return None
    return f"{client.spec.who} lacks {_PRIVILEGE} on /vms, which snapshots need: docs/proxmox.md has the roles"


@contextmanager
def open_vm_taker(planned: PlannedSnapshots, session: Session, log: CreationLog) -> Iterator[VmTaker]:
    """What takes snapshots of the VM that has the mode's volume. Raises Unsupported, with the remedy, and PveError."""
    guest, source = session.guest(planned.guest), session.layouts.guest(planned.cell.mode)
    if not isinstance(guest, ProxmoxGuest) or not isinstance(source, PveVolume):
        raise Unsupported(f"{planned.id}: its guest is not a VM of this run with a volume of Proxmox VE")
    machine = guest.machine
    client = machine.client
    if why := refuse_snapshots(client, machine.vmid):
        raise Unsupported(why)
    if planned.writes:
        # What is overwritten under a snapshot stays on the storage.
        require_room(client, session.host.runner, [Allocation(source.volid.partition(":")[0], source.size)])
    token = read_token(str(machine.config().get("description", "")))
    if token is None:
        raise Unsupported(f"{machine.words} has no token of this run in its notes")
    thing = VmSnapshot(
        disks=source.writable.disks,
        node=client.spec.node,
        vmid=machine.vmid,
        token=token,
        name=f"{TAG}{secrets.token_hex(8)}",
    )
    with log.making(thing, partial(remove_left, client, thing)):
        yield VmTaker(machine, thing)


def remove_left(client: Client, thing: VmSnapshot) -> Removal:
    """Remove the snapshot, if the VM is still that of the run. Raises GuestError, PveError."""
    client.require_node(thing.node)
    if not has_vm(client, thing.vmid):
        return Removal("absent")
    machine = VirtualMachine(client, thing.vmid)
    if thing.token not in str(machine.config().get("description", "")):
        return Removal("foreign", f"VM {thing.vmid} is not the VM of this run")
    machine.settle()
    if not _is_listed(machine, thing):
        return Removal("absent")
    remove_snapshot(machine, thing)
    return Removal("removed")


def remove_from_node(client: Client, runner: Runner, entry: Entry) -> Removal | None:
    """Remove the snapshot of a killed run; None if the entry is none. Raises HostError, GuestError and PveError."""
    thing = entry.parsed((VmSnapshot,))
    if thing is None:
        return None
    require_same_node(client, runner)
    return remove_left(client, thing)


ON_NODE = OnNode(things=(VmSnapshot,), remove=remove_from_node)
