"""Keeps udev from probing the disk under test, and the layouts of a run, while they are measured.

udev watches block devices. When fio closes one after writing, udev reads its signatures, and those of the members of an
array: up to 2 MiB in the middle of the next slice. On a slow disk, that takes a tenth of the slice. A temporary rule
of udev turns the watch off. Source: udev(7), OPTIONS=nowatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import Writable
from harness.lab.paths import TAG
from harness.lab.transport.base import whole
from harness.run_id import RunId
from harness.shipped import read_script

RULES = "/run/udev/rules.d"
"""Rules that end with the next boot."""

_HAS_UDEV = 'PATH="$PATH:/usr/sbin:/sbin" command -v udevadm && [ -S /run/udev/control ]'
_MAKE = read_script("harness.layout", "inhibit_udev.sh")
_REMOVE = read_script("harness.layout", "restore_udev.sh")


class UdevRule(HostThing):
    """A file of udev rules in /run, identified by its first line, and the disk whose watch it turns off, if any."""

    kind: Literal["udev-rule"] = "udev-rule"
    path: str
    first: str
    disk: str = ""

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the udev rule {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.first, self.disk]


def rules(run_id: RunId, disk: str = "") -> str:
    """Rules without a watch for the run's volumes and arrays, and for the disk with this name in the kernel."""
    name = f"{TAG}-{run_id}"
    # device-mapper doubles a dash in the names of volume groups and volumes.
    partition = f"{disk}p" if disk[-1:].isdigit() else disk
    volume = name.replace("-", "--")
    devices = [f'ENV{{DM_NAME}}=="*{volume}*|{name}*"', f'ENV{{MD_DEVNAME}}=="{name}*"']
    if disk:
        devices.insert(0, f'KERNEL=="{disk}|{partition}[0-9]*"')
    return "".join(f'ACTION!="remove", SUBSYSTEM=="block", {device}, OPTIONS:="nowatch"\n' for device in devices)


@contextmanager
def unwatched(log: CreationLog, device: Writable) -> Iterator[None]:
    """Turn off udev's watch of this disk, and of all volumes and arrays that the run creates in the block.

    Changes nothing on a host without udev, or one that does not take the rule. Raises HostError.
    """
    with _rule(log, device.disks, device.name):
        yield


@contextmanager
def unwatched_volumes(log: CreationLog, label: str) -> Iterator[None]:
    """Turn off udev's watch of all volumes that the run creates in the block on a storage in use.

    `label` is the name of the storage in the creation log. Changes nothing on a host without udev. Raises HostError.
    """
    with _rule(log, (label,)):
        yield


@contextmanager
def _rule(log: CreationLog, disks: tuple[str, ...], disk: str = "") -> Iterator[None]:
    runner = log.runner
    if runner.run(["sh", "-c", _HAS_UDEV], deadline=20, check=False).status != 0:
        yield
        return
    path = f"{RULES}/99-{TAG}-{log.run_id}-{disk or 'volumes'}.rules"
    first = f"# virt-overhead {uuid.uuid4()}: no probes of what run {log.run_id} measures"
    with log.making_here(UdevRule(path=path, first=first, disk=disk, disks=disks)) as entry:
        content = f"{first}\n{rules(log.run_id, disk)}"
        make = fenced(entry, whole(["sh", "-c", _MAKE, "sh", path, disk], content))
        runner.run(make, stdin=content, deadline=60, check=False)
        yield
