"""Writes files durably, finds those that another user could change, and those that come with the project.

A crash or a power failure leaves either the old content or the new content, never a part of it.
"""

from __future__ import annotations

import errno
import grp
import json
import os
import pwd
import re
import secrets
import select
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import IO, Literal

from harness.errors import ConfigError


def write_atomically(target: Path, content: str | bytes) -> None:
    """Replace the content of `target` by `content`, which is on the disk when this returns. Raises OSError.

    The target of a symbolic link is replaced, not the link. A terminal, /dev/null or a pipe gets the content.
    """
    content = content.encode() if isinstance(content, str) else content
    mode = target.stat().st_mode if target.exists() else stat.S_IFREG
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        target.write_bytes(content)
        return
    if stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "it is a disk")
    with replacing(Path(os.path.realpath(target))) as file:
        file.write(content)


@contextmanager
def replacing(target: Path, *, mode: int = 0o666, directory: int | None = None) -> Iterator[IO[bytes]]:
    """A file in the directory of `target` that replaces it at the end of the block. An error changes nothing.

    `mode` is the mode of the new file, less the umask. `directory` is a descriptor of the directory, if there is one.
    Raises OSError.
    """
    part = f".{target.name}.{secrets.token_hex(4)}.part"
    inside = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY) if directory is None else os.dup(directory)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=inside), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target.name, src_dir_fd=inside, dst_dir_fd=inside)
        os.fsync(inside)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part, dir_fd=inside)
        raise
    finally:
        os.close(inside)


def open_regular(path: Path, *, flags: int = 0, pipes: bool = False) -> IO[bytes]:
    """Open a regular file, or with `pipes` also a pipe, to read it. Raises OSError for anything else: it may never end.

    `flags` are further ones, for example O_NOFOLLOW.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags), "rb")
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
        file.close()
        raise OSError(errno.EINVAL, f"it is a {'' if pipes else 'pipe, a '}device or a socket, and not a regular file")
    return file


STORED_BYTES = 16 << 20
"""More than any file of a cache or state directory has, except for images."""
PIPE_SECONDS = 10.0  # for which a pipe may be silent


def read_regular(path: Path, *, most_bytes: int = STORED_BYTES, flags: int = 0, pipes: bool = False) -> bytes:
    """The content of a regular file. Raises OSError for anything else, also for a file that is too large.

    With `pipes`, which is for files that users name, it may also be a pipe that is not silent: `<(COMMAND)`.
    """
    content = bytearray()
    with open_regular(path, flags=flags, pipes=pipes) as file:
        while select.select([file], [], [], PIPE_SECONDS)[0]:
            content += (part := os.read(file.fileno(), 1 << 16))
            if len(content) > most_bytes:
                raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 20} MiB")
            if not part:
                return bytes(content)
    raise OSError(errno.ETIMEDOUT, f"nothing arrived in this pipe within {PIPE_SECONDS:.0f} s")


def write_stored(path: Path, document: object) -> None:
    """Replace a file of a cache or state directory by this JSON document, also a pipe of its name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(os.path.realpath(path))) as file:
        file.write(json.dumps(document, indent=1).encode() + b"\n")


def move(source: Path, target: Path) -> None:
    """Rename `source` to `target`, which may exist. The new name is on the disk when this returns.

    The content of `source` must be on the disk already: see `sync`.
    """
    source.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Write a file or a directory from the page cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why_not_own(status: os.stat_result, path: Path | None = None, *, only_read: bool = False) -> str | None:
    """Why another user could change this file or directory, as text; None if nobody could.

    Root is no other user, and neither is the one who called `sudo`. At `path`, its access control list is read. A file
    that is `only_read` may have several names, as `perf record` makes. To write to such a file changes it under its
    other names, too.
    """
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        trusted.add(int(os.environ["SUDO_UID"]))
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid not in trusted:
        return f"belongs to user {status.st_uid}"
    if stat.S_ISREG(status.st_mode) and status.st_nlink != 1 and not only_read:
        return "has several names"
    if status.st_mode & stat.S_IWOTH:
        return "can be changed by all users"
    return _why_of_group(status, path, trusted) if status.st_mode & stat.S_IWGRP else None


def _why_of_group(status: os.stat_result, path: Path | None, trusted: set[int]) -> str | None:
    if path is not None and _has_list(path):
        return "has an access control list that lets others change it"
    if others := _members(status.st_gid) - trusted:
        return f"can be changed by user {min(others)}, as a member of group {status.st_gid}"
    return None


