"""What a run stores about a cell, as frozen values: the measured values, the settings, and the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.analysis import (
    MARGIN,
    METRICS,
    Better,
    Calls,
    Estimate,
    LatencyHistogram,
    Limit,
    Unit,
    Verdict,
    mean_interval,
    proven_below,
)
from harness.analysis.verdict import Both
from harness.model.job import Job
from harness.model.mode import Arm, MetricName, ModeDetail, Place
from harness.model.option import Effective
from harness.model.values import Confidence, Figure, Measured, Name, PValue, RawPath, RecordValue
from harness.results.contrasts import BlockKey, Series
from harness.untrusted import LARGEST, require_as_many

ArmName = Literal["host", "twin", "guest", "reference", "against", "direct"]


@dataclass(frozen=True, slots=True)
class MetricRecord(RecordValue):
    """One metric of a cell: each arm's values in the order of the cell's rounds, and the estimates from them."""

    unit: Unit
    """The unit of the values and of `added`: I/Os per second, bytes per second or seconds."""
    better: Better
    """Whether higher or lower values are better."""
    host: tuple[Measured, ...]
    """Values of the bare device on the host; of a cached cell, those of its twin in the same state of the cache.
    `host[i]`, `twin[i]` and `guest[i]` are of one block. No arm has values of a percentile for which a block has too
    few I/Os."""
    twin: tuple[Measured, ...]
    """Values on the host on the mode's own layout; empty if the layout is the bare device. In a cached cell, those of
    `host`."""
    guest: tuple[Measured, ...]
    """Values in the guest; empty for the mode `host`."""
    overhead: Estimate | None
    """How much worse the guest is than the host, as a share of the host: 0.1 is 10 %. Null without a guest."""
    layer: Estimate | None
    """The part of the storage layer: how much worse the twin is than the host, as a share. Null without a twin."""
    virtualisation: Estimate | None
    """The part of the guest: how much worse it is than its twin, or than the host without a twin, as a share."""
    added: Estimate | None
    """Guest minus host in the metric's unit; for latency only, else null."""
    pooled: dict[str, PooledPercentile] = field(default_factory=dict)
    """For percentiles: by arm (`host`, `twin`, `guest`), the percentile of all its rounds' I/Os together."""
    adjusted: dict[Place, tuple[Annotated[float, Field(gt=0, le=1e150)], ...]] = field(default_factory=dict)
    """By arm, the values of the blocks from which the estimates are made: adjusted by what the other slices of the
    block say about their moment, or of a percentile of all blocks together. Empty: the values themselves."""
    reference: tuple[Measured, ...] = ()
    """Values of the single disk that the array below `host` is compared with, of the same blocks; empty without one and
    for percentiles."""
    against: tuple[Measured, ...] = ()
    """Values of the guest that this one is compared with, in the same blocks: that of the reference variant, or the
    same guest without its neighbour. Empty for the reference, and without variants and neighbours."""
    difference: Estimate | None = None
    """How much worse the guest is than that one, as a share of it: 0.02 loses 2 % more. Null if there is none."""

    def __post_init__(self) -> None:
        """ValueError for a record that no run writes: the overhead is a ratio of its values."""
        possible = all(0 < value <= LARGEST for value in (*self.host, *self.twin, *self.guest))
        if self.overhead and not (possible and len(self.samples("host")) == len(self.samples("guest")) > 0):
            raise ValueError("there is an overhead, but values of the host or the guest are missing or impossible")

    @model_validator(mode="after")
    def check_read(self) -> Self:
        """ValueError for what was read, if its arms have not as many values."""
        arms = {arm: self.values(arm) for arm in ("host", "twin", "guest", "reference", "against")}
        arms |= {f"adjusted.{arm}": values for arm, values in self.adjusted.items()}
        require_as_many("blocks", max(map(len, arms.values())), **arms)
        return self

    def values(self, arm: str) -> tuple[float, ...]:
        """What was measured of an arm; empty without it."""
        values: tuple[float, ...] = getattr(self, arm)
        return values

    def samples(self, arm: str) -> tuple[float, ...]:
        """The values from which the arm's estimates are made, one for each block; empty without the arm."""
        return self.adjusted.get(Place(arm)) or self.values(arm)

    def on_same_disks(self, mode: ModeDetail) -> Estimate | None:
        """How much worse the guest is than the host on the same disks: on an array, than the twin."""
        return self.virtualisation if mode.on_array else self.overhead

    def gained(self, mode: ModeDetail) -> bool:
        """Whether the guest is better than the host on the same disks by more than `MARGIN`, by this interval alone."""
        loss = self.on_same_disks(mode)
        return loss is not None and loss.high is not None and loss.high < -MARGIN


