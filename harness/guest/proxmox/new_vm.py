"""A new VM on the node with an id and an address that no other VM has: an empty VM, or a clone of the template."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from harness.errors import LabUnavailable, SafetyError
from harness.guest.proxmox.client import Client, Expected, PveError
from harness.guest.proxmox.created_objects import CreatedVm, smbios_uuid, vmids_of
from harness.guest.proxmox.machine import VirtualMachine, exists, require_all
from harness.guest.proxmox.removal import remove_vm
from harness.guest.proxmox.vm import free_ids, marks
from harness.lab.created import CreationLog, Entry, Removal
from harness.lab.inventory import GuestRules
from harness.untrusted import reading

_HOLDS_VOLUMES = frozenset({"images", "rootdir"})


@reading("Proxmox VE's answer about its storages", SafetyError)
def taken_ids(client: Client) -> set[int]:
    """Ids of VMs and containers of the cluster, and of the owners of volumes on every active storage of the node.

    A volume remains if its storage was not available when its VM was removed. Raises SafetyError if the login may not
    see all volumes of a storage.
    """
    taken = {int(vm["vmid"]) for vm in client.get("cluster/resources", {"type": "vm"})}
    for storage in client.get(f"{client.node}/storage"):
        if storage.get("active") and _HOLDS_VOLUMES & set(str(storage.get("content", "")).split(",")):
            taken |= vmids_of(_list_volumes(client, str(storage["storage"])))
    return taken


def _list_volumes(client: Client, storage: str) -> list[dict[str, Any]]:
    client.require_volumes_visible(storage)
    try:
        volumes: list[dict[str, Any]] = client.get(f"{client.node}/storage/{storage}/content")
    except PveError as error:
        raise SafetyError(
            f"host {client.host}: the volumes on storage {storage} cannot be listed, so their VM ids are unknown: "
            f"{error.reason}",
            hint=f"see `pvesm list {storage}` on the node; if it is not needed there: pvesm set {storage} --disable 1",
        ) from error
    return volumes


class Together:
    """The VMs of a run on one node. `rules` are those of the lab file."""

    def __init__(self, rules: GuestRules) -> None:
        self._rules = rules
        self._of: dict[int, GuestRules] = {}
        self._guests: set[int] = set()

    def of(self, vmid: int) -> GuestRules:
        """The rules of this VM, with the address that only this one has."""
        return self._of.get(vmid, self._rules)

    @property
    def following(self) -> GuestRules:
        """The rules for the next VM: with the first address that no VM of the run has."""
        taken = {rules.address for rules in self._of.values()}
        return replace(
            self._rules, address=next((address for address in self._rules.addresses if address not in taken), None)
        )

    @contextmanager
    def having(self, vmid: int, rules: GuestRules) -> Iterator[None]:
        """This VM exists during the block and has these rules, so no other one gets its address."""
        self._of[vmid] = rules
        try:
            yield
        finally:
            del self._of[vmid]

    def is_guest(self, vmid: int) -> bool:
        return vmid in self._guests

    @contextmanager
    def as_guest(self, vmid: int) -> Iterator[None]:
        """This VM is a guest during the block, so another guest gets another VM."""
        self._guests.add(vmid)
        try:
            yield
        finally:
            self._guests.discard(vmid)


def no_places(number: int, client: Client, rules: GuestRules) -> str | None:
    """Why so many guests cannot exist at the same time: ids or addresses are missing. With the remedy; else None.

    Raises SafetyError as `taken_ids`.
    """
    first, last = rules.vmids
    key = f"host.{client.host}.guest"
    if (free := len(list(free_ids(rules.vmids, taken_ids(client))))) < number:
        return (
            f"{number} guests need {number} VM ids, but only {free} from {first} to {last} are free: widen "
            f"{key}.vmids, or remove what killed runs left: virt-overhead reap --host {client.host}"
        )
    if rules.address and (given := len(rules.addresses)) < number:
        return (
            f"{number} guests need {number} addresses, but {key}.address has {given}: list {number} free ones there, "
            'or use DHCP with network = "agent"'
        )
    return None


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

    with _with_free_id(client, log, rules, make) as new:
        yield new


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

    with _with_free_id(client, log, rules, make, clone=True) as new:
        yield new


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
