"""The inventory of a lab: its hosts with their hypervisors, and their disks and storages under test.

On a storage in use, a run creates only its own volumes. Arrays that are there already are as their owner says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from harness.config.names import absolute_path, choices, one_line, plain_name
from harness.config.problems import matching
from harness.errors import ConfigError
from harness.feature import FeatureStorage, list_brought
from harness.model.base import Chunk, RaidLevel
from harness.model.disk import ARRAY, STORAGE, ArrayFacts, DiskClass, derive_class
from harness.model.guest import ANY_GUEST, GUEST_MEMORY, GuestOptions
from harness.model.values import TomlTable, require_whole_number
from harness.scenario.scenario import Requested

Accel = Literal["kvm", "tcg"]

EMBEDDED = "lab"
"""The name of the embedded lab's only host."""


class HypervisorSpec(Protocol):
    """The hypervisor of a host, from the lab file. The rest is in its backend (harness/guest/__init__.py)."""

    @property
    def address(self) -> str | None:
        """The address of the host if the lab file has none for SSH."""

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables that hold its secrets."""

    @property
    def why_no_devices(self) -> str | None:
        """Why a device of the host cannot be attached to a guest by its path; None if it can."""

    @property
    def boots_guests(self) -> bool:
        """Whether runs boot the guests. If not, all rounds are in one boot."""

    def why_emulated(self, host: str) -> str | None:
        """Why the host with the name `host` emulates the CPU of guests; None if KVM must be probed."""


@dataclass(frozen=True, slots=True)
class SshAddress:
    """The SSH address of a host and the key for the login. Without `host_key`, that of the first contact is stored."""

    address: str
    port: int
    user: str
    key: Path
    host_key: str | None


@dataclass(frozen=True, slots=True)
class VmLogin(SshAddress):
    """The login to a VM over SSH, through its host or directly."""

    through_host: bool


@dataclass(frozen=True, slots=True)
class BorrowedVm:
    """A running VM of others: its name in libvirt or its id, and the login to it."""

    name: str
    login: VmLogin | None
    """None if commands run through its guest agent."""


@dataclass(frozen=True, slots=True)
class LibvirtSpec:
    """libvirt. `borrowed` is the VM that disks are plugged into; None if runs make their own guests."""

    borrowed: BorrowedVm | None = None
    address: None = None
    secret_variables: tuple[str, ...] = ()
    why_no_devices: None = None

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    def why_emulated(self, host: str) -> None:  # noqa: ARG002 - a HypervisorSpec
        return None


LIBVIRT = LibvirtSpec()

ROOT = "root@pam"
"""PVE lets only this user attach a device by its path, and only with a password."""
API_PORT = 8006
StoredLayout = Literal["lvm", "lvm-thin", "raw", "qcow2", "zvol", "rbd"]
"""Kinds of layout that are a volume on a storage."""

Network = Literal["agent", "static", "cloud-init"]
Reach = Literal["node", "direct"]


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
    def why_no_devices(self) -> str | None:
        return self.api.why_no_devices

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    def why_emulated(self, host: str) -> str | None:
        return None if self.guest.kvm else f"host.{host}.guest.kvm = false in the lab file"


SOURCE = "the lab file"


_Text = Annotated[str, AfterValidator(one_line), Field(max_length=100)]


class StatedArray(TomlTable):
    """What the lab file says about an array, in `[host.NAME.disk.X.array]` and `[host.NAME.storage.X.array]`.

    What the host reports itself wins over it. `reference` is the disk or storage of the same host with a single disk of
    the same model.
    """

    level: Annotated[RaidLevel, BeforeValidator(require_whole_number)] | None = None
    """The RAID level. Write it together with `disks`."""
    disks: Annotated[int, Field(ge=2, le=1024)] | None = None
    """The number of disks, without spares."""
    legs: Annotated[int, Field(ge=1, le=64)] = 1
    """The number of arrays of this level that are striped: 2 for a RAID 50 or 60 of two."""
    chunk: Chunk | None = None
    """The strip size: bytes on one disk before the next one follows."""
    controller: _Text | None = None
    """The controller or appliance, for the report."""
    cache: _Text | None = None
    """Its cache policy, for the report."""
    reference: Annotated[str, AfterValidator(plain_name)] | None = None
    """The single disk of the same host that the array is compared with: a disk or a storage."""

    @property
    def facts(self) -> ArrayFacts:
        return ArrayFacts(
            level=f"raid{self.level}" if self.level is not None else None,
            chunk_bytes=self.chunk,
            disks=self.disks,
            cache_policy=self.cache,
            source=SOURCE,
            legs=self.legs if self.level is not None else None,
            controller=self.controller,
        )


StorageKey = str
"""A key of STORAGE_KINDS, or that of a feature. Exactly one of a table says where the volumes are created."""

Allocates = Literal["at once", "as a file", "when written"]
"""When a volume takes its space: when it is created, as its file is filled, or at each write to a new place."""


@dataclass(frozen=True, slots=True)
class StorageKind:
    """What a key of a table names: in words, and what is the same for all such storages."""

    words: str
    layouts: tuple[str, ...] = ()
    """The kinds of layouts of its volumes. Empty for a pool or a storage of Proxmox VE: only the host knows them."""
    space: str = ""
    """Its type for `harness.lab.storages`."""
    allocates: Allocates = "at once"
    hint: str = ""
    """What to do if it cannot be used."""
    of_hypervisor: bool = False
    """Whether it is for hosts whose hypervisor has storages of its own. The others are for hosts with libvirt."""


STORAGE_KINDS: Mapping[StorageKey, StorageKind] = {
    "volume_group": StorageKind(
        "volume group",
        ("lvm",),
        space="lvm",
        hint="see vgs and pvs on the host, and correct the name in the lab file",
    ),
    "thin_pool": StorageKind(
        "thin pool",
        ("lvm-thin",),
        space="lvmthin",
        allocates="when written",
        hint="see lvs -a on the host, and correct the name in the lab file",
    ),
    "directory": StorageKind(
        "directory",
        ("raw", "qcow2"),
        space="dir",
        allocates="as a file",
        hint="see findmnt and ls -ld on the host, and name a directory that only root can change, with everything "
        "above it",
    ),
    "pool": StorageKind("libvirt pool"),
    "storage": StorageKind("storage", of_hypervisor=True),
}
"""The kinds of the kernel, by the key of the table."""


@cache
def storage_kinds() -> Mapping[StorageKey, StorageKind]:
    """All kinds by the key of the table: those of the kernel, then those of features."""
    return {**STORAGE_KINDS, **{storage.key: storage.kind for storage in list_brought(FeatureStorage)}}


@dataclass(frozen=True, slots=True)
class DiskByStorage:
    """Storage in use. A run writes only to volumes that it creates there.

    `key` is the key of the lab file, and `at` its value. `storages` has the storage of Proxmox VE for each kind of
    layout (`raw`, `lvm`). It is empty if the storage itself shows which layouts it can have.
    """

    name: str
    storages: Mapping[StoredLayout, str] = field(default_factory=dict)
    key: StorageKey = "storage"
    at: str = ""
    endurance: int | None = None
    """The rated endurance in bytes of the disk below the storage."""
    array: StatedArray | None = None
    """What the lab file says about the array that the storage is on; None if it says nothing of one."""

    @property
    def layouts(self) -> tuple[str, ...] | None:
        """The kinds of layouts that its volumes have; None if that is not known without asking the host."""
        return storage_kinds()[self.key].layouts or tuple(self.storages) or None

    @property
    def identity(self) -> str:
        """Its description, which is also its name in the creation log."""
        return f"{storage_kinds()[self.key].words} {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """The value of `at`, or the names of the storages of Proxmox VE, each once."""
        return (self.at,) if self.at else tuple(dict.fromkeys(self.storages.values()))


@dataclass(frozen=True, slots=True)
class DiskById:
    """A disk under test. Its link and its serial number must both match before anything is written."""

    name: str
    id: str
    serial: str
    destroy: bool
    overwrite_data: str | None = None
    """The serial number again if data of an unknown kind may be overwritten."""
    endurance: int | None = None
    """The rated endurance: the bytes that may be written in its life."""
    disk_class: DiskClass | None = None
    """The class that its owner states."""
    array: StatedArray | None = None
    """What the lab file says about the array that it is; None if it says nothing of one."""
    iops: int | None = None
    """The I/Os per second that it does at most, of a simulated disk; None if that is not known."""

    @property
    def identity(self) -> str:
        return f"{self.id} (serial {self.serial})"


@dataclass(frozen=True, slots=True)
class DiskByFile:
    """A loop device as the disk under test, identified by its backing file. `size` is for a file that is missing."""

    name: str
    file: Path
    size: int
    destroy: bool
    endurance: int | None = None
    """The rated endurance in bytes of the disk that has the file."""
    disk_class: DiskClass | None = None
    """The class that its owner states."""

    @property
    def identity(self) -> str:
        return f"loop device on {self.file}"


DiskSpec = DiskById | DiskByFile
"""A disk that the run may overwrite completely."""


AnyDisk = DiskSpec | DiskByStorage


def array_of(disk: AnyDisk) -> StatedArray | None:
    """What the lab file says about the array that the disk is, or that the storage is on; None if nothing."""
    return None if isinstance(disk, DiskByFile) else disk.array


def class_known(disk: AnyDisk) -> str | None:
    """The class of a disk without asking its host: what the lab file states, else what its link shows, else None.

    For storages, it is `storage`.
    """
    if isinstance(disk, DiskByStorage):
        return STORAGE
    if array_of(disk) is not None:
        return ARRAY
    return disk.disk_class or (derive_class(disk.id) if isinstance(disk, DiskById) else None)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """A KVM host from the lab file. `ssh` is None for this machine."""

    name: str
    kind: Literal["local", "ssh", "embedded", "proxmox"]
    ssh: SshAddress | None
    disks: tuple[DiskSpec, ...]
    simulated: str | None = None
    """What is simulated, as text; None for a real machine."""
    hypervisor: HypervisorSpec = LIBVIRT
    stored: tuple[DiskByStorage, ...] = ()
    guest: GuestOptions = ANY_GUEST
    """The size and placement of its guests, unless the scenario requests others."""
    backup_directory: Path | None = None
    """A directory there for the backups that are measured; None for one of virt-overhead on its own file system."""
    fio: str = "fio"
    """The program fio on the host: a path, or a name that the host searches for."""

    @property
    def proxmox(self) -> ProxmoxSpec | None:
        """Its hypervisor if that is Proxmox VE, else None."""
        return self.hypervisor if isinstance(self.hypervisor, ProxmoxSpec) else None

    def disk(self, name: str) -> DiskSpec:
        return next(disk for disk in self.disks if disk.name == name)

    @property
    def measured(self) -> tuple[AnyDisk, ...]:
        """Everything on it that a scenario can name as a disk."""
        return (*self.disks, *self.stored)

    def target(self, name: str) -> AnyDisk:
        """The disk or storage that a scenario names by this name."""
        return next(disk for disk in self.measured if disk.name == name)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The hosts of a lab. `source` is its name in messages."""

    source: str
    profile: str
    hosts: tuple[HostSpec, ...]
    requests: tuple[Requested, ...] = ()
    """What the lab asks of features, for scenarios that do not ask for it themselves."""

    def host_of(self, disk: str) -> HostSpec:
        """The only host that has `disk`, also by another name. Otherwise a ConfigError names the existing disks."""
        by_id = (one for host in self.hosts for one in host.disks if isinstance(one, DiskById))
        same = {one.identity for one in by_id if one.name == disk}
        having = [host for host in self.hosts if any(one.name == disk or one.identity in same for one in host.measured)]
        if len(having) == 1:
            return having[0]
        if having:
            names = ", ".join(host.name for host in having)
            raise ConfigError(
                f'{self.source}: disk "{disk}" is on several hosts: {names}', hint="choose one with --host NAME"
            )
        known = [measured.name for host in self.hosts for measured in host.measured]
        raise ConfigError(
            f'{self.source}: no disk "{disk}"; {choices(disk, known) if known else "it has no disks"}',
            hint=f"add it as [host.NAME.disk.{disk}], or as [host.NAME.storage.{disk}] if it is storage in use, or "
            "select scenarios of other disks with -k",
        )

    def host_of_all(self, disks: Sequence[str]) -> HostSpec:
        """The only host that has all of `disks`. Otherwise a ConfigError says which host has which disk."""
        hosts = {disk: self.host_of(disk) for disk in disks}
        if len({host.name for host in hosts.values()}) > 1:
            where = ", ".join(f"{disk} on {host.name}" for disk, host in hosts.items())
            raise ConfigError(
                f"{self.source}: the disks of one scenario are on several hosts: {where}",
                hint="all disks of an array must be on one host: change `disks` in the scenario",
            )
        return hosts[disks[0]]

    def only(self, host: str) -> Inventory:
        """The inventory with only the host of this name. ConfigError if there is none."""
        names = [spec.name for spec in self.hosts]
        if host not in names:
            raise ConfigError(f'{self.source}: no host "{host}"; {choices(host, names)}')
        return replace(self, hosts=tuple(spec for spec in self.hosts if spec.name == host))


_withdrawn: dict[str, str] = {}
# A global variable, because the environment belongs to the process. /proc/PID/environ still shows the original values.


def withdraw_secrets(hosts: Iterable[HostSpec]) -> None:
    """Remove the variables with secrets of these hosts from the environment of this process.

    Call it before the first child process starts. The controller of pytest-xdist must not call it, because its workers
    need the variables.
    """
    for host in hosts:
        for name in host.hypervisor.secret_variables:
            withdraw_variable(name)


def withdraw_variable(name: str) -> str | None:
    """The value of a variable, which is then removed from the environment; None if it was never there."""
    if name in os.environ:
        _withdrawn[name] = os.environ.pop(name)
    return _withdrawn.get(name)


def whole_environment() -> Mapping[str, str]:
    """The environment with the removed variables. Only for a command that the user asks the harness to run."""
    return os.environ | _withdrawn