CostUnit = Literal["s/IO", "1/IO"]
"""The cost that is the CPU time that the host spends on an I/O, without fio's own: the sum of its parts."""


@dataclass(frozen=True, slots=True)
class CostRecord(RecordValue):
    """One cost of an I/O to the host: each arm's values in the order of the cell's rounds."""

    unit: CostUnit
    """`s/IO`: seconds of CPU time per I/O; `1/IO`: how many per I/O."""
    host: tuple[Figure, ...]
    """Values of the bare device on the host; empty if the arm does not have this figure."""
    twin: tuple[Figure, ...]
    """Values on the host on the mode's own layout; empty if there are none."""
    guest: tuple[Figure, ...]
    """Values of the host while the guest does the I/O; empty if there are none."""
    added: Estimate | None
    """Guest minus host, in `unit`; null if one of them has no values."""


@dataclass(frozen=True, slots=True)
class BudgetRecord(RecordValue):
    """The allowed overhead of a cell in one metric, and its verdict."""

    metric: MetricName
    """The metric whose overhead is judged, for example `iops`."""
    share: float | None
    """The largest overhead allowed, as a share of the host: 0.1 is 10 %; null for no such limit."""
    absolute: float | None
    """The most that the guest may add, in seconds; null for no such limit."""
    both: Both | None
    """With two limits: `looser` if one of them must be kept, `stricter` if both must be kept."""
    verdict: Verdict
    """The verdict of this budget, corrected for all budgets that the run judges."""
    p_value: PValue | None
    """The p value of "the budget is exceeded", corrected for the looks but not for the other cells; null without an
    interval."""

    difference: float | None = None
    """The largest loss allowed against the reference variant, or against the guest without its neighbour, as a share of
    it; null for a budget of the overhead."""

    @property
    def limit(self) -> Limit:
        """The limit for the analysis. Its values are stored one by one, because the keys of results.json are stable."""
        return Limit(self.share if self.difference is None else self.difference, self.absolute, self.both)

    def estimate(self, metric: MetricRecord) -> Estimate | None:
        """What it limits: the overhead, or the difference from the reference variant."""
        return metric.overhead if self.difference is None else metric.difference

    def baseline(self, metric: MetricRecord) -> tuple[float, ...]:
        """The samples with which those of the guest are compared."""
        return metric.samples("host" if self.difference is None else "against")


@dataclass(frozen=True, slots=True)
class PooledPercentile(RecordValue):
    """A percentile of all rounds' I/Os together, from merged histograms of fio and not from averaged percentiles."""

    value: float
    """The percentile in seconds."""
    low: float
    """Lower end of its interval by order statistics. The interval covers the sampling of I/Os, not the differences
    between rounds."""
    high: float
    """Upper end of that interval."""
    ios: int
    """The number of completed I/Os."""


@dataclass(frozen=True, slots=True)
class ValidityCheck(RecordValue):
    """One check that a cell's measurement is valid. A check that is not ok makes the cell `void`."""

    check: str
    """Name of the check."""
    ok: bool
    """Whether it passed."""
    detail: str
    """The compared figures, in words."""


@dataclass(frozen=True, slots=True)
class LongerSlices(RecordValue):
    """Slices that were measured again: they depended on the arm that ran before them, or were short for their I/Os."""

    discarded_s: float
    """Seconds at the beginning of each slice that do not count, in addition to the ramp of the profile."""
    naive: Estimate
    """The overhead in the headline metric by the first, shorter slices."""
    longer_s: float = 0.0
    """Seconds by which the measured time of each slice is longer than the profile's."""


@dataclass(frozen=True, slots=True)
class GuestShare(RecordValue):
    """What one of several guests got, and fio on the host on the same volume at the same load."""

    number: int
    """The number of the guest, from 1."""
    guest: tuple[float, ...]
    """Its values of the headline metric, in the order of the cell's rounds."""
    host: tuple[float, ...]
    """The values of fio on the host on its volume, while fio also ran on the other volumes."""
    share: Estimate
    """Its share of what all guests got, 0 to 1: the mean over the blocks."""
    host_share: Estimate
    """The same of fio on the host."""
    p99: PooledPercentile | None = None
    """Its p99 of the latency from submission to completion, in seconds; null with too few I/Os."""
    host_p99: PooledPercentile | None = None
    """The same of fio on the host."""


