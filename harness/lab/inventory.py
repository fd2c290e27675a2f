"""The inventory of a lab: its hosts, and their disks under test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.config.names import choices
from harness.errors import ConfigError
from harness.lab.hypervisor import LIBVIRT, HypervisorSpec
from harness.lab.proxmox import ProxmoxSpec
from harness.lab.storage import DiskByStorage, StatedArray
from harness.model.disk import ARRAY, STORAGE, DiskClass, class_of_link
from harness.model.guest import ANY_GUEST, GuestOptions
from harness.scenario.scenario import Requested

EMBEDDED = "lab"
"""The name of the embedded lab's only host."""


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
    return disk.disk_class or (class_of_link(disk.id) if isinstance(disk, DiskById) else None)


@dataclass(frozen=True, slots=True)
class SshAddress:
    """The SSH address of a host and the key for the login. Without `host_key`, that of the first contact is stored."""

    address: str
    port: int
    user: str
    key: Path
    host_key: str | None


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
        """The only host that has `disk`. Otherwise a ConfigError names the existing disks."""
        having = [host for host in self.hosts if any(each.name == disk for each in host.measured)]
        if len(having) == 1:
            return having[0]
        if having:
            names = ", ".join(host.name for host in having)
            raise ConfigError(
                f'{self.source}: disk "{disk}" is on several hosts: {names}', hint="choose one with --host NAME"
            )
        known = [each.name for host in self.hosts for each in host.measured]
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
        names = [each.name for each in self.hosts]
        if host not in names:
            raise ConfigError(f'{self.source}: no host "{host}"; {choices(host, names)}')
        return replace(self, hosts=tuple(each for each in self.hosts if each.name == host))
