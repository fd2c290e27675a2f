"""Writes files durably, and finds those that another user of this machine could change.

A crash or a power failure leaves either the old content or the new content, never a part of it.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def read_regular(path: Path, *, most_bytes: int) -> bytes:
    """The content of a file in a directory of somebody else. Raises OSError.

    A link, a pipe or a device there could lead to another file, or never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return content


def write_atomically(target: Path, content: str | bytes) -> None:
    """Replace the content of `target` by `content`, which is on the disk when this returns. Raises OSError."""
    with replacing(target) as file:
        file.write(content.encode() if isinstance(content, str) else content)


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


def why_not_own(status: os.stat_result, path: Path | None = None) -> str | None:
    """Why another user could change this file or directory, as text; None if nobody could.

    Root is no other user, and neither is the one who called `sudo`. At `path`, its access control list is read.
    """
    trusted = {0, os.geteuid()}
    if os.geteuid() == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        trusted.add(int(os.environ["SUDO_UID"]))
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_uid not in trusted:
        return f"belongs to user {status.st_uid}"
    if stat.S_ISREG(status.st_mode) and status.st_nlink != 1:
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