@dataclass(frozen=True, slots=True)
class SeveralGuests(RecordValue):
    """How several guests shared a storage, beside as many fio on the host."""

    metric: MetricName
    """The throughput that is shared: `iops` or `bw`. The cell's own metrics are those of all guests together."""
    guests: tuple[GuestShare, ...]
    """One entry per guest."""
    fairness: Estimate
    """Jain's fairness index of what the guests got: 1 if all got the same, 1/n if one of n got everything."""
    host_fairness: Estimate
    """The same of fio on the host."""


@dataclass(frozen=True, slots=True)
class NeighbourRecord(RecordValue):
    """What the neighbour did while the cell's guest was measured."""

    job: Name
    """The neighbour's job, for example `randwrite-4k-qd32`."""
    iops: tuple[float, ...]
    """Its I/Os per second, in the order of the cell's rounds."""
    bw: tuple[float, ...]
    """Its bytes per second."""


@dataclass(frozen=True, slots=True)
class BackupRecord(RecordValue):
    """The backup that ran while the cell's guest was measured."""

    bw: tuple[float, ...]
    """Bytes per second that it copied, in the order of the cell's rounds."""


@dataclass(frozen=True, slots=True)
class MemoryShare(RecordValue):
    """How much of one direction of an arm's bytes did not pass the disk while its slices ran."""

    fio: int
    """Bytes by fio, in all slices whose bytes the disk counted."""
    disk: int
    """Bytes by the disk, or the disks below the layout, in the same slices."""
    share: float
    """1 - disk / fio, at least 0: of reads, what the host's memory served; of writes, what was not on the disk at the
    end of its slice. An array's copies are counted. Disks may move more, as for others, so it is at least as much."""
    low: float
    """The smallest share of a slice."""
    high: float
    """The largest share of a slice."""
    slices: int
    """How many slices that are."""


@dataclass(frozen=True, slots=True)
class CachedRecord(RecordValue):
    """What the host's memory did for a cell of a cached mode, and the same guest against the disk itself."""

    working_set_bytes: int
    """Bytes in which the job reads and writes."""
    memory_bytes: int | None
    """The host's memory, in bytes; null if it was not read."""
    available_bytes: int | None
    """The least memory that was available during the slices, in bytes, with that of the page cache."""
    reads: dict[str, MemoryShare]
    """By arm, `host` (the twin) and `guest`; empty for a job that does not read, and if the disk counted nothing."""
    writes: dict[str, MemoryShare]
    """The same of what the job writes."""
    metric: MetricName
    """The metric of `direct` and `against_direct`: the main one of the job."""
    direct: tuple[Measured, ...]
    """Values of the bare device with direct I/O, of the same blocks."""
    against_direct: Estimate | None
    """How much worse the guest is than that, as a share: below 0, memory makes it better. It is not an overhead."""


class Outcome(StrEnum):
    """The outcome of a cell: its verdict, or why it has none. In the order of the reports."""

    WITHIN = "within"
    EXCEEDS = "exceeds"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    UNJUDGED = "unjudged"
    SKIPPED = "skipped"
    NOT_MEASURED = "not measured"
    BASELINE = "baseline"


