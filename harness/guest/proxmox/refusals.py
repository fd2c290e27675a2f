"""Interprets Proxmox VE's error texts: whether PVE has done nothing yet, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.lab.proxmox import ROOT, ApiSpec

_REMEDIES: Mapping[tuple[str, ...], str] = {
    ("only root",): f"PVE allows this only to {ROOT} with a password, not to {{who}}: see docs/proxmox.md",
    (
        "permission check failed",
    ): "give {who} the privilege in this message; docs/proxmox.md has a role with all that runs need",
    ("bridge", "does not exist"): "name a bridge of the node as host.NAME.guest.bridge",
    ("storage", "does not exist"): "name a storage of the node; `pvesm status` lists them",
    ("vm is locked",): "wait for the task that holds the lock; if it has ended: qm unlock VMID on the node, "
    "then, if a run left the VM: virt-overhead reap",
    ("kvm virtualisation configured",): "enable virtualisation in the node's firmware, or set kvm = false under "
    "host.NAME.guest",
    ("hostname lookup",): "set host.NAME.api.node to the output of `hostname` on the node",
    ("no such cluster node",): "set host.NAME.api.node to the output of `hostname` on the node",
    ("cfs-lock",): "check whether the cluster has its quorum: pvecm status on the node",
    ("no quorum",): "check whether the cluster has its quorum: pvecm status on the node",
}
"""By words that must all be in PVE's text, in any case. The first match counts."""


def is_lock_timeout(reason: str) -> bool:
    """Whether PVE did not get a lock of a configuration, a storage or the cluster in time.

    A request has done nothing then, nor has a task, except for one that needs a further lock in the middle of its work.

    `got lock timeout - aborting command` does not count: PVE had that lock, and the work was interrupted.
    """
    return "got lock request timeout" in reason or ("got timeout" in reason and "lock" in reason)


def remedy(reason: str, spec: ApiSpec) -> str | None:
    """What to do about an error of PVE, if its text is known."""
    reason = reason.lower()
    found = (text for words, text in _REMEDIES.items() if all(word in reason for word in words))
    return next((text.format(who=spec.who) for text in found), None)
