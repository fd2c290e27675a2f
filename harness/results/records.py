"""What a run stores, as frozen values: measurements in the journal, the run and its groups in results.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, JsonValue

from harness.analysis import Estimate
from harness.model.counters import Counters
from harness.model.profile import Conditioning
from harness.results.cells import CellRecord
from harness.results.comparisons import DecompositionRecord, ScalingRecord
from harness.results.strict import STRICT as _STRICT

SCHEMA_VERSION = 1

RunStatus = Literal["running", "complete", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm x job x round: one run of fio, and one line of journal.jsonl."""

    __pydantic_config__ = _STRICT

    group: str
    """What was measured together: cells of one group share their host arm."""
    round: int
    """Number of the round; the arms of one round are minutes apart and form a pair."""
    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    repeat: Annotated[int, Field(validation_alias=AliasChoices("repeat", "visit"))]
    """1, or 2 for an arm that is measured a second time in the round: the bare host, when it brackets the others."""
    job: str
    """The job's id, for example `randread-4k-qd32`."""
    started: float
    """When fio was started, in seconds since 1970-01-01 UTC."""
    seconds: float
    """The measured time as fio counted it, without the ramp."""
    wall: float
    """Seconds from the start of the command to its end."""
    metrics: dict[str, float]
    """Values by metric name, in the metric's unit; a percentile that too few I/Os support is absent."""
    io_bytes: int
    """Bytes that fio counted."""
    raw: str
    """fio's output, as a path relative to the run's directory."""
    counters: Counters = field(default_factory=Counters)
    """What was counted during the measurement, by whom."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""
    notes: tuple[str, ...] = ()
    """What a reader should know of this measurement, one sentence each."""


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """A round is begun, or abandoned before it was whole: one line of journal.jsonl."""

    __pydantic_config__ = _STRICT

    event: Literal["begun", "abandoned"]
    """`abandoned`: the measurements of this round do not count. Its number is not used again."""
    group: str
    """The group, as in its measurements."""
    round: int
    """Number of the round; each is begun once."""
    measurements: int | None
    """How many a whole round has, where it is begun; null where it is abandoned."""
    why: str | None
    """Why it was abandoned; null where it is begun."""


@dataclass(frozen=True, slots=True)
class RegionSteadiness:
    """How one region of the disk came to its steady state, by SNIA's criteria over the last five rounds."""

    __pydantic_config__ = _STRICT

    region: str
    """`device`, or the mode whose layout it is."""
    values: tuple[float, ...]
    """The conditioning job's figure per round, in I/Os per second."""
    range_share: float
    """Largest minus smallest of the last five, as a share of their mean; at most 0.2 is steady."""
    excursion_share: float
    """What the line through them rises or falls, as a share of their mean; at most 0.1 is steady."""
    steady: bool
    """Whether there are five rounds that keep both limits."""


@dataclass(frozen=True, slots=True)
class ConditioningRecord:
    """How the disk was made ready before anything was measured."""

    __pydantic_config__ = _STRICT

    method: Conditioning
    """`fill`: written once; `steady`: purged, written twice at 128 KiB, then worked until steady."""
    job: str | None
    """The job that was repeated until steady; null for `fill`."""
    regions: tuple[RegionSteadiness, ...]
    """Empty for `fill`."""
    steady: bool | None
    """Whether every region came to its steady state; null for `fill`."""


