"""The login to a started VM over SSH: its address, the host key that it must show, and why it did not boot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from harness.errors import GuestError, HarnessError, HostError
from harness.guest.booting import logging_in
from harness.guest.proxmox.client import PveError
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.hosts import Host
from harness.lab.inventory import GuestRules
from harness.lab.transport.base import Runner
from harness.lab.transport.handshake import WrongHostKey
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.untrusted import reading
from harness.waiting import Deadline, wait_until

# QEMU writes to the node's journal under this name. The lines may include those of other VMs.
_JOURNAL = ("journalctl", "--quiet", "--no-pager", "--output=cat", "--identifier=QEMU", "--since=-15min", "--lines=4")


class Ended(GuestError):
    """The VM no longer runs."""


def require_running(machine: VirtualMachine) -> None:
    """Raise Ended if the VM has ended."""
    if not machine.running:
        raise Ended(
            f"host {machine.client.host}: VM {machine.vmid} ended while it was booting",
            hint=f"see the task log of VM {machine.vmid} and `journalctl -t QEMU` on {machine.client.spec.node}",
        )


def explained(error: Ended, machine: VirtualMachine, node: Runner) -> GuestError:
    """The error with the VM's state and what QEMU wrote to the journal of its node."""
    known = ""
    with suppress(HarnessError):
        status = machine.status()
        known = f"; Proxmox VE reports that it is {status.get('qmpstatus', status.get('status'))}"
    with suppress(HostError):
        journal = node.run(list(_JOURNAL), deadline=20, check=False).stdout.strip()
        wrote = "\n     ".join(journal.splitlines()[-4:])
        known += f"; QEMU's journal on the node ends with:\n     {wrote}" if wrote else "; QEMU wrote nothing"
    return GuestError(f"{error.message}{known}", hint=error.hint)


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


BOOT_SECONDS = {"kvm": 180.0, "tcg": 420.0}
"""The firmware reads the ISO, which takes seconds on hardware, and more than a minute if the node is emulated."""
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key.pub"
"""OpenSSH's public host key. A clone of a template creates it at its first boot."""
_SSH_PORT = 22
_FORBIDDEN = 403
_CLONE_REMEDY = 'install qemu-guest-agent and openssh-server in the template, or set reach = "node" in the lab file'


def log_in(machine: VirtualMachine, host: Host, rules: GuestRules) -> SshRunner:
    """Log in to the VM, which may still be booting. Raises GuestError, with the remedy, if that takes too long."""
    end = Deadline.after(BOOT_SECONDS[host.acceleration.accel])
    hint = f"its console: qm terminal {machine.vmid} on {host.name}"
    try:
        with logging_in(f"host {host.name}: VM {machine.vmid}", hint=hint):
            return _logged_in(machine, host, rules, end)
    except Ended as error:
        raise explained(error, machine, host.runner) from error


def _logged_in(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> SshRunner:
    if rules.network == "static":
        set_address(machine, rules, end)
    address = address_of(machine, rules, end)
    key = _host_key(machine, host, rules, end)
    while True:
        try:
            target = SshTarget(address, _SSH_PORT, "root", host.guest_files.key, key)
            return _connected(machine, host, rules, target, end)
        except WrongHostKey:
            # cloud-init replaces the template's keys after the agent has started.
            before, key = key, _host_key(machine, host, rules, end)
            if key == before:
                raise


def _connected(machine: VirtualMachine, host: Host, rules: GuestRules, target: SshTarget, end: Deadline) -> SshRunner:
    return SshRunner.connect_when_up(
        target,
        name=f"guest on {host.name}",
        via=host.ssh if rules.reach == "node" else None,
        deadline=max(end.left, 5.0),
        on_wait=lambda _cause: require_running(machine),
    )


def _host_key(machine: VirtualMachine, host: Host, rules: GuestRules, end: Deadline) -> str | None:
    """The key that the guest must show; None for a clone that is reached through the node, whose own key is known."""
    if rules.template is None:
        return host.guest_files.host_key
    return None if rules.reach == "node" else clone_key(machine, end)


def clone_key(machine: VirtualMachine, end: Deadline) -> str:
    """The public host key of a clone, read by its agent through the API: nobody on the guest's network can change it.

    Raises GuestError, with the remedy, if there is no key by `end`.
    """
    where = f"host {machine.client.host}: VM {machine.vmid}"

    def read() -> str | None:
        try:
            key = (machine.read_file(KEY_FILE) or "").strip()
        except PveError as error:
            remedy = _CLONE_REMEDY
            if error.status == _FORBIDDEN:
                remedy = 'give the user VM.GuestAgent.FileRead on /vms, or set reach = "node" in the lab file'
            raise GuestError(f"{where}: its host key cannot be read: {error.message}", hint=remedy) from error
        if key.startswith("ssh-ed25519 "):
            return key
        require_running(machine)
        return None

    if found := wait_until(read, deadline=end, every=_POLL_SECONDS):
        return found
    raise GuestError(
        f"{where} is reached over a network on which other machines may answer instead, and its agent does not "
        f"report its host key ({KEY_FILE})",
        hint=_CLONE_REMEDY,
    )
