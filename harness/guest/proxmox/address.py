"""The address of a guest: reported by its agent, or set through the agent."""

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
    """The guest's IPv4 address. Waits for it until `end`. Raises GuestError if there is none."""
    if rules.address is not None:
        return str(IPv4Interface(rules.address).ip)
    agent_answered = False

    def reported() -> str | None:
        nonlocal agent_answered
        interfaces = machine.interfaces()
        agent_answered = agent_answered or interfaces is not None
        with reading(f"host {machine.client.host}: VM {machine.vmid}: its list of network interfaces", GuestError):
            address = first_address(interfaces or ())
        if address is None:
            require_running(machine)
        return address

    if address := wait_until(reported, deadline=end, every=_POLL_SECONDS):
        return address
    why, remedy = "its agent does not answer", f"its console: qm terminal {machine.vmid} on {machine.client.host}"
    if agent_answered:
        why = "its agent reports no address"
        remedy = f'check DHCP on bridge {rules.bridge}, or set network = "static" and an address in the lab file'
    raise GuestError(f"host {machine.client.host}: VM {machine.vmid} booted, but {why}", hint=remedy)


def set_address(machine: VirtualMachine, rules: GuestRules, end: Deadline) -> None:
    """Set the lab's address through the guest's agent, as soon as it answers. Raises GuestError if it does not."""

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
    """A script that sets the address of the guest's only network card and ends its DHCP client."""
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
    """The first IPv4 address in the agent's list that other machines can reach."""
    for interface in interfaces:
        for each in interface.get("ip-addresses", ()):
            if each.get("ip-address-type") != "ipv4":
                continue
            address = IPv4Address(each["ip-address"])
            if not address.is_loopback and not address.is_link_local:
                return str(address)
    return None