@dataclass(frozen=True, slots=True)
class DriftRecord:
    """How the bare host's own figure changed while a group was measured."""

    __pydantic_config__ = _STRICT

    job: str
    """The job's id."""
    change: Estimate
    """Of its throughput from the group's first measurement to its last: 0.1 is 10 % more at the end."""
    too_much: bool
    """Whether the change is beyond the bound and more than chance; the group's cells are `void` then."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What was measured together: its rounds, and what holds for all its cells."""

    __pydantic_config__ = _STRICT

    id: str
    """Name of the group, as in the journal."""
    disk: str
    """The disk under test."""
    orders: tuple[tuple[str, ...], ...]
    """For each whole round the arms in the order in which they were measured."""
    looks: tuple[int, ...]
    """After how many rounds the data may be looked at."""
    stopped: str | None
    """Why no further round followed, for example `budget decided`; null where the group was not finished."""
    conditioning: ConditioningRecord | None
    """How the disk was made ready."""
    drift: tuple[DriftRecord, ...]
    """By job; empty with fewer than 3 values of the host."""
    rounds: tuple[int, ...] = ()
    """Numbers of the whole rounds, in the order of `orders`; an abandoned round leaves a gap."""
    abandoned: tuple[int, ...] = ()
    """Numbers of the rounds that were begun and not finished; nothing of them is in any figure."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the measuring phase fio ran: the rest is starting it, and moving from arm to arm."""

    __pydantic_config__ = _STRICT

    fio_s: float
    """Seconds in which fio ran its jobs, ramps included."""
    wall_s: float
    """Seconds of the measuring phase, from the first round of each group to its last."""
    ratio: float
    """`fio_s / wall_s`, 0 to 1."""

    @classmethod
    def of(cls, fio_s: float, wall_s: float) -> Efficiency:
        return cls(fio_s, wall_s, fio_s / wall_s if wall_s > 0 else 0.0)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run itself: when, how, how far."""

    __pydantic_config__ = _STRICT

    id: str
    """Name of the run and of its directory."""
    started: float
    """Seconds since 1970-01-01 UTC."""
    finished: float | None
    """Seconds since 1970-01-01 UTC; null while the run goes on or where it was interrupted."""
    command: str
    """The command line that started the run."""
    profile: str
    """Name of the profile that chose times and rounds."""
    seed: int
    """Seed of every random choice, so that the order of arms can be repeated."""
    status: RunStatus
    """How far the run came."""
    scenarios: dict[str, str]
    """Titles of the scenarios by name."""
    phases: dict[str, float]
    """Seconds spent in each phase."""
    efficiency: Efficiency
    """How much of the run was spent measuring."""
    cause: str | None = None
    """Why measuring stopped, where the status is `failed` and that is known."""


@dataclass(frozen=True, slots=True)
class LabInfo:
    """Where the run was measured, and whether that speaks for real hardware."""

    __pydantic_config__ = _STRICT

    host: str
    """Name of the host in the lab file."""
    kind: str
    """How guests are made there, for example `libvirt`, `proxmox` or `embedded`."""
    accel: str
    """QEMU's accelerator in the guests: `kvm` or `tcg`."""
    representative: bool
    """False where the lab cannot speak for real hardware (emulated, nested): no statement on a disk then."""
    why: str
    """Why it is representative, or why not."""


@dataclass(frozen=True, slots=True)
class Run:
    """The whole of results.json."""

    __pydantic_config__ = _STRICT

    schema: int
    """Version of this format; a reader refuses a newer one."""
    run: RunInfo
    """The run itself."""
    lab: LabInfo
    """Where it was measured."""
    provenance: dict[str, JsonValue]
    """Versions and settings behind the figures: kernel, CPU, mitigations, governor, scheduler, fio, QEMU, images."""
    groups: tuple[GroupRecord, ...]
    """One entry per group that was begun, in the order of the plan."""
    cells: tuple[CellRecord, ...]
    """One entry per cell, in the order of the plan."""
    decompositions: tuple[DecompositionRecord, ...] = ()
    """One entry per decomposition of a scenario and job."""
    scalings: tuple[ScalingRecord, ...] = ()
    """One entry per cell whose layout is, or lies on, an array over several disks."""

    def cell(self, cell_id: str) -> CellRecord:
        """The cell with this id; KeyError if the run has none."""
        return {cell.id: cell for cell in self.cells}[cell_id]
