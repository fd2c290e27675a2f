"""One scenario file as frozen values, and the modes that every scenario can use. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from harness.errors import ConfigError
from harness.model.attach import Attach, Vfio
from harness.model.base import Device
from harness.model.disk import ANY, ARRAY, STORAGE, WRITE_RATES
from harness.model.guest import GuestOptions
from harness.model.job import Workload
from harness.model.layout import Lvm, LvmThin, Partition, Qcow2, RawFile, Zvol
from harness.model.mode import Budget, Mode
from harness.model.workloads import FioFiles, Profile

PRESETS = (
    Mode("host", Device(), attach=None),
    Mode("passthrough", Device(), Attach()),
    Mode("lvm", Lvm(), Attach()),
    Mode("raw", RawFile(), Attach()),
    # The study of Proxmox VE measured RAW in this way: the host's page cache serves reads. Proxmox VE uses io_uring.
    Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="io_uring"), cached=True),
    # Each of these differs in one option from a preset above.
    Mode("partition", Partition(), Attach()),
    Mode("lvm-thin", LvmThin(), Attach()),
    Mode("raw-xfs", RawFile("xfs"), Attach()),
    Mode("qcow2", Qcow2(), Attach()),
    Mode("zvol", Zvol(), Attach()),
    Mode("passthrough-blk", Device(), Attach(bus="virtio-blk")),
    Mode("lvm-blk", Lvm(), Attach(bus="virtio-blk")),
    Mode("vfio", Device(), Vfio()),
)


@dataclass(frozen=True, slots=True)
class FioFile:
    """A user's own fio file among the workloads. `path` is relative to the scenario's folder, as in the scenario.

    `texts` are path and text of each file that was read: the file itself first, then those that it includes.
    """

    path: str
    texts: tuple[tuple[str, str], ...]

    @property
    def sha256(self) -> str:
        """The digest of all texts with their paths."""
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WorkloadFiles:
    """What the fio files of a scenario say."""

    workloads: FioFiles = field(default_factory=dict)
    """By path; or what is wrong with a file."""
    read: tuple[FioFile, ...] = ()
    """Those that can be used."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Requested:
    """What the scenario asks of a feature: a table `[KEY.NAME]` of the file, as the feature's class for it."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file: the disk, the modes and the workloads to measure. `write_rate` in bytes per second.

    `disks` are the members of arrays, `disk` first, which is the baseline of the host arm. Without arrays, `disks` has
    only `disk`. `disk_class` is the class that the file asks for if the lab has no disk named `disk`. For each disk of
    the class, `scenario.classes` makes a scenario. `file` is the name of the file, which those share.
    `published` is the key of the published figures to compare with. If several `budgets` of one metric
    cover a cell, the last one counts. `fio_files` are the fio files among the workloads. `reference` is the single disk
    that `disk` is compared with, if the lab says that `disk` is an array and names one. It is then the second of
    `disks`. `requests` are what it asks of features.
    """

    name: str
    title: str
    disk: str
    modes: tuple[Mode, ...]
    workloads: tuple[Workload, ...]
    write_rate: int
    profiles: tuple[Profile, ...]
    published: str | None = None
    budgets: tuple[Budget, ...] = ()
    requests: tuple[Requested, ...] = ()
    fio_files: tuple[FioFile, ...] = ()
    disks: tuple[str, ...] = ()
    disk_class: str | None = None
    file: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        if not self.file:
            object.__setattr__(self, "file", self.name)
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))

    @property
    def declared_modes(self) -> tuple[Mode, ...]:
        """The modes without their variants."""
        return tuple(dict.fromkeys(mode.base or mode for mode in self.modes))

    def requests_of(self, table: type[_T]) -> dict[str, _T]:
        """What the scenario asks for in tables of this class, by name."""
        return {request.name: request.value for request in self.requests if isinstance(request.value, table)}

    def compared_with(self, reference: str) -> Scenario:
        """The scenario with this reference for the array that it measures; unchanged if it builds arrays itself."""
        if not reference or len(self.disks) > 1:
            return self
        return replace(self, disks=(self.disk, reference), reference=reference)

    def on(self, guest: GuestOptions, *, one_guest: bool = False) -> Scenario:
        """The scenario on a host whose guests have these options. The options in its own file win.

        `one_guest` as for `Mode.on`.
        """
        return replace(self, modes=tuple(mode.on(guest, one_guest=one_guest) for mode in self.modes))


@dataclass(frozen=True, slots=True)
class OfferedDisk:
    """A disk or storage of the lab, for the choice by class. `known_from` says in words where its class is from."""

    name: str
    disk_class: str | None
    known_from: str
    simulated: bool = False
    """Whether it is one of the embedded lab, which has a scenario for each disk. Then a class does not include it."""
    on_array: bool = False
    """Whether the lab says that it is on an array. A storage then is in the class of arrays as well."""
    reference: str = ""
    """The single disk that the lab compares this array with; empty without one."""

    def has(self, requested: str) -> bool:
        """Whether a scenario that asks for this class measures it."""
        if requested == ARRAY and self.on_array:
            return True
        return self.disk_class == requested or (requested == ANY and self.disk_class != STORAGE)


