"""Finds the disks below a volume or a file: the devices whose counters show what reached disks."""

from __future__ import annotations

from harness.lab.transport.base import Runner
from harness.shipped import read_script

_BELOW = read_script("harness.lab", "list_members.sh")


def disks_below(runner: Runner, path: str) -> tuple[str, ...]:
    """The kernel's names of the disks below the volume or file at `path`.

    Empty if the host has no disk below it, as with NFS. Raises HostError.
    """
    return tuple(runner.run(["sh", "-s", "--", path], stdin=_BELOW, deadline=60).stdout.split())
