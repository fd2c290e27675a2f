"""Reads a lab file: its schema, what its keys require of each other, and the inventory that follows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, create_model

from harness.config.problems import describe, read_toml
from harness.errors import ConfigError
from harness.feature import FeatureHypervisor, FeatureTables, embedded_lab, find_brought, list_brought
from harness.lab.inventory import (
    LIBVIRT,
    AnyDisk,
    DiskByFile,
    DiskById,
    DiskByStorage,
    HostSpec,
    HypervisorSpec,
    Inventory,
    LibvirtSpec,
    SshAddress,
    StatedArray,
    StoredLayout,
    array_of,
    class_known,
)
from harness.lab.lab_schema import (
    Address,
    BackingFile,
    DiskLink,
    Endurance,
    FileSize,
    GuestKeys,
    HostKey,
    HostPath,
    Name,
    ProfileName,
    StorageKeys,
    Word,
    check_borrowed_vm,
    check_references,
    find_array_problems,
    make_storage,
    storage_keys,
)
from harness.model.disk import ARRAY, DiskClass
from harness.model.guest import ANY_GUEST, GuestOptions, HostFile, find_guest_problems
from harness.model.values import TomlTable
from harness.scenario.scenario import Requested

OF_SSH = frozenset({"address", "port", "user", "key", "host_key"})
"""The keys that are about the login over SSH."""


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
    keys: frozenset[str] = frozenset()
    """Keys that hosts of other kinds do not have."""
    guest_keys: frozenset[str] = frozenset()
    """Keys of the host's guests that those of libvirt do not have."""


@cache
def host_kinds() -> Mapping[str, KindRules]:
    """The kinds of hosts: those with libvirt, then those that features bring."""
    kinds = {
        "local": KindRules(needless=OF_SSH, ssh="none"),
        "ssh": KindRules(needless=frozenset(), ssh="required"),
        **{brought.kind: brought.rules for brought in list_brought(FeatureHypervisor)},
    }
    of_some = frozenset().union(*(rules.keys for rules in kinds.values()))
    return {kind: replace(rules, needless=rules.needless | of_some - rules.keys) for kind, rules in kinds.items()}


def list_kinds(fit: Callable[[KindRules], bool]) -> str:
    """The kinds of hosts whose rules fit, for a message."""
    return " or ".join(f'"{kind}"' for kind, rules in host_kinds().items() if fit(rules))


KEYS_HINT = "docs/reference/file-keys.md has every key"


class DiskKeys(TomlTable):
    id: DiskLink | None = None
    """A link below `/dev/disk/by-id/` to the whole disk that names this disk wherever it is plugged in. Links that name
    a slot, an order, a partition or the contents are refused, except the `by-path` link of a LUN of iSCSI."""
    serial: Word | None = None
    """The serial number that the host reads from it: required with `id`."""
    overwrite_data: Word | None = None
    """The disk's `serial` again: it holds data of an unknown kind, and nobody needs it."""
    file: BackingFile | None = None
    """A file that is created for a loop device and removed at the end. An existing file is refused."""
    size: FileSize | None = None
    """The size of the file, in whole MiB: required with `file`."""
    destroy: bool = False
    """Whether the owner confirms that everything on it may be overwritten."""
    endurance: Endurance | None = None
    """The rated endurance from the data sheet, for `--max-writes=1%`."""
    disk_class: DiskClass | None = Field(default=None, alias="class")
    """What the disk is, for scenarios that ask for a class; without it, by the link."""
    storages: dict[StoredLayout, str] | None = Field(default=None, min_length=1)
    """Storages of a node by the layout that they provide, in place of a disk."""
    array: StatedArray | None = None
    """The disk is an array: what it is, and which single disk it is compared with."""


