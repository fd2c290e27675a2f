"""The tables of a lab file, with the checks of each value: names, addresses, keys, paths, sizes, guests, storages."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from functools import cache
from ipaddress import AddressValueError, IPv4Interface, IPv6Address, NetmaskValueError
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from harness.config.names import absolute_path, choices, one_line, plain_name, word
from harness.errors import ConfigError
from harness.feature import FeatureStorage, list_brought
from harness.lab.inventory import (
    BorrowedVm,
    DiskByStorage,
    StatedArray,
    VmLogin,
    storage_kinds,
)
from harness.lab.transport.base import split_key
from harness.model.base import Shape
from harness.model.guest import OPTION_TYPES, OPTIONS_TABLE, GuestOptions
from harness.model.values import TomlTable
from harness.model.workloads import PROFILES
from harness.units import format_size, parse_endurance, parse_size

# fio 3.42: `strip_blank_end` ends each line of a job file at the first ; or #, at any position, and drops blanks at the
# end. `fio_keyword_replace` and environment variables replace words. None of these can be escaped.
_COMMENT = re.compile("[;#]")
_REPLACED = re.compile(r"\$(?:pagesize|mb_memory|ncpus)|\$\{")


def fio_path(path: str) -> str:
    """The value of fio's `filename` for this path. ValueError with the reason if fio cannot use the path.

    fio treats a colon as the end of a path, unless a backslash is before it. Other characters have no special meaning.
    """
    if match := _COMMENT.search(path):
        raise ValueError(f"fio treats the text after {match[0]} as a comment")
    if match := _REPLACED.search(path):
        raise ValueError(f"fio replaces {match[0]} by another value")
    if not path.isprintable():
        raise ValueError("a path in fio's job file cannot contain line breaks or control characters")
    if not path.startswith("/") or path != path.rstrip():
        raise ValueError("fio needs an absolute path without blanks at its end")
    return path.replace(":", "\\:")


SMALLEST_FILE = 64 * 1024**2
_MIB = 1024**2

_NAME_OR_IPV4 = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LINK = re.compile(r"/dev/disk/by-(?P<by>[a-z-]+)/[^/\s]+")
_PART = re.compile(r"-part[0-9]+$")
_BY_CONTENTS = ("label", "uuid", "partlabel", "partuuid", "designator", "gpt-auto-root")
_BY_PLACE = ("path", "diskseq", "loop-inode", "loop-ref")
_LUN = re.compile(r"/dev/disk/by-path/ip-[^/\s]+-iscsi-[^/\s]+-lun-[0-9]+")
"""The link of a LUN names its target, not a slot. Whether it is still the same disk, its serial number tells."""
_A_LINK = "allowed: a link such as /dev/disk/by-id/nvme-MODEL_SERIAL (ls -l /dev/disk/by-id/)"
_NOT_FILES = ("/dev", "/proc", "/sys")


def _profile(name: str) -> str:
    names = [profile.name for profile in PROFILES]
    if name not in names:
        raise ValueError(f"no such profile; {choices(name, names)}")
    return name


def host_address(text: str) -> str:
    """The name or the address of a machine. Raises ValueError for anything else."""
    if not _NAME_OR_IPV4.fullmatch(text) and not _is_ipv6(text):
        raise ValueError("allowed: only a name or an address; user and port have separate keys")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


def _host_key(text: str) -> str:
    try:
        kind, _ = split_key(text, origin="host_key")
    except ConfigError:
        kind = ""
    if not kind.startswith(("ssh-", "ecdsa-")):
        raise ValueError("not a public key; allowed: its type and the key, for example `ssh-ed25519 AAAA...`")
    return text


def _disk_link(text: str) -> str:
    """A link to a whole disk that does not depend on the disk's contents, because a run overwrites them."""
    link = _LINK.fullmatch(text)
    if link is None or text.endswith(("/.", "/..")):
        raise ValueError(_A_LINK)
    if link["by"] in _BY_CONTENTS:
        raise ValueError("names the contents of a disk, which the run overwrites; allowed: a link in /dev/disk/by-id/")
    if not _LUN.fullmatch(text):
        if link["by"] in _BY_PLACE:
            raise ValueError("names a slot, which may hold another disk later; allowed: a link in /dev/disk/by-id/")
        if link["by"] != "id":
            raise ValueError(_A_LINK)
    if _PART.search(text):
        raise ValueError("names a partition; allowed: the link of the whole disk, without -part...")
    try:
        fio_path(text)
    except ValueError as error:
        # Checked here, because at the first use by fio, the disk is already wiped.
        raise ValueError(f"{error}; allowed: another link to the disk (ls -l /dev/disk/by-*/)") from None
    return text


