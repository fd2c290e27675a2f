"""The VMs of a run that exist at the same time: which of them are guests, and the address that each has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from harness.guest.proxmox.client import Client
from harness.guest.proxmox.vm import free_ids
from harness.guest.proxmox.vmids import taken_ids
from harness.lab.proxmox import GuestRules


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
