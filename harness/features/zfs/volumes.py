"""Volumes and files in a ZFS dataset that is in use: created with a token of the run, removed if they still have it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Literal

from harness.features.zfs.pool import count_raidz_sectors
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Room, created, created_directory
from harness.lab.pin import MOUNT_DIRECTORY, TAG
from harness.lab.storage_look import FoundStorage
from harness.layout.layers import ZFS_SHARE, list_zfs_options
from harness.layout.source import BlockSource, Sources
from harness.layout.storage_files import create_in_directory
from harness.model.layout import Layout, OnZfs, ZfsFile, Zvol

_TOKEN = "voh:token"
"""A property of the datasets of a run. ZFS sets it when it creates them."""

_REMOVE = read_script("harness.features.zfs", "remove_dataset.sh")


class StoredDataset(HostThing):
    """A volume or dataset in an existing ZFS dataset. It is created with the random `token` as a property.

    `guid` is known once it exists. `point` is the mount point of a dataset.
    """

    kind: Literal["stored-dataset"] = "stored-dataset"
    name: str
    token: str
    point: str = ""
    guid: str = ""

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the dataset {self.name}"

    def arguments(self) -> Sequence[str]:
        return [self.name, _TOKEN, self.token, self.guid, self.point]


class StoredDatasets:
    """A `VolumeKind`: volumes and datasets in a ZFS dataset."""

    thing: ClassVar[type[HostThing]] = StoredDataset
    baseline: ClassVar[Layout] = Zvol()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:
        """With its checksums and block pointers, and on raidz with the space that small records take there.

        ZFS counts space there as if all records had 128 KiB.
        """
        record = layout.record_bytes if isinstance(layout, OnZfs) else ZfsFile().record_bytes
        times = max(
            (_count_space(record, *group) / _count_space(ZfsFile().record_bytes, *group) for group in storage.raidz),
            default=1.0,
        )
        return round(span * (1 + ZFS_SHARE) * max(times, 1.0))

    @contextmanager
    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> Iterator[dict[str, Sources]]:
        """The volume or file for each name in `wanted`. They are removed at the end. Raises SafetyError, HostError."""
        with ExitStack() as stack:
            sources = {}
            for name, layout in wanted.items():
                full_name = f"{TAG}-{log.run_id}-{name}"
                thing = StoredDataset(
                    disks=(label,),
                    name=f"{room.found.at}/{full_name}",
                    token=secrets.token_hex(16),
                    point="" if isinstance(layout, Zvol) else f"{MOUNT_DIRECTORY}/{full_name}",
                )
                sources[name] = stack.enter_context(_create_stored_dataset(log, room, thing, layout, span))
            yield sources


def _count_space(record: int, parity: int, disks: int, sector: int) -> float:
    """The space on raidz of a record of so many bytes, for each byte of it."""
    return count_raidz_sectors(-(-record // sector), disks, parity) * sector / record


@contextmanager
def _create_stored_dataset(
    log: CreationLog, room: Room, thing: StoredDataset, layout: Layout, span: int
) -> Iterator[Sources]:
    runner = log.runner
    known = [thing]
    with log.making(thing, lambda: known[-1].remove(runner)) as entry:
        # A snapshot of it would keep it from being removed.
        common = ["-o", f"{_TOKEN}={thing.token}", "-o", "com.sun:auto-snapshot=false"]
        common += list_zfs_options(layout if isinstance(layout, OnZfs) else ZfsFile())
        if isinstance(layout, Zvol):
            options = ["-V", str(span)]
        else:
            options = ["-o", f"mountpoint={thing.point}", "-o", "atime=off"]
            runner.run(["mkdir", "-p", MOUNT_DIRECTORY], deadline=20)
        # Fails if a dataset with this name exists.
        room.run(["zfs", "create", *options, *common, thing.name], deadline=60)
        guid = room.run(["zfs", "get", "-Hp", "-o", "value", "guid", thing.name], deadline=60).stdout
        known.append(thing.model_copy(update={"guid": guid.strip()}))
        log.amend(entry, known[-1])
        if isinstance(layout, Zvol):
            runner.run(["udevadm", "settle", "--timeout=20"], deadline=30)
            path = f"/dev/zvol/{thing.name}"
            (grant,) = created(runner, entry, [path])
            yield Sources.same(BlockSource(path, "block", 0, span, grant=grant))
        else:
            directory = created_directory(runner, entry, thing.point)
            yield create_in_directory(directory, f"{directory.path}/disk", layout, span, preallocates=False)
