"""results.json as frozen values: the run with its lab, groups and plan; its facts that may affect values. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from pydantic import JsonValue, ValidationError

from harness.analysis import Estimate
from harness.model.disk import DiskRecord
from harness.model.values import Moment, Name, Number, RecordValue
from harness.model.workloads import Conditioning
from harness.results.cells import CellRecord
from harness.units import format_size
from harness.untrusted import adapt, require_as_many

SCHEMA_VERSION = 1
IMPORTED = "imported"
"""The kind of lab and the profile of an imported run, and the key of its provenance with the origin of its files."""
FIO_FILES = "fio_files"
"""The key of the provenance with the texts of fio files, by scenario, file and path of each text."""
PLAN = "plan"
"""The key of the provenance with what the run plans to measure: `results/records.py`."""

_T = TypeVar("_T")

RunStatus = Literal["running", "complete", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class DiskWrites(RecordValue):
    """What a run with a limit of the bytes written did to one disk."""

    disk: Name
    """The disk's name in the lab file."""
    limit: int
    """Bytes that the run may write to it."""
    planned: int
    """Bytes that the plan writes at most in its fewest rounds. Further rounds followed as far as the limit allowed."""
    written: int
    """Bytes written by the run, by the disk's own counter on the host, with earlier parts of a resumed run."""
    endurance: int | None
    """The rated endurance of the disk in bytes, as in the lab file."""
    left_out: tuple[str, ...]
    """What was not measured because of the limit, and why measuring ended early, in words."""


@dataclass(frozen=True, slots=True)
class RegionSteadiness(RecordValue):
    """How one region of the disk reached its steady state, by SNIA's criteria over the last five rounds."""

    region: str
    """`device`, or the mode that has its layout there."""
    values: tuple[float, ...]
    """The conditioning job's figure per round, in I/Os per second."""
    range_share: float
    """Largest minus smallest of the last five values, as a share of their mean; at most 0.2 is steady."""
    excursion_share: float
    """Rise or fall of the fitted line over the last five values, as a share of their mean; at most 0.1 is steady."""
    steady: bool
    """Whether there are five rounds and they keep both limits."""


@dataclass(frozen=True, slots=True)
class ConditioningRecord(RecordValue):
    """How the disk was conditioned before the first measurement."""

    method: Conditioning
    """`fill`: written once; `steady`: purged, written twice at 128 KiB, then a job repeated until steady."""
    job: str | None
    """The job that was repeated until steady; null for `fill`."""
    regions: tuple[RegionSteadiness, ...]
    """One entry per region; empty for `fill`."""
    steady: bool | None
    """Whether every region reached its steady state; null for `fill`."""


@dataclass(frozen=True, slots=True)
class DriftRecord(RecordValue):
    """How the throughput of the bare host changed while a group was measured."""

    job: str
    """The job's id."""
    change: Estimate
    """The change of its throughput from the group's first measurement to its last: 0.1 is 10 % more at the end."""
    too_much: bool
    """Whether the change is beyond the bound and more than chance. Then cells without alternating arms are `void`."""


@dataclass(frozen=True, slots=True)
class CarryOverRecord(RecordValue):
    """Whether the slices of a job depend on the arm that ran before them."""

    job: str
    """The job's id."""
    discarded_s: float
    """Seconds at the beginning of each of these slices that do not count, in addition to the ramp of the profile."""
    p_value: float
    """Of "it does not matter which arm ran before"."""
    effect: float
    """The largest effect, as a share: -0.1 means 10 % smaller values after `cause` than after the other arms."""
    cause: str
    """The arm that ran before and has this effect."""
    shown: bool
    """Whether there is carry-over, corrected for the number of jobs of the group and of its planned looks."""
    at_least: float = 0.0
    """How large the effect is at least, without its sign: the end of its interval that is nearer to 0."""
    matters: bool = True
    """Whether that is large enough to measure the job again."""


