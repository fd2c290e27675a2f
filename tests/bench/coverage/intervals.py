"""Coverage and width of the intervals that ship, on simulated slices and latencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis import METRICS, t_quantile
from harness.analysis.adjusted import adjust_values, pool_percentiles
from harness.results.contrasts import Series, contrast
from tests.bench.coverage.noises import ARMS, NOISE, NOISES, Floats, Noise, Places, Slices, draw_independent

CONFIDENCE = 0.95
LEAST, MOST = 0.94, 0.97
"""The coverage that is wanted."""
WIDEST = 1.4
"""Nine of ten half widths should be at most so many times the oracle's, from 10 blocks on."""
LEAST_OF_PERCENTILES = 0.93
ORACLE = 1.96
BLOCKS = (6, 10, 20, 40)
BOOTS = (2, 3, 4, 6, 12, 24)
PAIRS_OF_HOST = [(0, guest) for guest in range(1, ARMS)]
PAIRS_OF_GUESTS = [(guest, guest + 1) for guest in range(1, ARMS - 1)]


@dataclass(frozen=True)
class Intervals:
    """Intervals of logarithms: estimates, their ends and the truth, all of one shape, with the comparisons last."""

    point: Floats
    low: Floats
    high: Floats
    truth: Floats
    by_t: Floats | None = None
    """The half widths of Student's t on the values as measured."""

    @property
    def coverage(self) -> float:
        return float(((self.low <= self.truth) & (self.truth <= self.high)).mean())

    @property
    def halves(self) -> Floats:
        return (self.high - self.low) / 2

    @property
    def widths(self) -> Floats:
        """Half widths as multiples of 1.96 times the true standard deviation of the estimate."""
        deviations: Floats = (self.point - self.truth).std(axis=0)
        return self.halves / (ORACLE * deviations)

    @property
    def median_width(self) -> float:
        return float(np.median(self.widths))

    @property
    def wide_width(self) -> float:
        """That of the 90th percentile."""
        return float(np.quantile(self.widths, 0.9))

    @property
    def bias(self) -> float:
        """The mean error of the estimate."""
        return float((self.point - self.truth).mean())

    @property
    def of_t(self) -> float | None:
        """The median half width as a multiple of Student's."""
        return None if self.by_t is None else float(np.median(self.halves / self.by_t))


def compare(
    left: Sequence[float], right: Sequence[float], boots: Sequence[int] = (), metric: str = "lat_mean"
) -> tuple[float, float, float]:
    """The logarithm of right/left, with the ends of its interval as a cell has it, from adjusted logarithms."""
    keys = tuple(range(len(left)))
    series = (Series(METRICS[metric], keys, tuple(map(math.exp, arm)), tuple(boots)) for arm in (left, right))
    comparison = contrast(*series, confidence=CONFIDENCE)
    assert comparison is not None
    loss = comparison.loss
    assert loss.low is not None
    assert loss.high is not None
    return math.log1p(loss.point), math.log1p(loss.low), math.log1p(loss.high)


def compute_half_by_t(ratios: Floats) -> Floats:
    """Half of Student's interval of a mean, over the last axis."""
    n = ratios.shape[-1]
    half: Floats = t_quantile((1 + CONFIDENCE) / 2, n - 1) * ratios.std(axis=-1, ddof=1) / math.sqrt(n)
    return half


def judge_coverage(intervals: Intervals) -> list[str]:
    """What does not hold of the coverage."""
    coverage = round(intervals.coverage, 3)
    if coverage < LEAST:
        return [f"covers too rarely ({100 * coverage:.1f} %)"]
    return [f"covers too often ({100 * coverage:.1f} %)"] if coverage > MOST else []


@dataclass(frozen=True)
class Simulated:
    """Campaigns of a noise: logarithms as measured and adjusted, with the shape (campaigns, blocks, arms)."""

    slices: Slices
    logs: Floats
    adjusted: Floats
    boots: tuple[int, ...] = ()

    @classmethod
    def run(
        cls, noise: Noise, blocks: int, campaigns: int, boots: Sequence[int] = (), boot_effect: float = 0.0
    ) -> Simulated:
        """`boots` has the boot of each block, `boot_effect` the standard deviation of a guest's boots."""
        chance = np.random.default_rng([blocks, campaigns])
        places = Places.draw(chance, campaigns, blocks)
        slices = noise(places)
        logs = slices.logs
        if boots:
            numbers = np.array(boots)
            effects = boot_effect * chance.normal(size=(campaigns, numbers.max() + 1, ARMS)) * (np.arange(ARMS) > 0)
            logs = logs + effects[:, numbers]
        both = zip(logs.tolist(), places.times.tolist(), strict=True)
        return cls(slices, logs, np.array([adjust_values(values, times) for values, times in both]), tuple(boots))

    def compare(self, pairs: Sequence[tuple[int, int]], *, of_run: bool = True) -> Intervals:
        """The intervals of these pairs of arms, for the truth of the run, or for that of the long run."""
        campaigns, _, arms = self.logs.shape
        slices = self.slices
        truth = slices.of_run if of_run and slices.of_run is not None else slices.truth
        truth = np.broadcast_to(truth, (campaigns, arms))
        left, right = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
        ends = np.empty((3, campaigns, len(pairs)))
        for campaign, values in enumerate(self.adjusted.transpose(0, 2, 1).tolist()):
            for number, (one, other) in enumerate(pairs):
                ends[:, campaign, number] = compare(values[one], values[other], self.boots)
        ratios = (self.logs[:, :, right] - self.logs[:, :, left]).transpose(0, 2, 1)
        return Intervals(
            ends[0],
            ends[1],
            ends[2],
            truth[:, right] - truth[:, left],
            None if self.boots else compute_half_by_t(ratios),
        )


