"""A new VM on the node, with an id that nobody else has: from nothing, or from the lab's template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from harness.errors import HarnessError, LabUnavailable
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.machine import Machine, exists, require_all
from harness.guest.proxmox.vm import free_ids, run_of
from harness.lab.proxmox import GuestRules

CREATE_SECONDS = 180.0
CLONE_SECONDS = 900.0


def create(client: Client, rules: GuestRules, settings: Mapping[str, object]) -> Machine:
    """A VM with these settings and a free id of the lab's range. Another one may take the id first: then the next."""

    def make(machine: Machine) -> None:
        end = client.task(
            "post",
            f"{client.node}/qemu",
            {"vmid": machine.vmid, **settings},
            expected=Expected("qmcreate", str(machine.vmid)),
            seen=lambda: exists(client, machine.vmid),
            deadline=CREATE_SECONDS,
        )
        require_all(machine, end, "create")

    return _with_free_id(client, rules, make)


def clone(client: Client, rules: GuestRules, marks: Mapping[str, object]) -> Machine:
    """A clone of the lab's template, known as ours from the beginning by its name and description.

    PVE makes it a linked one of a template, and a full copy of any other VM.
    """
    template = Machine(client, int(rules.template or 0))

    def make(machine: Machine) -> None:
        end = client.task(
            "post",
            f"{template.path}/clone",
            {"newid": machine.vmid, "name": marks["name"], "description": marks["description"]},
            expected=Expected("qmclone", str(template.vmid)),
            seen=lambda: exists(client, machine.vmid),
            deadline=CLONE_SECONDS,
        )
        require_all(machine, end, "clone")
        machine.set({"tags": marks["tags"]})

    return _with_free_id(client, rules, make)


def _with_free_id(client: Client, rules: GuestRules, make: Callable[[Machine], None]) -> Machine:
    used = {int(each["vmid"]) for each in client.get("cluster/resources", {"type": "vm"})}
    for vmid in free_ids(rules.vmids, used):
        if not _is_free(client, vmid):
            continue
        machine = Machine(client, vmid)
        try:
            make(machine)
        except PveError as error:
            if "already exists" in error.said:
                continue
            _discard(machine)
            raise
        except BaseException:
            _discard(machine)
            raise
        return machine
    first, last = rules.vmids
    raise LabUnavailable(
        f"host {client.host}: no VM id from {first} to {last} is free",
        hint=f"virt-overhead reap --host {client.host}, or widen host.{client.host}.guest.vmids",
    )


def _is_free(client: Client, vmid: int) -> bool:
    """Whether nobody in the cluster has the id: VMs that this login may not see are told by their id alone."""
    try:
        client.get("cluster/nextid", {"vmid": vmid})
    except PveError as error:
        if "already exists" in error.said:
            return False
        raise
    return True


def _discard(machine: Machine) -> None:
    """Remove what a creation of ours left that failed, if it left something."""
    with suppress(HarnessError):
        if not exists(machine.client, machine.vmid):
            return
        config = machine.config()
        # A creation that broke off early has left a lock, and nothing yet by which its VM would be known as ours.
        if run_of(config) or (config.get("lock") == "create" and "name" not in config):
            machine.destroy()
