"""The table of blocks, and the comparisons that are made of it: each is a contrast of two of its series. Pure.

`tabulate` makes the table from the slices of a run, and `CellRecord.series` reads it again from what was stored: a row
for each cell, arm, block and metric, with the value adjusted for its moment (`adjust_job`). Overhead, storage layer,
variant, array against single disk, degraded against optimal, a step of a decomposition, one mode against another: all
are `contrast(left, right)`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from harness.analysis import (
    CONFIDENCE,
    MARGIN,
    METRICS,
    Change,
    Estimate,
    Metric,
    Samples,
    Spread,
    adjust_values,
    estimate_change,
    estimate_overhead,
    estimate_paired_change,
    log_ratios,
    make_estimate,
    mean_interval,
    spread_added,
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

    `keys` identify the samples, each a block or one block of each job. `boots` has the guest's boot of each; empty if
    all are of one.
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

    @property
    def compared(self) -> Blocks:
        """The blocks without the arms that are only beside the others."""
        beside = (Place.REFERENCE, Place.DIRECT)
        return Blocks(self.keys, {place: slices for place, slices in self.arms.items() if place not in beside})

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
        """An arm's rows of the table in one metric, not adjusted."""
        return Series(METRICS[metric], self.keys, self.values(metric, arm), self.boots)


