"""RAW and qcow2 files: on a file system that the run makes on a region, and in an existing directory of the host.

fio cannot read qcow2, so the twin of a qcow2 file is a RAW file of the same size in the same directory. The overhead of
the guest relative to the twin therefore includes the cost of the format and of virtualisation.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, product
from posixpath import dirname
from typing import ClassVar, Literal, get_args

from harness.files import read_script
from harness.lab.created import CreationLog, Entry, HostThing, fenced
from harness.lab.guard import Room, Writable, built_on, created_directory, run_all
from harness.lab.guard.room import promise_of
from harness.lab.pin import FILE_IDENTITY, MOUNT_DIRECTORY, TAG
from harness.lab.storages import IDENTITY, FoundStorage, promising
from harness.lab.transport.base import Runner
from harness.layout import BlockSource, Sources
from harness.layout.regions import FIND, LUKS_NEED, CryptDevice, Need, Region, encrypt_device
from harness.model.layout import Filesystem, Layout, Preallocation, Qcow2, RawFile
from harness.model.option import Effective
from harness.untrusted import reading

MIB = 1024**2
SLOWEST_WRITE = 2 * MIB
"""Bytes per second. A disk that writes slower is broken."""
RAW_NEED = Need(0, 1.0)


def create_raw(region: Writable, path: str, size: int, preallocation: Preallocation) -> BlockSource:
    """A file of `size` bytes (whole MiB) on the file system on `region`. With `full`, it is filled with zeros.

    Raises SafetyError if `path` is not on `region`, and HostError.
    """
    if preallocation == "off":
        region.run_on_file(["truncate", "-s", str(size), path], path, deadline=20)
    elif preallocation == "falloc":
        region.run_on_file(["fallocate", "-l", str(size), path], path, deadline=60)
    else:
        write = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size // MIB}", "oflag=direct", "status=none"]
        region.run_on_file(write, path, deadline=60 + size / SLOWEST_WRITE)
    (file,) = built_on([region], [path])
    return BlockSource(path, "file", 0, size, grant=file)


_BYTES_PER_CLUSTER = 10
"""8 for its entry in an L2 table, 2 for its reference count (QEMU's docs/interop/qcow2.rst)."""
_FIXED_CLUSTERS = 8
"""Header, L1 table, refcount table, and one partly used cluster of each kind of table."""


def compute_qcow2_need(layout: Qcow2) -> Need:
    """The space for both files, and for what the guest writes on top of snapshots."""
    fixed = _FIXED_CLUSTERS * layout.cluster_size * (1 + layout.snapshots)
    image = 1 + _BYTES_PER_CLUSTER / layout.cluster_size
    return Need(fixed, 1 + image * (2 if layout.snapshots else 1))


def compute_files_need(layout: RawFile | Qcow2) -> Need:
    """The space for the files of a layout. One that is copied on write has its old blocks until nothing uses them."""
    need = RAW_NEED if isinstance(layout, RawFile) else compute_qcow2_need(layout)
    return Need(2 * need.fixed, 2 * need.shares) if layout.writes_later else need


def list_image_files(name: str, layout: Qcow2) -> list[str]:
    """The files of the image: the one with the data, then each snapshot. The guest has the last one."""
    return [f"{name}.qcow2", *(f"{name}-{number}.qcow2" for number in range(1, layout.snapshots + 1))]


def name_data_file(name: str, layout: Qcow2) -> str:
    """The file with the data of the image; empty if that is in the image."""
    return f"{name}.data" if layout.data_file else ""


def create_qcow2(region: Writable, path: str, size: int, layout: Qcow2) -> Sources:
    """`path`.qcow2 for the guest and `path`.raw for the host, `size` bytes each, on the file system on `region`.

    With snapshots, the guest has the last of them. They are empty: all data is in `path`.qcow2.

    Raises SafetyError if `path` is not on `region`, and HostError.
    """
    image, *snapshots = list_image_files(path, layout)
    always = f"cluster_size={layout.cluster_size},lazy_refcounts={'on' if layout.lazy_refcounts else 'off'}"
    words = f"{always},preallocation={layout.preallocation}"
    if data := name_data_file(path, layout):
        # `data_file_raw`: each block is at its own place in the file, as in a RAW file.
        words += f",data_file={data},data_file_raw=on"
    create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", words, image, str(size)]
    region.run_on_file(create, image, deadline=60 + size / SLOWEST_WRITE)
    for below, snapshot in pairwise([image, *snapshots]):
        # An image on top of another one has the size of that one, and cannot be preallocated.
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", always, "-b", below, "-F", "qcow2", snapshot]
        region.run_on_file(create, snapshot, deadline=60)
    image_source, *others = [
        BlockSource(path_, "file", 0, size, "qcow2", grant=file)
        for path_, file in zip([image, *snapshots], built_on([region], [image, *snapshots]), strict=True)
    ]
    twin = create_raw(region, f"{path}.raw", size, layout.twin.preallocation)
    image_source = replace(image_source, data_file=data)
    return Sources(replace(others[-1], data=image_source) if others else image_source, twin)


def fill_image(sources: Sources) -> None:
    """Copy the twin's data into every cluster of the image: the host cannot fill it otherwise. Raises HostError.

    Below snapshots, which are still empty, this is the image at the bottom.
    """
    image = sources.guest.data or sources.guest
    copy = ["qemu-img", "convert", "-q", "-n", "-S", "0", "-T", "none", "-t", "none", "-f", "raw", "-O", "qcow2"]
    deadline = 60 + 2 * sources.twin.size / SLOWEST_WRITE
    writable = [sources.twin.writable, image.writable]
    run_all(writable, [*copy, sources.twin.path, image.path], deadline=deadline)


FIXED_OVERHEAD: Mapping[Filesystem, int] = {"ext4": 64 * MIB, "xfs": 300 * MIB, "btrfs": 320 * MIB}
"""Bytes in addition to the files, for any size: journal, group descriptors. mkfs.xfs needs at least 300 MiB. btrfs
allocates by chunks, and each of its tables twice."""
SHARE_OVERHEAD = 0.05
"""Bytes in addition to the files, as a share of them: inode tables, bitmaps, B-trees, a larger journal."""

_MKFS: Mapping[Filesystem, tuple[str, ...]] = {
    # No lazy initialisation: it would write in the background during the measurement.
    "ext4": (
        "mkfs.ext4",
        "-q",
        "-F",
        "-m",
        "0",
        "-T",
        "largefile",
        "-E",
        "lazy_itable_init=0,lazy_journal_init=0",
        "-U",
    ),
    # Not discarded, because the whole disk has just been discarded.
    "xfs": ("mkfs.xfs", "-q", "-f", "-K", "-m"),
    "btrfs": ("mkfs.btrfs", "-q", "-f", "-K", "-U"),
}
# From Linux 6.2 on, btrfs would trim freed blocks in the background, during the slices of any arm.
MOUNT_OPTIONS: Mapping[Filesystem, tuple[str, ...]] = {"btrfs": ("nodiscard",)}
_REMOVE_FILESYSTEM = FIND + read_script("harness.layout", "remove_filesystem.sh")


class FilesystemMount(HostThing):
    """A file system with its UUID, the UUID of its partition, and its mount point."""

    kind: Literal["filesystem"] = "filesystem"
    point: str
    uuid: str
    partuuid: str = ""

    removal: ClassVar[str] = _REMOVE_FILESYSTEM

    @property
    def words(self) -> str:
        return f"the file system at {self.point}"

    def make(self, device: Writable, filesystem: Filesystem, options: Sequence[str]) -> None:
        """Make it on `device`, and mount it. It is in the creation log. Raises SafetyError, HostError."""
        identity = f"uuid={self.uuid}" if filesystem == "xfs" else self.uuid
        device.run([*_MKFS[filesystem], identity, device.path], deadline=300)
        device.runner.run(["mkdir", "-p", dirname(self.point)], deadline=20)
        # Fails if the directory already exists.
        device.runner.run(["mkdir", self.point], deadline=20)
        mount = ["mount", "-t", filesystem, "-o", ",".join(options) or "rw", device.path, self.point]
        device.run(mount, deadline=60)


@dataclass(frozen=True, slots=True)
class Files:
    """The files of all modes on one file system, as (mode, layout). With `encrypted`, it is on an encrypted device."""

    filesystem: Filesystem
    modes: tuple[tuple[str, RawFile | Qcow2], ...]
    encrypted: bool = False

    things: ClassVar[tuple[type[HostThing], ...]] = (FilesystemMount, CryptDevice)

    @classmethod
    def group(cls, layouts: Sequence[tuple[str, Layout]]) -> Iterator[Files]:
        files = [(mode, layout) for mode, layout in layouts if isinstance(layout, RawFile | Qcow2)]
        for filesystem, encrypted in product(get_args(Filesystem), (False, True)):
            wanted = (filesystem, encrypted)
            modes = tuple((mode, file) for mode, file in files if (file.filesystem, file.encrypted) == wanted)
            if modes:
                yield cls(filesystem, modes, encrypted)

    @property
    def region(self) -> str:
        return f"{self.filesystem}-luks" if self.encrypted else self.filesystem

    @property
    def need(self) -> Need:
        needs = [compute_files_need(layout) for _, layout in self.modes]
        files = Need(sum(need.fixed for need in needs), sum(need.shares for need in needs))
        fixed = FIXED_OVERHEAD[self.filesystem] + (LUKS_NEED.fixed if self.encrypted else 0)
        return Need(files.fixed + fixed, files.shares * (1 + SHARE_OVERHEAD))

    @contextmanager
    def build(self, log: CreationLog, region: Region, name: str, span: int) -> Iterator[Mapping[str, Sources]]:
        mount = FilesystemMount(
            disks=region.device.disks,
            point=f"{MOUNT_DIRECTORY}/{name}-{self.region}",
            uuid=str(uuid.uuid4()),
            partuuid=region.partuuid,
        )
        with self._open_device(log, region, name) as device, log.making_here(mount) as entry:
            mount.make(device, self.filesystem, ("noatime", *MOUNT_OPTIONS.get(self.filesystem, ())))
            sources = {}
            for mode, layout in self.modes:
                grant, directory = _choose_directory(device, entry, layout, mount.point)
                sources[mode] = _create_in_mount(grant, layout, f"{directory}/{mode}", span)
            yield sources

    @contextmanager
    def _open_device(self, log: CreationLog, region: Region, name: str) -> Iterator[Writable]:
        """The device of the file system."""
        if not self.encrypted:
            yield region.device
            return
        with encrypt_device(log, region.device, f"{name}.{self.region}", region.partuuid) as device:
            yield device


def _choose_directory(device: Writable, entry: Entry, layout: RawFile | Qcow2, point: str) -> tuple[Writable, str]:
    """Where the files of a layout are on the file system at `point`, and the permission to write them."""
    if layout.filesystem != "btrfs":
        return device, point
    directory = f"{point}/nodatacow" if layout.nodatacow else point
    if layout.nodatacow:
        # A file has the attribute from its directory. It has no effect on a file that is not empty.
        device.runner.run(["sh", "-c", 'mkdir -p "$1" && chattr +C "$1"', "sh", directory], deadline=20)
    # The kernel does not show the device below a file there, but the file system was just made and is in the log.
    return created_directory(device.runner, entry, directory), directory


def _create_in_mount(region: Writable, layout: RawFile | Qcow2, path: str, span: int) -> Sources:
    if isinstance(layout, RawFile):
        return Sources.same(create_raw(region, f"{path}.raw", span, layout.preallocation))
    return create_qcow2(region, path, span, layout)


def read_nodatacow(runner: Runner, layout: Layout, path: str) -> Effective | None:
    """Whether btrfs overwrites a file at `path` in place, as lsattr shows. Raises HostError."""
    if not isinstance(layout, RawFile | Qcow2) or layout.filesystem != "btrfs":
        return None
    printed = runner.run(["lsattr", "-d", path], deadline=20).stdout
    with reading(f"{runner.name}: the attributes of {path}"):
        return Effective(host_nodatacow="C" in printed.split()[0])


_MARK = ".voh"

_MAKE = FILE_IDENTITY + read_script("harness.layout", "create_storage_directory.sh")
_REMOVE = IDENTITY + read_script("harness.layout", "remove_storage_directory.sh")


class StoredDirectory(HostThing):
    """A directory in an existing one, with the `files` of a run and a file that holds the random `token`.

    `storage` identifies the directory that it is in. `inode`, with its birth time, is known once it exists, and `made`,
    those of its files.
    """

    kind: Literal["stored-directory"] = "stored-directory"
    path: str
    storage: str
    token: str
    files: tuple[str, ...]
    inode: str = ""
    made: tuple[str, ...] = ()

    removal: ClassVar[str] = _REMOVE
    # A file server may need long to remove large files.
    seconds: ClassVar[float] = 600.0

    @property
    def words(self) -> str:
        return f"the directory {self.path}"

    def arguments(self) -> Sequence[str]:
        made = f":{':'.join(self.made)}:"
        return [self.path, self.storage, self.token, _MARK, self.inode, made, *self.files]


def compute_file_bytes(storage: FoundStorage, layout: Layout, span: int) -> int:
    """The bytes that the files of a layout take once they are full."""
    need = compute_qcow2_need(layout) if isinstance(layout, Qcow2) else RAW_NEED
    copies = storage.copies
    if storage.filesystem == "btrfs" and isinstance(layout, RawFile | Qcow2) and layout.nodatacow is not None:
        copies = 1 if layout.nodatacow else 2
    return copies * need.bytes(span)


@contextmanager
def files(
    log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
) -> Iterator[dict[str, Sources]]:
    """The files for each name in `wanted`. They are removed at the end. Raises SafetyError, HostError."""
    runner, storage = log.runner, room.found
    token = secrets.token_hex(16)
    thing = StoredDirectory(
        disks=(label,),
        path=f"{storage.at.rstrip('/')}/{TAG}-{log.run_id}-{token[:8]}",
        storage=storage.identity,
        token=token,
        files=tuple(file for name, layout in wanted.items() for file in _list_files(name, layout)),
    )
    known = [thing]
    size = sum(compute_file_bytes(storage, layout, span) for layout in wanted.values())
    promise = replace(promise_of(storage, size), path=thing.path)
    with promising(log.promises, [promise]), log.making(thing, lambda: known[-1].remove(runner)) as entry:
        words = [thing.path, token, _MARK, _list_attributes(wanted), *thing.files]
        printed = room.run(fenced(entry, ["sh", "-c", _MAKE, "sh", *words]), deadline=60).stdout
        with reading(f"{runner.name}: the new directory {thing.path}"):
            inode, preallocates, *made = printed.splitlines()
        known.append(thing.model_copy(update={"inode": inode, "made": tuple(made)}))
        log.amend(entry, known[-1])
        directory = created_directory(runner, entry, thing.path)
        sources = {
            name: create_in_directory(
                directory, f"{directory.path}/{name}", layout, span, preallocates=preallocates == "yes"
            )
            for name, layout in wanted.items()
        }
        yield sources


def create_in_directory(directory: Writable, path: str, layout: Layout, span: int, *, preallocates: bool) -> Sources:
    """The files of a layout in a directory of the run. A file that cannot be preallocated is written in full later."""
    if isinstance(layout, Qcow2):
        return create_qcow2(directory, path, span, layout)
    wanted = layout.preallocation if isinstance(layout, RawFile) else "off"
    preallocation = "off" if wanted == "falloc" and not preallocates else wanted
    return Sources.same(create_raw(directory, f"{path}.raw", span, preallocation))


def _list_files(name: str, layout: Layout) -> list[str]:
    if not isinstance(layout, Qcow2):
        return [f"{name}.raw"]
    return [f"{name}.raw", *filter(None, (*list_image_files(name, layout), name_data_file(name, layout)))]


def _list_attributes(wanted: Mapping[str, Layout]) -> str:
    """The attribute of each file for which a layout says whether btrfs copies it on write: ` NAME=+C NAME=-C `."""
    signs = {
        name: "+C" if layout.nodatacow else "-C"
        for name, layout in wanted.items()
        if isinstance(layout, RawFile | Qcow2) and layout.nodatacow is not None
    }
    return "".join(f" {file}={sign}" for name, sign in signs.items() for file in _list_files(name, wanted[name])) + " "


class StoredFiles:
    """A `VolumeKind`: files in a directory."""

    thing: ClassVar[type[HostThing]] = StoredDirectory
    baseline: ClassVar[Layout] = RawFile()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:
        return compute_file_bytes(storage, layout, span)

    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> AbstractContextManager[dict[str, Sources]]:
        return files(log, room, label, wanted, span)
