"""One attach mode as a multiple of another, guest against guest over the same jobs: in pairs where blocks are shared.

Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from harness.analysis import (
    METRICS,
    PRACTICAL,
    Change,
    Correlation,
    Estimate,
    Samples,
    count_samples_to_show,
    estimate_change,
    estimate_overhead,
    estimate_paired_change,
    first_blocks,
    log_ratios,
    pool_correlations,
    t_quantile,
)
from harness.results.cells import CellRecord
from harness.results.contrasts import BlockKey, pair_blocks

ArmPlace = Literal["host", "twin", "guest"]
CellPair = tuple[CellRecord, CellRecord]
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

        An expectation from the mean and the scatter of the samples so far, as for `samples_to_show`.
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


@dataclass(frozen=True, slots=True)
class _Series:
    """A metric of a cell in the samples that count: host, guest and the boot of each."""

    host: Sequence[float]
    guest: Sequence[float]
    boots: Sequence[int]


def mode_changes(modes: Mapping[str, Sequence[CellPair]], metric: str, confidence: float) -> dict[str, ModeChange]:
    """For each mode, the second cell's mode as a multiple of the first's, over the jobs of these pairs.

    All cells have the metric. Guests of the same blocks are pairs. Two modes of different guests, which were measured
    one after the other, are compared by way of their hosts: guest/host of one against guest/host of the other, as
    independent series. The correlation of neighbouring samples is estimated from the pairs of all modes together.
    """
    paired = {mode: found for mode, pairs in modes.items() if (found := _paired(pairs, metric)) is not None}
    correlation = _correlation(list(paired.values()))
    changes = {}
    for mode, pairs in modes.items():
        blocks = max(_blocks_of_sample(cell, metric) for pair in pairs for cell in pair)
        if mode in paired:
            before, after, boots = paired[mode]
            samples = Samples(boots, correlation)
            change = estimate_paired_change(before, after, confidence=confidence, samples=samples)
        else:
            change = _unpaired(pairs, metric, confidence)
        changes[mode] = ModeChange(change, mode in paired, blocks, confidence)
    return changes


_Paired = tuple[list[float], list[float], tuple[int, ...]]
"""Both guests, sample by sample, and the boot of each sample."""


def _paired(pairs: Sequence[CellPair], metric: str) -> _Paired | None:
    """The guests as means over the jobs; None if a job's cells share no block."""
    shared = [_shared(one, other, metric) for one, other in pairs]
    if not all(before.guest for before, _ in shared):
        return None
    positions = pair_blocks([before.boots for before, _ in shared])
    before, after = (_means([pair[side].guest for pair in shared], positions) for side in (0, 1))
    return before, after, tuple(shared[0][0].boots[position[0]] for position in positions)


def _correlation(paired: Sequence[_Paired]) -> Correlation | None:
    """As for the cells of a job (`pool_correlation`); None if the samples are boots."""
    if not paired or any(len(set(boots)) > 1 for *_, boots in paired):
        return None
    series = (log_ratios(before, after) for before, after, _ in paired)
    return pool_correlations({(number, 1): ratio for number, ratio in enumerate(each)} for each in series)


def _unpaired(pairs: Sequence[CellPair], metric: str, confidence: float) -> Change:
    of_host = [_of_arms([pair[side] for pair in pairs], metric) for side in (0, 1)]
    before, after = ([of / than for than, of in zip(host, guest, strict=True)] for host, guest, _ in of_host)
    first, second = (samples for *_, samples in of_host)
    return estimate_change(before, after, confidence=confidence, samples_before=first, samples_after=second)


def _shared(one: CellRecord, other: CellRecord, metric: str) -> tuple[_Series, _Series]:
    """Both cells in the samples that they share. Cells of one group have the same host values there, others do not."""
    own, its = _samples(one, metric), _samples(other, metric)
    keys = [key for key in own if key in its and own[key][0] == its[key][0]]
    return _series([own[key] for key in keys]), _series([its[key] for key in keys])


_Sample = tuple[float, float, int]
"""Host, guest and boot."""


def _samples(cell: CellRecord, metric: str) -> dict[tuple[BlockKey, ...], _Sample]:
    """By the blocks of each sample."""
    found = cell.metrics[metric]
    sizes = found.batches or (1,) * len(found.host)
    starts = first_blocks(sizes)
    boots = cell.boots or (1,) * len(cell.rounds)
    return {
        cell.samples[start : start + size]: (host, guest, boots[start])
        for start, size, host, guest in zip(starts, sizes, found.host, found.guest, strict=True)
    }


def _series(samples: Sequence[_Sample]) -> _Series:
    return _Series([host for host, _, _ in samples], [guest for _, guest, _ in samples], [boot for *_, boot in samples])


def loss(
    cells: Sequence[CellRecord],
    metric: str,
    confidence: float,
    *,
    of: ArmPlace = "guest",
    than: ArmPlace = "host",
) -> Estimate:
    """How much worse one arm of a mode is than another, over the jobs of these cells, as a share of the other."""
    base, own, samples = _of_arms(cells, metric, of, than)
    better = METRICS[metric].higher_is_better
    return estimate_overhead(base, own, higher_is_better=better, confidence=confidence, samples=samples)


def _of_arms(
    cells: Sequence[CellRecord], metric: str, of: ArmPlace = "guest", than: ArmPlace = "host"
) -> tuple[list[float], list[float], Samples]:
    """Two arms of one mode's cells, `than` first, as geometric means over the jobs, sample by sample."""
    boots = [[boot for *_, boot in _samples(cell, metric).values()] for cell in cells]
    positions = pair_blocks(boots)
    base, own = (_means([getattr(cell.metrics[metric], place) for cell in cells], positions) for place in (than, of))
    return base, own, Samples(tuple(boots[0][position[0]] for position in positions))


def _means(of_jobs: Sequence[Sequence[float]], positions: Sequence[tuple[int, ...]]) -> list[float]:
    """The geometric mean over the jobs, of each sample."""
    return [
        math.exp(fmean(math.log(values[at]) for values, at in zip(of_jobs, position, strict=True)))
        for position in positions
    ]


def _blocks_of_sample(cell: CellRecord, metric: str) -> float:
    boots = len(set(cell.boots))
    if boots > 1:
        return len(cell.rounds) / boots
    sizes = cell.metrics[metric].batches
    return fmean(sizes) if sizes else 1.0


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
