"""The table of blocks, and the comparisons that are made of it: each is a contrast of two of its series. Pure.

`tabulate` makes the table from the slices of a run, and `CellRecord.series` reads it again from what was stored: a row
for each cell, arm, block and metric. Overhead, storage layer, variant, array against single disk, degraded against
optimal, a step of a decomposition, one mode against another: all are `contrast(left, right)`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from harness.analysis import (
    IN_ORDER,
    MARGIN,
    METRICS,
    PRACTICAL,
    Caveat,
    Change,
    Correlation,
    Estimate,
    Metric,
    Samples,
    count_samples_to_show,
    differences,
    estimate_added,
    estimate_change,
    estimate_overhead,
    estimate_paired_change,
    first_blocks,
    log_ratios,
    mean_interval,
    pool_correlations,
    t_quantile,
)
from harness.model.mode import Cell, Place
from harness.results.journal import Measurement

if TYPE_CHECKING:
    from harness.results.cells import CellRecord

BlockKey = tuple[int, int]
"""Round, and number of the block within it."""


@dataclass(frozen=True, slots=True)
class Series:
    """One arm of a cell in one metric: its samples in the order of time.

    `keys` identify the samples, each a block or a batch of blocks. `boots` has the guest's boot of each; empty if all
    are of one.
    """

    metric: Metric
    keys: tuple[Hashable, ...]
    values: tuple[float, ...]
    boots: tuple[int, ...] = ()

    def only(self, keys: Collection[Hashable]) -> Series:
        """The samples with these keys."""
        positions = [position for position, key in enumerate(self.keys) if key in keys]
        return Series(
            self.metric,
            tuple(self.keys[position] for position in positions),
            tuple(self.values[position] for position in positions),
            tuple(self.boots[position] for position in positions) if self.boots else (),
        )


def make_series(
    name: str,
    blocks: Sequence[BlockKey],
    values: Sequence[float],
    boots: Sequence[int] = (),
    batches: Sequence[int] = (),
) -> Series:
    """The series of a metric in these blocks. `batches` as in `MetricRecord`: then a sample is a batch of blocks."""
    if not batches:
        return Series(METRICS[name], tuple(blocks), tuple(values), tuple(boots))
    starts = first_blocks(batches)
    return Series(
        METRICS[name],
        tuple(tuple(blocks[start : start + size]) for start, size in zip(starts, batches, strict=True)),
        tuple(values),
        tuple(boots[start] for start in starts) if boots else (),
    )


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a cell in the order of time, with one slice of each arm."""

    keys: tuple[BlockKey, ...]
    arms: Mapping[Place, tuple[Measurement, ...]]

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.keys)

    @property
    def boots(self) -> tuple[int, ...]:
        """The boot of the guest in each block."""
        return tuple(slice_.boot for slice_ in self.arms[Place.HOST])

    @property
    def times(self) -> tuple[float, ...]:
        """When the first slice of each block began, to the nearest tenth of a second."""
        return tuple(
            round(min(slice_.started for slice_ in block), 1) for block in zip(*self.arms.values(), strict=True)
        )

    def without(self, arm: Place) -> Blocks:
        """The blocks without an arm."""
        return Blocks(self.keys, {place: slices for place, slices in self.arms.items() if place is not arm})

    def where(self, condition: Callable[[Measurement], bool]) -> Blocks:
        """The blocks in which the condition holds for the slice of every arm."""
        whole = [at for at in range(len(self.keys)) if all(condition(slices[at]) for slices in self.arms.values())]
        return Blocks(
            tuple(self.keys[at] for at in whole),
            {arm: tuple(slices[at] for at in whole) for arm, slices in self.arms.items()},
        )

    def has(self, metric: str) -> bool:
        """Whether every slice has the metric; False without blocks."""
        return bool(self.keys) and all(metric in slice_.metrics for arm in self.arms.values() for slice_ in arm)

    def values(self, metric: str, arm: Place) -> tuple[float, ...]:
        """An arm's value of the metric for each block, in the metric's unit; empty without the arm."""
        return tuple(slice_.metrics[metric] for slice_ in self.arms.get(arm, ()))

    def series(self, metric: str, arm: Place) -> Series:
        """An arm's rows of the table in one metric."""
        return make_series(metric, self.keys, self.values(metric, arm), self.boots)