class HostKeys(TomlTable):
    kind: str
    """This machine, a host that is reached over SSH, or a node of Proxmox VE."""
    address: Address | None = None
    """Its name or address for SSH, without user or port: required with `ssh`, else that of the API."""
    port: int = Field(default=22, ge=1, le=65535)
    """The port of SSH."""
    user: Word = "root"
    """The user to log in as. It must be root."""
    key: HostPath | None = None
    """The private key, without a passphrase: required with `ssh`. Without it on Proxmox VE, pytest runs on the node."""
    host_key: HostKey | None = None
    """The host's public key, as `ssh-keyscan -t ed25519 HOST` prints it; without it, that of the first contact."""
    fio: HostFile | None = None
    """The program that measures the host; without it, the one that the host finds."""
    guest: GuestKeys | None = None
    """The size and placement of guests on the host, and how to create them on a node."""
    backup_directory: HostPath | None = None
    """Where backups beside a guest are written to; without it, `/var/lib/virt-overhead/backup`. Not on Proxmox VE."""
    disk: dict[Name, DiskKeys] = Field(default_factory=dict)
    """The disks under test."""
    storage: dict[Name, StorageKeys] = Field(default_factory=dict)
    """Storage in use, on which a run creates only its own volumes."""


class LabKeys(TomlTable):
    profile: ProfileName = "smoke"
    """The profile of runs without `--profile`."""
    host: Annotated[dict[Name, HostKeys], Field(min_length=1)]
    """The hosts."""


LAB_FILE = "lab.toml"
LAB_VARIABLE = "VIRT_OVERHEAD_LAB"
EMBEDDED_LAB = "embedded"