@dataclass(frozen=True, slots=True)
class GroupRecord(RecordValue):
    """A group of cells that were measured together: its rounds, and what applies to all its cells."""

    id: Name
    """Name of the group, as in the journal."""
    disk: Name
    """The disk under test."""
    orders: tuple[tuple[str, ...], ...]
    """For each whole round, the arms in the order of their first slices. The journal has the order in each block."""
    looks: tuple[int, ...]
    """The numbers of rounds at which the data may be looked at."""
    stopped: str | None
    """Why no further round followed, for example `budget decided`; null if the group was not finished."""
    conditioning: ConditioningRecord | None
    """How the disk was conditioned."""
    drift: tuple[DriftRecord, ...]
    """The drift of the host by job; empty with fewer than 3 values of the host."""
    rounds: tuple[int, ...] = ()
    """Numbers of the whole rounds, in the order of `orders`. An abandoned round leaves a gap."""
    abandoned: tuple[int, ...] = ()
    """Numbers of the rounds that were begun but not finished. No figure uses them."""
    carry_over: tuple[CarryOverRecord, ...] = ()
    """Carry-over between the arms by job; without the jobs that have too few slices for a test."""

    def __post_init__(self) -> None:
        """ValueError for a record that no run writes."""
        require_as_many("orders", len(self.orders), rounds=self.rounds)


