"""The layouts of a run on a storage in use (files in `storage_files.py`): a volume for each mode.

One more is for the host's baseline. `CREATED` lists all that layouts create on a host.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar, Literal, Protocol

from harness.errors import SafetyError, Unsupported
from harness.feature import FeatureStorage, find_brought
from harness.files import read_script
from harness.lab.created import CreationLog, HostThing
from harness.lab.facts import HostFacts
from harness.lab.guard import Room, Writable, created, require_room
from harness.lab.guard.room import promise_of
from harness.lab.pin import TAG, disks_below
from harness.lab.storages import FILE_SERVERS, FoundStorage, Place, promising
from harness.layout import BlockSource, Sources
from harness.layout.build import Layouts, SharedStorage
from harness.layout.disks import BackingFile, LoopDevice, UdevRule, inhibit_udev_for_volumes
from harness.layout.layers import LAYERS
from harness.layout.regions import GuidPartitionTable
from harness.layout.storage_files import StoredFiles
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, LvmThin, Qcow2, RawFile
from harness.model.mode import Mode
from harness.units import format_size

BASELINE = "host"
"""The name of the baseline's volume: that of the mode, which has no volume of its own."""
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


class VolumeKind(Protocol):
    """How volumes are created on one kind of storage in use."""

    thing: ClassVar[type[HostThing]]
    """What it creates, for the creation log."""
    baseline: ClassVar[Layout]
    """The layout of the volume for the host's baseline."""

    def bytes_of(self, storage: FoundStorage, layout: Layout, span: int) -> int:
        """The bytes that a volume of `span` bytes takes once it is full."""
        ...

    def create(
        self, log: CreationLog, room: Room, label: str, wanted: Mapping[str, Layout], span: int
    ) -> AbstractContextManager[dict[str, Sources]]:
        """A volume for each name in `wanted`, all removed at the end. Raises Unsupported, SafetyError, HostError."""
        ...


VOLUMES: Mapping[Place, VolumeKind] = {
    "volume_group": LinearVolumes(),
    "thin_pool": ThinPoolVolumes(),
    "directory": StoredFiles(),
}
"""The kinds of the kernel, by the place. Features bring others (`FeatureStorage`)."""


def find_volume_kind(place: Place) -> VolumeKind:
    """How volumes are created on storages of this place."""
    of_feature = find_brought(FeatureStorage, key=place)
    return VOLUMES[place] if of_feature is None else of_feature.load_volumes()


def refuse_on_storage(mode: Mode, storage: FoundStorage, facts: HostFacts) -> str | None:
    """Why the storage cannot have the layout of this mode, with the remedy; None if it can. Pure."""
    layout, words = mode.layout, storage.words
    offered = f"{words} offers: {', '.join(storage.layouts)}"
    if isinstance(layout, Device):
        # The host's baseline is a volume instead of a device.
        return None if mode.attach is None else f"{words} is not a device; {offered}"
    if layout.kind not in storage.layouts or isinstance(layout.base, Md):
        return f"its layout is {layout.kind} on {layout.base.words}; {offered}"
    if layout.encrypted:
        return f"virt-overhead encrypts only on disks of its own, and {words} is in use; {offered}"
    of_feature = find_brought(FeatureStorage, key=storage.place)
    if of_feature is not None and (why := of_feature.refuse(mode, storage)):
        return why
    return _refuse_options(layout, storage) or (
        f"qemu-img is not installed there: {facts.install('qemu-utils')}"
        if isinstance(layout, Qcow2) and not facts.has_tool("qemu-img")
        else None
    )


def _refuse_options(layout: Layout, storage: FoundStorage) -> str | None:
    """Which option of a layout the storage does not have. An option with its default value matches every storage."""
    if isinstance(layout, RawFile | Qcow2) and layout.filesystem not in (RawFile().filesystem, storage.filesystem):
        return f"its files are on {layout.filesystem}, but {storage.words} is on {storage.filesystem}"
    if isinstance(layout, LvmThin) and layout.chunk not in (LvmThin().chunk, storage.chunk):
        return f"its chunk is {format_size(layout.chunk)}, but that of {storage.words} is {format_size(storage.chunk)}"
    return None


