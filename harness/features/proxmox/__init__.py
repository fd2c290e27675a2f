"""Proxmox VE: guests are VMs of a node, and volumes are created on its storages, by its API and by commands on it.

This module has what a lab file says about a node: the table `[host.NAME.api]`, of which messages never show secrets,
and further keys of `[host.NAME.guest]`. backend.py is the `Hypervisor` of a node. session.py and client.py speak with
the API, and vm_config.py writes and reads configurations of VMs. creation.py and removal.py create and remove VMs,
volumes and storages, and layouts.py builds layouts of them. machine.py is a VM, guest.py the system in it, and
beyond_drives.py attaches disks that are not drives of the VM. disk_users.py finds who uses the disks of a node.

Another feature adds to nodes by `ON_NODE` in a module `proxmox` of its own, which only this feature loads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config.names import absolute_path
from harness.config.problems import matching
from harness.feature import Feature, FeatureHypervisor, import_later, load_modules
from harness.lab.inventory import BorrowedVm
from harness.lab.lab_file import HostKeys, KindRules
from harness.lab.lab_schema import BY_AGENT, WITH_PREFIX, GuestKeys, Word
from harness.model.guest import GUEST_MEMORY, parse_cpu_type
from harness.model.values import TomlTable

if TYPE_CHECKING:
    from harness.features.proxmox import backend, vm_config
    from harness.features.proxmox.client import Client
    from harness.features.proxmox.machine import VirtualMachine
    from harness.guest.protocol import Backup
    from harness.lab.created import CreationLog, Entry, Removal, Thing
    from harness.lab.transport.base import Runner
    from harness.model.mode import Mode
else:
    backend, vm_config = import_later(__name__, "backend", "vm_config")

ROOT = "root@pam"
"""PVE lets only this user attach a device by its path, and only with a password."""
API_PORT = 8006
Network = Literal["agent", "static", "cloud-init"]
_Reach = Literal["node", "direct"]


MASK = "***"


class Discreet(TomlTable):
    """A table in which people may write passwords: messages do not show the values of unknown keys."""

    @model_validator(mode="before")
    @classmethod
    def _masked(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {key: value if key in cls.model_fields else MASK for key, value in data.items()}


class SecretSource(Discreet):
    """The source of a password or a token's value: an environment variable, a file, or a service of the keyring."""

    env: str | None = Field(default=None, min_length=1)
    """The name of an environment variable. Programs that virt-overhead starts do not inherit it."""
    file: str | None = Field(default=None, min_length=1)
    """The path of a file whose first line is the secret. It is refused if other users may read it."""
    keyring: str | None = Field(default=None, min_length=1)
    """A service of the keyring, with the user as its name. It needs Python's `keyring`."""

    @property
    def named(self) -> list[tuple[str, str]]:
        """The keys of the table with their values. A valid table has one."""
        return [(key, value) for key, value in self if value is not None]

    @property
    def kind(self) -> str:
        return self.named[0][0]

    @property
    def name(self) -> str:
        return self.named[0][1]


def _without_login(value: object) -> object:
    """Mask a name and a password in a URL. Such a URL is refused, and messages must not show it."""
    return re.sub(r"//.*@", f"//{MASK}@", value) if isinstance(value, str) else value


def _without_value(value: object) -> object:
    """Mask the value of a token in the text `NAME=VALUE`, which people may copy as a whole."""
    return re.sub("=.*", f"={MASK}", value) if isinstance(value, str) else value


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


_TokenName = Annotated[str, matching("[A-Za-z][A-Za-z0-9._-]+", "a letter, then letters, digits, `.`, `_` and `-`")]
_FINGERPRINT = "32 bytes, each of two hexadecimal digits, with a colon between them, for example `0A:1B:...`"


