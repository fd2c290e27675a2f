"""How often the interval of a percentile from batches of blocks holds the truth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from harness.analysis import Samples, batches, estimate_overhead
from harness.analysis.histogram import fewest_ios
from tests.simulation.campaigns import Floats
from tests.simulation.stated import stated

CAMPAIGNS = 1500
QUANTILE = 0.99
TRUTH = 0.2
IOS_OF_BLOCK = 275
"""On average. So a batch, with 1000 I/Os or more of each arm, has 4 blocks, and now and then 5."""
SAMPLES = (3, 6, 12)
# The standard deviation of a count of 95 % in 1500 is 0.56 %: three of them.
TOLERANCE = 0.017

Latencies = Callable[[np.random.Generator, int], Floats]
"""The latencies of the I/Os of one slice."""


def exponential(chance: np.random.Generator, ios: int) -> Floats:
    return chance.exponential(1.0, ios)


def bimodal(chance: np.random.Generator, ios: int) -> Floats:
    """One I/O in 50 misses a cache and takes 100 times as long, so p99 is within the slow ones."""
    return chance.exponential(1.0, ios) * np.where(chance.random(ios) < 0.02, 100, 1)


def bimodal_at_the_percentile(chance: np.random.Generator, ios: int) -> Floats:
    """One I/O in 100 is slow, so the p99 of a sample is a slow one or a fast one by chance."""
    return chance.exponential(1.0, ios) * np.where(chance.random(ios) < 0.01, 100, 1)


def bimodal_slices(chance: np.random.Generator, ios: int) -> Floats:
    """In every second slice, on average, a neighbour makes all I/Os take three times as long."""
    return chance.exponential(3.0 if chance.random() < 0.5 else 1.0, ios)


def percentiles(slices: list[Floats], own: list[range]) -> list[float]:
    found = []
    for batch in own:
        together = np.concatenate(slices[batch.start : batch.stop])
        rank = math.ceil(QUANTILE * len(together) - 1e-9) - 1
        found.append(float(np.partition(together, rank)[rank]))
    return found


def coverage(latencies: Latencies, samples: int) -> float:
    chance, blocks = np.random.default_rng(samples), 4 * samples
    covered = given = 0
    for _ in range(CAMPAIGNS):
        ios = chance.poisson(IOS_OF_BLOCK, (2, blocks))
        host, guest = ([latencies(chance, int(number)) for number in arm] for arm in ios)
        own = batches(ios.tolist(), fewest_ios(QUANTILE))
        of_batches = Samples().in_batches([len(batch) for batch in own])
        overhead = estimate_overhead(
            percentiles(host, own),
            [(1 + TRUTH) * each for each in percentiles(guest, own)],
            higher_is_better=False,
            samples=of_batches,
        )
        if overhead.low is not None and overhead.high is not None:
            given += 1
            covered += overhead.low <= TRUTH <= overhead.high
    assert given > 0.95 * CAMPAIGNS
    return covered / given


@pytest.mark.parametrize(("column", "samples"), list(enumerate(SAMPLES)))
@pytest.mark.parametrize(
    ("row", "latencies"),
    [
        ("p99, exponential latencies", exponential),
        ("p99, one I/O in 50 is 100 times as slow", bimodal),
        ("p99, one I/O in 100 is 100 times as slow", bimodal_at_the_percentile),
        ("p99, every second slice is three times as slow", bimodal_slices),
    ],
)
def test_the_interval_from_batches_covers_the_truth(row: str, latencies: Latencies, column: int, samples: int) -> None:
    covered = coverage(latencies, samples)
    assert 0.93 <= covered <= 0.99
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)
