"""Several guests at once, neighbours and backups: the modes of a scenario that have them, and what conflicts. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from harness.config.names import LONGEST_NAME
from harness.model.attach import Attach, Attachment
from harness.model.layout import Layout
from harness.model.mode import Neighbour
from harness.scenario.scenario import Scenario


def add_modes_with_others(
    scenario: Scenario, neighbours: Mapping[str, Neighbour], backups: Collection[str]
) -> Scenario:
    """The scenario with a further mode for each mode that has a neighbour: after `lvm` comes `lvm-neighbour`.

    The same for each mode with a backup: `lvm-backup`. Both are measured in the same blocks, on the same volume.
    `neighbours` are by the name of the mode, `backups` are the names of the modes.
    """
    if not neighbours and not backups:
        return scenario
    modes = []
    for mode in scenario.modes:
        modes.append(mode)
        if (neighbour := neighbours.get(mode.name)) is not None:
            modes.append(mode.beside(neighbour))
        if mode.name in backups:
            modes.append(mode.during_backup)
    return replace(scenario, modes=tuple(modes))


def find_together_problems(layout: Layout, guests: int, *, neighbour: bool) -> Iterator[str]:
    """The conflicts of several guests, or of a neighbour, with a mode's layout and with each other."""
    if guests > 1 and neighbour:
        yield (
            f"guests = {guests} conflicts with neighbour, which is beside one guest; allowed: one of the two, in a "
            "mode of its own"
        )
    if (guests > 1 or neighbour) and layout.is_base:
        key = f"guests = {guests}" if guests > 1 else "neighbour"
        yield (
            f'{key} conflicts with layout.kind = "{layout.kind}", because each guest needs a volume of its own; '
            "allowed: a layout with volumes or files, for example lvm or raw"
        )


def find_backup_problems(layout: Layout, attach: Attachment, guests: int, *, neighbour: bool) -> Iterator[str]:
    """The conflicts of a backup with the rest of its mode: QEMU copies a disk that its own block layer serves."""
    one = "backup = true"
    if guests > 1 or neighbour:
        other = f"guests = {guests}" if guests > 1 else "neighbour"
        yield f"{one} conflicts with {other}, because one cost is measured at a time; allowed: a mode of its own"
    if layout.is_base:
        yield (
            f'{one} conflicts with layout.kind = "{layout.kind}", because a backup copies the whole disk of the guest; '
            "allowed: a layout with volumes or files, for example lvm or raw"
        )
    if isinstance(attach, Attach) and not attach.in_qemu:
        yield (
            f'{one} conflicts with attach.server = "{attach.server}", because the guest\'s QEMU makes the backup; '
            "allowed: server qemu"
        )


def find_neighbour_problems(scenario: Scenario) -> Iterator[str]:
    """What the modes with several guests, or with a neighbour, conflict with in this scenario."""
    together = [mode for mode in scenario.modes if mode.runs_with_others]
    names = [mode.name for mode in scenario.modes]
    for mode in together:
        own = [mode.name] if mode.neighbour or mode.backup else []
        made = [*own, *(volume.name for volume in mode.volumes[1:])]
        of = mode.attached.name
        for name in made:
            if names.count(name) > own.count(name):
                yield f'mode.{of}: needs the name "{name}" for itself; rename the mode {name}'
            elif len(name) > LONGEST_NAME:
                yield f'mode.{of}: the name "{name}" has {len(name)} characters; allowed: at most {LONGEST_NAME}'
