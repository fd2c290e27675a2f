"""A file system in the guest as part of a mode: `filesystem = "ext4"` with `mount_options`.

fio in the guest uses a file on this file system instead of the disk. Its twin is a file on the same file system, which
the host makes on a second volume of the same kind and size. So the loss against the host has three parts: the layout,
the file system (both in the twin), and virtualisation (guest against twin). The baseline stays the bare device, as for
every other mode, so that modes with and without a file system can be compared.

The host makes both file systems, with the same command, and writes both files in full: one kernel and one mkfs decide
where blocks are, and a guest needs only mount. It then unmounts that of the guest. A file as a volume (`raw`) is behind
a loop device meanwhile. All of it is in the creation log, and the commands run only on the run's own volumes.

The kernel asks `mode.filesystem` for the bytes that a journal may move (`InnerFilesystem.amplification`), and for the
volume of the twin in the plan. The rest is a `Hypervisor` around that of the host: `volumes.py` makes the file systems
when the layouts are built, and `mounted.py` mounts them in each guest that is booted, and reads back what is mounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, Strict

from harness.config.names import LONGEST_NAME
from harness.feature import Feature, ModeKeys, Subject, import_later
from harness.model.attach import Attach, ReadAhead
from harness.model.job import Job
from harness.model.layout import Filesystem, InnerFilesystem
from harness.model.mode import Arm, Cell, Mode, Place
from harness.model.option import Effective
from harness.model.values import MountOptions, TomlTable
from harness.scenario.scenario import Scenario

if TYPE_CHECKING:
    from harness.features.filesystem import mounted
    from harness.measure.session import Session
    from harness.results import CellRecord, Measurement
else:
    (mounted,) = import_later(__name__, "mounted")

_LAYOUTS = ("partition", "lvm", "lvm-thin", "raw", "zvol", "rbd")
"""Layouts with volumes of their own on which the host can make a file system."""
_LINUX = "libaio"
"""fio's engine where it is a Linux."""


class InGuest(TomlTable):
    """The file system in the guest, and the sizes of the read-ahead that are compared."""

    filesystem: Filesystem | None = None
    """The file system on the guest's disk. fio uses a file on it."""
    mount_options: MountOptions = ""
    """As `mount -o` takes them, for example `noatime`."""
    read_ahead_kb: Annotated[tuple[ReadAhead, ...], Field(min_length=2, max_length=6), Strict(False)] | None = None
    """Sizes in KiB: a mode for each, `NAME-ra128`, on a volume of its own. All are compared with the first."""


def name_twin(mode: Mode) -> str:
    """The name of the volume of a mode's twin."""
    return f"{mode.name}-twin"


def find_problems(mode: Mode, keys: InGuest) -> Iterator[str]:
    """The conflicts of the keys with the mode's layout and attachment, and with what else runs in it."""
    if keys.read_ahead_kb is not None:
        yield from _find_factor_problems(mode, keys, keys.read_ahead_kb)
    if keys.filesystem is None:
        if keys.mount_options:
            yield "mount_options conflicts with filesystem left out; allowed: with filesystem"
        return
    asked, layout, attach = f'filesystem = "{keys.filesystem}"', mode.layout, mode.attach
    yield from _find_others(asked, keys)
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


def _find_others(asked: str, keys: InGuest) -> Iterator[str]:
    others = {"guests": 1, "neighbour": None, "backup": False, "container": False}
    for key, alone in others.items():
        if getattr(keys, key, alone) != alone:
            yield f"{asked} conflicts with {key}, because one cost is measured at a time; allowed: a mode of its own"


def _find_factor_problems(mode: Mode, keys: InGuest, sizes: Sequence[int]) -> Iterator[str]:
    asked = f"read_ahead_kb = {list(sizes)}"
    yield from _find_others(asked, keys)
    if len(set(sizes)) < len(sizes):
        yield f"{asked}: has a size twice; allowed: each size once"
    if not isinstance(mode.attach, Attach):
        yield f"{asked} conflicts with attach.device, which passes a disk through; allowed: device disk"
    elif mode.attach.read_ahead_kb is not None:
        yield f"{asked} conflicts with attach.read_ahead_kb = {mode.attach.read_ahead_kb}; allowed: one of the two"


def add_modes(scenario: Scenario, asked: Mapping[str, InGuest]) -> tuple[Scenario, list[str]]:
    """The scenario with file systems, and with a mode for each size of a read-ahead; and the names that conflict."""
    changed, problems = add_filesystems(scenario, asked)
    modes: list[Mode] = []
    for mode in changed.modes:
        sizes = asked.get(mode.name, InGuest()).read_ahead_kb
        modes += [mode] if sizes is None else _make_factor(mode, sizes)
    names = [mode.name for mode in modes]
    problems += [
        f'mode: the name "{name}" of a size of read_ahead_kb is that of another mode, or too long; rename the mode'
        for name in dict.fromkeys(names)
        if names.count(name) > 1 or len(name) > LONGEST_NAME
    ]
    return replace(changed, modes=tuple(modes)), problems


def _make_factor(mode: Mode, sizes: Sequence[int]) -> Iterator[Mode]:
    """A mode for each size, on a volume of its own. All are compared with the first one, in the same blocks."""
    first: Mode | None = None
    for size in sizes:
        if isinstance(mode.attach, Attach):
            attach = replace(mode.attach, read_ahead_kb=size)
            one = replace(mode, name=f"{mode.name}-ra{size}", attach=attach, against=first)
            first = first or one
            yield one


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
        twin = name_twin(mode)
        if mode.filesystem is None:
            continue
        if twin in names:
            yield f'mode.{mode.name}: needs the name "{twin}" for the volume of its twin; rename the other mode'
        elif len(twin) > LONGEST_NAME:
            yield f'mode.{mode.name}: the name "{twin}" has {len(twin)} characters; allowed: {LONGEST_NAME}'