@dataclass(frozen=True)
class Row:
    """A row of the page: a noise and a number of blocks, with the intervals of two kinds of comparisons."""

    name: str
    blocks: int
    intervals: tuple[Intervals, ...]
    limited: bool
    """Whether the width has a limit."""
    of_long_run: float | None = None
    """The coverage of guest against host if the truth is that of the long run; None if it is the same."""

    @property
    def failures(self) -> list[str]:
        """What does not hold."""
        failed = [failure for of in self.intervals for failure in judge_coverage(of)]
        if self.limited:
            failed += [f"width {of.wide_width:.2f}" for of in self.intervals if of.wide_width > WIDEST]
        return failed


def simulate_noises(campaigns: int) -> Iterator[Row]:
    """Guest against host, and guest against guest, for each noise and number of blocks. The truth is that of runs."""
    for name, noise in NOISES.items():
        for blocks in BLOCKS:
            run = Simulated.run(noise, blocks, campaigns)
            several = run.compare(PAIRS_OF_HOST), run.compare(PAIRS_OF_GUESTS)
            limited = name == "independent" and blocks >= BLOCKS[1]
            changes = run.slices.of_run is not None
            long_run = run.compare(PAIRS_OF_HOST, of_run=False).coverage if changes else None
            yield Row(name, blocks, several, limited, long_run)


def simulate_boots(campaigns: int) -> Iterator[Row]:
    """Two blocks in each boot; boots have half of the variance of a guest's slice."""
    for number in BOOTS:
        boots = [boot for boot in range(number) for _ in range(2)]
        run = Simulated.run(draw_independent, len(boots), campaigns, boots, NOISE)
        yield Row(f"{number} boots", number, (run.compare(PAIRS_OF_HOST), run.compare(PAIRS_OF_GUESTS)), limited=False)


Latencies = Callable[[np.random.Generator, int], Floats]
"""The latencies of so many I/Os of a slice, in any unit."""


def draw_exponential(chance: np.random.Generator, ios: int) -> Floats:
    return chance.exponential(1, ios)


def draw_lognormal(chance: np.random.Generator, ios: int) -> Floats:
    return np.exp(chance.normal(0, 1, ios))


def draw_pareto(chance: np.random.Generator, ios: int) -> Floats:
    """The variance is infinite."""
    return chance.pareto(2, ios) + 1


def draw_slow_tail(share: float) -> Latencies:
    """This share of the I/Os misses a cache, and takes 50 times as long."""

    def draw(chance: np.random.Generator, ios: int) -> Floats:
        return np.exp(chance.normal(0, 0.2, ios)) * np.where(chance.random(ios) < share, 50, 1)

    return draw


def draw_loud_slices(chance: np.random.Generator, ios: int) -> Floats:
    """In every second slice, on average, a neighbour makes all I/Os take three times as long."""
    return chance.exponential(3 if chance.random() < 0.5 else 1, ios)


LATENCIES: dict[str, Latencies] = {
    "exponential": draw_exponential,
    "log-normal": draw_lognormal,
    "Pareto 2": draw_pareto,
    "2 % of I/Os 50 times as slow": draw_slow_tail(0.02),
    "1.2 % of I/Os 50 times as slow": draw_slow_tail(0.012),
    "every second slice 3 times as slow": draw_loud_slices,
}
IOS = ((500, 500), (2000, 200))
"""Of a slice of host and guest."""
SHARE = 0.99
BLOCKS_OF_PERCENTILES = (10, 20, 40)


def count_in_bins(latencies: Floats) -> dict[int, int]:
    """Completions by latency in nanoseconds, in fio's bins: 64 in each factor of two."""
    ns = np.maximum(latencies, 64).astype(np.int64)
    shift = np.maximum(np.floor(np.log2(ns)).astype(np.int64) - 6, 0)
    lows, counts = np.unique((ns >> shift) << shift, return_counts=True)
    return dict(zip(lows.tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class PercentileRow:
    """A row of the page: latencies, I/Os of a slice of host and guest, and a number of blocks."""

    name: str
    ios: tuple[int, int]
    blocks: int
    campaigns: int
    intervals: Intervals

    @property
    def failures(self) -> list[str]:
        """What does not hold."""
        coverage = self.intervals.coverage
        return [] if coverage >= LEAST_OF_PERCENTILES else [f"covers too rarely ({100 * coverage:.1f} %)"]


def simulate_all_percentiles(campaigns: int) -> Iterator[PercentileRow]:
    """For each kind of latencies, with as many I/Os on both arms and with ten times as many on the host."""
    for name, latencies in LATENCIES.items():
        for ios in IOS:
            for blocks in BLOCKS_OF_PERCENTILES:
                yield PercentileRow(
                    name, ios, blocks, campaigns, simulate_percentiles(latencies, ios, blocks, campaigns)
                )


def simulate_percentiles(latencies: Latencies, ios: tuple[int, int], blocks: int, campaigns: int) -> Intervals:
    """The intervals of guest/host of a p99 with so many I/Os in a slice of each. Slices differ by 10 %."""
    chance = np.random.default_rng([blocks, *ios])
    found = np.empty((3, campaigns, 1))
    for campaign in range(campaigns):
        arms = []
        for number in ios:
            scales = 1e5 * np.exp(NOISE * chance.normal(size=blocks))
            slices = [count_in_bins(scale * latencies(chance, chance.poisson(number))) for scale in scales.tolist()]
            arms.append(pool_percentiles(slices, SHARE))
        found[:, campaign, 0] = compare(arms[0], arms[1], metric="clat_p99")
    return Intervals(found[0], found[1], found[2], np.zeros((campaigns, 1)))