def _backing_file(value: object) -> Path:
    # The kernel reports the backing file of a loop device as this path. Another spelling would not match.
    path = absolute_path(value)
    if os.path.normpath(path) != str(path) or str(path).startswith("//"):
        raise ValueError("allowed: an absolute path without `..`")
    if path == Path("/") or any(path.is_relative_to(directory) for directory in _NOT_FILES):
        # A loop device on a disk would have no serial number to identify it.
        raise ValueError("cannot be a backing file; allowed: a path in a file system, or a disk by id and serial")
    return path


def _file_size(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('must be text in quotes; allowed: for example "2 GiB"')
    size = parse_size(value)
    if size < SMALLEST_FILE or size % _MIB:
        raise ValueError(f"not a valid size; allowed: {format_size(SMALLEST_FILE)} or more, in whole MiB")
    return size


def _endurance(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError('must be text in quotes; allowed: for example "600 TBW"')
    return parse_endurance(value)


Name = Annotated[str, AfterValidator(plain_name)]
ProfileName = Annotated[str, AfterValidator(_profile)]
Word = Annotated[str, AfterValidator(word)]
Address = Annotated[str, AfterValidator(host_address)]
HostKey = Annotated[str, AfterValidator(_host_key)]
HostPath = Annotated[Path, BeforeValidator(absolute_path)]
DiskLink = Annotated[str, AfterValidator(_disk_link)]
BackingFile = Annotated[Path, BeforeValidator(_backing_file)]
FileSize = Annotated[int, BeforeValidator(_file_size)]
Endurance = Annotated[int, BeforeValidator(_endurance)]


def find_array_problems(where: str, array: StatedArray | None) -> Iterator[str]:
    """How the table of an array contradicts itself, as messages below `where`."""
    if array is None:
        return
    missing = [key for key in ("level", "disks") if getattr(array, key) is None]
    if len(missing) == 1:
        yield f"{where}.{missing[0]}: missing; level and disks together say what the array can deliver"
    elif missing and array.legs > 1:
        yield f"{where}.legs = {array.legs}: cannot be used without level and disks"
    elif array.level is not None and array.disks is not None:
        try:
            Shape(array.level, array.disks, array.legs)
        except ValueError as error:
            yield f"{where}: {error}"


def check_references(
    arrays: Mapping[str, StatedArray], singles: Mapping[str, bool], name_of: Mapping[str, str]
) -> Iterator[str]:
    """One line for each array whose reference cannot be measured.

    `arrays` are those of a host by name. `singles` has its other disks and storages, and whether a run may write to
    them. `name_of` is where each of them is in the lab file.
    """
    for name, array in arrays.items():
        key = f'{name_of[name]}.array.reference = "{array.reference}"'
        if not array.reference:
            continue
        if array.reference == name or array.reference in arrays:
            yield f"{key}: is an array itself; allowed: a single disk of the same model, or a storage on one"
        elif array.reference not in singles:
            yield f"{key}: not on this host; {choices(array.reference, list(singles) or ['(none)'])}"
        elif not singles[array.reference]:
            yield f"{key}: a run overwrites it, but it does not have `destroy = true`; allowed: with it, or a storage"


_NOT_STORAGE = ("/dev", "/proc", "/sys", "/run")
# lvm(8): the names of volume groups and volumes; a hyphen cannot be first.
_LVM = r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*"


def _check_group(text: str) -> str:
    if not re.fullmatch(_LVM, text):
        raise ValueError('allowed: the name of a volume group, for example "pve" (vgs lists them)')
    return text


def _check_thin_pool(text: str) -> str:
    if not re.fullmatch(f"{_LVM}/{_LVM}", text):
        raise ValueError('allowed: volume group and thin pool, for example "pve/data" (lvs lists them)')
    return text


def _check_directory(value: object) -> str:
    path = str(absolute_path(value))
    if os.path.normpath(path) != path or path == "/" or path.startswith("//"):
        raise ValueError("allowed: an absolute path without `..`, and not the root directory")
    if any(path == directory or path.startswith(f"{directory}/") for directory in _NOT_STORAGE):
        raise ValueError("is not on a disk; allowed: a directory for files of virtual machines")
    fio_path(path)
    return path


class StorageKeys(TomlTable):
    """`[host.NAME.storage.X]`: exactly one of the keys of `storage_kinds`, the endurance of its disk, and its array."""

    volume_group: Annotated[str, AfterValidator(_check_group)] | None = None
    """A volume group of LVM, for example `"pve"`. Layout: `lvm`."""
    thin_pool: Annotated[str, AfterValidator(_check_thin_pool)] | None = None
    """Volume group and thin pool, `"pve/data"`. Layout: `lvm-thin`."""
    directory: Annotated[str, BeforeValidator(_check_directory)] | None = None
    """A directory on ext4, ext3, xfs, btrfs, f2fs, ZFS, NFS or CIFS. Layouts: `raw`, `qcow2`."""
    pool: Annotated[str, AfterValidator(one_line)] | None = None
    """An active pool of libvirt of the type dir, fs, netfs, logical or zfs. Layouts: those of its place."""
    storage: Word | None = None
    """A storage of a node of Proxmox VE that accepts disk images. Its type decides the layouts."""
    endurance: Endurance | None = None
    """The rated endurance of its disk, for example `"600 TBW"`."""
    array: StatedArray | None = None
    """What it is if it is on an array."""


@cache
def storage_keys() -> type[StorageKeys]:
    """The same with the keys of the features that are installed."""
    keys: dict[str, Any] = {
        kind.key: (Annotated[str, AfterValidator(kind.check)] | None, None) for kind in list_brought(FeatureStorage)
    }
    return create_model(StorageKeys.__name__, __base__=StorageKeys, **keys)


def make_storage(
    where: str, name: str, table: StorageKeys, *, of_hypervisor: bool, problems: list[str]
) -> DiskByStorage | None:
    """The storage. If it is not valid, `problems` gets a message below `where`, and the result is None.

    `of_hypervisor` says whether the hypervisor of the host has storages of its own.
    """
    allowed = [key for key, kind in storage_kinds().items() if kind.of_hypervisor is of_hypervisor]
    named = [(key, value) for key in storage_kinds() if (value := getattr(table, key)) is not None]
    if len(named) != 1:
        problems.append(f"{where}: allowed: exactly one of {', '.join(allowed)}")
        return None
    ((key, at),) = named
    if key not in allowed:
        problems.append(f"{where}.{key}: cannot be used on this kind of host; allowed: {', '.join(allowed)}")
        return None
    problems += find_array_problems(f"{where}.array", table.array)
    return DiskByStorage(name, key=key, at=at, endurance=table.endurance, array=table.array)


BY_AGENT = "agent"
"""How a borrowed VM is reached without SSH."""
WITH_PREFIX = 'allowed: an address with its prefix length, for example "192.0.2.50/24"'
_OF_BORROWED = frozenset({"borrow", "port", "user", "key", "host_key"})
_OF_BOTH = frozenset({"address", "reach"})
"""The keys that a borrowed VM has, and guests of some hypervisors."""


def _check_addresses(value: object) -> object:
    """One text is a list of one."""
    listed = value if isinstance(value, list) else [value]
    texts = [text for text in listed if isinstance(text, str)]
    if not texts or len(texts) < len(listed):
        raise ValueError(f"{WITH_PREFIX}, or a list of them")
    addresses = tuple(map(_check_address, texts))
    if len(set(addresses)) < len(addresses):
        raise ValueError("allowed: each address once")
    return addresses


def _check_address(text: str) -> str:
    """An address with its prefix length, or the name or address of a borrowed VM. The rest of the table decides."""
    if "/" not in text:
        return host_address(text)
    try:
        IPv4Interface(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise ValueError(WITH_PREFIX) from None
    return text


class GuestKeys(OPTIONS_TABLE):  # type: ignore[misc, valid-type] # it is created from the options of a guest
    """`[host.NAME.guest]`: a guest's options, or the VM that is borrowed instead."""

    borrow: Word | None = None
    """The name of a running VM, or its id on a node: disks are plugged into it. It excludes the options of guests."""
    port: int = Field(default=22, ge=1, le=65535)
    """Of a borrowed VM: the port of SSH."""
    user: Word = "root"
    """Of a borrowed VM: the user of the login, root or an administrator of Windows."""
    key: HostPath | None = None
    """Of a borrowed VM: the private SSH key for the login, except with `reach = "agent"`."""
    host_key: HostKey | None = None
    """Of a borrowed VM: its public host key; without it, that of the first contact."""
    address: Annotated[tuple[str, ...], BeforeValidator(_check_addresses)] = ()
    """Of Proxmox VE with `network = "static"`: the address with its prefix length (`"192.0.2.50/24"`), or a list for
    several guests. Of a borrowed VM: its name or address for SSH."""
    reach: Literal["node", "direct", "agent"] = "node"
    """SSH to the guest goes through its host, or directly; or, to a borrowed VM, commands run through its agent."""

    @property
    def options(self) -> GuestOptions:
        """The size and placement that guests on the host have, unless the scenario requests others."""
        return GuestOptions(**{name: getattr(self, name) for name in OPTION_TYPES})

    @property
    def of_hypervisor(self) -> set[str]:
        """The keys in the file that only some hypervisors have for guests that a run creates."""
        return set(self.model_fields_set) - set(OPTION_TYPES) - _OF_BORROWED - (_OF_BOTH if self.borrow else set())

    @property
    def of_login(self) -> set[str]:
        """The keys in the file that are about the login to a borrowed VM over SSH."""
        return set(self.model_fields_set & (_OF_BORROWED | {"address"})) - {"borrow"}

    @property
    def of_borrowed(self) -> set[str]:
        """The keys in the file that only a borrowed VM has."""
        return set(self.model_fields_set & _OF_BORROWED)


def check_borrowed_vm(where: str, table: GuestKeys, problems: list[str]) -> BorrowedVm | None:
    """The VM that the table names; None if it names none. `problems` gets a message for each key that is wrong."""
    if table.borrow is None:
        problems += [
            f'{where}.{key}: needs borrow; allowed: only with borrow = "VM"' for key in sorted(table.of_borrowed)
        ]
        return None
    by_agent = table.reach == BY_AGENT
    missing = [key for key in ("address", "key") if not getattr(table, key) and not by_agent]
    problems += [f'{where}.{key}: missing; borrow = "{table.borrow}" needs it for SSH' for key in missing]
    problems += [
        f'{where}.{key}: conflicts with reach = "{BY_AGENT}", which needs no login; allowed: one of the two'
        for key in sorted(table.of_login)
        if by_agent
    ]
    if any("/" in address for address in table.address) or len(table.address) > 1:
        given = ", ".join(table.address)
        problems.append(f'{where}.address = "{given}": allowed with borrow: a name or an address alone')
    problems += [
        f"{where}.{key}: conflicts with borrow, because size and placement of {table.borrow} belong to its owner; "
        "allowed: one of the two"
        for key in table.options.requested
    ]
    if by_agent:
        return BorrowedVm(table.borrow, None)
    if not table.address or table.key is None:
        return None
    login = VmLogin(table.address[0], table.port, table.user, table.key, table.host_key, table.reach == "node")
    return BorrowedVm(table.borrow, login)
