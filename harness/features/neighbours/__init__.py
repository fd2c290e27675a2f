"""Other I/O beside a guest: several guests at the same time, a neighbour with a job of its own, or a backup.

A mode asks for it with `guests`, `neighbour` or `backup`. A mode with a neighbour or a backup is measured beside the
same mode without, in the same blocks. `measured.py` says what each guest got, how fair that is, and what the neighbour
and the backup did; its checks void cells whose jobs did not run at the same time. `backups.py` makes backups by
libvirt, `proxmox.py` by Proxmox VE, and `report.py` has the tables. How jobs run at the same time, each on a volume of
its own, is part of the kernel: an arm has parts (`model/mode.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from harness.config.names import LONGEST_NAME
from harness.feature import BackupMaker, Feature, ModeKeys, Subject, import_later
from harness.model.attach import Attach
from harness.model.mode import Mode, Neighbour
from harness.model.values import Flag, TomlTable
from harness.scenario.scenario import Scenario

if TYPE_CHECKING:
    from harness.features.neighbours import backups, measured
    from harness.lab.created import CreationLog
    from harness.lab.hosts import Host
    from harness.lab.inventory import HostSpec
    from harness.lab.transport.base import Runner
    from harness.layout import BlockSource
else:
    backups, measured = import_later(__name__, "backups", "measured")

MOST_GUESTS = 6
"""Guests that a mode has at most. fio on the host runs once for each of them, through one connection: OpenSSH allows 10
sessions in it (MaxSessions in sshd_config(5)), and virt-overhead needs three for itself."""
BESIDE_NEIGHBOUR = "neighbour"
"""The end of the name of a mode with a neighbour."""
DURING_BACKUP = "backup"
"""The end of the name of a mode whose disk is backed up meanwhile."""
OTHER_IO = Subject(
    in_cell=lambda cell, _slices: cell.mode.runs_with_others, in_record=lambda cell: cell.mode_detail.runs_with_others
)
"""Guests, neighbours and backups that run at the same time."""


class OtherIo(TomlTable):
    """What does I/O beside a guest."""

    guests: Annotated[int, Field(ge=1, le=MOST_GUESTS)] = 1
    """Guests that run the job at the same time, each on a volume of its own."""
    neighbour: Neighbour | None = None
    """`workload` is the job of a second guest and `iodepth` its depth (32). It runs in the mode `NAME-neighbour`."""
    backup: Flag = False
    """Whether a backup of the guest's disk runs in a further mode, `NAME-backup`."""


def find_problems(mode: Mode, others: OtherIo) -> Iterator[str]:
    """The conflicts of a mode's keys with its layout, and with each other.

    Each guest needs a volume of its own, and QEMU copies a disk that its own block layer serves.
    """
    layout, attach = mode.layout, mode.attach
    volumes = "allowed: a layout with volumes or files, for example lvm or raw"
    asked = f"guests = {others.guests}" if others.guests > 1 else "neighbour" if others.neighbour else ""
    if others.guests > 1 and others.neighbour:
        yield (
            f"{asked} conflicts with neighbour, which is beside one guest; allowed: one of the two, in a mode of its "
            "own"
        )
    if asked and layout.is_base:
        yield (
            f'{asked} conflicts with layout.kind = "{layout.kind}", because each guest needs a volume of its own; '
            f"{volumes}"
        )
    if not others.backup:
        return
    backup = "backup = true"
    if asked:
        yield f"{backup} conflicts with {asked}, because one cost is measured at a time; allowed: a mode of its own"
    if layout.is_base:
        yield (
            f'{backup} conflicts with layout.kind = "{layout.kind}", because a backup copies the whole disk of the '
            f"guest; {volumes}"
        )
    if isinstance(attach, Attach) and not attach.in_qemu:
        yield (
            f'{backup} conflicts with attach.server = "{attach.server}", because the guest\'s QEMU makes the backup; '
            "allowed: server qemu"
        )


def make_neighbour_mode(mode: Mode, neighbour: Neighbour) -> Mode:
    """The same mode while a neighbour runs, which is compared with this one."""
    return replace(mode, name=f"{mode.name}-{BESIDE_NEIGHBOUR}", neighbour=neighbour, base=mode, against=mode)


def make_backup_mode(mode: Mode) -> Mode:
    """The same mode while its disk is backed up, which is compared with this one."""
    return replace(mode, name=f"{mode.name}-{DURING_BACKUP}", backup=True, base=mode, against=mode)


def add_modes(scenario: Scenario, asked: Mapping[str, OtherIo]) -> tuple[Scenario, list[str]]:
    """The scenario with a further mode for each mode with a neighbour or a backup, and the names that conflict.

    After `lvm` comes `lvm-neighbour` or `lvm-backup`. Both are measured in the same blocks, on the same volume. `asked`
    is by the name of the mode.
    """
    modes = []
    for mode in scenario.modes:
        others = asked.get(mode.name, OtherIo())
        modes.append(replace(mode, guests=others.guests))
        if others.neighbour is not None:
            modes.append(make_neighbour_mode(mode, others.neighbour))
        if others.backup:
            modes.append(make_backup_mode(mode))
    adapted = replace(scenario, modes=tuple(modes))
    return adapted, list(_find_name_problems(adapted))


def _find_name_problems(scenario: Scenario) -> Iterator[str]:
    """The names of further modes and volumes that another mode has, or that are too long."""
    names = [mode.name for mode in scenario.modes]
    for mode in scenario.modes:
        if not mode.runs_with_others:
            continue
        own_names = [mode.name] if mode.neighbour or mode.backup else []
        of = mode.attached.name
        for name in (*own_names, *(volume.name for volume in mode.volumes[1:])):
            if names.count(name) > own_names.count(name):
                yield f'mode.{of}: needs the name "{name}" for itself; rename the mode {name}'
            elif len(name) > LONGEST_NAME:
                yield f'mode.{of}: the name "{name}" has {len(name)} characters; allowed: at most {LONGEST_NAME}'


def _find_no_room(runner: Runner, spec: HostSpec, size_bytes: int) -> str | None:
    """As `BackupMaker`. Proxmox VE writes to a storage, whose space is checked before its volumes are created."""
    return backups.find_no_room(runner, spec, size_bytes) if spec.kind != "proxmox" else None


def _open_files(
    log: CreationLog, host: Host, sources: Mapping[str, BlockSource]
) -> AbstractContextManager[Mapping[str, str]]:
    """As `BackupMaker`. None for Proxmox VE, which writes to a storage."""
    return backups.open_files(log, host, sources) if host.spec.kind != "proxmox" else nullcontext({})


FEATURE = Feature(
    name="neighbours",
    subject=Subject(in_cell=lambda cell, _slices: cell.mode.runs_with_others),
    brings=(
        ModeKeys(table=OtherIo, find_problems=find_problems, adapt=add_modes),
        BackupMaker(
            find_no_room=_find_no_room,
            open_files=_open_files,
            by_libvirt=lambda *arguments: backups.LibvirtBackup(*arguments),
        ),
    ),
    counts=lambda slice_, _cell: measured.has_its_backup(slice_),
    find_checks=lambda slices, cell: (*measured.check_together(slices), *measured.check_backup(slices, cell)),
    find_notes=lambda slices, _cell: measured.note_lost_backups(slices),
    measure=lambda cell, blocks, samples, confidence, span_bytes: measured.measure_others(
        cell, blocks, samples, confidence, span_bytes
    ),
    accompany=lambda session, table, start: measured.accompany(session, table, start),
)
