"""A VM that ends while it boots: detected through the API, and explained by its state and QEMU's journal."""

from __future__ import annotations

from contextlib import suppress

from harness.errors import GuestError, HarnessError, HostError
from harness.guest.proxmox.machine import VirtualMachine
from harness.lab.transport.base import Runner

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
