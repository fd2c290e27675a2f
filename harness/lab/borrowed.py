"""A VM that a host lends for measuring, in a lab file: the keys of `[host.NAME.guest]` with `borrow`."""

from __future__ import annotations

import re

from harness.lab.guest_table import BY_AGENT, GuestTable
from harness.lab.hypervisor import BorrowedVm, VmLogin


def require_id(where: str, table: GuestTable, problems: list[str]) -> None:
    """`problems` gets a message for each key of the table that a VM of Proxmox VE, which has an id, cannot have."""
    if table.borrow is not None and not re.fullmatch("[1-9][0-9]{2,8}", table.borrow):
        problems.append(f'{where}.borrow = "{table.borrow}": allowed: the id of a VM of the node, for example "100"')
    problems += [
        f"{where}.{key}: conflicts with borrow, because no guest is booted; allowed: one of the two"
        for key in sorted(table.of_booted)
    ]


def borrowed_vm(where: str, table: GuestTable, problems: list[str]) -> BorrowedVm | None:
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
    if any("/" in each for each in table.address) or len(table.address) > 1:
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