def find_conflicts(scenario: Scenario) -> Iterator[str]:
    """What modes with a file system, and buffered jobs, cannot have in a scenario."""
    yield from _find_buffered_problems(scenario)
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


def _find_buffered_problems(scenario: Scenario) -> Iterator[str]:
    for index, workload in enumerate(scenario.workloads):
        for mode in scenario.modes if workload.buffered else ():
            asked = f'workloads[{index}] = "{workload.name}": conflicts with mode.{mode.name}, which is cached'
            if mode.cached and mode.filesystem is None:
                yield (
                    f"{asked}: a kernel forgets what it has read of a device when nobody has it open; allowed: modes "
                    "without cached, or with a filesystem, whose files stay in the guest's memory"
                )
            elif mode.cached and workload.writes:
                yield f"{asked}: each write is flushed to the disk; allowed: buffered reads"


def refuse_buffered(session: Session, arm: Arm, job: Job) -> str | None:
    """Why a buffered job cannot run on an arm, with the remedy; None if it can."""
    if not job.buffered or session.platform(arm).engine == _LINUX:
        return None
    return f"{job.name} is for guests with Linux: fio in Windows has no page cache that it can empty before a slice"


def read_session(session: Session, modes: Sequence[Mode], jobs: Sequence[Job]) -> Mapping[str, Effective]:
    """How far host and guests read ahead for buffered jobs, by the name of the mode. Raises HostError, GuestError."""
    if not any(job.buffered for job in jobs):
        return {}
    from harness.features.filesystem.volumes import read_read_aheads

    guests = [mode for mode in modes if mode.attach is not None]
    bare = session.layouts.device.writable.path
    twins = {mode.name: session.layouts.twin(mode).writable.path for mode in guests}
    on_host = read_read_aheads(session.host.runner, [bare, *twins.values()])
    effective = {mode.name: Effective(disk_read_ahead_kb=on_host[bare]) for mode in modes if mode.attach is None}
    for mode in guests:
        arm = Arm(Place.GUEST, mode)
        if session.platform(arm).engine != _LINUX:
            continue
        with session.holding(arm):
            guest, path = session.guest(arm), session.target(arm).path
            inside = read_read_aheads(guest.runner, [path])[path] if guest is not None else None
        effective[mode.name] = Effective(
            guest_read_ahead_kb=inside,
            host_read_ahead_kb=on_host[twins[mode.name]],
            disk_read_ahead_kb=on_host[bare],
        )
    return effective


def find_notes(_slices: Sequence[Measurement], cell: Cell) -> Iterator[str]:
    """What fio uses in the guest and on its twin."""
    if (inside := cell.mode.filesystem) is not None:
        yield (
            f"fio in the guest uses a file on {describe_filesystem(inside)}; the twin is a file on the same file "
            "system on a volume of its own, and the host is the device without it"
        )


def describe_filesystem(inside: InnerFilesystem) -> str:
    """For example "ext4 (noatime)"."""
    return f"{inside.kind} ({inside.options})" if inside.options else inside.kind


def annotate(cells: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """What host and guest did in another way, and how far they read ahead of a buffered job: a cell and its note."""
    for cell in cells:
        if cell.job.buffered:
            yield cell.id, _describe_cache(cell)
        host, guest = (
            set(options.split(",")) if options else set()
            for options in (cell.effective.host_mount_options, cell.effective.guest_mount_options)
        )
        if cell.mode_detail.filesystem is not None and host and guest and host != guest:
            only = [", ".join(sorted(one - other)) or "nothing" for one, other in ((host, guest), (guest, host))]
            yield cell.id, f"mounted with other options: only on the host {only[0]}; only in the guest {only[1]}"


def _describe_cache(cell: CellRecord) -> str:
    if cell.is_cached:
        return (
            "fio goes through the page cache of the guest, which has read the region before, and on the twin through "
            "that of the host: a figure of memory, and of neither the disk nor QEMU"
        )
    return f"fio goes through the page cache, which is emptied before each slice{_describe_ahead(cell)}"


def _describe_ahead(cell: CellRecord) -> str:
    shown = cell.effective
    sizes = (
        ("the guest", shown.guest_read_ahead_kb),
        ("its twin", shown.host_read_ahead_kb),
        ("the host on the disk", shown.disk_read_ahead_kb),
    )
    known = [f"{who} {size} KiB" for who, size in sizes if size is not None]
    return f"; read-ahead: {', '.join(known)}" if known and cell.job.reads else ""


_KEYS: Any = ModeKeys(table=InGuest, find_problems=find_problems, adapt=add_modes)
FEATURE = Feature(
    name="filesystem",
    subject=Subject(
        in_scenario=lambda scenario: (
            any(mode.filesystem is not None for mode in scenario.modes)
            or any(workload.buffered for workload in scenario.workloads)
        ),
        in_cell=lambda cell, _slices: cell.mode.filesystem is not None,
    ),
    brings=(_KEYS,),
    extend_hypervisor=lambda host, hypervisor, _events: mounted.FilesystemsInGuests(host, hypervisor),
    find_problems=find_conflicts,
    refuse_job=refuse_buffered,
    read_session=read_session,
    find_notes=find_notes,
    annotate=annotate,
)
