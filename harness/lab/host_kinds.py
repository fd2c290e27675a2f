"""The kinds of hosts in a lab file, and what it may contain for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

OF_SSH = frozenset({"address", "port", "user", "key", "host_key"})
"""The keys that are about the login over SSH."""
_OF_HYPERVISOR = frozenset({"api"})


@dataclass(frozen=True, slots=True)
class KindRules:
    """What the lab file may contain for hosts of one kind."""

    needless: frozenset[str]
    """Keys that do not apply to it."""
    ssh: Literal["none", "required", "optional"]
    why_no_files: str | None = None
    """Why a file cannot be one of its disks; None if it can."""
    storages: bool = False
    """Whether its hypervisor has storages on which volumes can be created."""
    several_names: bool = False
    """Whether several tables may name the same machine, to measure it with guests of several kinds."""


KINDS: Mapping[str, KindRules] = {
    "local": KindRules(needless=OF_SSH | _OF_HYPERVISOR, ssh="none"),
    "ssh": KindRules(needless=_OF_HYPERVISOR, ssh="required"),
    "proxmox": KindRules(
        needless=frozenset({"backup_directory"}),
        ssh="optional",
        why_no_files="Proxmox VE does not support loop devices; allowed: id + serial, or storages",
        storages=True,
        several_names=True,
    ),
}


def kinds_with(fit: Callable[[KindRules], bool]) -> str:
    """The kinds of hosts whose rules fit, for a message."""
    return " or ".join(f'"{kind}"' for kind, rules in KINDS.items() if fit(rules))
