"""The layouts of a run on a storage in use: a volume for each mode, and one more for the host's baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from harness.errors import SafetyError
from harness.lab.created import CreationLog
from harness.lab.facts import HostFacts
from harness.lab.guard import Room, require_room
from harness.lab.guard.room import promise_of
from harness.lab.members import disks_below
from harness.lab.promises import promising
from harness.lab.storage_look import FoundStorage, Place
from harness.layout.build import Layouts, SharedStorage
from harness.layout.source import Sources
from harness.layout.storage_files import file_bytes, files
from harness.layout.storage_lvm import volume_bytes, volumes
from harness.layout.storage_zfs import dataset_bytes, datasets
from harness.layout.udev_inhibit import unwatched_volumes
from harness.model.base import Device, Md
from harness.model.layout import Layout, Lvm, LvmThin, Qcow2, RawFile, Zvol
from harness.model.mode import Mode
from harness.units import format_size

BASELINE = "host"
"""The name of the baseline's volume: that of the mode, which has no volume of its own."""

_Make = Callable[[CreationLog, Room, str, Mapping[str, Layout], int], AbstractContextManager[dict[str, Sources]]]

_MAKE: Mapping[Place, _Make] = {
    "volume_group": volumes,
    "thin_pool": volumes,
    "directory": files,
    "dataset": datasets,
}
_BASELINES: Mapping[Place, Layout] = {
    "volume_group": Lvm(),
    "thin_pool": LvmThin(),
    "directory": RawFile(),
    "dataset": Zvol(),
}


def why_not(mode: Mode, found: FoundStorage, facts: HostFacts) -> str | None:
    """Why the storage cannot have the layout of this mode, with the remedy; None if it can. Pure."""
    layout, words = mode.layout, found.words
    offered = f"{words} offers: {', '.join(found.layouts)}"
    if isinstance(layout, Device):
        # The host's baseline is a volume instead of a device.
        return None if mode.attach is None else f"{words} is not a device; {offered}"
    if layout.kind not in found.layouts or isinstance(layout.base, Md):
        return f"its layout is {layout.kind} on {layout.base.words}; {offered}"
    if layout.encrypted:
        return f"virt-overhead encrypts only on disks of its own, and {words} is in use; {offered}"
    return _other_options(layout, found) or (
        f"qemu-img is not installed there: {facts.install('qemu-utils')}"
        if isinstance(layout, Qcow2) and not facts.has_tool("qemu-img")
        else None
    )


def _other_options(layout: Layout, found: FoundStorage) -> str | None:
    """Which option of a layout the storage does not have. An option with its default value matches every storage."""
    if isinstance(layout, RawFile | Qcow2) and layout.filesystem not in (RawFile().filesystem, found.filesystem):
        return f"its files are on {layout.filesystem}, but {found.words} is on {found.filesystem}"
    if isinstance(layout, LvmThin) and layout.chunk not in (LvmThin().chunk, found.chunk):
        return f"its chunk is {format_size(layout.chunk)}, but that of {found.words} is {format_size(found.chunk)}"
    return None


@contextmanager
def on_storage(
    log: CreationLog, found: FoundStorage, label: str, modes: Sequence[Mode], *, span: int
) -> Iterator[Layouts]:
    """A volume of `span` bytes for each mode, and one for the baseline. Everything is removed at the end.

    `label` is the name of the storage in the creation log. The guard checks the space before anything is created.
    Raises Unsupported if it is too little, SafetyError if it is unknown, HostError.
    """
    runner = log.runner
    wanted = {BASELINE: _BASELINES[found.place]}
    wanted |= {mode.name: mode.layout for mode in modes if not isinstance(mode.layout, Device)}
    size = sum(_bytes(found, layout, span) for layout in wanted.values())
    room = require_room(runner, found, size, log.promises)
    # The others take their space when they are created, or make the promise themselves.
    later = [promise_of(found, size)] if found.place in ("thin_pool", "dataset") else []
    with (
        promising(log.promises, later),
        unwatched_volumes(log, label),
        _MAKE[found.place](log, room, label, wanted, span) as sources,
    ):
        below = {name: disks_below(runner, each.twin.path) for name, each in sources.items()}
        disks = below[BASELINE]
        if other := next((name for name, own in below.items() if own != disks), None):
            raise SafetyError(
                f"{runner.name}: the volumes on {found.words} are on different disks: {', '.join(disks)} for the "
                f"baseline, {', '.join(below[other])} for {other}. Their figures could not be compared",
                hint="name a storage whose volumes are all on the same disks",
            )
        bare = sources[BASELINE].twin
        shared = SharedStorage(found.words, disks, room, _facts(found), dict(_notes(found, modes)))
        by_mode = {mode.name: sources.get(mode.name, Sources.same(bare)) for mode in modes}
        yield Layouts(
            device=bare,
            by_mode={name: each.guest for name, each in by_mode.items()},
            span=span,
            disk=disks[0] if disks else "",
            twins={name: each.twin for name, each in by_mode.items() if each.twin != each.guest},
            shared=shared,
        )


def _bytes(found: FoundStorage, layout: Layout, span: int) -> int:
    match found.place:
        case "volume_group" | "thin_pool":
            return volume_bytes(found, span)
        case "directory":
            return file_bytes(found, layout, span)
        case "dataset":
            return dataset_bytes(span)


def _facts(found: FoundStorage) -> dict[str, str]:
    facts = {
        "file system": found.filesystem,
        "mounted from": found.source,
        "chunk": format_size(found.chunk) if found.chunk else "",
    }
    return {name: value for name, value in facts.items() if value}


def _notes(found: FoundStorage, modes: Sequence[Mode]) -> Iterator[tuple[str, str]]:
    for mode in modes:
        layout = mode.layout
        if isinstance(layout, RawFile | Qcow2) and layout.filesystem != found.filesystem:
            yield mode.name, f"its files are on {found.filesystem}, the file system of {found.words}"
        if isinstance(layout, LvmThin) and layout.chunk != found.chunk:
            yield mode.name, f"its volume is allocated by {format_size(found.chunk)}, the chunk of {found.words}"
