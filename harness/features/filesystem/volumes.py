"""The file systems of guests and of their twins: the host makes and mounts them, and writes the file that fio uses."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace

from harness.errors import HostError, Unsupported
from harness.features.filesystem import name_twin
from harness.files import read_script
from harness.lab.created import CreationLog
from harness.lab.guard import Writable, created
from harness.lab.pin import FILE_IDENTITY, MOUNT_DIRECTORY, TAG
from harness.lab.transport.base import Runner
from harness.layout import BlockSource
from harness.layout.build import Layouts
from harness.layout.disks import LoopDevice, attach_loop
from harness.layout.storage_files import FIXED_OVERHEAD, MOUNT_OPTIONS, SHARE_OVERHEAD, FilesystemMount, create_raw
from harness.measure.prepare import fill_spans
from harness.model.attach import Attach, Attachment
from harness.model.layout import Filesystem, InnerFilesystem
from harness.model.mode import Mode
from harness.model.option import Effective
from harness.untrusted import reading

MIB = 1024**2
FILE = "data"
"""The file that fio uses, on each of the file systems."""
_LEAST_SPAN = 16 * MIB
_FEATURES = read_script("harness.features.filesystem", "read_features.sh")
_READ_AHEAD = read_script("harness.features.filesystem", "read_read_ahead.sh")


def choose_options(inside: InnerFilesystem) -> tuple[str, ...]:
    """The options with which host and guest mount it."""
    requested = inside.options.split(",") if inside.options else []
    return (*(() if "discard" in inside.options else MOUNT_OPTIONS.get(inside.kind, ())), *requested)


def compute_overhead(kind: Filesystem, span: int) -> int:
    """The bytes that a volume needs in addition to the file of `span` bytes, in whole MiB."""
    return FIXED_OVERHEAD[kind] + -(-int(span * SHARE_OVERHEAD) // MIB) * MIB


@dataclass(frozen=True, slots=True)
class Prepared:
    """The file system of a guest, ready to be mounted there, and what was read back of its twin."""

    inside: InnerFilesystem
    twin: Effective

    @property
    def options(self) -> str:
        return ",".join(choose_options(self.inside))


@contextmanager
def build_with_filesystems(
    log: CreationLog,
    modes: Sequence[Mode],
    build: Callable[[Sequence[Mode], int], AbstractContextManager[Layouts]],
    *,
    span: int,
    fio: str,
) -> Iterator[tuple[Layouts, dict[str, Prepared]]]:
    """The layouts of `modes`, and the file systems by the name of the mode. Everything is removed at the end.

    `build` makes the layouts of modes with so many bytes each. `span` is the size of the file of each arm. Raises
    Unsupported if the volumes that fit are too small, SafetyError, HostError and MeasurementError.
    """
    inner = {mode: mode.filesystem for mode in modes if mode.filesystem is not None}
    twins = [replace(mode, name=name_twin(mode), filesystem=None) for mode in inner]
    overhead = max(compute_overhead(inside.kind, span) for inside in inner.values())
    with build([*modes, *twins], span + overhead) as built, ExitStack() as stack:
        usable = min(built.span - overhead, span)
        if usable < _LEAST_SPAN:
            raise Unsupported(
                f"{log.runner.name}: volumes of {built.span // MIB} MiB fit, and a file system needs {overhead // MIB} "
                "MiB in addition to its file",
                hint="use a larger disk, or select fewer modes with -k: each guest with a file system has two volumes",
            )
        layouts = _narrow(built, usable, [twin.name for twin in twins])
        prepared: dict[str, Prepared] = {}
        files: dict[str, BlockSource] = {}
        for mode, inside in inner.items():
            name = mode.name
            guest = _name_mount(log, layouts.by_mode[name], name)
            if guest.partuuid:
                # A signature on a partition would be found after the run.
                stack.enter_context(log.making_here(guest))
            features = _prepare_for_guest(log, layouts, name, inside, guest, fio=fio)
            volume = built.by_mode[name_twin(mode)]
            twin = _name_mount(log, volume, name_twin(mode))
            device, point = stack.enter_context(_make_filesystem(log, volume, inside, twin))
            below = BlockSource(device.path, "block", 0, volume.size, grant=device)
            files[name] = replace(_create_file(device, point, usable), data=below)
            read = _read_filesystem(log.runner, device, point, inside)
            if read.host_filesystem_features != features:
                raise HostError(
                    f"{log.runner.name}: the file systems of {name} and of its twin differ: {features}; "
                    f"{read.host_filesystem_features}"
                )
            prepared[name] = Prepared(inside, read)
        yield replace(layouts, twins={**layouts.twins, **files}), prepared


def _narrow(layouts: Layouts, span: int, hidden: Sequence[str]) -> Layouts:
    """The layouts whose arms all use `span` bytes, without the volumes of twins, which are not regions of a mode."""

    def narrow(sources: Mapping[str, BlockSource]) -> dict[str, BlockSource]:
        return {name: replace(source, size=span) for name, source in sources.items() if name not in hidden}

    return replace(layouts, by_mode=narrow(layouts.by_mode), twins=narrow(layouts.twins)).narrowed(span)


def _prepare_for_guest(
    log: CreationLog, layouts: Layouts, name: str, inside: InnerFilesystem, mount: FilesystemMount, *, fio: str
) -> str | None:
    """Make the file system on the guest's volume, and write its file in full. Returns what the file system has."""
    source = layouts.by_mode[name]
    with _make_filesystem(log, source, inside, mount.model_copy(update={"partuuid": ""})) as (device, point):
        file = _create_file(device, point, layouts.span)
        if layouts.reserve is not None:
            layouts.reserve.require_for(source.path, source.size, layouts.span)
        fill_spans([file], fio)
        return _read_filesystem(log.runner, device, point, inside).host_filesystem_features