@contextmanager
def build_on_storage(
    log: CreationLog, storage: FoundStorage, label: str, modes: Sequence[Mode], *, span: int
) -> Iterator[Layouts]:
    """A volume of `span` bytes for each mode, and one for the baseline. Everything is removed at the end.

    `label` is the name of the storage in the creation log. The guard checks the space before anything is created.
    Raises Unsupported if it is too little, SafetyError if it is unknown, HostError.
    """
    runner = log.runner
    kind = find_volume_kind(storage.place)
    wanted: dict[str, Layout] = {BASELINE: kind.baseline}
    wanted |= {mode.name: mode.layout for mode in modes if not isinstance(mode.layout, Device)}
    size = sum(kind.bytes_of(storage, layout, span) for layout in wanted.values())
    room = require_room(runner, storage, size, log.promises)
    # The others take their space when they are created, or make the promise themselves.
    later = [promise_of(storage, size)] if storage.kind.allocates == "when written" else []
    with (
        promising(log.promises, later),
        inhibit_udev_for_volumes(log, label),
        kind.create(log, room, label, wanted, span) as sources,
    ):
        below = {
            name: disks_below(runner, pair.twin.path) if storage.disks is None else storage.disks
            for name, pair in sources.items()
        }
        disks = below[BASELINE]
        if other := next((name for name, disks_of_other in below.items() if disks_of_other != disks), None):
            raise SafetyError(
                f"{runner.name}: the volumes on {storage.words} are on different disks: {', '.join(disks)} for the "
                f"baseline, {', '.join(below[other])} for {other}. Their figures could not be compared",
                hint="name a storage whose volumes are all on the same disks",
            )
        bare = sources[BASELINE].twin
        shared = SharedStorage(storage.words, disks, room, _list_facts(storage), dict(_list_notes(storage, modes)))
        by_mode = {mode.name: sources.get(mode.name, Sources.same(bare)) for mode in modes}
        yield Layouts(
            device=bare,
            by_mode={name: pair.guest for name, pair in by_mode.items()},
            span=span,
            disk=disks[0] if disks else "",
            twins={name: pair.twin for name, pair in by_mode.items() if pair.twin != pair.guest},
            shared=shared,
        )


def _list_facts(storage: FoundStorage) -> dict[str, str]:
    facts = {
        "file system": storage.filesystem,
        "mounted from": storage.source,
        "chunk": format_size(storage.chunk) if storage.chunk else "",
        **dict(storage.facts),
    }
    return {name: value for name, value in facts.items() if value}


def _list_notes(storage: FoundStorage, modes: Sequence[Mode]) -> Iterator[tuple[str, str]]:
    of_feature = find_brought(FeatureStorage, key=storage.place)
    for mode in modes:
        if of_feature is not None and (note := of_feature.describe(mode)):
            yield mode.name, note
        layout = mode.layout
        if isinstance(layout, RawFile | Qcow2) and layout.filesystem != storage.filesystem:
            # Only modes of the layouts zvol and zfs have slices of whole transaction groups.
            later = "; ZFS writes seconds later, so name the dataset instead of the directory"
            on = f"its files are on {storage.filesystem}, the file system of {storage.words}"
            network = ": each figure, also of the host, contains the network to it"
            remote = f" on {storage.source}{network}" if storage.filesystem in FILE_SERVERS else ""
            yield mode.name, on + (later if storage.filesystem == "zfs" else remote)
        if isinstance(layout, LvmThin) and layout.chunk != storage.chunk:
            yield mode.name, f"its volume is allocated by {format_size(storage.chunk)}, the chunk of {storage.words}"


CREATED: tuple[type[HostThing], ...] = tuple(
    dict.fromkeys(
        [
            *(BackingFile, LoopDevice, GuidPartitionTable, UdevRule),
            *(thing for layer in LAYERS for thing in layer.things),
            *(volumes.thing for volumes in VOLUMES.values()),
        ]
    )
)
