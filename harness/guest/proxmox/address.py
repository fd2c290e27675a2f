"""Where a guest answers: reported by its agent, or set through it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from harness.errors import GuestError
from harness.guest.proxmox.ended import require_running
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.proxmox import GuestRules
from harness.untrusted import reading
from harness.waiting import Deadline, wait_until

_POLL_SECONDS = 1.0


def address_of(machine: VirtualMachine, rules: GuestRules, end: Deadline) -> str:
    """The guest's IPv4 address, waited for until `end`. GuestError where none comes up."""
    if rules.address is not None:
        return str(IPv4Interface(rules.address).ip)
    heard = False

    def reported() -> str | None:
        nonlocal heard
        interfaces = machine.interfaces()
        heard = heard or interfaces is not None
        with reading(f"host {machine.client.host}: VM {machine.vmid}: its list of network interfaces", GuestError):
            address = first_address(interfaces or ())
        if address is None:
            require_running(machine)
        return address

    if address := wait_until(reported, deadline=end, every=_POLL_SECONDS):
        return address
    why, remedy = "its agent does not answer", f"its console: qm terminal {machine.vmid} on {machine.client.host}"
    if heard:
        why = "its agent tells no address"
        remedy = f'is there DHCP on bridge {rules.bridge}? Else: network = "static" and an address in the lab file'
    raise GuestError(f"host {machine.client.host}: VM {machine.vmid} booted, but {why}", hint=remedy)


def set_address(machine: VirtualMachine, rules: GuestRules, end: Deadline) -> None:
    """Give the guest the lab's address through its agent, as soon as that answers. GuestError where it does not."""

    def is_set() -> bool:
        done = machine.run_by_agent(address_script(rules), deadline=max(end.left, 1.0))
        if not done:
            require_running(machine)
        return done

    if not wait_until(is_set, deadline=end, every=_POLL_SECONDS):
        raise GuestError(
            f"host {machine.client.host}: VM {machine.vmid} booted, but its agent does not answer",
            hint=f"its console: qm terminal {machine.vmid} on {machine.client.host}",
        )


def address_script(rules: GuestRules) -> str:
    """Sets the address on the guest's only network card, and ends what would go on to ask for one by DHCP."""
    lines = [
        "{ killall udhcpc 2>/dev/null; true; }",
        "nic=$(ls /sys/class/net | grep -v '^lo$' | head -n 1)",
        'ip link set "$nic" up',
        f'ip address replace {rules.address} dev "$nic"',
    ]
    if rules.gateway:
        lines.append(f"ip route replace default via {rules.gateway}")
    return " && ".join(lines)


def first_address(interfaces: Iterable[Mapping[str, Any]]) -> str | None:
    """The first IPv4 address that others can reach, of what the agent lists."""
    for interface in interfaces:
        for each in interface.get("ip-addresses", ()):
            if each.get("ip-address-type") != "ipv4":
                continue
            address = IPv4Address(each["ip-address"])
            if not address.is_loopback and not address.is_link_local:
                return str(address)
    return None
