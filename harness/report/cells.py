"""One cell as the report shows it: its throughput metric, latency, what became of it, and what to beware of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from harness.analysis import METRICS, Estimate, Verdict, mean_interval, proven_below
from harness.results import CellRecord, MetricRecord


class Outcome(StrEnum):
    """What became of a cell: its verdict, or why it has none. In the order reports show them."""

    WITHIN = "within"
    EXCEEDS = "exceeds"
    INCONCLUSIVE = "inconclusive"
    VOID = "void"
    UNJUDGED = "unjudged"
    SKIPPED = "skipped"
    NOT_MEASURED = "not measured"
    BASELINE = "baseline"


CONFIDENCE = 0.95
"""Of the intervals that are shown; a cell's own is higher where its rounds were looked at early."""

ArmName = Literal["host", "twin", "guest"]


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell and the choices a reader needs made: which metric is its throughput, and how it ended."""

    record: CellRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def mode(self) -> str:
        return self.record.mode

    @property
    def iodepth(self) -> int:
        return self.record.job.iodepth

    @property
    def is_baseline(self) -> bool:
        """True for the mode `host`, which has no guest and so no overhead."""
        return self.record.mode_detail.attach is None

    @property
    def workload(self) -> str:
        return self.record.job.name

    @property
    def random(self) -> bool:
        return self.record.job.is_random

    @property
    def rated(self) -> bool:
        """True where the job asks every arm for the same IOPS: its throughput says nothing, its latency does."""
        return self.record.job.rate is not None

    @property
    def throughput_name(self) -> str:
        """IOPS of random patterns, bandwidth of sequential ones."""
        return "iops" if self.random else "bw"

    @property
    def throughput(self) -> MetricRecord | None:
        return self.record.metrics.get(self.throughput_name)

    @property
    def headline_name(self) -> str:
        """The metric that a cell is spoken of by: its throughput, or its latency at a fixed rate."""
        return self.latency_name if self.rated else self.throughput_name

    @property
    def headline(self) -> MetricRecord | None:
        return self.record.metrics.get(self.headline_name)

    @property
    def headline_unit(self) -> str:
        """As people say it: `IOPS`, `MB/s` (10^6 bytes) or `us`."""
        return METRICS[self.headline_name].shown.unit

    @property
    def headline_scale(self) -> float:
        """What a stored value is divided by to be in that unit."""
        return METRICS[self.headline_name].shown.scale

    @property
    def latency_name(self) -> str:
        """Mean completion latency; the mean total latency where fio gave no other."""
        return "clat_mean" if "clat_mean" in self.record.metrics else "lat_mean"

    @property
    def latency(self) -> MetricRecord | None:
        return self.record.metrics.get(self.latency_name)

    @property
    def measured(self) -> bool:
        return self.throughput is not None and self.record.skipped is None

    @property
    def usable(self) -> bool:
        """True where the values may be compared: measured, and no validity check failed."""
        return self.measured and self.record.verdict is not Verdict.VOID

    @property
    def comparable(self) -> bool:
        """True where the values may speak for their mode: usable, and no gain over the host that nothing explains."""
        return self.usable and not self.faster_than_host

    @property
    def ranked(self) -> bool:
        """True where the cell has a part in what a mode loses of throughput."""
        return self.comparable and not self.rated

    @property
    def doubt(self) -> str:
        """Why the figures are no result, though shown: `void`, or `faster` than the host; empty where they are one."""
        if self.outcome is Outcome.VOID:
            return "void"
        return "faster" if self.faster_than_host else ""

    @property
    def outcome(self) -> Outcome:
        if self.record.skipped is not None:
            return Outcome.SKIPPED
        if self.record.verdict is Verdict.VOID:
            return Outcome.VOID
        if not self.measured:
            return Outcome.NOT_MEASURED
        if self.is_baseline:
            return Outcome.BASELINE
        return Outcome(self.record.verdict.value)

    @property
    def overhead(self) -> Estimate | None:
        return self.headline.overhead if self.headline else None

    @property
    def added(self) -> Estimate | None:
        """What the guest adds to the mean latency of one I/O, in seconds."""
        return self.latency.added if self.latency else None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Why there is no value, or why it is void, one sentence each."""
        failed = tuple(f"{check.check}: {check.detail}" for check in self.record.validity if not check.ok)
        if self.record.skipped is not None:
            return (self.record.skipped, *failed)
        if not self.measured and not failed:
            return ("no round in which every arm was measured",)
        return failed

    @property
    def faster_than_host(self) -> bool:
        """True where the whole interval says that the guest is faster, which no virtual machine is without help.

        Of an array that is held against the array on the host, for one disk alone is slower without any help.
        """
        return self.headline is not None and self.headline.gained(self.record.mode_detail)

    @property
    def proven_below(self) -> float | None:
        """The share that the overhead is proven to be below, where no budget asks; None where that says nothing.

        Less than everything is lost by any guest, so from 100 % on it is no finding.
        """
        if not self.comparable or self.record.budget or self.overhead is None:
            return None
        share = proven_below(self.overhead)
        return share if share is not None and share < 1 else None

    def mean(self, metric: MetricRecord | None, place: ArmName) -> Estimate | None:
        """Geometric mean over the rounds of one arm, with its interval, in the metric's unit."""
        values: tuple[float, ...] = getattr(metric, place) if metric else ()
        return mean_interval(values, confidence=self.record.confidence) if values else None


def confidence_words(cells: Sequence[CellView]) -> str:
    """What these cells' intervals hold with: "95 %", or "95 % over all looks" where rounds were looked at early."""
    early = any(cell.record.confidence > CONFIDENCE for cell in cells)
    return f"{CONFIDENCE * 100:.0f} %{' over all looks' if early else ''}"
