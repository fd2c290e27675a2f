"""results.json as frozen values: the run with its lab, groups and plan; its facts that may affect values. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
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


_CHANGES_EACH_TIME = frozenset({"acceleration.why", "cycles.why", "guest.boot_seconds"})
"""Facts that differ between any two runs, or that only explain another fact."""
_NO_SETTINGS = frozenset({"calibration", "evaluation", "asked", FIO_FILES, PLAN, IMPORTED})
"""Subjects of the provenance that do not affect the values. Of `asked`, see `_read_requested`; it has the digests of
fio files. Of `imported`, see `_read_imported`: its files are other ones in each run."""
_NO_INFLUENCE = ("run.seed", "run.status", "lab.why", "host.hostname", "boots")
"""The seed only chooses the random order of the arms."""
_TIMES = ("job.seconds", "job.ramp")
"""How long a slice takes has no influence on its rate in a steady state. A longer slice only has less noise."""
_MEASURED = (
    "run.profile",
    "lab.accel",
    "lab.representative",
    "acceleration.accel",
    "host.fio",
    "images.guest.fio",
    "imported.*.fio",
    "span_bytes",
    "*.span",
    "*.conditioning",
    "*.conditioning.method",
    "job.*",
)
"""How the values were measured: by which fio, with which profile and job, where on the disk, and in which state of it.
A lab that emulates its disks, or its CPUs, measures something else than one with real ones."""
_MACHINE = ("host.cpu", "host.cpus", "*.disk", "*.disk[0-9]*[0-9]", "*.disk[0-9]")
"""What was measured on: the CPU and the disks."""


class Effect(StrEnum):
    """What a difference between the runs means for their comparison."""

    RULES_OUT = "rules out"
    """The runs were measured differently, so no change of the figures says anything about what was measured."""
    CAUSE = "possible cause"
    """It may have caused a change."""
    NONE = "none"
    """It has no influence on the values."""


def comparable_fact(name: str, value: JsonValue) -> JsonValue:
    """The fact with sizes as they are shown: the same machine has some KiB more or less of memory after each boot."""
    if name.endswith("_bytes") and isinstance(value, str) and value.isdecimal():
        return format_size(int(value))
    return value


def list_different_facts(
    before: Mapping[str, JsonValue], after: Mapping[str, JsonValue]
) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    """The facts that differ, by name with both values; None for one that is missing."""
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            yield what, before.get(what), after.get(what)


def judge_effect(what: str, *, same_machine: bool) -> Effect:
    """What the difference with this name means. `same_machine`: both runs must be of the same CPU and disks."""
    if what in _NO_INFLUENCE:
        return Effect.NONE
    if what in _TIMES:
        return Effect.CAUSE
    ruling_out = (*_MEASURED, *_MACHINE) if same_machine else _MEASURED
    return Effect.RULES_OUT if any(fnmatchcase(what, pattern) for pattern in ruling_out) else Effect.CAUSE


def read_run_facts(run: Run) -> dict[str, JsonValue]:
    lab = run.lab
    facts: dict[str, JsonValue] = {
        "run.profile": run.run.profile,
        "run.seed": run.run.seed,
        "run.status": run.run.status,
        "lab.host": lab.host,
        "lab.kind": lab.kind,
        "lab.accel": lab.accel,
        "lab.representative": lab.representative,
        "lab.why": lab.why,
    }
    subjects = {name: value for name, value in run.provenance.items() if name not in _NO_SETTINGS}
    facts |= {key: comparable_fact(key, value) for key, value in _flatten(subjects) if not _is_left_out(key)}
    return facts | _read_imported(run)


def _read_imported(run: Run) -> dict[str, JsonValue]:
    """By arm, the versions of fio of the imported files, and by job the values of each option."""
    origin = run.provenance.get(IMPORTED)
    values: dict[str, set[str]] = {}
    for file in (origin if isinstance(origin, dict) else {}).values():
        if not isinstance(file, dict) or "left out" in file:
            continue
        values.setdefault(f"{IMPORTED}.{file.get('arm')}.fio", set()).add(str(file.get("fio")))
        options = file.get("options")
        for name, value in _flatten(options if isinstance(options, dict) else {}, f"{IMPORTED}.{file.get('arm')}."):
            values.setdefault(name, set()).add(str(value) or "set")
    return {name: " or ".join(sorted(options)) for name, options in values.items()}


def _is_left_out(key: str) -> bool:
    # The time of the build and the digest of the recipe identify an image. The disks are those of the scenarios.
    return key in _CHANGES_EACH_TIME or ".sha256." in key or key.startswith("disk.")


def read_scenario_facts(run: Run, scenario: str) -> dict[str, JsonValue]:
    """What was requested of the scenario, its disks and how they were conditioned. Disks are numbered, because the
    names of the disks may differ."""
    requested = _read_requested(run, scenario)
    names = [key.removeprefix("disk.") for key in requested if key.startswith("disk.")]
    names = names or list(dict.fromkeys(cell.disk for cell in run.cells if cell.scenario == scenario))
    facts = {key: value for key, value in requested.items() if not key.startswith("disk.")}
    for number, name in enumerate(names, start=1):
        key = "disk" if len(names) == 1 else f"disk{number}"
        facts[key] = requested.get(f"disk.{name}", name)
        facts |= dict(_flatten({key: run.provenance.get(f"disk.{name}", {})}))
        records = [asdict(disk.facts) for disk in run.disks if disk.name == name]
        facts |= {what: value for record in records for what, value in _flatten({key: record}) if value is not None}
    for group in run.groups:
        if group.disk in names and group.conditioning is not None:
            facts["conditioning.method"] = group.conditioning.method
            facts["conditioning.steady"] = group.conditioning.steady
    return facts


def _read_requested(run: Run, scenario: str) -> dict[str, JsonValue]:
    """The settings that were requested, without the modes, which are the same, and those that each cell has."""
    asked = run.provenance.get("asked")
    requested = asked if isinstance(asked, dict) else {}
    of_scenario = {
        key.removeprefix(f"{scenario}."): value for key, value in requested.items() if key.startswith(f"{scenario}.")
    }
    in_cells = ("mode.", "ramp", "runtime", "span", "conditioning")
    return {key: value for key, value in of_scenario.items() if not key.startswith(in_cells)}


def _flatten(value: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, JsonValue]]:
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _flatten(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner
