"""One cell as the report shows it: its throughput metric, latency, outcome, and doubts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from harness.analysis import METRICS, Estimate, Verdict, mean_interval, proven_below
from harness.report.blocks import slug
from harness.report.numbers import sample_count
from harness.results import CellRecord, MetricRecord


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


CONFIDENCE = 0.95
"""The confidence of the shown intervals. The intervals of a cell have a higher one if there were interim looks."""

ArmName = Literal["host", "twin", "guest", "reference", "against"]


@dataclass(frozen=True, slots=True)
class CellView:
    """A cell with what the report needs: which metric is its throughput, and its outcome."""

    record: CellRecord

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def link(self) -> str:
        """Where the page has its evidence."""
        return f"#cell-{slug(self.id)}"

    @property
    def mode(self) -> str:
        return self.record.mode

    @property
    def iodepth(self) -> int:
        return self.record.job.iodepth

    @property
    def is_baseline(self) -> bool:
        """True for the mode `host`, which has no guest and therefore no overhead."""
        return self.record.mode_detail.attach is None

    @property
    def workload(self) -> str:
        return self.record.job.name

    @property
    def random(self) -> bool:
        return self.record.job.is_random

    @property
    def rated(self) -> bool:
        """True if the job does not ask for all the throughput that there is, for example at a fixed rate.

        Then only the latency shows a difference between arms.
        """
        return METRICS[self.record.job.headline].is_latency

    @property
    def throughput_name(self) -> str:
        """IOPS for random patterns, bandwidth for sequential ones."""
        return "iops" if self.random else "bw"

    @property
    def throughput(self) -> MetricRecord | None:
        return self.record.metrics.get(self.throughput_name)

    @property
    def headline_name(self) -> str:
        """The main metric of a cell: that of its job. Version 0.1 may have only another latency."""
        name = self.record.job.headline
        return self.latency_name if name == "clat_mean" else name

    @property
    def headline(self) -> MetricRecord | None:
        return self.record.metrics.get(self.headline_name)

    @property
    def headline_unit(self) -> str:
        """The shown unit: `IOPS`, `MB/s` (10^6 bytes) or `us`."""
        return METRICS[self.headline_name].shown.unit

    @property
    def headline_scale(self) -> float:
        """Divide a stored value by it to get the shown unit."""
        return METRICS[self.headline_name].shown.scale

    @property
    def latency_name(self) -> str:
        """Mean completion latency, or the mean total latency if fio gave no other."""
        return "clat_mean" if "clat_mean" in self.record.metrics else "lat_mean"

    @property
    def latency(self) -> MetricRecord | None:
        return self.record.metrics.get(self.latency_name)

    @property
    def measured(self) -> bool:
        return self.throughput is not None and self.record.skipped is None

    @property
    def usable(self) -> bool:
        """True if the values may be compared: the cell was measured, and no validity check failed."""
        return self.measured and self.record.verdict is not Verdict.VOID

    @property
    def ranked(self) -> bool:
        """True if the cell counts for the throughput that a mode loses."""
        return self.usable and not self.rated

    @property
    def doubt(self) -> str:
        """Why the shown figures are no result (`void`), or need an explanation (`faster` than the host); else empty."""
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
        """Why there is no value, or why the cell is void, one sentence each."""
        failed = tuple(f"{check.check}: {check.detail}" for check in self.record.validity if not check.ok)
        if self.record.skipped is not None:
            return (self.record.skipped, *failed)
        if not self.measured and not failed:
            return ("no block in which every arm was measured",)
        return failed

    @property
    def faster_than_host(self) -> bool:
        """True if the guest is shown to be faster, as one of all cells. A virtual machine cannot be faster by itself.

        On an array, the guest is compared with the array on the host, because a single disk is slower anyway.
        """
        return self.record.better_than_host

    @property
    def proven_below(self) -> float | None:
        """The share that the overhead is proven to be below, for a cell without a budget; else None.

        Also None from 100 % on, because no guest can lose more than everything.
        """
        if not self.usable or self.record.budget or self.overhead is None:
            return None
        share = proven_below(self.overhead)
        return share if share is not None and share < 1 else None

    @property
    def boots(self) -> int:
        """The number of boots of the guest, 1 if that is not known."""
        return len(set(self.record.boots)) or 1

    @property
    def n(self) -> int:
        """The number of samples: boots if there were several, else blocks."""
        return self.boots if self.boots > 1 else len(self.record.rounds)

    @property
    def samples(self) -> str:
        """For example "6 blocks" or "3 boots"."""
        return sample_count(len(self.record.rounds), self.boots)

    def mean(self, metric: MetricRecord | None, place: ArmName) -> Estimate | None:
        """Geometric mean over the blocks of one arm, with its interval, in the metric's unit."""
        values: tuple[float, ...] = getattr(metric, place) if metric else ()
        return mean_interval(values, confidence=self.record.confidence) if values else None


def confidence_words(cells: Sequence[CellView]) -> str:
    """The confidence of these cells' intervals: "95 %", or "95 % over all looks" if there were interim looks."""
    early = any(cell.record.confidence > CONFIDENCE for cell in cells)
    return f"{CONFIDENCE * 100:.0f} %{' over all looks' if early else ''}"
