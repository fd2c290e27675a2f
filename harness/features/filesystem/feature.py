"""The keys of a mode for a file system in its guest, what conflicts with them, and what the kernel calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from harness.config.names import LONGEST_NAME
from harness.feature import Feature, ModeKeys, Subject
from harness.model.attach import Attach
from harness.model.layout import Filesystem, InnerFilesystem
from harness.model.mode import Cell, Mode
from harness.model.values import TomlTable
from harness.results import CellRecord, Measurement
from harness.scenario.scenario import Scenario

if TYPE_CHECKING:
    from harness.events import Events
    from harness.guest.protocol import Hypervisor
    from harness.lab.hosts import Host

_LAYOUTS = ("partition", "lvm", "lvm-thin", "raw", "zvol", "rbd")
"""Layouts with volumes of their own on which the host can make a file system."""
_TWIN = "-twin"
_OPTION = "[a-z][a-z0-9_]*(=[A-Za-z0-9_.-]+)?"
MountOptions = Annotated[str, Field(pattern=f"^({_OPTION}(,{_OPTION})*)?$", max_length=200)]


class InGuest(TomlTable):
    """The file system in the guest."""

    filesystem: Filesystem | None = None
    mount_options: MountOptions = ""


def find_problems(mode: Mode, keys: InGuest) -> Iterator[str]:
    """The conflicts of the keys with the mode's layout and attachment, and with what else runs in it."""
    if keys.filesystem is None:
        if keys.mount_options:
            yield "mount_options conflicts with filesystem left out; allowed: with filesystem"
        return
    asked, layout, attach = f'filesystem = "{keys.filesystem}"', mode.layout, mode.attach
    others = {"guests": 1, "neighbour": None, "backup": False, "container": False}
    for key, alone in others.items():
        if getattr(keys, key, alone) != alone:
            yield f"{asked} conflicts with {key}, because one cost is measured at a time; allowed: a mode of its own"
    if mode.cached:
        yield f"{asked} conflicts with cached = true, because fio bypasses the guest's cache; allowed: one of them"
    if layout.kind not in _LAYOUTS:
        yield (
            f'{asked} conflicts with layout.kind = "{layout.kind}", because the host makes the file system on a volume '
            f"of the mode, and one on a volume of the twin; allowed: {', '.join(_LAYOUTS)}"
        )
    if not isinstance(attach, Attach) or attach.device != "disk":
        device = attach.device if attach is not None else "none"
        yield f'{asked} conflicts with attach.device = "{device}", which passes a disk through; allowed: device disk'
    elif attach.read_only:
        yield f"{asked} conflicts with attach.read_only = true; allowed: attach.read_only = false"
    elif not attach.direct:
        yield (
            f'{asked} conflicts with attach.cache = "{attach.cache}", because the host\'s cache would be below the '
            "file system of the guest and not below that of the twin; allowed: cache none or directsync"
        )


def add_filesystems(scenario: Scenario, asked: Mapping[str, InGuest]) -> tuple[Scenario, list[str]]:
    """The scenario whose modes have these file systems, and the names that conflict. `asked` is by the mode's name."""

    def with_filesystem(mode: Mode) -> Mode:
        keys = asked.get(mode.name, InGuest())
        inside = InnerFilesystem(keys.filesystem, keys.mount_options) if keys.filesystem else None
        return mode if inside is None else replace(mode, filesystem=inside)

    changed = replace(scenario, modes=tuple(map(with_filesystem, scenario.modes)))
    return changed, list(_find_name_problems(changed))


def _find_name_problems(scenario: Scenario) -> Iterator[str]:
    names = {mode.name for mode in scenario.modes}
    for mode in scenario.modes:
        twin = f"{mode.name}{_TWIN}"
        if mode.filesystem is None:
            continue
        if twin in names:
            yield f'mode.{mode.name}: needs the name "{twin}" for the volume of its twin; rename the other mode'
        elif len(twin) > LONGEST_NAME:
            yield f'mode.{mode.name}: the name "{twin}" has {len(twin)} characters; allowed: {LONGEST_NAME}'


def find_conflicts(scenario: Scenario) -> Iterator[str]:
    """What modes with a file system cannot have in a scenario: variants, and jobs that trim."""
    for mode in scenario.modes:
        if mode.filesystem is None:
            continue
        asked = f'mode.{mode.name}.filesystem = "{mode.filesystem.kind}"'
        if mode.variant is not None:
            yield f"{asked}: conflicts with variants, whose guests share a volume; allowed: a mode of its own for each"
        for index, workload in enumerate(scenario.workloads):
            if workload.trims:
                yield (
                    f'{asked}: conflicts with workloads[{index}] = "{workload.name}", because fio trims devices only; '
                    "allowed: workloads that read or write"
                )


def find_notes(_slices: Sequence[Measurement], cell: Cell) -> Iterator[str]:
    """What fio uses in the guest and on its twin."""
    if (inside := cell.mode.filesystem) is not None:
        options = f" ({inside.options})" if inside.options else ""
        yield (
            f"fio in the guest uses a file on {inside.kind}{options}; the twin is a file on the same file system on a "
            "volume of its own, and the host is the device without it"
        )


def annotate(cells: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """A note for each cell whose guest mounted its file system with other options than the host."""
    for cell in cells:
        host, guest = (
            set(options.split(",")) if options else set()
            for options in (cell.effective.host_mount_options, cell.effective.guest_mount_options)
        )
        if cell.mode_detail.filesystem is not None and host and guest and host != guest:
            only = [f"{', '.join(sorted(one - other)) or 'nothing'}" for one, other in ((host, guest), (guest, host))]
            yield cell.id, f"mounted with other options: only on the host {only[0]}; only in the guest {only[1]}"


def _extend_hypervisor(host: Host, hypervisor: Hypervisor, _events: Events) -> Hypervisor:
    from harness.features.filesystem.mounted import FilesystemsInGuests

    return FilesystemsInGuests(host, hypervisor)


_KEYS: Any = ModeKeys(table=InGuest, find_problems=find_problems, adapt=add_filesystems)
FEATURE = Feature(
    name="filesystem",
    subject=Subject(
        in_scenario=lambda scenario: any(mode.filesystem is not None for mode in scenario.modes),
        in_cell=lambda cell, _slices: cell.mode.filesystem is not None,
        in_record=lambda cell: cell.mode_detail.filesystem is not None,
    ),
    mode_keys=_KEYS,
    extend_hypervisor=_extend_hypervisor,
    find_problems=find_conflicts,
    find_notes=find_notes,
    annotate=annotate,
)
