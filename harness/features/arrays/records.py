"""What results.json has of arrays: how they scale (`scalings`), and what a missing member costs (`array_states`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from harness.analysis import Estimate
from harness.model.base import ArrayState
from harness.model.mode import MetricName
from harness.model.values import Amount, Confidence, Counted, Measured, Number, RecordValue


class Bottleneck(StrEnum):
    """What limits an array."""

    NONE = "none"
    PATH = "path"
    CPU = "CPU"
    THREAD = "one thread"
    MEMBER = "one member"
    QUEUE = "queue not deep enough"
    SHARED = "something that the members share"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class MemberRecord(RecordValue):
    """One disk of an array during its job: means over the rounds."""

    name: str
    """The kernel's name for the disk, or its name in the lab file."""
    moved: Amount
    """Bytes per second read and written."""
    busy: Amount | None
    """Share of the time with at least one I/O in flight, 0 to 1; null if it was not counted."""
    in_flight: Amount | None
    """I/Os in flight on average; null if it was not counted."""
    path: str | None = None
    """The PCI address of its controller; null if the host shows none."""


@dataclass(frozen=True, slots=True)
class PathLimitRecord(RecordValue):
    """The limit of a path that an array reaches in a job: of all disks behind one controller together."""

    path: str
    """The PCI address of the controller."""
    disks: Number
    """Disks of the array on this path."""
    bw: Estimate
    """Bytes per second of all disks on this path together, at the limit."""
    iops: Estimate | None
    """I/Os per second of them, as the disks get them; null if they were not counted."""
    fewer: Number
    """Disks of the smaller array on this path alone."""
    more: Number
    """Disks of the largest one. `bw` and `iops` are what its disks do."""
    growth: Estimate
    """What the path does with more disks, divided by what it does with fewer."""
    paths: Number
    """The number of paths of a faster array with no more disks."""
    gain: Estimate
    """The throughput of that array, divided by that of the largest one on this path alone."""

    @property
    def words(self) -> str:
        """For example "16 disks on 0000:01:00.0 do 1.01 times as much as 8; with 2 paths, the array does 1.98 ..."."""
        return (
            f"{self.more} disks on {self.path} do {self.growth.point:.2f} times as much as {self.fewer}; with "
            f"{self.paths} paths, the array does {self.gain.point:.2f} times as much"
        )


@dataclass(frozen=True, slots=True)
class ScalingMetric(RecordValue):
    """One metric of an array on the host against the single disk of the same rounds."""

    speedup: Estimate
    """The array divided by the single disk: 2 is twice as much."""
    efficiency: Estimate
    """The speedup divided by the number of disks: 1 is the best."""
    of_ideal: Estimate
    """The speedup divided by what the level can deliver in this job: 1 is the best."""

    @classmethod
    def of(cls, speedup: Estimate, *, disks: int, ideal: float) -> ScalingMetric:
        return cls(speedup, speedup.divided_by(disks), speedup.divided_by(ideal))


@dataclass(frozen=True, slots=True)
class ScalingRecord(RecordValue):
    """How an array scales in one job, and what limits it."""

    cell: str
    """The id of the cell. Its twin is the array, and its host arm is the single disk; see `reference` for others."""
    level: Counted
    """0, 1, 5, 6 or 10."""
    disks: Number
    """Disks of the array."""
    legs: Number
    """2 for a stripe over two arrays with half of the disks each, else 1."""
    ideal: Measured
    """The throughput that the level can deliver in this job, as a multiple of the single disk's."""
    why_ideal: str
    """How `ideal` follows from the level, in words."""
    metrics: dict[MetricName, ScalingMetric]
    """`iops` and `bw`."""
    members: tuple[MemberRecord, ...]
    """The disks; empty if nothing was counted on them."""
    bottleneck: Bottleneck
    """What limits the array, as far as the evidence shows."""
    evidence: str
    """The figures that show the bottleneck, in words."""
    doubt: str
    """The failed checks because of which the figures are not a result; empty if no check failed."""
    path_limit: PathLimitRecord | None = None
    """The limit of a path, if that is the bottleneck, else null."""
    guest_limit: str = ""
    """A thread of the guest that was always busy, in words: then the guest does not get all that the array delivers."""
    reference: str = ""
    """The name of the single disk, if the array was there before the run: then the cell's twin, or its host arm without
    one, is on the array. Empty for an array that the run built."""


@dataclass(frozen=True, slots=True)
class ArrayStateMetric(RecordValue):
    """One metric of an array with a missing member against the optimal array in the same blocks."""

    twin: Estimate
    """How much worse the array is on the host, as a share of the optimal array on the host: 0.1 is 10 %."""
    guest: Estimate | None
    """How much worse the guest is, as a share of the guest on the optimal array; null without a guest."""


@dataclass(frozen=True, slots=True)
class ArrayStateRecord(RecordValue):
    """What a missing member, or the recovery of one, costs in one job: against the same array when it is optimal."""

    cell: str
    """The id of the cell on the array with a missing member."""
    optimal: str
    """The id of the cell on the optimal array: the same level, disks, chunk, layers, attachment and job."""
    state: ArrayState
    """`degraded`, or `rebuilding`."""
    metrics: dict[MetricName, ArrayStateMetric]
    """`iops`, `bw`, `lat_mean` and `clat_p99`, if both cells have them in the same blocks."""
    confidence: Confidence
    """The confidence of each interval alone."""
    rebuilding: Amount | None
    """The share of the slices of the array in which the recovery ran, 0 to 1; null for `degraded`. Others do not
    count."""
    rebuild_rate: Amount | None
    """Bytes per second of each member that the recovery completed meanwhile; null for `degraded`."""
    doubt: str
    """The failed checks because of which the figures are not a result; empty if no check failed."""
