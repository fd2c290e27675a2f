"""What a guest agent must be able to do for measuring, and why it may not: the same for all hypervisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from harness.lab.transport.agent import Agent

NEEDED = ("guest-exec", "guest-exec-status")
INSTALL = "in the VM, install qemu-guest-agent and start it: systemctl enable --now qemu-guest-agent"
_ALLOW = (
    "in the VM, allow them (on RHEL and its relatives in /etc/sysconfig/qemu-ga: remove them from the list after "
    "BLACKLIST_RPC or -b, or add them to that after --allow-rpcs; elsewhere see block-rpcs and allow-rpcs in "
    '/etc/qemu/qemu-ga.conf), then: systemctl restart qemu-guest-agent; or use SSH (reach = "node")'
)


class UsableAgent(Agent, Protocol):
    """An agent that says whether it can be used."""

    def require_usable(self) -> None:
        """Raises Unsupported, with the remedy, if it cannot run programs; HostError."""
        ...


def disabled(info: Mapping[str, Any]) -> list[str]:
    """The needed commands that the agent with this answer to `guest-info` does not run.

    Raises TypeError, KeyError or ValueError for an answer of another form.
    """
    enabled = {str(command["name"]) for command in info["supported_commands"] if command["enabled"]}
    return [name for name in NEEDED if name not in enabled]


def why_not_windows(vm: str, os_info: Mapping[str, Any]) -> tuple[str, str] | None:
    """The message and the remedy for the agent of a Windows, from its answer to `guest-get-osinfo`; None for others."""
    if os_info.get("id") != "mswindows":
        return None
    return f"{vm} runs Windows, in which commands run only over SSH", 'use reach = "node" or "direct" in the lab file'


def refuses(vm: str, commands: Sequence[str]) -> tuple[str, str]:
    """The message for an agent that does not run these commands, and the remedy."""
    what = "they are" if len(commands) > 1 else "it is"
    return f"the guest agent of {vm} does not run {' and '.join(commands)}: {what} disabled in the VM", _ALLOW
