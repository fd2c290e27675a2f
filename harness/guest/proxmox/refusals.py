"""What Proxmox VE's words mean: whether it has done nothing yet, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from harness.lab.proxmox import ROOT, ApiSpec

_REMEDIES: Mapping[tuple[str, ...], str] = {
    ("only root",): f"PVE allows this only to {ROOT} with a password, not to {{who}}: see docs/proxmox.md",
    (
        "permission check failed",
    ): "give {who} the privilege that is named; docs/proxmox.md has a role with all that are needed",
    ("bridge", "does not exist"): "name a bridge of the node as host.NAME.guest.bridge",
    ("storage", "does not exist"): "name a storage of the node; `pvesm status` lists them",
    ("vm is locked",): "wait for the task that holds it; if that is gone: qm unlock VMID on the node",
    ("kvm virtualisation configured",): "enable virtualisation in the node's firmware, or write kvm = false under "
    "host.NAME.guest",
    ("hostname lookup",): "write what `hostname` says on the node as host.NAME.api.node",
    ("no such cluster node",): "write what `hostname` says on the node as host.NAME.api.node",
    ("cfs-lock",): "see whether the cluster has its quorum: pvecm status on the node",
    ("no quorum",): "see whether the cluster has its quorum: pvecm status on the node",
}
"""By words that PVE's text has all of, whatever their case; the first that fit count."""


def is_lock_timeout(said: str) -> bool:
    """Whether PVE waited in vain for a lock of a configuration, a storage, the cluster. It has done nothing then.

    `got lock timeout - aborting command` is another matter: that lock was held, and the work ended half-way.
    """
    return "got lock request timeout" in said or ("got timeout" in said and "lock" in said)


def remedy(said: str, spec: ApiSpec) -> str | None:
    """What to do about an error of PVE's, where its words tell."""
    said = said.lower()
    found = (text for words, text in _REMEDIES.items() if all(word in said for word in words))
    return next((text.format(who=spec.who) for text in found), None)
