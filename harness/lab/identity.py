"""A description of this process and its machine that is unique even if host names and process ids are not."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_process() -> str:
    """User, machine and process. A host name or a process id alone may also belong to another machine."""
    return (
        f"{_user()}@{socket.gethostname()}, process {os.getpid()} started {_started()}, "
        f"machine-id {_content(_MACHINE_ID)}, boot-id {_content(_BOOT_ID)}"
    )


def start_ticks(pid: int) -> str:
    """Field 22 of proc(5)'s stat, the start time in ticks since boot; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def utc(seconds: float) -> str:
    """A time since the epoch, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _started() -> str:
    ticks = start_ticks(os.getpid())
    if not ticks:
        return "at an unknown time"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return utc(time.time() - age)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The user of a container may have an id, but no name.
        return str(os.getuid())


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip() or "unknown"
    except OSError:
        return "unknown"