def why_exchangeable(path: Path) -> str | None:
    """Why another user could exchange a part of this path, as text that names it; None if nobody could.

    In a sticky directory, users cannot exchange the entries of others. A part that does not exist is not checked.
    """
    for parts in (path.absolute(), path.resolve()):
        for part in (*reversed(parts.parents), parts):
            try:
                status = part.lstat()
            except OSError:
                break  # it does not exist, or cannot be used either
            if stat.S_ISLNK(status.st_mode):
                status = os.stat_result((stat.S_IFDIR | 0o755, *status[1:]))  # a link has no mode, but an owner
            why = why_not_own(status, part)
            sticky = status.st_mode & stat.S_ISVTX and status.st_uid in (0, os.geteuid())
            if why is not None and not sticky:
                return f"{part} {why}"
    return None


def _has_list(path: Path) -> bool:
    """Whether it has an access control list. The bits of its group are then the most that an entry allows."""
    try:
        return bool(os.getxattr(path, "system.posix_acl_access", follow_symlinks=False))
    except OSError:
        return False  # none, or a file system without such lists


def _members(group: int) -> set[int]:
    """The users that are in the group."""
    try:
        named = set(grp.getgrgid(group).gr_mem)
    except KeyError:
        named = set()
    return {user.pw_uid for user in pwd.getpwall() if user.pw_gid == group or user.pw_name in named}


_PACKAGE = Path(__file__).resolve().parent
_COMMENTS = re.compile(r"^[ \t]*#( .*)?\n", re.MULTILINE)


def shipped(name: Literal["scenarios", "images"]) -> Path:
    """The directory `name` of the project. A wheel has it as harness/data/NAME (`force-include` in pyproject.toml)."""
    installed = _PACKAGE / "data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def read_script(package: str, name: str, **values: object) -> str:
    """The script `name` for hosts or guests in the directory of `package`, without its lines of comment.

    Each of `values` replaces its name, a word in capitals, in the script.
    """
    text = _COMMENTS.sub("", files(package).joinpath(name).read_text(encoding="utf-8"))
    for word, value in values.items():
        text = text.replace(word, str(value))
    return text


Family = Literal["debian", "fedora", "rhel", "arch"]

_INSTALL: dict[Family, str] = {
    "debian": "apt-get install",
    "fedora": "dnf install",
    "rhel": "dnf install",
    "arch": "pacman -S --needed",
}
_FAMILIES: dict[str, Family] = {
    "debian": "debian",
    "ubuntu": "debian",
    "fedora": "fedora",
    "rhel": "rhel",
    "centos": "rhel",
    "arch": "arch",
}
_TABLE = Path(__file__).with_name("packages.txt")
OS_RELEASE = Path("/etc/os-release")


def os_ids(path: Path = OS_RELEASE) -> str:
    """`ID` and `ID_LIKE` of an os-release file: its distribution, and those that it is made from. Empty if unknown."""
    try:
        lines = [line.partition("=") for line in path.read_text(errors="replace").splitlines()]
        values = {key: " ".join(shlex.split(value)) for key, _, value in lines if key in ("ID", "ID_LIKE")}
    except (OSError, ValueError):
        return ""
    return " ".join(values[key] for key in ("ID", "ID_LIKE") if key in values)


def family_of(ids: str) -> Family | None:
    """The first known distribution among `ids` (the words of `ID` and `ID_LIKE`). None if none is known."""
    return next((_FAMILIES[name] for name in ids.split() if name in _FAMILIES), None)


def install_command(ids: str, *packages: str) -> str:
    """How to install `packages`, which have Debian's names, on the distribution `ids`.

    Says so if its archive lacks one of them. On an unknown distribution, Debian's names. Empty `ids`, of a host that
    did not say what it is, count as Debian.
    """
    family = family_of(ids) if ids else "debian"
    if family is None:
        return f"install what Debian has in {' '.join(packages)}"
    names = {package: _names()[package][family] for package in packages}
    there = list(dict.fromkeys(name for name in names.values() if name != "-"))
    lacking = [package for package, name in names.items() if name == "-"]
    command = f"{_INSTALL[family]} {' '.join(there)}" if there else ""
    missing = f"{', '.join(lacking)} (Debian's name) is not in this distribution's own archive" if lacking else ""
    return "; ".join(filter(None, (command, missing)))


@cache
def _names() -> dict[str, dict[Family, str]]:
    rows = [line.split() for line in _TABLE.read_text().splitlines() if not line.startswith("#")]
    return {row[0]: dict(zip(_INSTALL, row, strict=True)) for row in rows}


def write_page(path: Path, page: str, option: str = "--html") -> None:
    """Write the page for `--html`, or the file of another option. Raises ConfigError if it cannot be written."""
    try:
        write_atomically(path, page)
    except OSError as error:
        raise ConfigError(
            f"{option} {path} cannot be written: {error.strerror or error}",
            hint=f"check that {path.parent} exists and has space, and that this user may write there",
        ) from error
