"""Records of what follows from several cells together: decompositions, and how arrays scale."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis import Bottleneck, Estimate
from harness.results.strict import STRICT


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One arm of a decomposition, against the arm before it."""

    __pydantic_config__ = STRICT

    arm: str
    """`host`, `twin:MODE` or `guest:MODE`."""
    change: str
    """The one thing that it changes against the arm before, in words; empty for the first."""
    values: tuple[float, ...]
    """Its values in the order of the decomposition's rounds, in seconds."""
    added: Estimate | None
    """What the step adds in seconds: these add up. Null for the first arm."""
    overhead: Estimate | None
    """What the step adds as a share of the arm before: one plus these multiply. Null for the first arm."""
    so_far: Estimate | None
    """What this step and all before it add, as a share of the host. Null for the first arm."""
    p_value: float | None
    """Of "the step changes nothing", not corrected; null for the first arm and after one round."""
    shown: bool
    """Whether the step changes anything at all, corrected for the number of steps (Holm)."""
    doubt: str
    """Why the arm's values are no result: the checks that failed; empty where they are one."""


@dataclass(frozen=True, slots=True)
class DecompositionRecord:
    """The latency of one job from the bare host to some arm, told step by step."""

    __pydantic_config__ = STRICT

    id: str
    """`SCENARIO-NAME-JOB`, for example `decompose-attach-randread-4k-qd1`."""
    scenario: str
    """Name of the scenario."""
    name: str
    """What the scenario calls the decomposition."""
    host: str
    """Name of the host in the lab file; empty where nothing was measured."""
    disk: str
    """Name of the disk under test."""
    job: str
    """The job's id."""
    metric: str
    """The metric of all values: `lat_mean`."""
    rounds: tuple[int, ...]
    """The rounds in which every arm of the decomposition was measured: the estimates rest on these alone."""
    left_out: tuple[int, ...]
    """Rounds of some of the arms, which are not used."""
    confidence: float
    """Of every interval by itself."""
    steps: tuple[StepRecord, ...]
    """From the bare host on; empty where it was skipped."""
    added: Estimate | None
    """The last arm minus the first, in seconds, from the same rounds: its point is the sum of the steps' points."""
    overhead: Estimate | None
    """The same as a share of the host."""
    skipped: str | None
    """Why there is no decomposition, or null."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """One disk of an array while its job ran: means over the rounds."""

    __pydantic_config__ = STRICT

    name: str
    """The kernel's name of the disk, or its name in the lab file."""
    moved: float
    """Bytes per second read and written."""
    busy: float | None
    """Share of the time with at least one I/O in flight, 0 to 1; null where it was not counted."""
    in_flight: float | None
    """I/Os in flight on average; null where it was not counted."""


@dataclass(frozen=True, slots=True)
class ScalingMetric:
    """One metric of an array on the host against the single disk of the same rounds."""

    __pydantic_config__ = STRICT

    speedup: Estimate
    """The array over the single disk: 2 is twice as much."""
    efficiency: Estimate
    """Of as many times the single disk as the array has disks: 1 is all of it."""
    of_ideal: Estimate
    """Of what the level can give at best in this job: 1 is all of it."""


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    """How an array scales in one job, and what limits it."""

    __pydantic_config__ = STRICT

    cell: str
    """The cell whose twin is the array, and whose host arm is the single disk."""
    level: int
    """0, 1, 5, 6 or 10."""
    disks: int
    """Disks of the array."""
    legs: int
    """2 for a stripe over two arrays with half of the disks each, else 1."""
    ideal: float
    """How many times the single disk's throughput the level can give in this job."""
    why_ideal: str
    """How that follows from the level, in words."""
    metrics: dict[str, ScalingMetric]
    """`iops` and `bw`."""
    members: tuple[MemberRecord, ...]
    """The disks; empty where nothing was counted of them."""
    bottleneck: Bottleneck
    """What limits it, as far as the evidence says."""
    evidence: str
    """The figures behind that, for people."""
    doubt: str
    """Why the figures are no result: the checks that failed; empty where they are one."""
