"""`[host.NAME.guest]` in a lab file: what guests there are like, how a node creates them, or the VM to borrow."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, NetmaskValueError
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.lab.fields import HostKey, HostPath, Word, host_address
from harness.lab.hypervisor import BorrowedVm, VmLogin
from harness.lab.proxmox import GuestRules, Network, Reach
from harness.model.guest import GUEST_MEMORY, OPTION_TYPES, OPTIONS_TABLE, GuestOptions, parse_cpu_type

BY_AGENT = "agent"
"""How a borrowed VM is reached without SSH."""
_WITH_PREFIX = 'allowed: an address with its prefix length, for example "192.0.2.50/24"'
_OF_BORROWED = frozenset({"borrow", "port", "user", "key", "host_key"})
_OF_BOTH = frozenset({"address", "reach"})
_BESIDE_BORROWED = frozenset({"vmids", "kvm"})
"""The keys of a node that count also if a VM is borrowed: its volumes belong to a VM of the run, which never starts."""


def _check_addresses(value: object) -> object:
    """One text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    texts = [text for text in listed if isinstance(text, str)]
    if not texts or len(texts) < len(listed):
        raise ValueError(f"{_WITH_PREFIX}, or a list of them")
    addresses = tuple(map(_check_address, texts))
    if len(set(addresses)) < len(addresses):
        raise ValueError("allowed: each address once")
    return addresses


