"""How often the interval of a percentile of all blocks together holds the truth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from harness.analysis import HALF_BIN, Samples, estimate_overhead, pool_percentiles
from harness.analysis.histogram import FINEST
from tests.simulation.campaigns import Floats

CAMPAIGNS = 300
QUANTILE = 0.99
TRUTH = 0.2
# The standard deviation of a count of 95 % in 300 is 1.3 %: three of them.
TOLERANCE = 0.04

Latencies = Callable[[np.random.Generator, int], Floats]
"""The latencies of the I/Os of one slice."""


def exponential(chance: np.random.Generator, ios: int) -> Floats:
    return chance.exponential(1.0, ios)


def heavy(chance: np.random.Generator, ios: int) -> Floats:
    return 1 + chance.pareto(2.0, ios)


def bimodal(chance: np.random.Generator, ios: int) -> Floats:
    """One I/O in 50 misses a cache and takes 100 times as long, so p99 is within the slow ones."""
    return chance.exponential(1.0, ios) * np.where(chance.random(ios) < 0.02, 100, 1)


def bimodal_slices(chance: np.random.Generator, ios: int) -> Floats:
    """In every second slice, on average, a neighbour makes all I/Os take three times as long."""
    return chance.exponential(3.0 if chance.random() < 0.5 else 1.0, ios)


def put_into_bins(latencies: Floats) -> Counter[int]:
    """fio's histogram of latencies in units of 0.1 ms."""
    ns = np.maximum(latencies * 1e5, FINEST).astype(np.int64)
    width = 2 ** (np.floor(np.log2(ns)).astype(np.int64)) // FINEST
    middles, counts = np.unique(ns - ns % width + width // 2, return_counts=True)
    return Counter(dict(zip(middles.tolist(), counts.tolist(), strict=True)))


@pytest.mark.parametrize(
    ("latencies", "host_ios", "guest_ios"),
    [
        (exponential, 1200, 120),
        (heavy, 1200, 120),
        (bimodal, 275, 275),
        (bimodal, 1200, 120),
        (bimodal_slices, 1200, 120),
    ],
)
def test_the_interval_holds_the_truth_also_if_a_guest_completes_a_tenth(
    latencies: Latencies, host_ios: int, guest_ios: int
) -> None:
    chance, blocks, covered = np.random.default_rng(1), 12, 0
    for _ in range(CAMPAIGNS):
        host, guest = (
            pool_percentiles([put_into_bins(factor * latencies(chance, ios)) for _ in range(blocks)], QUANTILE)
            for ios, factor in ((host_ios, 1.0), (guest_ios, 1 + TRUTH))
        )
        overhead = estimate_overhead(
            map(math.exp, host), map(math.exp, guest), higher_is_better=False, samples=Samples(resolution=HALF_BIN)
        )
        assert overhead.low is not None
        assert overhead.high is not None
        covered += overhead.low <= TRUTH <= overhead.high
    assert covered / CAMPAIGNS >= 0.95 - TOLERANCE
