"""What is to be measured, as frozen values: jobs, layouts, attach options, modes, cells, arms, budgets, scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from harness.analysis.verdict import Both
from harness.scenario.attach import Attachment
from harness.scenario.layouts import Device, Layout
from harness.units import short_size

Rw = Literal["read", "write", "randread", "randwrite", "rw", "randrw"]
Conditioning = Literal["fill", "steady"]
LabKind = Literal["bare-metal", "nested", "emulated"]

PATTERNS: Mapping[str, Rw] = {
    "seqread": "read",
    "seqwrite": "write",
    "seqrw": "rw",
    "randread": "randread",
    "randwrite": "randwrite",
    "randrw": "randrw",
}
"""What people call a pattern, and fio's word for it."""
_PATTERN_OF_RW = {rw: pattern for pattern, rw in PATTERNS.items()}


@dataclass(frozen=True, slots=True)
class Job:
    """One fio point. `bs` in bytes; `ramp` and `seconds` in seconds; `read_share` in 0..1, for mixed patterns only.

    `rate` is the I/Os per second that are asked for, of all processes together; None is as many as there can be.
    """

    rw: Rw
    bs: int
    iodepth: int
    ramp: float
    seconds: float
    numjobs: int = 1
    read_share: float | None = None
    rate: int | None = None

    @property
    def pattern(self) -> str:
        """The pattern as people say it: `read` is `seqread`, so that `-k seqread` and `-k randread` tell them apart."""
        return _PATTERN_OF_RW[self.rw]

    @property
    def id(self) -> str:
        """For example `randread-4k-qd32`; `-nj4`, `-r70` and `-i1000` follow where the workload sets them."""
        pattern, bs, *suffixes = self.workload.parts
        return "-".join((pattern, bs, f"qd{self.iodepth}", *suffixes))

    @property
    def workload(self) -> Workload:
        """What the scenario lists: the job without its depth and times."""
        return Workload(self.rw, self.bs, self.numjobs, self.read_share, self.rate)

    @property
    def headline(self) -> str:
        """The metric that people speak of this job by: IOPS of random patterns, bandwidth of sequential ones.

        A job at a fixed rate has the same IOPS on every arm, and is spoken of by its mean completion latency.
        """
        if self.rate is not None:
            return "clat_mean"
        return "iops" if self.rw.startswith("rand") else "bw"

    @property
    def reads(self) -> bool:
        return self.rw not in ("write", "randwrite")

    @property
    def writes(self) -> bool:
        return self.rw not in ("read", "randread")

    @property
    def wall(self) -> float:
        """Seconds that fio runs for this job: ramp and measured time."""
        return self.ramp + self.seconds


@dataclass(frozen=True, slots=True)
class Mode:
    """An attach mode by its name. `attach` is None for `host`, which is the baseline itself."""

    name: str
    layout: Layout
    attach: Attachment | None


class Place(StrEnum):
    """Where an arm runs: the host's bare device, the host on the mode's own layout, or the guest."""

    HOST = "host"
    TWIN = "twin"
    GUEST = "guest"


@dataclass(frozen=True, slots=True)
class Arm:
    """One place a job runs. `mode` is None for the bare host, which all modes of a disk share."""

    place: Place
    mode: Mode | None = None

    @property
    def id(self) -> str:
        """`host`, `twin:lvm` or `guest:lvm`."""
        return f"{self.place}:{self.mode.name}" if self.mode else str(self.place)


@dataclass(frozen=True, slots=True)
class Cell:
    """disk x mode x job: one pytest item."""

    scenario: str
    disk: str
    mode: Mode
    job: Job

    @property
    def id(self) -> str:
        """For example `optane-lvm-randread-4k-qd32`."""
        return f"{self.scenario}-{self.mode.name}-{self.job.id}"

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms this cell needs: the host, its twin where the layout is more than the device, and the guest."""
        arms = [Arm(Place.HOST)]
        if not isinstance(self.mode.layout, Device):
            arms.append(Arm(Place.TWIN, self.mode))
        if self.mode.attach is not None:
            arms.append(Arm(Place.GUEST, self.mode))
        return tuple(arms)

    @property
    def facets(self) -> dict[str, str | int]:
        """What `-m "cell(mode='lvm', iodepth=32)"` selects by: the keywords of the cell's pytest mark."""
        return {
            "scenario": self.scenario,
            "disk": self.disk,
            "mode": self.mode.name,
            "pattern": self.job.pattern,
            "bs": short_size(self.job.bs),
            "iodepth": self.job.iodepth,
            "numjobs": self.job.numjobs,
        }


