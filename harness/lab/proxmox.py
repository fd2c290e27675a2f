"""A Proxmox VE node in a lab file: its API, the source of the API's secret, and the settings of its guests.

Messages about the table `[host.NAME.api]` never show its secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config.values import absolute_path
from harness.lab.hypervisor import BorrowedVm
from harness.model.guest import GUEST_MEMORY
from harness.model.values import Table

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


_MASK = "***"


def _without_login(value: object) -> object:
    """Mask a name and a password in a URL. Such a URL is refused, and messages must not show it."""
    return re.sub(r"//.*@", f"//{_MASK}@", value) if isinstance(value, str) else value


def _without_value(value: object) -> object:
    """Mask the value of a token in the text `NAME=VALUE`, which people may copy as a whole."""
    return re.sub("=.*", f"={_MASK}", value) if isinstance(value, str) else value


def _no_text(value: object) -> object:
    """Remove a secret that somebody wrote instead of the table with its source."""
    return {} if isinstance(value, str) else value


def _url(text: str) -> str:
    example = 'allowed: for example "https://192.0.2.9:8006"'
    parts = urlsplit(text)
    if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/") or parts.username:
        raise ValueError(example)
    try:
        has_port = parts.port != 0
    except ValueError:
        has_port = False
    if not has_port:
        raise ValueError(f"its port is not a number from 1 to 65535; {example}")
    return text


def _user(text: str) -> str:
    if "!" in text:
        raise ValueError("contains a token; allowed: the user alone, and the token's name under `token`")
    if "@" not in text.strip("@"):
        raise ValueError('allowed: a name with its realm, for example "root@pam"')
    return text


class _Discreet(Table):
    """A table in which people may write passwords: messages do not show the values of unknown keys."""

    @model_validator(mode="before")
    @classmethod
    def _masked(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value if key in cls.model_fields else _MASK for key, value in data.items()}


class SecretTable(_Discreet):
    """`[host.NAME.api] secret`: exactly one of the three keys."""

    env: str | None = Field(default=None, min_length=1)
    file: str | None = Field(default=None, min_length=1)
    keyring: str | None = Field(default=None, min_length=1)


class ApiTable(_Discreet):
    """`[host.NAME.api]`."""

    url: Annotated[str, AfterValidator(_url), BeforeValidator(_without_login)]
    node: str = Field(pattern=r"^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?$")
    user: Annotated[str, AfterValidator(_user)] = ROOT
    token: Annotated[str | None, BeforeValidator(_without_value)] = Field(
        default=None, pattern=r"^[A-Za-z][A-Za-z0-9._-]+$"
    )
    secret: Annotated[SecretTable, BeforeValidator(_no_text)]
    ca_file: Annotated[Path | None, BeforeValidator(absolute_path)] = None
    fingerprint: str | None = Field(default=None, pattern=r"^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$")


def api_spec(where: str, table: ApiTable | None, problems: list[str]) -> ApiSpec | None:
    """The connection. If the table is not valid, `problems` gets a message for each key; the result may be None."""
    if table is None:
        problems.append(f'{where}: missing; a host of kind "proxmox" needs it')
        return None
    named = [(key, value) for key, value in table.secret if value is not None]
    if len(named) != 1:
        problems.append(f"{where}.secret: allowed: exactly one of env, file and keyring")
        return None
    if table.ca_file and table.fingerprint:
        problems.append(f"{where}.fingerprint: cannot be used with ca_file; allowed: one of the two")
    key, value = named[0]
    parts = urlsplit(table.url)
    return ApiSpec(
        host=parts.hostname or "",
        port=parts.port or API_PORT,
        node=table.node,
        user=table.user,
        secret=SecretSource(key, value),  # type: ignore[arg-type] # one of the table's keys, which are the kinds
        token=table.token,
        ca_file=table.ca_file,
        fingerprint=table.fingerprint,
    )
