"""What a run stores, as frozen values: measurements in the journal, cells and their run in results.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from harness.analysis import Better, CostUnit, Estimate, Unit, Verdict
from harness.analysis.verdict import Both
from harness.results.comparisons import DecompositionRecord, ScalingRecord
from harness.results.strict import STRICT as _STRICT
from harness.scenario.model import Conditioning

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
    visit: int
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
    counters: dict[str, float] = field(default_factory=dict)
    """What was counted meanwhile: bytes by fio (ramp included), the host's bare disk and QEMU (`fio_read`,
    `fio_written`, `disk_read`, ..., `qemu_written`), and how busy the CPUs were, 0 to 1, of fio's machine
    (`cpu_busy`) and of the host (`host_cpu_busy`). `ios` of fio (ramp included), its CPU seconds and context switches
    (`fio_user_s`, `fio_system_s`, `fio_switches`). Where the job had its fio process for itself: the host's busy CPU
    seconds and switches (`host_busy_s`, `host_switches`), those of QEMU's threads (`qemu_guest_s`, `qemu_vcpu_s`, ...)
    and KVM's counts (`kvm_exits`, ...), and where perf works the host's cycles (`cycles_host_kernel`, ...)."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Completions by latency in nanoseconds: fio's own bins."""
    notes: tuple[str, ...] = ()
    """What a reader should know of this measurement, one sentence each."""


@dataclass(frozen=True, slots=True)
class ModeDetail:
    """What a mode's name stands for."""

    __pydantic_config__ = _STRICT

    layout: dict[str, JsonValue]
    """What is built on the disk; `kind` is `device`, `lvm`, `raw`, ..."""
    attach: dict[str, JsonValue] | None
    """How the guest gets it (bus, cache, aio, iothread); null for the mode `host`."""

    @property
    def on_array(self) -> bool:
        """Whether it lies on an array of disks, so that what one disk alone gives is no bound for it."""
        layout: JsonValue = self.layout
        while isinstance(layout, dict):
            if layout.get("kind") == "md":
                return True
            layout = layout.get("on")
        return False


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One fio point, as asked for."""

    __pydantic_config__ = _STRICT

    id: str
    """For example `randread-4k-qd32`."""
    pattern: str
    """The pattern as people say it: fio's `read` is `seqread`."""
    rw: str
    """fio's name of the pattern."""
    bs: int
    """Block size in bytes."""
    iodepth: int
    """I/Os in flight per job process."""
    numjobs: int
    """Processes that run the job at the same time."""
    read_share: float | None
    """Share of reads in a mixed pattern, 0 to 1; null for a pattern that only reads or only writes."""
    seconds: float
    """Measured time asked for."""
    ramp: float
    """Seconds before the measured time begins."""
    rate: int | None = None
    """I/Os per second asked for, of all processes together; null for as many as there can be."""


@dataclass(frozen=True, slots=True)
class MetricRecord:
    """One metric of a cell: each arm's values in the order of the cell's rounds, and what follows from them."""

    __pydantic_config__ = _STRICT

    unit: Unit
    """The unit of the values and of `added`: I/Os per second, bytes per second or seconds."""
    better: Better
    """Whether higher or lower values are better."""
    host: tuple[float, ...]
    """Values of the bare device on the host; `host[i]`, `twin[i]` and `guest[i]` belong to `rounds[i]` of the cell."""
    twin: tuple[float, ...]
    """Values on the host on the mode's own layout; empty where the layout is the bare device."""
    guest: tuple[float, ...]
    """Values in the guest; empty for the mode `host`."""
    overhead: Estimate | None
    """What the guest is worse by than the host, as a share of the host: 0.1 is 10 %. Null without a guest."""
    layer: Estimate | None
    """The storage layer's part: what the twin is worse by than the host, as a share. Null without a twin."""
    virtualisation: Estimate | None
    """The guest's part: what the guest is worse by than its twin (or the host, where there is no twin), as a share."""
    added: Estimate | None
    """Guest minus host in the metric's unit; for latency only, else null."""
    pooled: dict[str, PooledPercentile] = field(default_factory=dict)
    """For percentiles: by arm (`host`, `twin`, `guest`), the percentile of all its rounds' I/Os together."""

    def gained(self, mode: ModeDetail) -> bool:
        """Whether the guest is better beyond the interval than the host is on the same disks: on an array, its twin."""
        loss = self.virtualisation if mode.on_array else self.overhead
        return loss is not None and loss.high is not None and loss.high < 0