@dataclass(frozen=True, slots=True)
class CellSlices:
    """All slices of a cell, by arm and block, in the order of time."""

    arms: Mapping[Place, Mapping[BlockKey, Measurement]] = field(default_factory=dict)

    @property
    def all(self) -> list[Measurement]:
        """Arm by arm."""
        return [slice_ for slices in self.arms.values() for slice_ in slices.values()]

    def complete_blocks(self, counts: Callable[[Measurement], bool]) -> Blocks:
        """The blocks in which each arm has a slice and every slice `counts`, in the order of their numbers."""
        whole = ({key for key, slice_ in slices.items() if counts(slice_)} for slices in self.arms.values())
        keys = tuple(sorted(set.intersection(*whole)))
        return Blocks(keys, {arm: tuple(slices[key] for key in keys) for arm, slices in self.arms.items()})


def tabulate(
    cells: Sequence[Cell], groups: Mapping[str, str], measurements: Iterable[Measurement]
) -> dict[str, CellSlices]:
    """The slices of each cell, by the cell's id. `groups` has the group of each cell by its id."""
    index: dict[tuple[str, str, str], dict[BlockKey, Measurement]] = defaultdict(dict)
    for slice_ in sorted(measurements, key=lambda slice_: slice_.started):
        index[slice_.group, slice_.job, slice_.arm][slice_.round, slice_.block] = slice_
    return {
        cell.id: CellSlices(
            {role: index.get((groups[cell.id], cell.job.id, arm.id), {}) for role, arm in cell.by_role.items()}
        )
        for cell in cells
    }


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
    def change(self) -> Change:
        """The geometric mean of how many times as much."""
        return estimate_paired_change(
            self.left.values, self.right.values, confidence=self.confidence, samples=self.samples
        )

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


def compare_series(
    before: Series,
    after: Series,
    *,
    confidence: float = CONFIDENCE,
    margin: float = MARGIN,
    correlations: tuple[Correlation | None, Correlation | None] = (None, None),
) -> Change:
    """`after` as a multiple of `before`, if they share no block: of two runs, or of two guests in turn."""
    samples = [
        Samples(side.boots, correlation) for side, correlation in zip((before, after), correlations, strict=True)
    ]
    return estimate_change(
        before.values,
        after.values,
        confidence=confidence,
        margin=margin,
        samples_before=samples[0],
        samples_after=samples[1],
    )


def average_over_jobs(jobs: Sequence[Series]) -> Series:
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


def make_samples(rounds: Sequence[int], boots: Sequence[int], correlation: Correlation | None) -> Samples:
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
    return pool_correlations(dict(zip(of.right.keys, of.log_ratios, strict=True)) for of in several)


def correlation_of(records: Iterable[CellRecord]) -> Correlation | None:
    """The correlation of the job of a group that has these records, by the job's headline metric."""
    arms = ([record.series(record.job.headline, arm) for arm in (Place.HOST, Place.GUEST)] for record in records)
    return pool_correlation(overhead for host, guest in arms if (overhead := contrast(host, guest)) is not None)


