"""Checks that a file system of the host has enough free space for what a run is about to allocate."""

from __future__ import annotations

from harness.errors import SafetyError
from harness.lab.space import shortage
from harness.lab.transport.base import Runner

# $1: a path that need not exist yet. Prints free and total blocks of its file system, and the size of a block.
_FREE = r"""
at=$1
while [ ! -d "$at" ]; do at=$(dirname "$at"); done
stat -f -c '%f %b %S' "$at"
"""


def require_space(runner: Runner, path: str, size_bytes: int, refused: str) -> None:
    """Raises SafetyError, which begins with `refused`, if `size_bytes` more would leave less than the reserve free.

    A sparse file counts with its full size, because a run fills it. Raises HostError if the free space is unknown.
    """
    if why := no_space(runner, path, size_bytes):
        raise SafetyError(
            f"{refused}{path} does not fit: {why}",
            hint="free space there, or name a smaller size or a path on another file system",
        )


def no_space(runner: Runner, path: str, size_bytes: int) -> str | None:
    """Why `size_bytes` more at `path` would leave less than the reserve free, as text; None if they would not.

    Raises HostError if the free space is unknown.
    """
    free, blocks, unit = (int(word) for word in runner.run(["sh", "-c", _FREE, "sh", path], deadline=30).stdout.split())
    return shortage(free * unit, blocks * unit, size_bytes)
