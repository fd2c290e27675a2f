"""The login to a started VM over SSH: its address, and the host key that it must show."""

from __future__ import annotations

from harness.errors import GuestError
from harness.guest.booting import logging_in
from harness.guest.proxmox.address import address_of, set_address
from harness.guest.proxmox.client import PveError
from harness.guest.proxmox.ended import Ended, explained, require_running
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.hosts import Host
from harness.lab.proxmox import GuestRules
from harness.lab.transport.hostkeys import WrongHostKey
from harness.lab.transport.ssh import SshRunner, SshTarget
from harness.waiting import Deadline, wait_until

BOOT_SECONDS = {"kvm": 180.0, "tcg": 420.0}
"""The firmware reads the ISO, which takes seconds on hardware, and more than a minute if the node is emulated."""
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key.pub"
"""OpenSSH's public host key. A clone of a template creates it at its first boot."""
_SSH_PORT = 22
_POLL_SECONDS = 1.0
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