@dataclass(frozen=True, slots=True)
class Workload:
    """A job without its depth and times, as a scenario lists it: `randread-4k`, `randrw-8k-nj4-r67-i1000`."""

    rw: Rw
    bs: int
    numjobs: int = 1
    read_share: float | None = None
    rate: int | None = None

    @property
    def name(self) -> str:
        """As a scenario writes it."""
        return "-".join(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Pattern and block size, then what differs from one process at full speed."""
        parts = [_PATTERN_OF_RW[self.rw], short_size(self.bs)]
        if self.numjobs != 1:
            parts.append(f"nj{self.numjobs}")
        if self.read_share is not None:
            parts.append(f"r{self.read_share * 100:.0f}")
        if self.rate is not None:
            parts.append(f"i{self.rate}")
        return tuple(parts)

    def job(self, iodepth: int, *, ramp: float, seconds: float) -> Job:
        return Job(self.rw, self.bs, iodepth, ramp, seconds, self.numjobs, self.read_share, self.rate)


@dataclass(frozen=True, slots=True)
class Profile:
    """How thoroughly to measure. Times in seconds, `span` in bytes.

    `span` is the largest region an arm uses; `round_limit` is the fio time that one round over all arms may take.

    At least `rounds` are measured, then more until the cells are decided, or `most_rounds` or `time_limit` (seconds of
    measuring one group) is reached; None is no limit. `target` is the half width of the overhead's 95 % interval, as a
    fraction, at which a cell is known well enough; None is no target. Without `most_rounds`, or with one below
    `rounds`, the number is fixed.

    `conditioning` is how a region is made ready: filled once, or brought to a steady state. With `bracket` each round
    begins and ends with the bare host, instead of having it once in a random place.
    """

    name: str
    ramp: float
    runtime: float
    rounds: int
    iodepth: tuple[int, ...]
    span: int
    round_limit: float
    most_rounds: int = 0
    target: float | None = None
    time_limit: float | None = None
    conditioning: Conditioning = "fill"
    bracket: bool = False

    def __post_init__(self) -> None:
        if self.most_rounds < self.rounds:
            object.__setattr__(self, "most_rounds", self.rounds)


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """The overhead that a scenario allows, in one metric, to the cells it covers.

    `share` is a fraction of the host's value (0.3 is 30 %), `absolute` seconds added to a latency; with both, `both`
    says whether keeping either is enough (`looser`) or each must be kept (`stricter`). None for `modes`, `workloads`
    or `iodepth` is no restriction. `lab` holds the kinds of lab that the budget was written for.
    """

    metric: str
    share: float | None = None
    absolute: float | None = None
    both: Both | None = None
    modes: tuple[str, ...] | None = None
    workloads: tuple[Workload, ...] | None = None
    iodepth: tuple[int, ...] | None = None
    lab: tuple[LabKind, ...] = ("bare-metal",)

    def covers(self, cell: Cell, lab_kind: LabKind) -> bool:
        """Whether the rule is for this cell in such a lab. The host is the baseline: no rule covers its cells."""
        return (
            cell.mode.attach is not None
            and lab_kind in self.lab
            and (self.modes is None or cell.mode.name in self.modes)
            and (self.workloads is None or cell.job.workload in self.workloads)
            and (self.iodepth is None or cell.job.iodepth in self.iodepth)
        )


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The latency from the bare host to some arm, to be told step by step. `steps` are ids of arms, `host` first.

    Each changes one thing against the one before. None for `workloads` is all that the scenario measures.
    """

    name: str
    steps: tuple[str, ...]
    workloads: tuple[Workload, ...] | None = None

    def covers(self, job: Job) -> bool:
        """Whether this job is to be decomposed."""
        return self.workloads is None or job.workload in self.workloads


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario file: which modes and workloads of which disk. `write_rate` in bytes per second.

    `disks` are those that arrays are made of, `disk` first: the baseline of the host arm. Without arrays it is alone.
    `published` is the key of the published figures that this scenario is compared with. Of `budgets` the last that
    covers a cell counts, metric by metric. `expect_void` names modes whose cells the author expects to be void.
    """

    name: str
    title: str
    disk: str
    modes: tuple[Mode, ...]
    workloads: tuple[Workload, ...]
    write_rate: int
    profiles: tuple[Profile, ...]
    published: str | None = None
    budgets: tuple[BudgetRule, ...] = ()
    expect_void: tuple[str, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
    disks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.disks:
            object.__setattr__(self, "disks", (self.disk,))