@dataclass(frozen=True, slots=True)
class CellRecord(RecordValue):
    """disk x mode x job: one pytest item with its values, estimates and verdict."""

    id: Name
    """For example `optane-lvm-randread-4k-qd32`."""
    scenario: Name
    """Name of the scenario."""
    host: Name
    """Name of the host in the lab file."""
    disk: Name
    """Name of the disk under test in the lab file."""
    mode: Name
    """Name of the attach mode; `host` is the baseline itself."""
    mode_detail: ModeDetail
    """What the mode's name stands for."""
    job: Job
    """The measurement point: workload, block size, iodepth, numjobs."""
    rounds: tuple[int, ...]
    """The round of each block that counts; the metrics' values are in this order."""
    metrics: dict[MetricName, MetricRecord]
    """Metrics by name, for example `iops` or `clat_p99`; without the percentiles for which all blocks together have
    too few I/Os."""
    confidence: Confidence
    """The confidence of every interval of this cell: 0.95, or more if there were interim looks. The intervals of all
    looks together hold with 0.95."""
    verdict: Verdict
    """The worst verdict of its budgets; `void` if a check failed, `unjudged` if it has no budget or was skipped."""
    budget: tuple[BudgetRecord, ...]
    """The budgets of the cell, one per metric."""
    validity: tuple[ValidityCheck, ...]
    """The checks of the measurement. One check that is not ok makes the verdict `void`."""
    effective: Effective
    """The configuration as read back from the guest and QEMU."""
    raw: tuple[RawPath, ...]
    """The outputs of fio for the cell, in order of time, as paths relative to the run's directory."""
    span_bytes: int
    """The number of bytes of the disk that every arm uses; 0 if it is not known."""
    notes: tuple[str, ...]
    """What a reader must know about the cell, one sentence each."""
    skipped: str | None
    """Why the cell was not measured, or null."""
    accounting: dict[str, CostRecord] = field(default_factory=dict)
    """What an I/O costs the host, by name; empty if the jobs shared a fio process, or nothing was counted."""
    blocks: tuple[int, ...] = ()
    """The number of each block within its round, in the order of `rounds`."""
    boots: tuple[int, ...] = ()
    """The guest's boot of each block: the number of the first round in it."""
    longer_slices: LongerSlices | None = None
    """What the first slices gave, if longer ones replaced them because of carry-over, else null."""

    against: Name | None = None
    """The id of the cell that it is compared with: the same mode in the reference variant, or without a neighbour or a
    backup; null for the reference, and without any of these."""
    differs: tuple[str, ...] = ()
    """The settings that were read back differently from the two guests, in words; empty without a reference."""
    several: SeveralGuests | None = None
    """What each of several guests got; null for a mode with one guest."""
    backup: BackupRecord | None = None
    """The backup that ran meanwhile; null without one."""
    neighbour: NeighbourRecord | None = None
    """What the neighbour did meanwhile; null without one."""
    cached: CachedRecord | None = None
    """What the host's memory did; null unless the mode is declared as cached."""
    ios: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The I/Os in the histogram of each block, by arm (`host`, `twin`, `guest`, `against`), in the order of `rounds`.
    A percentile p(q) needs 10 / (1 - q) of them for a sample."""
    times: tuple[float, ...] = ()
    """When each block began, in the order of `rounds`: the start of its first slice, in seconds since 1970-01-01
    UTC."""
    histograms: dict[Calls, dict[str, LatencyHistogram]] = field(default_factory=dict)
    """The latencies of all blocks that count, together: of the reads and writes (`ios`) and of fdatasync (`syncs`), by
    arm (`host`, `twin`, `guest`). Empty without fio's histograms."""

    better_p: PValue | None = None
    """The p value of "the guest is better than the host on the same disks by more than 5 %" in the main metric of the
    job, corrected for the looks but not for the other cells; null without an interval."""
    better: bool | None = None
    """Whether that is shown, corrected for all cells of the run (Holm)."""

    @model_validator(mode="after")
    def check_read(self) -> Self:
        """ValueError for what was read, if a block lacks values. In runs of older versions, it may lack percentiles."""
        of_blocks: dict[str, tuple[float, ...]] = {f"ios.{arm}": ios for arm, ios in self.ios.items()}
        whole = {name: metric for name, metric in self.metrics.items() if METRICS[name].quantile is None}
        of_blocks |= {f"metrics.{name}": metric.host or metric.guest for name, metric in whole.items()}
        require_as_many("rounds", len(self.rounds), blocks=self.blocks, boots=self.boots, times=self.times, **of_blocks)
        return self

    @property
    def better_than_host(self) -> bool:
        """Whether the guest is shown to be better than its host, which needs an explanation: it cannot be so by itself.

        On an array, the guest is compared with the array on the host, because a single disk is slower anyway.
        """
        if self.better is not None or self.is_cached:
            return self.better is True
        headline = self.metrics.get(self.job.headline)
        return headline is not None and headline.gained(self.mode_detail)

    def values(self, metric: str, arm: Place) -> tuple[float, ...]:
        """An arm's values of a metric; empty if the cell does not have them."""
        return self.metrics[metric].values(arm) if metric in self.metrics else ()

    def series(self, metric: str, arm: Place) -> Series | None:
        """An arm's rows of the table of blocks in one metric; None without them, or if blocks lack them: older
        versions left out blocks with too few I/Os for a percentile, and did not store which."""
        values = self.metrics[metric].samples(arm) if metric in self.metrics else ()
        whole = values and len(values) == len(self.rounds)
        return Series(METRICS[metric], self.samples, values, self.boots) if whole else None

    def doubt_about(self, *arms: Arm) -> str:
        """The failed checks that concern these arms: a check of another arm's bytes does not."""
        failed = [check.check for check in self.validity if not check.ok]
        names = {f"bytes {arm.id}" for arm in arms}
        return ", ".join(check for check in failed if not check.startswith("bytes ") or check in names)

    @property
    def samples(self) -> tuple[BlockKey, ...]:
        """The blocks that count, in the order of time."""
        return tuple(zip(self.rounds, self.blocks or (1,) * len(self.rounds), strict=True))

    @property
    def iodepth(self) -> int:
        return self.job.iodepth

    @property
    def workload(self) -> str:
        return self.job.name

    @property
    def is_baseline(self) -> bool:
        """True for the mode `host`, which has no guest and therefore no overhead."""
        return self.mode_detail.attach is None

    @property
    def is_cached(self) -> bool:
        """True if it is declared that memory serves the cell, which is then compared with nothing but its twin."""
        return self.mode_detail.cached

    @property
    def rated(self) -> bool:
        """True if the job does not ask for all the throughput that there is, for example at a fixed rate.

        Then only the latency shows a difference between arms.
        """
        return METRICS[self.job.headline].is_latency

    @property
    def throughput_name(self) -> str:
        """IOPS for random patterns, bandwidth for sequential ones."""
        return "iops" if self.job.is_random else "bw"

    @property
    def throughput(self) -> MetricRecord | None:
        return self.metrics.get(self.throughput_name)

    @property
    def latency_name(self) -> str:
        """Mean completion latency, or the mean total latency if fio gave no other."""
        return "clat_mean" if "clat_mean" in self.metrics else "lat_mean"

    @property
    def latency(self) -> MetricRecord | None:
        return self.metrics.get(self.latency_name)

    @property
    def headline_name(self) -> str:
        """The main metric of a cell: that of its job."""
        return self.latency_name if self.job.headline == "clat_mean" else self.job.headline

    @property
    def headline(self) -> MetricRecord | None:
        return self.metrics.get(self.headline_name)

    @property
    def headline_unit(self) -> str:
        """The shown unit: `IOPS`, `MB/s` (10^6 bytes) or `us`."""
        return METRICS[self.headline_name].shown.unit

    @property
    def headline_scale(self) -> float:
        """Divide a stored value by it to get the shown unit."""
        return METRICS[self.headline_name].shown.scale

    @property
    def overhead(self) -> Estimate | None:
        return self.headline.overhead if self.headline else None

    @property
    def added(self) -> Estimate | None:
        """What the guest adds to the main latency of the job, or else to the mean latency of one I/O, in seconds."""
        latency = (self.headline if self.rated else None) or self.latency
        return latency.added if latency else None

    @property
    def measured(self) -> bool:
        return self.throughput is not None and self.skipped is None

    @property
    def usable(self) -> bool:
        """True if the values may be compared: the cell was measured, and no validity check failed."""
        return self.measured and self.verdict is not Verdict.VOID

    @property
    def ranked(self) -> bool:
        """True if the cell counts for the throughput that a mode loses."""
        return self.usable and not self.rated and not self.is_cached and not self.job.trims

    @property
    def outcome(self) -> Outcome:
        if self.skipped is not None:
            return Outcome.SKIPPED
        if self.verdict is Verdict.VOID:
            return Outcome.VOID
        if not self.measured:
            return Outcome.NOT_MEASURED
        return Outcome.BASELINE if self.is_baseline else Outcome(self.verdict.value)

    @property
    def doubt(self) -> str:
        """Why the shown figures are no result (`void`), or need an explanation (`faster` than the host); else empty."""
        if self.outcome is Outcome.VOID:
            return "void"
        return "faster" if self.better_than_host else ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why there is no value, or why the cell is void, one sentence each."""
        failed = tuple(f"{check.check}: {check.detail}" for check in self.validity if not check.ok)
        if self.skipped is not None:
            return (self.skipped, *failed)
        if not self.measured and not failed:
            return ("no block in which every arm was measured",)
        return failed

    @property
    def proven_below(self) -> float | None:
        """The share that the overhead is proven to be below, for a cell without a budget; else None.

        Also None from 100 % on, because no guest can lose more than everything.
        """
        if not self.usable or self.budget or self.overhead is None:
            return None
        share = proven_below(self.overhead)
        return share if share is not None and share < 1 else None

    @property
    def boot_count(self) -> int:
        """The number of boots of the guest, 1 if that is not known."""
        return len(set(self.boots)) or 1

    @property
    def n(self) -> int:
        """The number of samples: boots if there were several, else blocks."""
        return self.boot_count if self.boot_count > 1 else len(self.rounds)

    def mean(self, metric: MetricRecord | None, arm: ArmName) -> Estimate | None:
        """Geometric mean over the blocks of one arm, with its interval, in the metric's unit."""
        values = metric.samples(arm) if metric else ()
        return mean_interval(values, confidence=self.confidence) if values else None