@dataclass(frozen=True, slots=True)
class ForLab:
    """The scenarios of a lab by name: those that name disks unchanged, and one for each disk of a class.

    `notes` say why a scenario that asks for a class measures no disk, or not this one.
    """

    scenarios: Mapping[str, Scenario]
    notes: Sequence[str] = field(default=())


def for_lab(
    scenarios: Mapping[str, Scenario], disks: Sequence[OfferedDisk], chosen: Collection[str] | None = None
) -> ForLab:
    """The scenarios for the disks of this lab, or only for the `chosen` ones.

    A scenario measures the disk that it names if the lab has it, and otherwise the disks of its class. A class does not
    include a disk that has a scenario of its own name, and a simulated disk only if it is chosen. Raises ConfigError if
    two scenarios would have the same name.
    """
    offered = {disk.name: disk for disk in disks}
    found: dict[str, Scenario] = {}
    notes: list[str] = []
    for scenario in scenarios.values():
        requested = scenario.disk_class
        if requested is None or scenario.disk in offered:
            own_disk = offered.get(scenario.disk)
            reference = own_disk.reference if own_disk is not None else ""
            found[scenario.name] = replace(scenario, disk_class=None).compared_with(reference)
            continue
        matching = [disk for disk in offered.values() if disk.has(requested)]
        offered_disks = [disk for disk in matching if disk.name in scenarios]
        if named := [disk.name for disk in offered_disks if chosen is None or disk.name in chosen]:
            selected = " or ".join(f"-k {name}" for name in named)
            notes.append(
                f"{scenario.file}: not on {', '.join(named)}: measure it with the scenario of its name: {selected}"
            )
        others = [disk for disk in matching if disk not in offered_disks]
        usable = [disk for disk in others if _is_chosen(disk, chosen)]
        for disk in usable:
            name = name_for(scenario.file, requested, disk.name)
            if other := found.get(name, scenarios.get(name)):
                raise ConfigError(
                    f"scenarios {other.file} and {scenario.file}: both would be named {name} on disk {disk.name}",
                    hint=f"rename one of {other.file}.toml, {scenario.file}.toml and the disk",
                )
            found[name] = _on(scenario, disk, name)
        if not usable and not (named and chosen):
            notes.append(f"{scenario.file}: {_why_none(scenario, requested, others, offered.values(), chosen)}")
    return ForLab(found, tuple(notes))


def _is_chosen(disk: OfferedDisk, chosen: Collection[str] | None) -> bool:
    return disk.name in chosen if chosen is not None else not disk.simulated


def name_for(file: str, requested: str, disk: str) -> str:
    """The name of the scenario in `file` for this disk: the class in the name of the file becomes the disk's name.

    `any_disk` becomes `DISK`, `nvme_vfio` becomes `DISK_vfio`. If the file has another name, for example `stalls`, the
    disk's name precedes it: `DISK_stalls`. Dots become underscores, because keys of results have dots between names.
    """
    name = disk.replace(".", "_")
    for word in (f"{requested}_disk", requested):
        if file == word or file.startswith(f"{word}_"):
            return name + file.removeprefix(word)
    return f"{name}_{file}"


def _on(scenario: Scenario, disk: OfferedDisk, name: str) -> Scenario:
    limit = WRITE_RATES.get(disk.disk_class or "", scenario.write_rate)
    # The rate of a scenario that names a disk is that of this disk. Another one may be faster.
    rate = min(scenario.write_rate, limit) if scenario.disk == scenario.disk_class else limit
    own = replace(scenario, name=name, disk=disk.name, disks=(disk.name,), write_rate=rate)
    return own.compared_with(disk.reference)


def _why_none(
    scenario: Scenario,
    requested: str,
    others: Sequence[OfferedDisk],
    disks: Collection[OfferedDisk],
    chosen: Collection[str] | None,
) -> str:
    kind = "storage" if requested == STORAGE else "disk"
    wanted = kind if requested in (ANY, STORAGE) else f"disk of class {requested}"
    if scenario.disk != requested:
        wanted = f"disk {scenario.disk}, and no other {wanted}"
    if chosen is not None:
        return f"--disk names no {wanted}"
    if others:
        return "the embedded lab has scenarios for its disks by name; --disk=NAME measures one of them by its class"
    unknown = ", ".join(disk.name for disk in disks if disk.disk_class is None and requested not in (ANY, STORAGE))
    ask = f"the class of {unknown} is not known without asking the host: set `class` in the lab file"
    return f"the lab has no {wanted}; {ask if unknown else f'add it as [host.NAME.{kind}.{kind.upper()}]'}"
