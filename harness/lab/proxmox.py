"""A Proxmox VE node in a lab file: its API, its guests, and the source of the API's secret."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, NetmaskValueError
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config.values import absolute_path
from harness.lab.fields import HostKey, HostPath, Word, host_address
from harness.lab.hypervisor import BorrowedVm, KindRules
from harness.model.guest import GUEST_MEMORY, OPTION_TYPES, OPTIONS_TABLE, GuestOptions, cpu_type
from harness.model.values import Table

ROOT = "root@pam"
"""PVE lets only this user attach a device by its path, and only with a password."""
API_PORT = 8006
_MASK = "***"
_WITH_PREFIX = 'allowed: an address with its prefix length, for example "192.0.2.50/24"'
StoredLayout = Literal["lvm", "lvm-thin", "raw", "qcow2", "zvol"]
"""Kinds of layout that are a volume on a storage."""

Network = Literal["agent", "static", "cloud-init"]
Reach = Literal["node", "direct"]
BY_AGENT = "agent"
"""How a borrowed VM is reached without SSH."""


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


KIND = KindRules(
    needless=frozenset({"backup_directory"}),
    ssh="optional",
    why_no_files="Proxmox VE does not support loop devices; allowed: id + serial, or storages",
    storages=True,
    several_names=True,
)
"""What the lab file may contain for a node."""


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


def _guest_addresses(value: object) -> object:
    """One text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    texts = [each for each in listed if isinstance(each, str)]
    if not texts or len(texts) < len(listed):
        raise ValueError(f"{_WITH_PREFIX}, or a list of them")
    found = tuple(map(_guest_address, texts))
    if len(set(found)) < len(found):
        raise ValueError("allowed: each address once")
    return found