def _name_mount(log: CreationLog, source: BlockSource, name: str) -> FilesystemMount:
    volume = source.writable
    # A name that no layout has: a mode may be called ext4, as the file system with the RAW files.
    point = f"{MOUNT_DIRECTORY}/{TAG}-{log.run_id}-inside.{name}"
    return FilesystemMount(disks=volume.disks, point=point, uuid=str(uuid.uuid4()), partuuid=volume.partuuid)


@contextmanager
def _make_filesystem(
    log: CreationLog, source: BlockSource, inside: InnerFilesystem, mount: FilesystemMount
) -> Iterator[tuple[Writable, str]]:
    """A new file system on a volume, mounted on the host until the end of the block: its device and its mount point."""
    with _open_volume(log, source) as device, log.making_here(mount):
        mount.make(device, inside.kind, choose_options(inside))
        yield device, mount.point


@contextmanager
def _open_volume(log: CreationLog, source: BlockSource) -> Iterator[Writable]:
    """The block device of a volume. A file is behind a loop device until the end of the block."""
    if source.kind == "block":
        yield source.writable
        return
    file = source.writable
    identify = ["sh", "-c", FILE_IDENTITY + 'file_of "$1"\n', "sh", file.path]
    inode = log.runner.run(identify, deadline=20).stdout.strip()
    loop = LoopDevice(disks=file.disks, path=file.path, inode=inode)
    with attach_loop(log, loop, file.run) as (path, entry):
        (device,) = created(log.runner, entry, [path])
        yield device


def _create_file(device: Writable, point: str, span: int) -> BlockSource:
    return create_raw(device, f"{point}/{FILE}", span, "falloc")


def _read_filesystem(runner: Runner, device: Writable, point: str, inside: InnerFilesystem) -> Effective:
    """What the host shows of a mounted file system. Raises HostError."""
    kind, options = read_mount(runner, point)
    identity = runner.run(["blkid", "-p", "-s", "UUID", "-o", "value", device.path], deadline=30).stdout.strip()
    words = ["sh", "-s", "--", inside.kind, device.path, point, identity]
    printed = runner.run(words, stdin=_FEATURES, deadline=60).stdout
    features = " ".join(sorted(printed.split()))
    return Effective(host_filesystem=kind, host_mount_options=options, host_filesystem_features=features or None)


def read_mount(runner: Runner, point: str) -> tuple[str, str]:
    """The file system that a machine has mounted there, and its options. Raises HostError."""
    return parse_mounts(runner.run(["cat", "/proc/self/mountinfo"], deadline=20).stdout, point, runner.name)


def parse_mounts(printed: str, point: str, machine: str) -> tuple[str, str]:
    """The file system at a mount point and its options, those of the mount first. Raises HostError if none is there.

    `printed` is /proc/self/mountinfo (proc_pid_mountinfo(5)). Pure.
    """
    with reading(f"{machine}: /proc/self/mountinfo"):
        for line in reversed(printed.splitlines()):
            mount, _, filesystem = line.partition(" - ")
            fields = mount.split()
            if fields[4] == point:
                kind, _, options = filesystem.split(" ", 2)
                both = [*fields[5].split(","), *options.split(",")]
                return kind, ",".join(dict.fromkeys(both))
    raise HostError(f"{machine}: nothing is mounted at {point}")


_OWN_QUEUE = ("dm-", "loop", "rbd", "zd")
"""Devices with a read-ahead of their own. That of a partition is that of its disk, which other arms use."""


def get_read_ahead(attach: Attachment | None) -> int | None:
    """The read-ahead in KiB that an attachment requests; None without a request."""
    return attach.read_ahead_kb if isinstance(attach, Attach) else None


def set_read_ahead(layouts: Layouts, mode: Mode, size: int) -> None:
    """Make the host read `size` KiB ahead on the volume of a mode's twin, if that has a setting of its own.

    Raises SafetyError, HostError.
    """
    twin = layouts.twin(mode)
    volume = twin.data or twin
    if volume.kind == "block" and volume.writable.name.startswith(_OWN_QUEUE):
        volume.writable.run(["blockdev", "--setra", str(size * 2), volume.writable.path], deadline=30)


def read_read_aheads(runner: Runner, paths: Sequence[str]) -> dict[str, int | None]:
    """How far a machine reads ahead on each of these devices and files, in KiB; None if its kernel does not show it.

    Raises HostError.
    """
    printed = runner.run(["sh", "-s", "--", *paths], stdin=_READ_AHEAD, deadline=60).stdout
    with reading(f"{runner.name}: its read-ahead"):
        values = [None if line == "-" else int(line) for line in printed.splitlines()]
        return dict(zip(paths, values, strict=True))
