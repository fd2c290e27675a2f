"""Volumes on an existing volume group or thin pool of LVM."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, Literal

from harness.errors import Unsupported
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.guard import Room, Writable, created
from harness.lab.pin import TAG
from harness.lab.storage_look import FoundStorage
from harness.layout.source import BlockSource, Sources
from harness.model.layout import Layout, Lvm, LvmThin
from harness.units import format_size

_REMOVE = read_script("harness.layout", "remove_logical_volume.sh")


class StoredVolume(HostThing):
    """A volume in an existing volume group. It is created with the random `tag`. `uuid` is known once it exists."""

    kind: Literal["stored-volume"] = "stored-volume"
    name: str
    group_uuid: str
    tag: str
    uuid: str = ""

    removal: ClassVar[str] = _REMOVE

    @property
    def words(self) -> str:
        return f"the volume {self.name}"


def compute_volume_bytes(storage: FoundStorage, span: int) -> int:
    """The bytes that a volume of `span` bytes takes once it is full."""
    unit = storage.chunk or storage.extent
    return -(-span // unit) * unit


@contextmanager
def create_volumes(
    log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
) -> Iterator[dict[str, Sources]]:
    """A volume of `span` bytes for each name in `wanted`. All are on the same disks. They are removed at the end.

    Raises Unsupported if no physical volume of the group has room for all of them, SafetyError, HostError.
    """
    storage = room.found
    group, _, pool = storage.at.partition("/")
    size = compute_volume_bytes(storage, span)
    where = [] if pool else _choose_physical_volume(room, len(wanted) * size)
    with ExitStack() as stack:
        sources = {}
        for name in wanted:
            thing = StoredVolume(
                disks=(label,),
                name=f"{TAG}-{log.run_id}-{name}",
                group_uuid=storage.group,
                tag=f"{TAG}-{secrets.token_hex(16)}",
            )
            kind = ["--type", "thin", "--virtualsize", f"{size}b", "--thinpool", pool]
            if not pool:
                # A group's free space may hold signatures of volumes that were removed, which udev would act upon.
                kind = ["--type", "linear", "--size", f"{size}b", "--wipesignatures", "y", "--zero", "y"]
            options = [*kind, "--addtag", thing.tag, "--name", thing.name, group, *where]
            path = f"/dev/{group}/{thing.name}"
            grant = stack.enter_context(_create_volume(log, room, thing, options, path))
            sources[name] = Sources.same(BlockSource(path, "block", 0, span, grant=grant))
        yield sources


@contextmanager
def _create_volume(
    log: CreationLog, room: Room, thing: StoredVolume, options: Sequence[str], path: str
) -> Iterator[Writable]:
    runner = log.runner
    known = [thing]
    with log.making(thing, lambda: known[-1].remove(runner)) as entry:
        # Fails if the group has a volume with this name.
        room.run(["lvcreate", "--yes", "--quiet", *options], deadline=120)
        uuid = room.run(["lvs", "--noheadings", "-o", "lv_uuid", path.removeprefix("/dev/")], deadline=60).stdout
        known.append(thing.model_copy(update={"uuid": uuid.strip()}))
        log.amend(entry, known[-1])
        (grant,) = created(runner, entry, [path])
        yield grant


def _choose_physical_volume(room: Room, size_bytes: int) -> list[str]:
    """The physical volume for all volumes, so that they are on the same disk; empty if the group has only one."""
    parts = room.found.parts
    if len(parts) < 2:
        return []
    device, free = max(parts, key=lambda part: part[1])
    if free < size_bytes:
        raise Unsupported(
            f"{room.runner.name}: no physical volume of {room.found.words} has {format_size(size_bytes)} free. The "
            "volumes would be on different disks, and their figures could not be compared",
            hint="measure a smaller span (a lighter profile), or select fewer modes with -k",
        )
    return [device]


class LinearVolumes:
    """A `VolumeKind`: linear volumes of a volume group."""

    thing: ClassVar[type[HostThing]] = StoredVolume
    baseline: ClassVar[Layout] = Lvm()

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:  # noqa: ARG002 - all are the same
        return compute_volume_bytes(storage, span)

    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> AbstractContextManager[dict[str, Sources]]:
        return create_volumes(log, room, label, wanted, span)


class ThinPoolVolumes(LinearVolumes):
    """The same for the volumes of a thin pool."""

    baseline: ClassVar[Layout] = LvmThin()
