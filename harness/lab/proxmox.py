"""A Proxmox VE node: its API, the source of the API's secret, and the settings of its guests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.lab.hypervisor import BorrowedVm
from harness.model.guest import GUEST_MEMORY

ROOT = "root@pam"
"""PVE lets only this user attach a device by its path, and only with a password."""
API_PORT = 8006
StoredLayout = Literal["lvm", "lvm-thin", "raw", "qcow2", "zvol"]
"""Kinds of layout that are a volume on a storage."""

Network = Literal["agent", "static", "cloud-init"]
Reach = Literal["node", "direct"]


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The source of a password or a token's value: an environment variable, a file, or a service of the keyring."""

    kind: Literal["env", "file", "keyring"]
    name: str


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """The connection to the node's API. `token` is the name of a token of `user`; without it the secret is a password.

    The certificate must have the `fingerprint` (SHA-256, in hex with colons). Without it, `ca_file` checks the
    certificate. If both are None, the system's CAs check it.
    """

    host: str
    port: int
    node: str
    user: str
    secret: SecretSource
    token: str | None = None
    ca_file: Path | None = None
    fingerprint: str | None = None

    @property
    def who(self) -> str:
        """The user in PVE's form: `root@pam`, or `root@pam!name` with a token."""
        return f"{self.user}!{self.token}" if self.token else self.user

    @property
    def may_pass_devices(self) -> bool:
        """Whether PVE accepts the path of a device from this login."""
        return self.user == ROOT and self.token is None

    @property
    def why_no_devices(self) -> str | None:
        """Why this login cannot attach a device by its path; None if it can."""
        if self.may_pass_devices:
            return None
        return f"Proxmox VE accepts the path of a device only from {ROOT} with a password, not from {self.who}"


@dataclass(frozen=True, slots=True)
class GuestRules:
    """The settings of guests on the node. `vmids` are the first and the last id to use; `memory` is in bytes.

    With `kvm` False, the node emulates the CPU. `cpu` and `memory` are for guests that request none. With `template`, a
    guest is a clone of that VM. Without it, the guest boots the harness's ISO from `iso_storage`. `address` (with its
    prefix length) and `gateway` are for networks without DHCP, and `further_addresses` for guests that run beside it.
    """

    bridge: str = "vmbr0"
    iso_storage: str = "local"
    vmids: tuple[int, int] = (9000, 9099)
    kvm: bool = True
    cpu: str = "host"
    memory: int = GUEST_MEMORY
    network: Network = "agent"
    address: str | None = None
    gateway: str | None = None
    reach: Reach = "node"
    template: int | None = None
    further_addresses: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses in the lab file, one for each guest that runs at the same time; empty with DHCP."""
        return (self.address, *self.further_addresses) if self.address else ()


@dataclass(frozen=True, slots=True)
class ProxmoxSpec:
    """The HypervisorSpec of a Proxmox VE node."""

    api: ApiSpec
    guest: GuestRules
    borrowed: BorrowedVm | None = None
    """The VM that disks are plugged into, by its id; None if runs make their own guests."""

    @property
    def address(self) -> str:
        return self.api.host

    @property
    def secret_variables(self) -> tuple[str, ...]:
        return (self.api.secret.name,) if self.api.secret.kind == "env" else ()

    @property
    def needless_checks(self) -> frozenset[str]:
        """A node has no libvirt and does not need it."""
        return frozenset({"libvirt"})

    @property
    def why_no_devices(self) -> str | None:
        return self.api.why_no_devices

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    def why_emulated(self, host: str) -> str | None:
        return None if self.guest.kvm else f"host.{host}.guest.kvm = false in the lab file"