@dataclass(frozen=True, slots=True)
class Efficiency(RecordValue):
    """The part of the measuring phase in which fio ran. The rest is starting fio, and changing from arm to arm."""

    fio_s: float
    """Seconds in which fio ran its jobs, with ramps."""
    wall_s: float
    """Seconds of the measuring phase, from the first round of each group to its last."""
    ratio: float
    """`fio_s / wall_s`, 0 to 1."""

    @classmethod
    def of(cls, fio_s: float, wall_s: float) -> Efficiency:
        return cls(fio_s, wall_s, fio_s / wall_s if wall_s > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class RunInfo(RecordValue):
    """The run itself: when and how it ran, and its status."""

    id: Name
    """Name of the run and of its directory."""
    started: Moment
    """Seconds since 1970-01-01 UTC."""
    finished: Moment | None
    """Seconds since 1970-01-01 UTC; null while the run continues, or if it was interrupted."""
    command: str
    """The command line that started the run."""
    profile: Name
    """Name of the profile that sets times and rounds."""
    seed: int
    """Seed of every random choice. The same seed repeats the order of arms."""
    status: RunStatus
    """Whether the run is complete."""
    scenarios: dict[Name, str]
    """Titles of the scenarios by name."""
    phases: dict[str, float]
    """Seconds spent in each phase."""
    efficiency: Efficiency
    """The part of the measuring phase in which fio ran."""
    cause: str | None = None
    """Why measuring stopped, if the status is `failed` and the cause is known."""
    published: dict[str, str] = field(default_factory=dict)
    """By scenario, the name of the published figures to show beside its results; without the scenarios that name
    none."""
    max_writes: str | None = None
    """The limit of the bytes written to each disk, as requested; null for none."""


@dataclass(frozen=True, slots=True)
class LabInfo(RecordValue):
    """Where the run was measured, and whether that represents real hardware."""

    host: Name
    """Name of the host in the lab file."""
    kind: str
    """What creates the guests there, for example `libvirt`, `proxmox` or `embedded`; `imported` for an imported run."""
    accel: str
    """QEMU's accelerator in the guests: `kvm` or `tcg`."""
    representative: bool
    """False if the lab does not represent real hardware (emulated, nested). Then no figure is about a real disk."""
    why: str
    """Why the lab is representative, or why not."""

    @property
    def imported(self) -> bool:
        """Whether the figures are of another tool. Then virt-overhead has not seen the lab."""
        return self.kind == IMPORTED


@dataclass(frozen=True, slots=True)
class JudgedRecord(RecordValue):
    """Whether the run judged anything: its cells with a guest, by what was found out about their budgets."""

    decided: bool
    """Whether at least one budget was decided: `within` or `exceeds`."""
    within: int
    """Cells within their budgets."""
    exceeds: int
    """Cells that exceed a budget."""
    inconclusive: int
    """Cells with a budget that the measurement did not decide."""
    unjudged: int
    """Cells that were measured and have no budget in this kind of lab."""
    void: int
    """Cells whose measurement is not valid."""
    skipped: int
    """Cells that were not measured."""
    why: str | None
    """Why nothing was judged, in words; null if something was."""


@dataclass(frozen=True, slots=True)
class Run(RecordValue):
    """The complete results.json."""

    schema: Number
    """Version of this format. A reader refuses a newer one."""
    run: RunInfo
    """The run itself."""
    lab: LabInfo
    """Where it was measured."""
    provenance: dict[str, JsonValue]
    """Versions and settings behind the figures: kernel, CPU, mitigations, governor, scheduler, fio, QEMU, images."""
    groups: tuple[GroupRecord, ...]
    """One entry per group that was started, in the order of the plan."""
    cells: tuple[CellRecord, ...]
    """One entry per cell, in the order of the plan."""
    writes: tuple[DiskWrites, ...] = ()
    """One entry per disk of a run with a limit of the bytes written; else empty."""
    judged: JudgedRecord | None = None
    """Whether anything was judged; null in an imported run."""
    disks: tuple[DiskRecord, ...] = ()
    """One entry per disk that was measured on; empty in an imported run."""
    of_features: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The records of features by their keys, which results.json has among the others."""
    unknown: tuple[str, ...] = ()
    """Keys of a results.json that no feature of this installation reads. They are not written."""

    def of(self, record: type[_T]) -> tuple[_T, ...]:
        """The records of this class, which a feature has."""
        return tuple(value for records in self.of_features.values() for value in records if isinstance(value, record))

    def cell(self, cell_id: str) -> CellRecord:
        """The cell with this id. KeyError if the run does not have it."""
        return {cell.id: cell for cell in self.cells}[cell_id]


@dataclass(frozen=True, slots=True)
class PlannedGroup(RecordValue):
    """A group of cells, and the smallest and largest number of its rounds. `fio_s`: seconds of fio in the fewest.

    `seconds`: of all work in these rounds and in usual searches, as estimated.
    """

    id: str
    cells: int
    rounds: int
    most_rounds: int
    fio_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Planned(RecordValue):
    """All groups in the order of measuring.

    `fio_s`: seconds of fio in their fewest rounds and in usual searches; `seconds`: of all work.
    """

    groups: tuple[PlannedGroup, ...]
    fio_s: float
    seconds: float

    @classmethod
    def of(cls, run: Run) -> Planned | None:
        """The stored plan; None in imported runs."""
        try:
            plan: Planned = adapt(Planned).validate_json(json.dumps(run.provenance.get(PLAN)))
        except ValidationError:
            return None
        return plan

    def seconds_left(self, spent: Mapping[str, float], ended: Collection[str] = ()) -> float:
        """An estimate of the time until every group has its fewest rounds. 0 if only further rounds may follow.

        `spent`: seconds of fio so far, by the id of the group or search. `ended`: the ids of those that need no more.
        A group that has more than its fewest rounds does not shorten the time of the others.
        """
        groups = [group for group in self.groups if group.id not in ended and group.fio_s]
        return sum(group.seconds * max(1 - spent.get(group.id, 0.0) / group.fio_s, 0.0) for group in groups)

    def as_provenance(self) -> dict[str, JsonValue]:
        """The plan under its key in `provenance`."""
        document: dict[str, Any] = asdict(self)
        return {PLAN: document | {"groups": list(document["groups"])}}


def comparable_fact(name: str, value: JsonValue) -> JsonValue:
    """The fact with sizes as they are shown: the same machine has some KiB more or less of memory after each boot."""
    if name.endswith("_bytes") and isinstance(value, str) and value.isdecimal():
        return format_size(int(value))
    return value
