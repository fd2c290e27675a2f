"""The disks under test: each checked by the guard, partitioned into the regions that layouts need, and not probed.

A disk is a link to a real disk, or a loop device on a new file.
udev watches block devices. When fio closes one after writing, udev reads its signatures, and those of the members of an
array: up to 2 MiB in the middle of the next slice. On a slow disk, that takes a tenth of the slice. A temporary rule
of udev turns the watch off. Source: udev(7), OPTIONS=nowatch.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated, ClassVar, Literal

from harness.config.names import RunId
from harness.config.problems import matching
from harness.errors import SafetyError
from harness.files import read_script
from harness.lab.created import CreationLog, Entry, HostThing, fenced
from harness.lab.guard import Writable, require_writable, serial_of
from harness.lab.guard.room import reserve_places
from harness.lab.inventory import DiskByFile, DiskSpec
from harness.lab.pin import FILE_IDENTITY, TAG
from harness.lab.transport.base import Completed, Runner, whole
from harness.layout.regions import Need, PartitionedDisk, add_needs, choose_span, partition_disk
from harness.untrusted import parse_json, reading

_OURS = FILE_IDENTITY + read_script("harness.layout", "our_file.sh")
_DETACH = _OURS + read_script("harness.layout", "detach_loop.sh")
_REMOVE_FILE = _OURS + read_script("harness.layout", "remove_file.sh")
_MAKE_FILE = FILE_IDENTITY + read_script("harness.layout", "create_file.sh")
_FILESYSTEM = FILE_IDENTITY + 'filesystem_of "$1"\n'
_NAME = read_script("harness.layout", "name_file.sh")
_ATTACHED = read_script("harness.layout", "read_attached_loop.sh")


class BackingFile(HostThing):
    """A file that a run creates, behind a loop device or for a backup. `inode` has its inode and its birth time, once
    it exists, and `draft` is its name before that."""

    kind: Literal["backing-file"] = "backing-file"
    path: str
    draft: str
    inode: str = ""
    filesystem: str = ""
    size: int = 0

    removal: ClassVar[str] = _REMOVE_FILE

    @property
    def words(self) -> str:
        return f"the file {self.path}"


class LoopDevice(HostThing):
    """The loop device on a backing file, and once it exists its name, its sequence number and the boot, as `device`."""

    kind: Literal["loop-device"] = "loop-device"
    path: str
    inode: str
    draft: str = ""
    device: str = ""

    removal: ClassVar[str] = _DETACH

    @property
    def words(self) -> str:
        return f"the loop device on {self.path}"

    def arguments(self) -> Sequence[str]:
        return [self.path, self.draft, self.inode, self.device]


@contextmanager
def block_device(log: CreationLog, disk: DiskSpec) -> Iterator[str]:
    """The path of the disk's block device on the host. A loop device exists until the end of the block."""
    if isinstance(disk, DiskByFile):
        with _attach_loop_device(log, disk) as device:
            yield device
    else:
        yield disk.id


@contextmanager
def _attach_loop_device(log: CreationLog, disk: DiskByFile) -> Iterator[str]:
    runner, path = log.runner, str(disk.file)
    refused = f"{runner.name}: disk {disk.name}, {disk.identity}, will not be written to: "
    if not disk.destroy:
        raise SafetyError(
            refused + "the lab file does not have `destroy = true` for it",
            hint=f"add it under disk.{disk.name} if you need nothing in that file",
        )
    if runner.run(["sh", "-c", '[ -e "$1" ] || [ -L "$1" ]', "sh", path], deadline=20, check=False).status == 0:
        devices = list_loop_devices(runner, path)
        raise SafetyError(
            refused + "the file exists already" + (f", and is behind {', '.join(devices)}" if devices else ""),
            hint="virt-overhead creates and removes this file itself. Name a path that does not exist, or, if a killed "
            "run left the file, run: virt-overhead reap",
        )
    with own_file(log, path, disk.size, (serial_of(disk),), refused) as (file, _):
        loop = LoopDevice(disks=file.disks, path=path, draft=file.draft, inode=file.inode)
        with attach_loop(log, loop, runner.run, "--partscan") as (device, _):
            yield device


@contextmanager
def attach_loop(
    log: CreationLog, loop: LoopDevice, run: Callable[..., Completed], *options: str
) -> Iterator[tuple[str, Entry]]:
    """The path of a new loop device on a file of the run, and its record in the log. It is detached at the end.

    `run` runs the command that attaches it, as `Runner.run`. Raises HostError.
    """
    known = [loop]
    with log.making(loop, lambda: known[-1].remove(log.runner)) as entry:
        attach = ["losetup", "--find", "--show", *options, "--direct-io=on", loop.path]
        device = run(fenced(entry, attach), deadline=30).stdout.strip()
        attached = log.runner.run(["sh", "-c", _ATTACHED, "sh", device], deadline=20).stdout.strip()
        known.append(loop.model_copy(update={"device": attached}))
        log.amend(entry, known[-1])
        yield device, entry


@contextmanager
def own_file(
    log: CreationLog, path: str, size: int, disks: tuple[str, ...], refused: str
) -> Iterator[tuple[BackingFile, Entry]]:
    """A new sparse file of `size` bytes, and its record in the log. It is removed at the end.

    Raises SafetyError, which begins with `refused`, if `reserve_places` refuses its place. Raises HostError, for
    example if the file exists already.
    """
    runner = log.runner
    with reserve_places(log, {path: size}, refused):
        directory, _, name = path.rpartition("/")
        draft = f"{directory}/.{name}.{uuid.uuid4()}"
        filesystem = runner.run(["sh", "-c", _FILESYSTEM, "sh", path], deadline=30).stdout.strip()
        known = [BackingFile(disks=disks, path=path, draft=draft, filesystem=filesystem, size=size)]
        with log.making(known[0], lambda: known[-1].remove(runner)) as entry:
            make = fenced(entry, ["sh", "-c", _MAKE_FILE, "sh", path, draft, str(size)])
            known.append(known[0].model_copy(update={"inode": runner.run(make, deadline=20).stdout.strip()}))
            log.amend(entry, known[-1])
            # `ln` fails if the file exists by now.
            runner.run(fenced(entry, ["sh", "-c", _NAME, "sh", path, draft, known[-1].inode]), deadline=20)
            yield known[-1], entry


def list_loop_devices(runner: Runner, file: str) -> list[str]:
    """The loop devices on `file`."""
    # Without --list, losetup prints its own format for -j and ignores --json.
    listed = runner.run(["losetup", "--list", "--json", "--output", "NAME", "-j", file], deadline=30).stdout
    source = f"{runner.name}: losetup's list for {file}"
    with reading(source):
        return [str(loop["name"]) for loop in parse_json(listed or "{}", source).get("loopdevices", ())]


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


_RULE = matching(rf"{RULES}/99-{TAG}-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}-[^/\s]+\.rules", "a file of rules that a run writes")


class UdevRule(HostThing):
    """A file of udev rules in /run, identified by its first line, and the disk whose watch it turns off, if any."""

    kind: Literal["udev-rule"] = "udev-rule"
    path: Annotated[str, _RULE]
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
