"""On which disk a job of fio worked, as far as the names of its files tell. Pure."""

from __future__ import annotations

import posixpath
import re
from pathlib import PureWindowsPath

_SEPARATOR = re.compile(r"(?<!\\):|, ")
"""fio separates the files of a job with `:`. In a name, `:` is written `\\:`."""
_WINDOWS_DISK = re.compile(r"\\physicaldrive[0-9]+$", re.IGNORECASE)
_IN_MEMORY = "/dev/shm/"


def place_of(filename: str, directory: str) -> str:
    """fio's options `filename` and `directory` as one name. That of a directory ends with `/`."""
    if filename and directory:
        return ":".join(posixpath.join(directory, name) for name in _SEPARATOR.split(filename))
    return filename or (f"{directory.rstrip('/')}/" if directory else "")


def disk_of(place: str) -> str:
    """What stands for the disk: each device as it is, of a file its directory, and of a file on Windows its drive.

    A job for each file of one directory is common, so the names of files do not matter. Two directories may be two
    disks.
    """
    return ", ".join(sorted({_disk_of_file(name.replace("\\:", ":")) for name in _SEPARATOR.split(place) if name}))


def _disk_of_file(name: str) -> str:
    if disk := _WINDOWS_DISK.search(name):
        return disk[0].strip("\\").lower()
    drive = PureWindowsPath(name).drive
    if len(drive) == 2 and drive[1] == ":":
        return drive.upper()
    if name.startswith("/dev/") and not name.startswith(_IN_MEMORY):
        return posixpath.normpath(name)
    directory = name if name.endswith("/") else posixpath.dirname(name)
    return posixpath.normpath(directory) if directory else "."
