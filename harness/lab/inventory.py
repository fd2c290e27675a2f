"""The inventory of a lab: hosts and their disks under test, from lab.toml or the embedded lab."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.config.names import choices
from harness.config.problems import describe
from harness.config.toml import read_toml
from harness.errors import ConfigError
from harness.lab import proxmox
from harness.lab.array import ArrayTable, StatedArray, reference_problems, stated_array
from harness.lab.borrowed import borrowed_vm, require_id
from harness.lab.fields import (
    Address,
    BackingFile,
    DiskLink,
    Endurance,
    FileSize,
    HostKey,
    HostPath,
    Name,
    ProfileName,
    Word,
)
from harness.lab.hypervisor import LIBVIRT, HypervisorSpec, KindRules, LibvirtSpec
from harness.lab.proxmox import ApiTable, GuestTable, ProxmoxSpec, StoredLayout
from harness.lab.storage import DiskByStorage, StorageTable, storage_spec
from harness.model.disk_class import ARRAY, STORAGE, DiskClass, class_of_link
from harness.model.guest import ANY_GUEST, GuestOptions, HostFile, guest_problems
from harness.model.variant import Variant, VariantName, VariantTable, variant_problems, variants_of

HINT = "docs/lab.md explains every key"
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
    variants: tuple[Variant, ...] = ()
    """In which variants the modes of scenarios are measured that have none of their own, the reference first."""

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
        found = {disk: self.host_of(disk) for disk in disks}
        if len({host.name for host in found.values()}) > 1:
            where = ", ".join(f"{disk} on {host.name}" for disk, host in found.items())
            raise ConfigError(
                f"{self.source}: the disks of one scenario are on several hosts: {where}",
                hint="all disks of an array must be on one host: change `disks` in the scenario",
            )
        return found[disks[0]]

    def only(self, host: str) -> Inventory:
        """The inventory with only the host of this name. ConfigError if there is none."""
        names = [each.name for each in self.hosts]
        if host not in names:
            raise ConfigError(f'{self.source}: no host "{host}"; {choices(host, names)}')
        return replace(self, hosts=tuple(each for each in self.hosts if each.name == host))


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class _Disk(_Table):
    id: DiskLink | None = None
    serial: Word | None = None
    overwrite_data: Word | None = None
    file: BackingFile | None = None
    size: FileSize | None = None
    destroy: bool = False
    endurance: Endurance | None = None
    disk_class: DiskClass | None = Field(default=None, alias="class")
    storages: dict[StoredLayout, str] | None = Field(default=None, min_length=1)
    array: ArrayTable | None = None


class _Host(_Table):
    kind: Literal["local", "ssh", "proxmox"]
    address: Address | None = None
    port: int = Field(default=22, ge=1, le=65535)
    user: Word = "root"
    key: HostPath | None = None
    host_key: HostKey | None = None
    fio: HostFile | None = None
    api: ApiTable | None = None
    guest: GuestTable | None = None
    backup_directory: HostPath | None = None
    disk: dict[Name, _Disk] = Field(default_factory=dict)
    storage: dict[Name, StorageTable] = Field(default_factory=dict)


_OF_SSH = frozenset({"address", "port", "user", "key", "host_key"})
_OF_HYPERVISOR = frozenset({"api"})
_KINDS: Mapping[str, KindRules] = {
    "local": KindRules(needless=_OF_SSH | _OF_HYPERVISOR, ssh="none"),
    "ssh": KindRules(needless=_OF_HYPERVISOR, ssh="required"),
    "proxmox": proxmox.KIND,
}


class _Lab(_Table):
    profile: ProfileName = "smoke"
    host: Annotated[dict[Name, _Host], Field(min_length=1)]
    variant: dict[VariantName, VariantTable] = Field(default_factory=dict)


def load_lab(path: Path) -> Inventory:
    """The lab from the file `path`. A ConfigError lists all problems, one per line, with key and allowed values."""
    return lab_of(read_toml(path, what="lab", hint=HINT), str(path))


def lab_of(data: dict[str, Any], source: str) -> Inventory:
    """The lab from the tables of a lab file. `source` is its name in messages. Raises ConfigError as `load_lab`."""
    try:
        table = _Lab.model_validate(data)
    except ValidationError as error:
        raise _refused(source, describe(error, data, _Lab)) from None
    problems: list[str] = []
    hosts = tuple(_host(name, host, problems) for name, host in table.host.items())
    problems += _named_twice(table)
    problems += variant_problems(table.variant)
    if problems:
        raise _refused(source, problems)
    return Inventory(source, table.profile, hosts, variants_of(table.variant))


def _named_twice(table: _Lab) -> Iterator[str]:
    """Machines and disks with two names. Otherwise a run could use both names of one disk at the same time."""
    machines: dict[tuple[object, ...], str] = {}
    for name, host in table.host.items():
        machine = (name,) if _KINDS[host.kind].several_names else (host.address, host.port)
        if (other := machines.setdefault((host.kind, *machine), name)) != name:
            yield f"host.{name}: the same machine as host.{other}; allowed: one table for each, with all of its disks"
        named: dict[tuple[str, object], str] = {}
        for disk_name, disk in host.disk.items():
            for key in ("id", "serial", "file"):
                value = getattr(disk, key)
                first = named.setdefault((key, value), disk_name)
                if value is not None and first != disk_name:
                    at = f"host.{name}.disk"
                    yield (
                        f'{at}.{disk_name}.{key} = "{value}": the same value as {at}.{first}; allowed: each disk once'
                    )


def _refused(source: str, problems: Iterable[str]) -> ConfigError:
    return ConfigError("\n".join(f"{source}: {problem}" for problem in problems), hint=HINT)


def _host(name: str, table: _Host, problems: list[str]) -> HostSpec:
    where = f"host.{name}"
    rules = _KINDS[table.kind]
    surplus = table.model_fields_set & rules.needless
    if surplus:
        allowed = _kinds(lambda each: min(surplus) not in each.needless)
        problems.append(
            f'{where}.{min(surplus)}: cannot be used with kind = "{table.kind}"; allowed: only with kind = {allowed}'
        )
    hypervisor = _hypervisor(where, table, problems)
    guest = _guest(f"{where}.guest", table, problems)
    address = table.address or hypervisor.address
    found = [_disk(f"{where}.disk.{key}", key, disk, table.kind, problems) for key, disk in table.disk.items()]
    disks = tuple(disk for disk in found if isinstance(disk, DiskById | DiskByFile))
    stored = tuple(disk for disk in found if isinstance(disk, DiskByStorage))
    stored += tuple(_storages(where, table, problems))
    problems += _references(where, table, (*disks, *stored))
    ssh = None if rules.ssh == "none" else _ssh(where, table, address, problems)
    return HostSpec(
        name,
        table.kind,
        ssh,
        disks,
        hypervisor=hypervisor,
        stored=stored,
        guest=guest,
        backup_directory=table.backup_directory,
        fio=table.fio or "fio",
    )


def _references(where: str, table: _Host, disks: Sequence[AnyDisk]) -> Iterator[str]:
    """The arrays of a host whose reference is not a disk that a run may measure."""
    arrays = {disk.name: own for disk in disks if (own := array_of(disk)) is not None}
    arrays_there = arrays.keys() | {disk.name for disk in disks if class_known(disk) == ARRAY}
    singles = {
        disk.name: isinstance(disk, DiskByStorage) or disk.destroy for disk in disks if disk.name not in arrays_there
    }
    kinds = {disk.name: "disk" if disk.name in table.disk else "storage" for disk in disks}
    yield from reference_problems(arrays, singles, {name: f"{where}.{kind}.{name}" for name, kind in kinds.items()})


def _kinds(fit: Callable[[KindRules], bool]) -> str:
    """The kinds of hosts whose rules fit, for a message."""
    return " or ".join(f'"{kind}"' for kind, rules in _KINDS.items() if fit(rules))


def _hypervisor(where: str, table: _Host, problems: list[str]) -> HypervisorSpec:
    guest = table.guest
    borrowed = borrowed_vm(f"{where}.guest", guest, problems) if guest is not None else None
    if table.kind == "proxmox":
        if guest is not None and guest.borrow is not None:
            require_id(f"{where}.guest", guest, problems)
            guest = guest.beside_borrowed
        spec = proxmox.proxmox_spec(where, table.api, guest, problems)
        return LIBVIRT if spec is None else replace(spec, borrowed=borrowed)
    return LibvirtSpec(borrowed) if borrowed is not None else LIBVIRT


def _guest(where: str, table: _Host, problems: list[str]) -> GuestOptions:
    if table.guest is None:
        return ANY_GUEST
    if table.kind != "proxmox" and (surplus := sorted(table.guest.of_node)):
        why = f'cannot be used with kind = "{table.kind}"; allowed: only with kind = "proxmox"'
        problems += [f"{where}.{key}: {why}" for key in surplus]
    problems += [f"{where}.{problem}" for problem in guest_problems(table.guest.options)]
    return table.guest.options


def _ssh(where: str, table: _Host, address: str | None, problems: list[str]) -> SshAddress | None:
    required = _KINDS[table.kind].ssh == "required"
    if not required and not table.model_fields_set & _OF_SSH:
        return None
    # If SSH is optional, the address may be the address of the hypervisor's API. A missing one is reported there.
    needed = {"address": address, "key": table.key} if required else {"key": table.key}
    missing = [key for key, value in needed.items() if value is None]
    problems += [f'{where}.{key}: missing; a host of kind "{table.kind}" needs it' for key in missing]
    return SshAddress(address, table.port, table.user, table.key, table.host_key) if address and table.key else None


def _disk(where: str, name: str, table: _Disk, kind: str, problems: list[str]) -> AnyDisk | None:
    if table.file is not None and (why_no_files := _KINDS[kind].why_no_files):
        problems.append(f"{where}.file: {why_no_files}")
        return None
    if table.storages is not None:
        return _stored(where, name, table, kind, problems)
    if table.array is not None and (table.file is not None or table.disk_class not in (None, ARRAY)):
        other = "file" if table.file is not None else f'class = "{table.disk_class}"'
        problems.append(f"{where}.array: cannot be used with {other}; allowed: with id + serial, or storages")
        return None
    if table.file is not None:
        return _by_file(where, name, table, table.file, problems)
    array = stated_array(f"{where}.array", table.array, problems)
    why = "id and serial together identify the disk that may be overwritten"
    problems += [f"{where}.{key}: missing; {why}" for key in ("id", "serial") if getattr(table, key) is None]
    if table.size is not None:
        problems.append(f"{where}.size: cannot be used with id; allowed: only with file")
    overwrites = table.overwrite_data in (None, table.serial)
    if not overwrites:
        problems.append(
            f'{where}.overwrite_data = "{table.overwrite_data}": is not the serial number of this disk; allowed: '
            f'"{table.serial}", and only if nobody needs the data on it'
        )
    if table.id and table.serial and overwrites:
        return DiskById(
            name, table.id, table.serial, table.destroy, table.overwrite_data, table.endurance, table.disk_class, array
        )
    return None


def _by_file(where: str, name: str, table: _Disk, file: Path, problems: list[str]) -> DiskByFile | None:
    if table.id or table.serial:
        problems.append(f"{where}: file and id cannot be used together; allowed: id + serial, or file + size")
    elif table.overwrite_data is not None:
        problems.append(f"{where}.overwrite_data: cannot be used with file; allowed: only with id + serial")
    elif table.size is None:
        problems.append(f'{where}.size: missing; a disk with a backing file needs it, for example "2 GiB"')
    else:
        return DiskByFile(name, file, table.size, table.destroy, table.endurance, table.disk_class)
    return None


def _storages(where: str, table: _Host, problems: list[str]) -> Iterator[DiskByStorage]:
    own = _KINDS[table.kind].storages
    places: dict[str, str] = {}
    for name, storage in table.storage.items():
        at = f"{where}.storage.{name}"
        if name in table.disk:
            problems.append(f"{at}: {where}.disk.{name} has the same name; allowed: another name")
        spec = storage_spec(at, name, storage, of_hypervisor=own, problems=problems)
        if spec is not None and (first := places.setdefault(spec.identity, name)) != name:
            problems.append(f"{at}: the same {spec.identity} as {where}.storage.{first}; allowed: each storage once")
        elif spec is not None:
            yield spec


def _stored(where: str, name: str, table: _Disk, kind: str, problems: list[str]) -> DiskByStorage | None:
    before = len(problems)
    if not _KINDS[kind].storages:
        allowed = _kinds(lambda rules: rules.storages)
        problems.append(f'{where}.storages: cannot be used with kind = "{kind}"; allowed: only with kind = {allowed}')
    kept = {"storages", "endurance", "array"}
    surplus = sorted(_Disk.model_fields[key].alias or key for key in table.model_fields_set - kept)
    why = "cannot be used with storages, on which a run writes only to volumes that it creates"
    problems += [f"{where}.{key}: {why}" for key in surplus]
    array = stated_array(f"{where}.array", table.array, problems)
    if len(problems) > before:
        return None
    return DiskByStorage(name, table.storages or {}, endurance=table.endurance, array=array)
