"""One scenario file as frozen values, and the modes that every scenario can use. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TypeVar

from harness.model.attach import Attach, Vfio
from harness.model.base import Device
from harness.model.budget import Budget
from harness.model.guest import GuestOptions
from harness.model.job import Job, Workload
from harness.model.layout import Lvm, LvmThin, Partition, Qcow2, RawFile, Zvol
from harness.model.mode import Mode
from harness.model.profile import Profile
from harness.model.workloads import FioFiles

PRESETS = (
    Mode("host", Device(), attach=None),
    Mode("passthrough", Device(), Attach()),
    Mode("lvm", Lvm(), Attach()),
    Mode("raw", RawFile(), Attach()),
    # The study of Proxmox VE measured RAW in this way. Reads may come from the host's page cache. Proxmox VE uses
    # io_uring.
    Mode("raw-cached", RawFile(), Attach(cache="writeback", aio="io_uring")),
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


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Splits the latency between the bare host and another arm into steps. `steps` are ids of arms, `host` first.

    Each step changes one thing. If `workloads` is None, all workloads of the scenario are decomposed.
    """

    name: str
    steps: tuple[str, ...]
    workloads: tuple[Workload, ...] | None = None

    def covers(self, job: Job) -> bool:
        """Whether this job is decomposed."""
        return self.workloads is None or job.workload in self.workloads


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
    cover a cell, the last one counts. `expect_void` names modes whose cells the author expects to be void. `fio_files`
    are the fio files among the workloads. `reference` is the single disk that `disk` is compared with, if the lab says
    that `disk` is an array and names one. It is then the second of `disks`. `requests` are what it asks of features.
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
    expect_void: tuple[str, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
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
