"""The disks under test: each checked by the guard, partitioned into the regions that layouts need, and not probed.

udev watches block devices. When fio closes one after writing, udev reads its signatures, and those of the members of an
array: up to 2 MiB in the middle of the next slice. On a slow disk, that takes a tenth of the slice. A temporary rule
of udev turns the watch off. Source: udev(7), OPTIONS=nowatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Literal

from harness.errors import SafetyError
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing, fenced
from harness.lab.guard import Writable, require_writable
from harness.lab.guard.room import reserve_places
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import TAG
from harness.lab.transport.base import whole
from harness.layout.device import block_device
from harness.layout.regions import Need, PartitionedDisk, add_needs, choose_span, partition_disk
from harness.run_id import RunId


@contextmanager
def partitioned_disks(
    log: CreationLog, disks: Sequence[DiskSpec], needs: Sequence[Mapping[str, Need]], *, span: int
) -> Iterator[tuple[list[PartitionedDisk], int]]:
    """Each disk partitioned into the regions that it needs, and the span in bytes that fits on all of them.

    The guard checks all disks before the first write, so no disk is overwritten if another one is refused. If there are
    several disks, it checks each again immediately before the write. Raises SafetyError, Unsupported or HostError.
    """
    runner = log.runner
    files = {str(disk.file): disk.size for disk in disks if isinstance(disk, DiskByFile) and disk.destroy}
    refused = f"{runner.name}: the files of these disks will not be created: "
    with ExitStack() as stack:
        stack.enter_context(reserve_places(log, files, refused))
        devices = [stack.enter_context(block_device(log, disk)) for disk in disks]
        writable = [require_writable(runner, disk, device) for disk, device in zip(disks, devices, strict=True)]
        _require_distinct(disks, writable)
        span = min(
            _choose_span(permission.size_bytes, need, span) for permission, need in zip(writable, needs, strict=True)
        )
        made = []
        for disk, device, permission, need in zip(disks, devices, writable, needs, strict=True):
            if len(disks) > 1:
                permission = require_writable(runner, disk, device)  # noqa: PLW2901 - the later permission counts
            sizes = [(what, region.bytes(span)) for what, region in need.items()]
            made.append(stack.enter_context(partition_disk(log, disk, permission, sizes)))
        yield made, span


def _choose_span(disk_bytes: int, needs: Mapping[str, Need], wanted: int) -> int:
    need = add_needs(needs.values())
    return choose_span(disk_bytes, fixed=need.fixed, shares=need.shares, wanted=wanted)


def _require_distinct(disks: Sequence[DiskSpec], writable: Sequence[Writable]) -> None:
    names: dict[str, str] = {}
    for disk, permission in zip(disks, writable, strict=True):
        if (other := names.setdefault(permission.path, disk.name)) != disk.name:
            raise SafetyError(
                f"{permission.runner.name}: disks {other} and {disk.name} are the same disk, {permission.path}",
                hint="correct their ids in the lab file: an array needs separate disks",
            )


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


def format_rules(run_id: RunId, disk: str = "") -> str:
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
def inhibit_udev(log: CreationLog, device: Writable) -> Iterator[None]:
    """Turn off udev's watch of this disk, and of all volumes and arrays that the run creates in the block.

    Changes nothing on a host without udev, or one that does not take the rule. Raises HostError.
    """
    with _write_rule(log, device.disks, device.name):
        yield


@contextmanager
def inhibit_udev_for_volumes(log: CreationLog, label: str) -> Iterator[None]:
    """Turn off udev's watch of all volumes that the run creates in the block on a storage in use.

    `label` is the name of the storage in the creation log. Changes nothing on a host without udev. Raises HostError.
    """
    with _write_rule(log, (label,)):
        yield


@contextmanager
def _write_rule(log: CreationLog, disks: tuple[str, ...], disk: str = "") -> Iterator[None]:
    runner = log.runner
    if runner.run(["sh", "-c", _HAS_UDEV], deadline=20, check=False).status != 0:
        yield
        return
    path = f"{RULES}/99-{TAG}-{log.run_id}-{disk or 'volumes'}.rules"
    first = f"# virt-overhead {uuid.uuid4()}: no probes of what run {log.run_id} measures"
    with log.making_here(UdevRule(path=path, first=first, disk=disk, disks=disks)) as entry:
        content = f"{first}\n{format_rules(log.run_id, disk)}"
        make = fenced(entry, whole(["sh", "-c", _MAKE, "sh", path, disk], content))
        runner.run(make, stdin=content, deadline=60, check=False)
        yield