def _guest_address(text: str) -> str:
    """An address with its prefix length, or the name or address of a borrowed VM. The rest of the table decides."""
    if "/" not in text:
        return host_address(text)
    try:
        IPv4Interface(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise ValueError(_WITH_PREFIX) from None
    return text


def _gateway(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise ValueError('allowed: an address, for example "192.0.2.1"') from None


def _vmids(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        raise ValueError("allowed: the first and the last id, for example [9000, 9099]")
    first, last = value
    if not 100 <= first <= last <= 999_999_999:
        raise ValueError("allowed: from 100 to 999999999, the smaller one first")
    return first, last


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


_OF_BORROWED = frozenset({"borrow", "port", "user", "key", "host_key"})
_OF_BOTH = frozenset({"address", "reach"})
_BESIDE_BORROWED = frozenset({"vmids", "kvm"})
"""The keys of a node that count also if a VM is borrowed: its volumes belong to a VM of the run, which never starts."""


class GuestTable(OPTIONS_TABLE):  # type: ignore[misc, valid-type] # it is created from the options of a guest
    """`[host.NAME.guest]`: a guest's options, how Proxmox VE creates it, or the VM that is borrowed instead."""

    borrow: Word | None = None
    port: int = Field(default=22, ge=1, le=65535)
    user: Word = "root"
    key: HostPath | None = None
    host_key: HostKey | None = None
    bridge: str = Field(default="vmbr0", min_length=1)
    iso_storage: str = Field(default="local", min_length=1)
    vmids: Annotated[tuple[int, int], BeforeValidator(_vmids)] = (9000, 9099)
    kvm: bool = True
    network: Network = "agent"
    address: Annotated[tuple[str, ...], BeforeValidator(_guest_addresses)] = ()
    gateway: Annotated[str, AfterValidator(_gateway)] | None = None
    reach: Reach | Literal["agent"] = "node"
    template: int | None = Field(default=None, ge=100, le=999_999_999)

    @property
    def options(self) -> GuestOptions:
        """The size and placement that guests on the host have, unless the scenario requests others."""
        return GuestOptions(**{name: getattr(self, name) for name in OPTION_TYPES})

    @property
    def of_node(self) -> set[str]:
        """The keys in the file that only a node of Proxmox VE has."""
        return set(self.model_fields_set) - set(OPTION_TYPES) - _OF_BORROWED - (_OF_BOTH if self.borrow else set())

    @property
    def of_booted(self) -> set[str]:
        """The keys in the file that only a guest of a node that is booted has."""
        return self.of_node - _BESIDE_BORROWED

    @property
    def beside_borrowed(self) -> GuestTable:
        """The table without everything that is about a guest that is booted, or about the login to a borrowed VM."""
        kept = {key: getattr(self, key) for key in self.model_fields_set & _BESIDE_BORROWED}
        found: GuestTable = GuestTable.model_construct(**kept)
        return found

    @property
    def of_login(self) -> set[str]:
        """The keys in the file that are about the login to a borrowed VM over SSH."""
        return set(self.model_fields_set & (_OF_BORROWED | {"address"})) - {"borrow"}

    @property
    def of_borrowed(self) -> set[str]:
        """The keys in the file that only a borrowed VM has."""
        return set(self.model_fields_set & _OF_BORROWED)


def proxmox_spec(where: str, api: ApiTable | None, guest: GuestTable | None, problems: list[str]) -> ProxmoxSpec | None:
    """The node. If it is not valid, `problems` gets a message for each key below `where`; the result may be None."""
    if api is None:
        problems.append(f'{where}.api: missing; a host of kind "proxmox" needs it')
        return None
    named = [(key, value) for key, value in api.secret if value is not None]
    if len(named) != 1:
        problems.append(f"{where}.api.secret: allowed: exactly one of env, file and keyring")
        return None
    if api.ca_file and api.fingerprint:
        problems.append(f"{where}.api.fingerprint: cannot be used with ca_file; allowed: one of the two")
    rules = _rules(f"{where}.guest", guest or GuestTable(), problems)
    key, value = named[0]
    parts = urlsplit(api.url)
    spec = ApiSpec(
        host=parts.hostname or "",
        port=parts.port or API_PORT,
        node=api.node,
        user=api.user,
        secret=SecretSource(key, value),  # type: ignore[arg-type] # one of the table's keys, which are the kinds
        token=api.token,
        ca_file=api.ca_file,
        fingerprint=api.fingerprint,
    )
    return ProxmoxSpec(spec, rules)


def _rules(where: str, table: GuestTable, problems: list[str]) -> GuestRules:
    if not table.kvm and table.cpu is not None and cpu_type(table.cpu) == "host":
        problems.append(f'{where}.cpu = "{table.cpu}": QEMU has it only with KVM; allowed with kvm = false: "max"')
    if table.network == "static" and not table.address:
        problems.append(f'{where}.address: missing; network = "static" needs it, for example "192.0.2.50/24"')
    bare = [each for each in table.address if "/" not in each]
    problems += [f'{where}.address = "{each}": {_WITH_PREFIX}' for each in bare]
    if table.network == "static" and table.template is not None:
        problems.append(
            f'{where}.network = "static": needs the guest image of virt-overhead; allowed with template: '
            "agent, cloud-init"
        )
    if table.network == "cloud-init" and table.template is None:
        problems.append(
            f'{where}.network = "cloud-init": the guest image of virt-overhead does not support it; allowed: '
            "agent, static, or a template"
        )
    if table.network == "agent":
        surplus = [key for key in ("address", "gateway") if getattr(table, key)]
        why = 'cannot be used with network = "agent"; allowed: with static and cloud-init'
        problems += [f"{where}.{key}: {why}" for key in surplus]
    if table.reach == "agent":
        problems.append(f'{where}.reach = "{BY_AGENT}": allowed only with borrow; otherwise: node, direct')
    return GuestRules(
        bridge=table.bridge,
        iso_storage=table.iso_storage,
        vmids=table.vmids,
        kvm=table.kvm,
        cpu=table.cpu or ("host" if table.kvm else "max"),
        memory=table.memory or GUEST_MEMORY,
        network=table.network,
        address=next(iter(table.address), None),
        gateway=table.gateway,
        reach="node" if table.reach == "agent" else table.reach,
        template=table.template,
        further_addresses=table.address[1:],
    )