def find_lab(named: Path | None, project: Path, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The lab file `named`, else the one of the variable, else lab.toml in `project`; None for the embedded lab."""
    default = project / LAB_FILE
    chosen = named or environment.get(LAB_VARIABLE) or (default if default.exists() else EMBEDDED_LAB)
    return Path(chosen) if str(chosen) != EMBEDDED_LAB else None


def choose_inventory(named: Path | None, project: Path) -> Inventory:
    """The hosts of the lab file that `find_lab` finds. Raises ConfigError if it cannot be used."""
    path = find_lab(named, project)
    return load_lab(path) if path is not None else embedded_lab().list_hosts()


def load_lab(path: Path) -> Inventory:
    """The lab from the file `path`. A ConfigError lists all problems, one per line, with key and allowed values."""
    hint = KEYS_HINT if path.exists() else "virt-overhead init writes one"
    return lab_of(read_toml(path, what="lab", hint=hint), str(path))


def lab_of(data: dict[str, Any], source: str) -> Inventory:
    """The lab from the tables of a lab file. `source` is its name in messages. Raises ConfigError as `load_lab`."""
    try:
        table = _make_schema().model_validate(data)
    except ValidationError as error:
        raise _refuse(source, describe(error, data, _make_schema())) from None
    problems: list[str] = []
    hosts = tuple(_make_host(name, host, problems) for name, host in table.host.items())
    problems += _find_named_twice(table)
    requests: list[Requested] = []
    for tables in _collect_tables():
        asked: dict[str, object] = getattr(table, tables.key)
        problems += tables.check_tables(asked)
        requests += [Requested(name, value) for name, value in asked.items()]
    if problems:
        raise _refuse(source, problems)
    return Inventory(source, table.profile, hosts, tuple(requests))


@cache
def _make_schema() -> type[LabKeys]:
    """The whole file: with the tables of the features that are installed."""
    keys: dict[str, Any] = {
        tables.key: (dict[tables.name_type, tables.table], Field(default_factory=dict))  # type: ignore[name-defined]
        for tables in _collect_tables()
    }
    hosts: Any = dict[Name, make_host_keys()]  # type: ignore[misc] # known at run time
    keys["host"] = (Annotated[hosts, Field(min_length=1)], ...)
    return create_model(LabKeys.__name__, __base__=LabKeys, **keys)


@cache
def make_host_keys() -> type[HostKeys]:
    """The table of a host of any kind that is installed."""
    brought = tuple(hypervisor.host_keys for hypervisor in list_brought(FeatureHypervisor))
    kinds: Any = Literal[tuple(host_kinds())]
    storages: Any = dict[Name, storage_keys()]  # type: ignore[misc] # known at run time
    table: type[HostKeys] = create_model(
        HostKeys.__name__,
        __base__=brought or HostKeys,
        kind=(kinds, ...),
        storage=(storages, Field(default_factory=dict)),
    )
    return table


def _collect_tables() -> list[FeatureTables]:
    return [tables for tables in list_brought(FeatureTables) if tables.in_lab]


def _find_named_twice(table: LabKeys) -> Iterator[str]:
    """Machines and disks with two names. Otherwise a run could use both names of one disk at the same time."""
    machines: dict[tuple[object, ...], str] = {}
    for name, host in table.host.items():
        machine = (name,) if host_kinds()[host.kind].several_names else (host.address, host.port)
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


def _refuse(source: str, problems: Iterable[str]) -> ConfigError:
    missing = "" if list_brought(FeatureHypervisor) else "; hosts of further kinds need a feature that is not installed"
    return ConfigError("\n".join(f"{source}: {problem}" for problem in problems), hint=KEYS_HINT + missing)


def _make_host(name: str, table: HostKeys, problems: list[str]) -> HostSpec:
    where = f"host.{name}"
    rules = host_kinds()[table.kind]
    surplus = table.model_fields_set & rules.needless
    if surplus:
        allowed = list_kinds(lambda kind_rules: min(surplus) not in kind_rules.needless)
        problems.append(
            f'{where}.{min(surplus)}: cannot be used with kind = "{table.kind}"; allowed: only with kind = {allowed}'
        )
    hypervisor = _make_hypervisor(where, table, problems)
    guest = _make_guest(f"{where}.guest", table, problems)
    address = table.address or hypervisor.address
    made = [_make_disk(f"{where}.disk.{key}", key, disk, table.kind, problems) for key, disk in table.disk.items()]
    disks = tuple(disk for disk in made if isinstance(disk, DiskById | DiskByFile))
    stored = tuple(disk for disk in made if isinstance(disk, DiskByStorage))
    stored += tuple(_make_storages(where, table, problems))
    problems += _check_references(where, table, (*disks, *stored))
    ssh = None if rules.ssh == "none" else _make_ssh(where, table, address, problems)
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


def _make_hypervisor(where: str, table: HostKeys, problems: list[str]) -> HypervisorSpec:
    guest = table.guest
    borrowed = check_borrowed_vm(f"{where}.guest", guest, problems) if guest is not None else None
    if (brought := find_brought(FeatureHypervisor, kind=table.kind)) is not None:
        return brought.make_spec(where, table, borrowed, problems) or LIBVIRT
    return LibvirtSpec(borrowed) if borrowed is not None else LIBVIRT


def _make_guest(where: str, table: HostKeys, problems: list[str]) -> GuestOptions:
    if table.guest is None:
        return ANY_GUEST
    for key in sorted(table.guest.of_hypervisor - host_kinds()[table.kind].guest_keys):
        kinds = [f'"{kind}"' for kind, rules in host_kinds().items() if key in rules.guest_keys]
        allowed = f"kind = {' or '.join(kinds)}" if kinds else 'borrow = "VM"'
        problems.append(f'{where}.{key}: cannot be used with kind = "{table.kind}"; allowed: only with {allowed}')
    problems += [f"{where}.{problem}" for problem in find_guest_problems(table.guest.options)]
    return table.guest.options


def _make_ssh(where: str, table: HostKeys, address: str | None, problems: list[str]) -> SshAddress | None:
    required = host_kinds()[table.kind].ssh == "required"
    if not required and not table.model_fields_set & OF_SSH:
        return None
    # If SSH is optional, the address may be the address of the hypervisor's API. A missing one is reported there.
    needed = {"address": address, "key": table.key} if required else {"key": table.key}
    missing = [key for key, value in needed.items() if value is None]
    problems += [f'{where}.{key}: missing; a host of kind "{table.kind}" needs it' for key in missing]
    return SshAddress(address, table.port, table.user, table.key, table.host_key) if address and table.key else None


def _make_disk(where: str, name: str, table: DiskKeys, kind: str, problems: list[str]) -> AnyDisk | None:
    if table.file is not None and (why_no_files := host_kinds()[kind].why_no_files):
        problems.append(f"{where}.file: {why_no_files}")
        return None
    if table.storages is not None:
        return _make_stored_disk(where, name, table, kind, problems)
    if table.array is not None and (table.file is not None or table.disk_class not in (None, ARRAY)):
        other = "file" if table.file is not None else f'class = "{table.disk_class}"'
        problems.append(f"{where}.array: cannot be used with {other}; allowed: with id + serial, or storages")
        return None
    if table.file is not None:
        return _make_file_disk(where, name, table, table.file, problems)
    problems += find_array_problems(f"{where}.array", table.array)
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
            name,
            table.id,
            table.serial,
            table.destroy,
            table.overwrite_data,
            table.endurance,
            table.disk_class,
            table.array,
        )
    return None


def _make_file_disk(where: str, name: str, table: DiskKeys, file: Path, problems: list[str]) -> DiskByFile | None:
    if table.id or table.serial:
        problems.append(f"{where}: file and id cannot be used together; allowed: id + serial, or file + size")
    elif table.overwrite_data is not None:
        problems.append(f"{where}.overwrite_data: cannot be used with file; allowed: only with id + serial")
    elif table.size is None:
        problems.append(f'{where}.size: missing; a disk with a backing file needs it, for example "2 GiB"')
    else:
        return DiskByFile(name, file, table.size, table.destroy, table.endurance, table.disk_class)
    return None


def _make_stored_disk(where: str, name: str, table: DiskKeys, kind: str, problems: list[str]) -> DiskByStorage | None:
    before = len(problems)
    if not host_kinds()[kind].storages:
        allowed = list_kinds(lambda rules: rules.storages)
        problems.append(f'{where}.storages: cannot be used with kind = "{kind}"; allowed: only with kind = {allowed}')
    kept = {"storages", "endurance", "array"}
    surplus = sorted(DiskKeys.model_fields[key].alias or key for key in table.model_fields_set - kept)
    why = "cannot be used with storages, on which a run writes only to volumes that it creates"
    problems += [f"{where}.{key}: {why}" for key in surplus]
    problems += find_array_problems(f"{where}.array", table.array)
    if len(problems) > before:
        return None
    return DiskByStorage(name, table.storages or {}, endurance=table.endurance, array=table.array)


def _make_storages(where: str, table: HostKeys, problems: list[str]) -> Iterator[DiskByStorage]:
    of_hypervisor = host_kinds()[table.kind].storages
    places: dict[str, str] = {}
    for name, storage in table.storage.items():
        at = f"{where}.storage.{name}"
        if name in table.disk:
            problems.append(f"{at}: {where}.disk.{name} has the same name; allowed: another name")
        spec = make_storage(at, name, storage, of_hypervisor=of_hypervisor, problems=problems)
        if spec is not None and (first := places.setdefault(spec.identity, name)) != name:
            problems.append(f"{at}: the same {spec.identity} as {where}.storage.{first}; allowed: each storage once")
        elif spec is not None:
            yield spec


def _check_references(where: str, table: HostKeys, disks: Sequence[AnyDisk]) -> Iterator[str]:
    """The arrays of a host whose reference is not a disk that a run may measure."""
    arrays = {disk.name: array for disk in disks if (array := array_of(disk)) is not None}
    arrays_there = arrays.keys() | {disk.name for disk in disks if class_known(disk) == ARRAY}
    singles = {
        disk.name: isinstance(disk, DiskByStorage) or disk.destroy for disk in disks if disk.name not in arrays_there
    }
    kinds = {disk.name: "disk" if disk.name in table.disk else "storage" for disk in disks}
    yield from check_references(arrays, singles, {name: f"{where}.{kind}.{name}" for name, kind in kinds.items()})