def _check_address(text: str) -> str:
    """An address with its prefix length, or the name or address of a borrowed VM. The rest of the table decides."""
    if "/" not in text:
        return host_address(text)
    try:
        IPv4Interface(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise ValueError(_WITH_PREFIX) from None
    return text


def _check_gateway(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise ValueError('allowed: an address, for example "192.0.2.1"') from None


def _check_vmids(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2 or not all(type(vmid) is int for vmid in value):
        raise ValueError("allowed: the first and the last id, for example [9000, 9099]")
    first, last = value
    if not 100 <= first <= last <= 999_999_999:
        raise ValueError("allowed: from 100 to 999999999, the smaller one first")
    return first, last


class GuestTable(OPTIONS_TABLE):  # type: ignore[misc, valid-type] # it is created from the options of a guest
    """`[host.NAME.guest]`: a guest's options, how Proxmox VE creates it, or the VM that is borrowed instead."""

    borrow: Word | None = None
    port: int = Field(default=22, ge=1, le=65535)
    user: Word = "root"
    key: HostPath | None = None
    host_key: HostKey | None = None
    bridge: str = Field(default="vmbr0", min_length=1)
    iso_storage: str = Field(default="local", min_length=1)
    vmids: Annotated[tuple[int, int], BeforeValidator(_check_vmids)] = (9000, 9099)
    kvm: bool = True
    network: Network = "agent"
    address: Annotated[tuple[str, ...], BeforeValidator(_check_addresses)] = ()
    gateway: Annotated[str, AfterValidator(_check_gateway)] | None = None
    reach: Reach | Literal["agent"] = "node"
    template: int | None = Field(default=None, ge=100, le=999_999_999)

    @property
    def options(self) -> GuestOptions:
        """The size and placement that guests on the host have, unless the scenario requests others."""
        return GuestOptions(**{name: getattr(self, name) for name in OPTION_TYPES})

    @property
    def of_node(self) -> set[str]:
        """The keys in the file that only a node of Proxmox VE has."""
        return set(self.model_fields_set) - set(OPTION_TYPES) - _OF_BORROWED - (_OF_BOTH if self.borrow else set())

    @property
    def of_booted(self) -> set[str]:
        """The keys in the file that only a guest of a node that is booted has."""
        return self.of_node - _BESIDE_BORROWED

    @property
    def beside_borrowed(self) -> GuestTable:
        """The table without everything that is about a guest that is booted, or about the login to a borrowed VM."""
        kept = {key: getattr(self, key) for key in self.model_fields_set & _BESIDE_BORROWED}
        guest: GuestTable = GuestTable.model_construct(**kept)
        return guest

    @property
    def of_login(self) -> set[str]:
        """The keys in the file that are about the login to a borrowed VM over SSH."""
        return set(self.model_fields_set & (_OF_BORROWED | {"address"})) - {"borrow"}

    @property
    def of_borrowed(self) -> set[str]:
        """The keys in the file that only a borrowed VM has."""
        return set(self.model_fields_set & _OF_BORROWED)


def check_guest_rules(where: str, table: GuestTable, problems: list[str]) -> GuestRules:
    """The settings of guests on a node. `problems` gets a message below `where` for each key that is not valid."""
    if not table.kvm and table.cpu is not None and parse_cpu_type(table.cpu) == "host":
        problems.append(f'{where}.cpu = "{table.cpu}": QEMU has it only with KVM; allowed with kvm = false: "max"')
    if table.network == "static" and not table.address:
        problems.append(f'{where}.address: missing; network = "static" needs it, for example "192.0.2.50/24"')
    bare = [address for address in table.address if "/" not in address]
    problems += [f'{where}.address = "{address}": {_WITH_PREFIX}' for address in bare]
    if table.network == "static" and table.template is not None:
        problems.append(
            f'{where}.network = "static": needs the guest image of virt-overhead; allowed with template: '
            "agent, cloud-init"
        )
    if table.network == "cloud-init" and table.template is None:
        problems.append(
            f'{where}.network = "cloud-init": the guest image of virt-overhead does not support it; allowed: '
            "agent, static, or a template"
        )
    if table.network == "agent":
        surplus = [key for key in ("address", "gateway") if getattr(table, key)]
        why = 'cannot be used with network = "agent"; allowed: with static and cloud-init'
        problems += [f"{where}.{key}: {why}" for key in surplus]
    if table.reach == "agent":
        problems.append(f'{where}.reach = "{BY_AGENT}": allowed only with borrow; otherwise: node, direct')
    return GuestRules(
        bridge=table.bridge,
        iso_storage=table.iso_storage,
        vmids=table.vmids,
        kvm=table.kvm,
        cpu=table.cpu or ("host" if table.kvm else "max"),
        memory=table.memory or GUEST_MEMORY,
        network=table.network,
        address=next(iter(table.address), None),
        gateway=table.gateway,
        reach="node" if table.reach == "agent" else table.reach,
        template=table.template,
        further_addresses=table.address[1:],
    )


def require_id(where: str, table: GuestTable, problems: list[str]) -> None:
    """`problems` gets a message for each key of the table that a VM of Proxmox VE, which has an id, cannot have."""
    if table.borrow is not None and not re.fullmatch("[1-9][0-9]{2,8}", table.borrow):
        problems.append(f'{where}.borrow = "{table.borrow}": allowed: the id of a VM of the node, for example "100"')
    problems += [
        f"{where}.{key}: conflicts with borrow, because no guest is booted; allowed: one of the two"
        for key in sorted(table.of_booted)
    ]


def check_borrowed_vm(where: str, table: GuestTable, problems: list[str]) -> BorrowedVm | None:
    """The VM that the table names; None if it names none. `problems` gets a message for each key that is wrong."""
    if table.borrow is None:
        problems += [
            f'{where}.{key}: needs borrow; allowed: only with borrow = "VM"' for key in sorted(table.of_borrowed)
        ]
        return None
    by_agent = table.reach == BY_AGENT
    missing = [key for key in ("address", "key") if not getattr(table, key) and not by_agent]
    problems += [f'{where}.{key}: missing; borrow = "{table.borrow}" needs it for SSH' for key in missing]
    problems += [
        f'{where}.{key}: conflicts with reach = "{BY_AGENT}", which needs no login; allowed: one of the two'
        for key in sorted(table.of_login)
        if by_agent
    ]
    if any("/" in address for address in table.address) or len(table.address) > 1:
        given = ", ".join(table.address)
        problems.append(f'{where}.address = "{given}": allowed with borrow: a name or an address alone')
    problems += [
        f"{where}.{key}: conflicts with borrow, because size and placement of {table.borrow} belong to its owner; "
        "allowed: one of the two"
        for key in table.options.requested
    ]
    if by_agent:
        return BorrowedVm(table.borrow, None)
    if not table.address or table.key is None:
        return None
    login = VmLogin(table.address[0], table.port, table.user, table.key, table.host_key, table.reach == "node")
    return BorrowedVm(table.borrow, login)
