"""Is there room on a file system of the host for what a run is about to allocate?"""

from __future__ import annotations

from harness.errors import SafetyError
from harness.lab.space import shortage
from harness.lab.transport.base import Runner

# $1: a path that need not exist yet. Bytes available to root, and bytes in all, of the file system that it is on.
_FREE = r"""
at=$1
while [ ! -d "$at" ]; do at=$(dirname "$at"); done
stat -f -c '%f %b %S' "$at"
"""


def require_space(runner: Runner, path: str, size_bytes: int, refused: str) -> None:
    """SafetyError, which begins with `refused`, where `size_bytes` more would leave less than the reserve free.

    A sparse file counts in full, because a run fills it. Raises HostError where the host does not say how much is free.
    """
    free, blocks, unit = (int(word) for word in runner.run(["sh", "-c", _FREE, "sh", path], deadline=30).stdout.split())
    if why := shortage(free * unit, blocks * unit, size_bytes):
        raise SafetyError(
            f"{refused}{path} does not fit: {why}",
            hint="free space there, name a smaller size, or a path on another file system",
        )
