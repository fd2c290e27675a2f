"""A new VM on the node with a free id: an empty VM, or a clone of the lab's template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from harness.errors import LabUnavailable
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.machine import VirtualMachine, exists, require_all
from harness.guest.proxmox.removal import remove_vm
from harness.guest.proxmox.things import CreatedVm, smbios_uuid
from harness.guest.proxmox.vm import free_ids, marks
from harness.guest.proxmox.vmids import taken_ids
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.proxmox import GuestRules

CREATE_SECONDS = 180.0
CLONE_SECONDS = 900.0


@contextmanager
def created(
    client: Client, log: CreationLog, rules: GuestRules, settings: Mapping[str, object]
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A VM with these settings and a free id of the lab's range. It is removed at the end.

    If another client takes the id first, the next one is tried.
    """

    def make(machine: VirtualMachine, vm: CreatedVm, _entry: Entry) -> None:
        end = client.task(
            "post",
            f"{client.node}/qemu",
            {"vmid": vm.vmid, **marks(log.run_id, vm.token), "smbios1": f"uuid={vm.uuid}", **settings},
            expected=Expected("qmcreate", str(vm.vmid)),
            is_done=lambda: exists(client, vm.vmid),
            deadline=CREATE_SECONDS,
        )
        require_all(machine, end, "create")

    with _with_free_id(client, log, rules, make) as found:
        yield found


@contextmanager
def cloned(client: Client, log: CreationLog, rules: GuestRules) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    """A clone of the lab's template, with the run's name and notes from the beginning. It is removed at the end.

    PVE makes a linked clone of a template, and a full copy of any other VM. Its volumes are not in the log yet.
    """
    template = VirtualMachine(client, int(rules.template or 0))

    def make(machine: VirtualMachine, vm: CreatedVm, entry: Entry) -> None:
        known = marks(log.run_id, vm.token)
        end = client.task(
            "post",
            f"{template.path}/clone",
            {"newid": vm.vmid, "name": known["name"], "description": known["description"]},
            expected=Expected("qmclone", str(template.vmid)),
            is_done=lambda: exists(client, vm.vmid),
            deadline=CLONE_SECONDS,
        )
        require_all(machine, end, "clone")
        log.amend(entry, vm.model_copy(update={"uuid": smbios_uuid(machine.config())}))

    with _with_free_id(client, log, rules, make, clone=True) as found:
        yield found


@contextmanager
def _with_free_id(
    client: Client,
    log: CreationLog,
    rules: GuestRules,
    make: Callable[[VirtualMachine, CreatedVm, Entry], None],
    *,
    clone: bool = False,
) -> Iterator[tuple[VirtualMachine, CreatedVm]]:
    for vmid in free_ids(rules.vmids, taken_ids(client)):
        if not _is_free(client, vmid):
            continue
        vm = CreatedVm.planned(client.spec.node, vmid, log.run_id, clone=clone)
        taken: list[int] = []
        with log.making(vm, partial(_removed, client, log, vm, taken)) as entry:
            machine = VirtualMachine(client, vmid)
            try:
                make(machine, vm, entry)
            except PveError as error:
                if "already exists" not in error.reason:
                    raise
                taken.append(vmid)
            else:
                yield machine, vm
                return
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no VM id from {first} to {last} is free",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _removed(client: Client, log: CreationLog, vm: CreatedVm, taken: list[int]) -> Removal:
    return Removal("absent") if taken else remove_vm(client, log.runner, vm)


def _is_free(client: Client, vmid: int) -> bool:
    """Whether the id is free in the cluster. This call also covers VMs that the login may not see."""
    try:
        client.get("cluster/nextid", {"vmid": vmid})
    except PveError as error:
        if "already exists" in error.reason:
            return False
        raise
    return True
