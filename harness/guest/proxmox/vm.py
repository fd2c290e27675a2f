"""The settings of a run's VM in Proxmox VE, and the marks that identify it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from harness.guest.proxmox.created_objects import CDROM
from harness.lab.inventory import GuestRules
from harness.lab.paths import TAG
from harness.model.guest import GUEST_MEMORY, GUEST_OPTIONS, GuestOptions, NumaMode

MIB = 1024**2
SHORT = 63
"""The length of a label in a DNS name, and so of a VM's name."""
_POLICIES: Mapping[NumaMode, str] = {"strict": "bind", "preferred": "preferred", "interleave": "interleave"}
_DRIVE = re.compile(r"(virtio|scsi|sata|ide|efidisk|tpmstate|unused)\d+")


def name_vm(run_id: str) -> str:
    """`voh-RUN`, in which characters that are not valid in a DNS name are replaced."""
    return f"{TAG}-{re.sub('[^A-Za-z0-9-]', '-', run_id)}"[:SHORT].rstrip("-")


def description(run_id: str, token: str) -> str:
    """The VM's notes, for its administrator. The token identifies the VM as the one that the run created."""
    return (
        f"virt-overhead run {run_id}: created for this run, and removed at its end or by `virt-overhead reap`. "
        f"To keep this VM, remove this token from its notes: {token}"
    )


def marks(run_id: str, token: str) -> dict[str, object]:
    """The marks of a run's VM from its creation on: for its administrator, and for its removal."""
    return {
        "name": name_vm(run_id),
        "tags": f"{TAG};{name_vm(run_id).lower()}",
        "description": description(run_id, token),
    }


def shell_parameters(rules: GuestRules, iso: str, vcpus: int) -> dict[str, object]:
    """A VM that boots the volume `iso` and has no disk yet. PVE's defaults (lsi, pc, kvm64) do not apply."""
    return {
        **_hardware(rules, vcpus),
        "ostype": "l26",
        "serial0": "socket",
        "vga": "serial0",
        "tablet": 0,
        CDROM: f"{iso},media=cdrom",
        "boot": f"order={CDROM}",
    }


def _hardware(rules: GuestRules, vcpus: int) -> dict[str, object]:
    """The settings that all guests of runs have."""
    return {
        "machine": "q35",
        "cpu": rules.cpu,
        "sockets": 1,
        "cores": vcpus,
        "memory": rules.memory // MIB,
        "balloon": 0,
        "kvm": int(rules.kvm),
        "scsihw": "virtio-scsi-single",
        "agent": "enabled=1",
        "net0": f"virtio,bridge={rules.bridge}",
        "onboot": 0,
    }


def size_parameters(guest: GuestOptions, vcpus: int) -> dict[str, object]:
    """The settings for the requested size and placement, with `vcpus` vCPUs. They replace those of every guest.

    Raises ValueError for options that `unplaced` names.
    """
    if why := unplaced(guest):
        raise ValueError(why)
    sockets = guest.topology[0] if guest.topology else 1
    memory = guest.memory or GUEST_MEMORY
    parameters: dict[str, object] = {"cores": vcpus // sockets}
    parameters |= {"sockets": sockets} if guest.topology else {}
    for name in guest.requested:
        if (pve := GUEST_OPTIONS[name].pve) is not None and pve.key:
            parameters[pve.key] = pve.value(getattr(guest, name))
    if guest.numa_nodes or guest.hugepages:
        # Proxmox VE has huge pages only with a NUMA node of the guest that lies on nodes of the host.
        nodes = (guest.numa_nodes or "0").replace(",", ";")
        policy = _POLICIES[guest.numa_mode or "strict"]
        cpus = "0" if vcpus == 1 else f"0-{vcpus - 1}"
        parameters |= {"numa": 1, "numa0": f"cpus={cpus},hostnodes={nodes},memory={memory // MIB},policy={policy}"}
    return parameters


def unplaced(guest: GuestOptions) -> str | None:
    """The options of a guest that Proxmox VE does not have, as a message with the remedy; None if it has all."""
    refusals = (row.pve.refused(guest) for row in GUEST_OPTIONS.values() if row.pve is not None)
    return next((why for why in refusals if why), None)


def of_root(guest: GuestOptions) -> list[str]:
    """The requested options that Proxmox VE lets only root@pam with a password set."""
    return [name for name in guest.requested if (pve := GUEST_OPTIONS[name].pve) is not None and pve.root_only]


def clone_parameters(rules: GuestRules, template: Mapping[str, Any], vcpus: int, public_key: str) -> dict[str, object]:
    """The settings for a clone of the template with the configuration `template`.

    cloud-init adds the run's key. Raises ValueError if cloud-init is requested but the template has no such drive.
    """
    settings = _hardware(rules, vcpus)
    if any("cloudinit" in str(value) for key, value in template.items() if _DRIVE.fullmatch(key)):
        gateway = f",gw={rules.gateway}" if rules.gateway else ""
        settings |= {
            "ciuser": "root",
            "sshkeys": quote(public_key, safe=""),
            "ipconfig0": f"ip={rules.address}{gateway}" if rules.address else "ip=dhcp",
        }
    elif rules.network == "cloud-init":
        raise ValueError(f"template {rules.template} has no cloud-init drive")
    return settings


def free_ids(vmids: tuple[int, int], used: Collection[int]) -> Iterator[int]:
    """The free ids of the lab's range, in order."""
    return (vmid for vmid in range(vmids[0], vmids[1] + 1) if vmid not in used)