@dataclass(frozen=True, slots=True)
class CostRecord:
    """What one I/O costs the host in one respect: each arm's values in the order of the cell's rounds."""

    __pydantic_config__ = _STRICT

    unit: CostUnit
    """`s/IO`: seconds of CPU time per I/O; `1/IO`: how many per I/O."""
    host: tuple[float, ...]
    """Values of the bare device on the host; empty where the arm does not have this figure."""
    twin: tuple[float, ...]
    """Values on the host on the mode's own layout; empty where there are none."""
    guest: tuple[float, ...]
    """Values of the host while the guest does the I/O; empty where there are none."""
    added: Estimate | None
    """Guest minus host, in `unit`; null where one of them has no values."""


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """The overhead that is allowed for a cell in one metric, and what came of it."""

    __pydantic_config__ = _STRICT

    metric: str
    """The metric whose overhead is judged, for example `iops`."""
    share: float | None
    """The largest overhead allowed, as a share of the host: 0.1 is 10 %; null for no such limit."""
    absolute: float | None
    """The most that the guest may add, in seconds; null for no such limit."""
    both: Both | None
    """With two limits: `looser` where keeping either is enough, `stricter` where both are to be kept."""
    verdict: Verdict
    """Of this budget, corrected for how many cells the run judges."""
    p_value: float | None
    """Of "the budget is exceeded", corrected for the looks but not for the other cells; null without an interval."""


@dataclass(frozen=True, slots=True)
class PooledPercentile:
    """A percentile of all rounds' I/Os together: fio's histograms merged, not percentiles averaged."""

    __pydantic_config__ = _STRICT

    value: float
    """In seconds."""
    low: float
    """Lower end of its interval by order statistics: which I/Os happened to be measured, not how rounds differ."""
    high: float
    """Upper end of that interval."""
    ios: int
    """Completions behind it."""


@dataclass(frozen=True, slots=True)
class ValidityCheck:
    """One check that a cell's measurement is what it claims to be; a check that is not ok makes the cell `void`."""

    __pydantic_config__ = _STRICT

    check: str
    """Name of the check."""
    ok: bool
    """Whether it passed."""
    detail: str
    """The figures compared, for people."""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """disk x mode x job: one pytest item with its values, estimates and verdict."""

    __pydantic_config__ = _STRICT

    id: str
    """For example `optane-lvm-randread-4k-qd32`."""
    scenario: str
    """Name of the scenario."""
    host: str
    """Name of the host in the lab file."""
    disk: str
    """Name of the disk under test in the lab file."""
    mode: str
    """Name of the attach mode; `host` is the baseline itself."""
    mode_detail: ModeDetail
    """What the mode's name stands for."""
    job: JobRecord
    """The fio point."""
    rounds: tuple[int, ...]
    """Numbers of the rounds in which every arm of the cell was measured; the metrics' values are in this order."""
    metrics: dict[str, MetricRecord]
    """Metrics by name: iops, bw, lat_mean, clat_mean, clat_p50, clat_p99, clat_p999."""
    confidence: float
    """Of every interval of this cell: 0.95, or more where the rounds were looked at early, so that the intervals of all
    looks together hold with 0.95."""
    verdict: Verdict
    """The gravest of its budgets' verdicts; `void` where a check failed, `unjudged` without a budget or skipped."""
    budget: tuple[BudgetRecord, ...]
    """The budgets of the cell, one per metric."""
    validity: tuple[ValidityCheck, ...]
    """The checks of the measurement; one that is not ok makes the verdict `void`."""
    effective: dict[str, JsonValue]
    """The configuration as read back from the guest and QEMU."""
    raw: tuple[str, ...]
    """fio's outputs behind the cell, in order of time, as paths relative to the run's directory."""
    span_bytes: int
    """Bytes of the disk that every arm works on."""
    notes: tuple[str, ...]
    """What a reader should know of the cell, one sentence each."""
    skipped: str | None
    """Why the cell was not measured, or null."""
    accounting: dict[str, CostRecord] = field(default_factory=dict)
    """What an I/O costs the host, by name; empty where the jobs shared a fio process, or nobody counted."""


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
    """For each round the arms in the order in which they were measured."""
    looks: tuple[int, ...]
    """After how many rounds the data may be looked at."""
    stopped: str | None
    """Why no further round followed, for example `budget decided`; null where the group was not finished."""
    conditioning: ConditioningRecord | None
    """How the disk was made ready."""
    drift: tuple[DriftRecord, ...]
    """By job; empty with fewer than 3 values of the host."""


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