def pair_blocks(boots_of: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The blocks of several jobs' cells that are one sample of their mean: the position of a block in each cell.

    They are the k-th blocks that count of each cell within the same boot, in the order of time, up to the fewest. So
    jobs of the same rounds have blocks that are close in time, and a job that was measured again later has blocks of
    other rounds. If the cells have no boot in common, the k-th boots of each belong together: the jobs were measured in
    boots of their own, or in groups, which number their boots themselves. There is at least one pair if each cell has a
    block. Cells of one job need no pairing: their slices are of the same block (`CellRecord.samples`).

    `boots_of` has the boot of each sample of each job.
    """
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


def note_caveat(overhead: Estimate | None) -> list[str]:
    """What a reader must know about the interval of a cell's overhead."""
    return [_CAVEATS[overhead.caveat]] if overhead is not None and overhead.caveat is not None else []


CellPair = tuple["CellRecord", "CellRecord"]
"""The cells of two modes in one job."""


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The guest of one mode as a multiple of the guest of another, in one metric."""

    change: Change
    """The geometric mean over the jobs: 1.38 is 38 % more IOPS, or 38 % more latency."""
    paired: bool
    """Whether the guests ran in the same blocks. Else each is compared by way of its own host."""
    blocks: float
    """Blocks of each job behind a sample: several for a percentile, and for the mean of a boot."""
    confidence: float
    """Of the interval."""

    @property
    def blocks_to_decide(self) -> float | None:
        """How many more blocks of each job would show a change, or that it is negligible; None if there is no interval,
        or if more than `MOST_SAMPLES` would be needed.

        An expectation from the mean and the scatter of the samples so far, as for `count_samples_to_show`.
        """
        change = self.change
        if change.low is None or change.high is None:
            return None
        n = min(change.n_before, change.n_after)
        half = math.log(change.high / change.low) / 2
        sd = half * math.sqrt(n) / t_quantile((1 + self.confidence) / 2, n - 1)
        mean = abs(math.log(change.ratio))
        needed = count_samples_to_show(max(mean, math.log(PRACTICAL) - mean), sd, self.confidence)
        return None if needed is None else max(needed - n, 1) * self.blocks


def compare_guests(modes: Mapping[str, Sequence[CellPair]], metric: str, confidence: float) -> dict[str, ModeChange]:
    """For each mode, the second cell's mode as a multiple of the first's, over the jobs of these pairs.

    All cells have the metric. Guests of the same blocks are pairs. Two modes of different guests, which were measured
    one after the other, are compared by way of their hosts: guest/host of one against guest/host of the other, as
    independent series. The correlation of neighbouring samples is estimated from the pairs of all modes together.
    """
    shared = {mode: guests for mode, pairs in modes.items() if (guests := _pair_guests(pairs, metric)) is not None}
    correlation = _correlate(list(shared.values()))
    changes = {}
    for mode, pairs in modes.items():
        blocks = max(_blocks_of_sample(cell, metric) for pair in pairs for cell in pair)
        if mode in shared:
            together = contrast(*shared[mode], confidence=confidence, correlation=correlation)
            assert together is not None
            change = together.change
        else:
            before, after = (_relate_to_host([pair[side] for pair in pairs], metric) for side in (0, 1))
            change = compare_series(before, after, confidence=confidence)
        changes[mode] = ModeChange(change, mode in shared, blocks, confidence)
    return changes


def _pair_guests(pairs: Sequence[CellPair], metric: str) -> tuple[Series, Series] | None:
    """Both guests as means over the jobs, in the samples that they share; None if a job's cells share none.

    Cells of one group have the same values of the host in a block, others do not.
    """
    jobs = []
    for pair in pairs:
        hosts = [dict(zip(host.keys, host.values, strict=True)) for host in _arms(pair, metric, Place.HOST)]
        same = {key for key, value in hosts[0].items() if hosts[1].get(key) == value}
        if not same:
            return None
        jobs.append([guest.only(same) for guest in _arms(pair, metric, Place.GUEST)])
    before, after = (average_over_jobs([job[side] for job in jobs]) for side in (0, 1))
    return before, after


def _correlate(pairs: Sequence[tuple[Series, Series]]) -> Correlation | None:
    """As for the cells of a job (`pool_correlation`); None if the samples are boots."""
    if not pairs or any(len(set(before.boots)) > 1 for before, _ in pairs):
        return None
    return pool_correlations(dict(enumerate(log_ratios(before.values, after.values))) for before, after in pairs)


def _arms(cells: Sequence[CellRecord], metric: str, place: Place) -> list[Series]:
    return [series for cell in cells if (series := cell.series(metric, place)) is not None]


def _relate_to_host(cells: Sequence[CellRecord], metric: str) -> Series:
    """The guest of one mode divided by its host, as a mean over the jobs."""
    host, guest = (average_over_jobs(_arms(cells, metric, place)) for place in (Place.HOST, Place.GUEST))
    return replace(guest, values=tuple(of / than for than, of in zip(host.values, guest.values, strict=True)))


def _blocks_of_sample(cell: CellRecord, metric: str) -> float:
    boots = len(set(cell.boots))
    if boots > 1:
        return len(cell.rounds) / boots
    sizes = cell.metrics[metric].batches
    return fmean(sizes) if sizes else 1.0


def loss_over_jobs(
    cells: Sequence[CellRecord],
    of: Place = Place.GUEST,
    than: Place = Place.HOST,
    *,
    metric: str | None = None,
    confidence: float | None = None,
) -> Estimate:
    """How much worse one arm of a mode is than another, over the jobs of these cells, as a share of the other.

    By `metric`, or the throughput of each cell, and with the highest confidence of the cells, or another one.
    """
    left, right = (
        average_over_jobs(
            [series for cell in cells if (series := cell.series(metric or cell.throughput_name, place)) is not None]
        )
        for place in (than, of)
    )
    if confidence is None:
        confidence = max(cell.confidence for cell in cells)
    over_jobs = contrast(left, right, confidence=confidence)
    assert over_jobs is not None
    return over_jobs.loss


def most_comparable(jobs_of: Mapping[str, set[str]]) -> tuple[list[str], set[str]]:
    """The modes and their common jobs with the most cells together. If equal, more modes win."""
    ranked = sorted((mode for mode in jobs_of if jobs_of[mode]), key=lambda mode: -len(jobs_of[mode]))
    best: tuple[list[str], set[str]] = ([], set())
    common: set[str] = set()
    for number, mode in enumerate(ranked, start=1):
        common = common & jobs_of[mode] if number > 1 else set(jobs_of[mode])
        if common and number * len(common) >= len(best[0]) * len(best[1]):
            best = (ranked[:number], set(common))
    return best
