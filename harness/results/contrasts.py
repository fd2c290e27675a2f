"""Comparisons of two arms, each a contrast of two series of the table of blocks, and how their blocks hang together.

Overhead, storage layer, variant, array against single disk, degraded against optimal, a step of a decomposition, one
mode against another: all are `contrast(left, right)`. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.analysis import (
    IN_ORDER,
    Caveat,
    Correlation,
    Estimate,
    Samples,
    differences,
    estimate_added,
    estimate_overhead,
    log_ratios,
    mean_interval,
    pooled_correlation,
)
from harness.model.cell import Place
from harness.results.blocks import Series
from harness.results.cells import CellRecord

CONFIDENCE = 0.95
"""The confidence of all intervals of a cell together, for any number of looks at its rounds."""
_CAVEATS = {
    Caveat.NOT_ESTIMATED: "too few blocks to see whether neighbours are correlated: the interval assumes they are not",
    Caveat.ROUGH: "the correlation of neighbouring blocks is estimated from few of them, so the interval is rough",
    Caveat.DRIFTING: "neighbouring blocks are so strongly correlated that there is no interval: measure for longer",
}


@dataclass(frozen=True, slots=True)
class Contrast:
    """One series against another in the samples that both have. Each figure is about `right`, against `left`."""

    left: Series
    right: Series
    confidence: float = CONFIDENCE
    samples: Samples = IN_ORDER

    @property
    def loss(self) -> Estimate:
        """How much worse, as a share: 0.1 is 10 % fewer IOPS, or 10 % more latency."""
        return estimate_overhead(
            self.left.values,
            self.right.values,
            higher_is_better=self.right.metric.higher_is_better,
            confidence=self.confidence,
            samples=self.samples,
        )

    @property
    def added(self) -> Estimate:
        """How much more, in the metric's unit."""
        return estimate_added(self.left.values, self.right.values, confidence=self.confidence, samples=self.samples)

    @property
    def times(self) -> Estimate:
        """How many times as much."""
        ratios = [math.exp(ratio) for ratio in self.log_ratios]
        return mean_interval(ratios, confidence=self.confidence, samples=self.samples)

    @property
    def p_value(self) -> float | None:
        """The two-sided p value of "both are equal", by what is added; None without an interval."""
        spread = self.samples.spread(differences(self.left.values, self.right.values))
        return min(1.0, 2 * spread.p_above(abs(spread.mean))) if spread.has_interval else None

    @property
    def log_ratios(self) -> list[float]:
        """log(right/left) of each sample."""
        return log_ratios(self.left.values, self.right.values)


def contrast(
    left: Series | None,
    right: Series | None,
    *,
    confidence: float = CONFIDENCE,
    correlation: Correlation | None = None,
) -> Contrast | None:
    """`right` against `left`; None without one of them, or if they share no sample.

    `correlation` is that of neighbouring blocks of the job, see `Samples`. Batches of blocks have their own.
    """
    if left is None or right is None:
        return None
    if left.keys != right.keys:
        left, right = left.only(set(right.keys)), right.only(set(left.keys))
    if not left.values or not right.values:
        return None
    return Contrast(left, right, confidence, Samples(right.boots, correlation))


def mean_over_jobs(jobs: Sequence[Series]) -> Series:
    """The geometric mean of series of several jobs, in blocks that belong together (`pair_blocks`)."""
    pairs = pair_blocks([series.boots or (1,) * len(series.values) for series in jobs])
    return Series(
        jobs[0].metric,
        tuple(pairs),
        tuple(
            math.exp(fmean(math.log(series.values[at]) for series, at in zip(jobs, pair, strict=True)))
            for pair in pairs
        ),
        tuple(jobs[0].boots[pair[0]] for pair in pairs) if jobs[0].boots else (),
    )


def samples_of(rounds: Sequence[int], boots: Sequence[int], correlation: Correlation | None) -> Samples:
    """The samples of a cell whose blocks have these rounds and boots, in a job with this correlation."""
    return Samples(tuple(boots), correlation, rounds=len(set(rounds)))


def of_difference(samples: Samples) -> Samples:
    """The same samples of the difference between two guests. It is correlated in another way than that to the host."""
    return replace(samples, correlation=None)


def pool_correlation(contrasts: Iterable[Contrast]) -> Correlation | None:
    """The correlation that the cells of one job of a group have in common: they share their host's slices.

    Cells of other jobs do not: what a write leaves in a cache, for example, says nothing about reads. None if the
    blocks are of several boots, whose means are the samples then, or if no cell has a guest.
    """
    several = list(contrasts)
    if not several or any(len(set(of.right.boots)) > 1 for of in several):
        return None
    return pooled_correlation(dict(zip(of.right.keys, of.log_ratios, strict=True)) for of in several)


def correlation_of(records: Iterable[CellRecord]) -> Correlation | None:
    """The correlation of the job of a group that has these records, by the job's headline metric."""
    arms = ([record.series(record.job.headline, arm) for arm in (Place.HOST, Place.GUEST)] for record in records)
    return pool_correlation(overhead for host, guest in arms if (overhead := contrast(host, guest)) is not None)


def paired_blocks(cells: Sequence[CellRecord]) -> list[tuple[int, ...]]:
    """The blocks of several jobs' cells that are one sample of their mean: the position of a block in each cell.

    They are the k-th blocks that count of each cell within the same boot, in the order of time, up to the fewest. So
    jobs of the same rounds have blocks that are close in time, and a job that was measured again later has blocks of
    other rounds. If the cells have no boot in common, the k-th boots of each belong together: the jobs were measured in
    boots of their own, or in groups, which number their boots themselves. There is at least one pair if each cell has a
    block. Cells of one job need no pairing: their slices are of the same block (`CellRecord.samples`).
    """
    return pair_blocks([cell.boots or (1,) * len(cell.rounds) for cell in cells])


def pair_blocks(boots_of: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """As `paired_blocks`, from the boot of each sample of each job."""
    of_jobs = []
    for boots in boots_of:
        by_boot: dict[int, list[int]] = {}
        for position, boot in enumerate(boots):
            by_boot.setdefault(boot, []).append(position)
        of_jobs.append(by_boot)
    common = sorted(set.intersection(*map(set, of_jobs)))
    orders = [common or sorted(by_boot) for by_boot in of_jobs]
    pairs: list[tuple[int, ...]] = []
    for boots in zip(*orders, strict=False):
        positions = [by_boot[boot] for by_boot, boot in zip(of_jobs, boots, strict=True)]
        pairs += zip(*positions, strict=False)
    return pairs


def caveat_note(overhead: Estimate | None) -> list[str]:
    """What a reader must know about the interval of a cell's overhead."""
    return [_CAVEATS[overhead.caveat]] if overhead is not None and overhead.caveat is not None else []
