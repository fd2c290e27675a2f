"""The types of a lab file's values: names, addresses, keys, paths and sizes, each with its checks."""

from __future__ import annotations

import os.path
import re
from ipaddress import AddressValueError, IPv6Address
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from harness.config.names import choices, plain_name
from harness.config.values import absolute_path, word
from harness.errors import ConfigError
from harness.lab.transport.handshake import split_key
from harness.model.profile import PROFILES
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
