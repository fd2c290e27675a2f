"""Files and directories of this machine that another user could change or exchange."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path


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
