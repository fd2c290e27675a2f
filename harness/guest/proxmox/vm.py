"""A VM of ours in Proxmox VE's words: what it is made of, and how it is known again. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from harness.guest.proxmox.drive import CDROM
from harness.lab.paths import TAG
from harness.lab.proxmox import GuestRules

MIB = 1024**2
SHORT = 63
"""The longest label of a DNS name, which a VM's name is."""
_DRIVE = re.compile(r"(virtio|scsi|sata|ide|efidisk|tpmstate|unused)\d+")


def vm_name(run_id: str) -> str:
    """`voh-RUN`, with what a DNS name may not have replaced."""
    return f"{TAG}-{re.sub('[^A-Za-z0-9-]', '-', run_id)}"[:SHORT].rstrip("-")


def description(run_id: str, token: str) -> str:
    """What an administrator reads in the VM's notes; by the token the VM is known to be the one that was created."""
    return (
        f"virt-overhead run {run_id}: made for measuring, removed at its end, or by `virt-overhead reap`. "
        f"To keep this VM, remove this token from its notes: {token}"
    )


def marks(run_id: str, token: str) -> dict[str, object]:
    """What a VM of ours has from the moment it exists: for its administrator, and for its removal."""
    return {
        "name": vm_name(run_id),
        "tags": f"{TAG};{vm_name(run_id).lower()}",
        "description": description(run_id, token),
    }


def shell_parameters(rules: GuestRules, iso: str, vcpus: int) -> dict[str, object]:
    """A VM that boots the volume `iso` and has no disk yet. PVE's defaults (lsi, pc, kvm64) decide nothing."""
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
    """What every guest of ours has, whoever installed it."""
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


def clone_parameters(rules: GuestRules, template: Mapping[str, Any], vcpus: int, public_key: str) -> dict[str, object]:
    """What is set on the clone of a template, whose configuration is `template`.

    Our key gets in by cloud-init. ValueError where cloud-init is asked for and the template has no such drive.
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
    """The ids of the lab's range that nobody has, in order."""
    return (vmid for vmid in range(vmids[0], vmids[1] + 1) if vmid not in used)