class ApiSpec(Discreet):
    """`[host.NAME.api]`: the connection to the node's API. Without `token`, the secret is a password."""

    url: Annotated[str, AfterValidator(_url), BeforeValidator(_without_login)]
    """The URL of the API, for example `"https://192.0.2.9:8006"`. The default port is 8006."""
    node: Annotated[str, matching("[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?", "letters, digits and, between them, `-`")]
    """The node's name in its cluster."""
    user: Annotated[str, AfterValidator(_user)] = ROOT
    """The user to log in as."""
    token: Annotated[_TokenName | None, BeforeValidator(_without_value)] = None
    """The name of an API token of that user, without `user!`. Then `secret` is the value of the token."""
    secret: Annotated[SecretSource, BeforeValidator(_no_text)]
    """Where the password or the value of the token is stored. Never write the secret itself here."""
    ca_file: Annotated[Path | None, BeforeValidator(absolute_path)] = None
    """The CA that signed the certificate: `/etc/pve/pve-root-ca.pem` of the node; without it, the system's CAs."""
    fingerprint: Annotated[str, matching("([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}", _FINGERPRINT)] | None = None
    """The SHA-256 of the certificate itself, as `pvenode cert info` prints it, instead of `ca_file`."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or API_PORT

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
    backup_storage: str | None = None
    """The storage for backups that are measured (`backup = true`)."""
    container_storage: str | None = None
    """The storage for the roots of containers (`container = true`); None if commands on the node start them."""
    vmids: tuple[int, int] = (9000, 9099)
    kvm: bool = True
    cpu: str = "host"
    memory: int = GUEST_MEMORY
    network: Network = "agent"
    address: str | None = None
    gateway: str | None = None
    reach: _Reach = "node"
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
    def why_no_devices(self) -> str | None:
        return self.api.why_no_devices

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    @property
    def one_guest(self) -> bool:
        return True

    def why_emulated(self, host: str) -> str | None:
        return None if self.guest.kvm else f"host.{host}.guest.kvm = false in the lab file"


_OF_BOTH = frozenset({"address", "reach"})
"""The keys of the kernel that guests of a node have, too."""
_BESIDE_BORROWED = frozenset({"vmids", "kvm"})
"""The keys that count also if a VM is borrowed: its volumes belong to a VM of the run, which never starts."""


def _check_gateway(text: str) -> str:
    try:
        return str(IPv4Address(text))
    except AddressValueError:
        raise ValueError('allowed: an address, for example "192.0.2.1"') from None


def _check_vmids(value: object) -> object:
    if not isinstance(value, list) or len(value) != 2 or not all(type(vmid) is int for vmid in value):
        raise ValueError("allowed: the first and the last id, for example [9000, 9099]")
    first, last = value
    if not 100 <= first <= last <= 999_999_999:
        raise ValueError("allowed: from 100 to 999999999, the smaller one first")
    return first, last


class NodeGuestKeys(GuestKeys):
    """`[host.NAME.guest]` of a node: also how Proxmox VE creates a guest."""

    bridge: str = Field(default="vmbr0", min_length=1)
    """Of Proxmox VE: the bridge of the network card of guests."""
    iso_storage: str = Field(default="local", min_length=1)
    """Of Proxmox VE: the storage that the guest's ISO is uploaded to, once per image."""
    backup_storage: Word | None = None
    """Of Proxmox VE: the storage for backups that are measured (`backup = true`)."""
    container_storage: Word | None = None
    """Of Proxmox VE: the storage for the roots of its own containers (`container = true`). Without it, the node's LXC
    runs containers."""
    vmids: Annotated[tuple[int, int], BeforeValidator(_check_vmids)] = (9000, 9099)
    """Of Proxmox VE: the first and the last id that guests may have."""
    kvm: bool = True
    """Of Proxmox VE: false for a node without hardware virtualisation, whose CPU is emulated."""
    network: Network = "agent"
    """Of Proxmox VE: DHCP, and the guest agent reports the address; an `address` that is set through the agent; or
    the cloud-init of a template."""
    gateway: Annotated[str, AfterValidator(_check_gateway)] | None = None
    """Of Proxmox VE: needed if the guest is not reached within its own network."""
    template: int | None = Field(default=None, ge=100, le=999_999_999)
    """Of Proxmox VE: the id of a VM. Guests are its clones and do not boot the ISO."""

    @property
    def of_booted(self) -> set[str]:
        """The keys in the file that only a guest that is booted has."""
        return self.of_hypervisor - _BESIDE_BORROWED

    @property
    def beside_borrowed(self) -> NodeGuestKeys:
        """The table without everything that is about a guest that is booted, or about the login to a borrowed VM."""
        kept = {key: getattr(self, key) for key in self.model_fields_set & _BESIDE_BORROWED}
        guest: NodeGuestKeys = NodeGuestKeys.model_construct(**kept)
        return guest


class NodeKeys(HostKeys):
    """`[host.NAME]` of a node."""

    api: ApiSpec | None = None
    """The node's API: required with `proxmox`."""
    guest: NodeGuestKeys | None = None


