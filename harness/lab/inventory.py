"""The inventory of a lab: its hosts with their hypervisors, and their disks and storages under test.

On a storage in use, a run creates only its own volumes. Arrays that are there already are as their owner says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, BeforeValidator, Field

from harness.config.names import choices, one_line, plain_name
from harness.errors import ConfigError
from harness.feature import FeatureStorage, list_brought
from harness.model.base import Chunk, RaidLevel
from harness.model.disk import ARRAY, STORAGE, ArrayFacts, DiskClass, derive_class
from harness.model.guest import ANY_GUEST, GuestOptions
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

    @property
    def one_guest(self) -> bool:
        """Whether variants have the same VM one after the other."""

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
    one_guest: bool = False

    @property
    def boots_guests(self) -> bool:
        return self.borrowed is None

    def why_emulated(self, host: str) -> None:  # noqa: ARG002 - a HypervisorSpec
        return None


LIBVIRT = LibvirtSpec()

StoredLayout = Literal["lvm", "lvm-thin", "raw", "qcow2", "zvol", "rbd"]
"""Kinds of layout that are a volume on a storage."""

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
    kind: str
    """The kind that the lab file has, or `embedded`."""
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