@dataclass(frozen=True, slots=True)
class CellSlices:
    """All slices of a cell, by arm and block, in the order of time."""

    arms: Mapping[Place, Mapping[BlockKey, Measurement]] = field(default_factory=dict)
    job: Mapping[str, Mapping[BlockKey, Measurement]] = field(default_factory=dict)
    """Those of every arm of the job in this group, by the arm's id."""

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
    index: dict[tuple[str, str], dict[str, dict[BlockKey, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    for slice_ in sorted(measurements, key=lambda slice_: slice_.started):
        index[slice_.group, slice_.job][slice_.arm][slice_.round, slice_.block] = slice_
    cell_slices = {}
    for cell in cells:
        job = index.get((groups[cell.id], cell.job.id), {})
        cell_slices[cell.id] = CellSlices({role: job.get(arm.id, {}) for role, arm in cell.by_role.items()}, job)
    return cell_slices


AdjustedValues = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Values by metric, arm and block, in the metric's unit."""


def adjust_job(job: Mapping[str, Mapping[BlockKey, Measurement]], keys: Sequence[BlockKey]) -> AdjustedValues:
    """The values of a job's arms in these blocks, adjusted for the moments of their slices (`adjust_values`).

    `job` has the slices by the arm's id. An arm that lacks a slice in some of these blocks takes part in the others,
    but has no adjusted values. Percentiles are left out, as a percentile is one of all blocks together.
    """
    values: dict[str, dict[str, tuple[float, ...]]] = {}
    if not keys:
        return values
    for name in (metric.name for metric in METRICS.values() if metric.quantile is None):
        arms = {arm: [_read_log(slices.get(key), name) for key in keys] for arm, slices in job.items()}
        blocks = [list(zip(*block, strict=True)) for block in zip(*arms.values(), strict=True)]
        adjusted = adjust_values([logs for logs, _ in blocks], [starts for _, starts in blocks])
        whole = {
            arm: tuple(map(math.exp, logs))
            for arm, slices, logs in zip(arms, arms.values(), zip(*adjusted, strict=True), strict=True)
            if not any(map(math.isnan, logs)) and list(logs) != [log for log, _ in slices]
        }
        if whole:
            values[name] = whole
    return values


def _read_log(slice_: Measurement | None, metric: str) -> tuple[float, float]:
    """The logarithm of the metric and when the slice began; NaN for a slice that does not count."""
    if slice_ is None or slice_.overlap is not None or not 0 < slice_.metrics.get(metric, 0) < math.inf:
        return math.nan, math.nan
    return math.log(slice_.metrics[metric]), slice_.started


@dataclass(frozen=True, slots=True)
class Contrast:
    """One series against another in the samples that both have. Each figure is about `right`, against `left`.

    The order of the arms in a block is random. So what the environment does enters a difference of two arms with a
    random sign, and the differences of blocks are uncorrelated even if the environment is not (Bojinov, Simchi-Levi &
    Zhao 2023). Every interval is Student's t on them.
    """

    left: Series
    right: Series
    confidence: float = CONFIDENCE

    @property
    def samples(self) -> Samples:
        """The boots and the resolution of the samples."""
        return Samples(self.right.boots, resolution=self.right.metric.resolution)

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
        return make_estimate(self._added, len(self.right.values), self.confidence)

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
        return self._added.p_of_zero

    @property
    def _added(self) -> Spread:
        return spread_added(self.left.values, self.right.values, self.samples)

    @property
    def log_ratios(self) -> list[float]:
        """log(right/left) of each sample."""
        return log_ratios(self.left.values, self.right.values)


def contrast(left: Series | None, right: Series | None, *, confidence: float = CONFIDENCE) -> Contrast | None:
    """`right` against `left`; None without one of them, or if they share no sample."""
    if left is None or right is None:
        return None
    if left.keys != right.keys:
        left, right = left.only(set(right.keys)), right.only(set(left.keys))
    if not left.values or not right.values:
        return None
    return Contrast(left, right, confidence)


def compare_series(before: Series, after: Series, *, confidence: float, margin: float = MARGIN) -> Change:
    """`after` as a multiple of `before`, if they share no block: of two runs, or of two guests in turn."""
    return estimate_change(
        before.values,
        after.values,
        confidence=confidence,
        margin=margin,
        samples_before=Samples(before.boots, resolution=before.metric.resolution),
        samples_after=Samples(after.boots, resolution=after.metric.resolution),
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


def make_samples(rounds: Sequence[int], boots: Sequence[int]) -> Samples:
    """The samples of a cell whose blocks have these rounds and boots."""
    return Samples(tuple(boots), rounds=len(set(rounds)))


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
    """Blocks of each job behind a sample: several for the mean of a boot."""
    confidence: float
    """Of the interval."""


def compare_guests(modes: Mapping[str, Sequence[CellPair]], metric: str, confidence: float) -> dict[str, ModeChange]:
    """For each mode, the second cell's mode as a multiple of the first's, over the jobs of these pairs.

    All cells have the metric. Guests of the same blocks are pairs. Two modes of different guests, which were measured
    one after the other, are compared by way of their hosts: guest/host of one against guest/host of the other, as
    independent series.
    """
    shared = {mode: guests for mode, pairs in modes.items() if (guests := _pair_guests(pairs, metric)) is not None}
    changes = {}
    for mode, pairs in modes.items():
        blocks = max(_blocks_of_sample(cell) for pair in pairs for cell in pair)
        if mode in shared:
            together = contrast(*shared[mode], confidence=confidence)
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
        hosts = [dict(zip(cell.samples, cell.values(cell.throughput_name, Place.HOST), strict=False)) for cell in pair]
        same = {key for key, value in hosts[0].items() if hosts[1].get(key) == value}
        if not same:
            return None
        jobs.append([guest.only(same) for guest in _arms(pair, metric, Place.GUEST)])
    before, after = (average_over_jobs([job[side] for job in jobs]) for side in (0, 1))
    return before, after


def _arms(cells: Sequence[CellRecord], metric: str | None, place: Place) -> list[Series]:
    """By the metric; None for the throughput of each cell."""
    all_series = (cell.series(metric or cell.throughput_name, place) for cell in cells)
    return [series for series in all_series if series is not None]


def _relate_to_host(cells: Sequence[CellRecord], metric: str) -> Series:
    """The guest of one mode divided by its host, as a mean over the jobs."""
    host, guest = (average_over_jobs(_arms(cells, metric, place)) for place in (Place.HOST, Place.GUEST))
    return replace(guest, values=tuple(of / than for than, of in zip(host.values, guest.values, strict=True)))


def _blocks_of_sample(cell: CellRecord) -> float:
    boots = len(set(cell.boots))
    return len(cell.rounds) / boots if boots > 1 else 1.0


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
    left, right = (average_over_jobs(_arms(cells, metric, place)) for place in (than, of))
    over_jobs = contrast(left, right, confidence=confidence or max(cell.confidence for cell in cells))
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