def make_spec(where: str, table: NodeKeys, borrowed: BorrowedVm | None, problems: list[str]) -> ProxmoxSpec | None:
    """The hypervisor of a node. `problems` gets a message for each key that is not valid; the result may be None."""
    guest = table.guest
    if guest is not None and guest.borrow is not None:
        require_id(f"{where}.guest", guest, problems)
        guest = guest.beside_borrowed
    api = check_api(f"{where}.api", table.api, problems)
    if api is None:
        return None
    return ProxmoxSpec(api, check_guest_rules(f"{where}.guest", guest or NodeGuestKeys(), problems), borrowed)


def check_api(where: str, api: ApiSpec | None, problems: list[str]) -> ApiSpec | None:
    """The connection. If the table is not valid, `problems` gets a message for each key; the result may be None."""
    if api is None:
        problems.append(f'{where}: missing; a host of kind "proxmox" needs it')
        return None
    if len(api.secret.named) != 1:
        problems.append(f"{where}.secret: allowed: exactly one of env, file and keyring")
        return None
    if api.ca_file and api.fingerprint:
        problems.append(f"{where}.fingerprint: cannot be used with {where}.ca_file; allowed: one of the two")
    return api


def check_guest_rules(where: str, table: NodeGuestKeys, problems: list[str]) -> GuestRules:
    """The settings of guests on a node. `problems` gets a message below `where` for each key that is not valid."""
    if not table.kvm and table.cpu is not None and parse_cpu_type(table.cpu) == "host":
        problems.append(f'{where}.cpu = "{table.cpu}": QEMU has it only with KVM; allowed with kvm = false: "max"')
    if table.network == "static" and not table.address:
        problems.append(f'{where}.address: missing; network = "static" needs it, for example "192.0.2.50/24"')
    bare = [address for address in table.address if "/" not in address]
    problems += [f'{where}.address = "{address}": {WITH_PREFIX}' for address in bare]
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
        backup_storage=table.backup_storage,
        container_storage=table.container_storage,
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


def require_id(where: str, table: NodeGuestKeys, problems: list[str]) -> None:
    """`problems` gets a message for each key of the table that a VM of Proxmox VE, which has an id, cannot have."""
    if table.borrow is not None and not re.fullmatch("[1-9][0-9]{2,8}", table.borrow):
        problems.append(f'{where}.borrow = "{table.borrow}": allowed: the id of a VM of the node, for example "100"')
    problems += [
        f"{where}.{key}: conflicts with borrow, because no guest is booted; allowed: one of the two"
        for key in sorted(table.of_booted)
    ]


class BackupsOnNode(Protocol):
    """The backups of a VM."""

    def __call__(self, drive: str, drives: Sequence[str], /) -> Backup:
        """The backup of one of the drives of the run. It has not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBackups:
    """Makes backups of VMs while they are measured (`Mode.backup`)."""

    refuse: Callable[[Client, GuestRules, Mode], str | None]
    """Why the guest of a mode cannot be backed up, with the remedy; None if it can."""
    require_room: Callable[[Client, GuestRules, Runner, int], None]
    """Raises Unsupported if so many bytes of backups do not fit on the node."""
    open: Callable[[CreationLog, VirtualMachine, GuestRules], AbstractContextManager[BackupsOnNode | None]]
    """Makes the backups of a VM, and removes them at the end of the block. None without a storage for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """What another feature adds to nodes."""

    things: tuple[type[Thing], ...]
    """What it creates by the API."""
    remove: Callable[[Client, Runner, Entry], Removal | None]
    """Removes such a thing after a killed run; None for other entries."""
    backups: NodeBackups | None = None


@cache
def load_on_node() -> tuple[OnNode, ...]:
    """What the features add to nodes, in the order of their list."""
    return tuple(module.ON_NODE for module in load_modules("proxmox"))


def find_backups() -> NodeBackups | None:
    """What makes backups; None if no feature does."""
    return next((added.backups for added in load_on_node() if added.backups is not None), None)


def _list_things() -> tuple[type[Thing], ...]:
    return (*vm_config.THINGS, *(thing for added in load_on_node() for thing in added.things))


FEATURE = Feature(
    name="proxmox",
    brings=(
        FeatureHypervisor(
            kind="proxmox",
            rules=KindRules(
                needless=frozenset({"backup_directory"}),
                ssh="optional",
                why_no_files="Proxmox VE does not support loop devices; allowed: id + serial, or storages",
                storages=True,
                several_names=True,
                keys=frozenset({"api"}),
                guest_keys=_OF_BOTH | NodeGuestKeys.model_fields.keys() - GuestKeys.model_fields.keys(),
            ),
            host_keys=NodeKeys,
            make_spec=make_spec,
            load_backend=lambda spec: backend.ProxmoxBackend(spec),
        ),
    ),
    list_things=_list_things,
)
