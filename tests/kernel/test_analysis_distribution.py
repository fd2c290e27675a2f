"""Histograms with few bins: what they keep of fio's, and how exact their quantiles are."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from harness.analysis import LatencyHistogram, percentile, quantiles, reduce_bins, upper_end


def lognormal(sigma: float, ios: int = 20_000) -> Counter[int]:
    """Latencies around 60 us in fio's bins: 64 in each factor of two."""
    chance = random.Random(f"{sigma}")
    found: Counter[int] = Counter()
    for _ in range(ios):
        latency = round(chance.lognormvariate(11, sigma))
        width = (1 << (latency.bit_length() - 1)) // 64 or 1
        found[latency - latency % width + width // 2] += 1
    return found


@pytest.mark.parametrize(("sigma", "per_octave"), [(0.05, 64), (0.5, 8), (2.0, 2)])
def test_a_histogram_is_as_fine_as_its_bins_allow_and_keeps_every_io(sigma: float, per_octave: int) -> None:
    found = reduce_bins(lognormal(sigma))
    assert found.per_octave == per_octave
    assert 20 < len(found.bins) <= 80
    assert found.ios == 20_000


@pytest.mark.parametrize("sigma", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_its_quantiles_differ_by_less_than_a_bin_from_those_of_fio(sigma: float, share: float) -> None:
    bins = lognormal(sigma)
    few = reduce_bins(bins)
    (found,) = quantiles(few, [share])
    exact = percentile(bins, share)
    assert exact is not None
    assert found == pytest.approx(exact, rel=1 / few.per_octave)


def test_quantiles_end_where_fewer_than_ten_ios_are_slower() -> None:
    histogram = LatencyHistogram(8, {1024: 900, 8192: 100})
    assert quantiles(histogram, [0.99, 0.5, 0.991, 0.0]) == [
        pytest.approx(9.1136e-6),
        pytest.approx(1.0951e-6, rel=1e-3),
        None,
        pytest.approx(1.024e-6),
    ]


def test_wider_bins_hold_the_same_ios_and_are_next_to_each_other() -> None:
    narrow = reduce_bins(Counter(dict.fromkeys(range(4096, 8192, 64), 3)))
    wide = reduce_bins(narrow.bins, per_octave=8)
    assert list(wide.bins.values()) == [24] * 8
    lows = list(wide.bins)
    assert [upper_end(low, 8) for low in lows] == [*lows[1:], 8192]


def test_the_shortest_latencies_have_bins_of_one_nanosecond() -> None:
    assert reduce_bins({0: 1, 1: 2, 63: 4, 64: 8}).bins == {0: 1, 1: 2, 63: 4, 64: 8}
    assert upper_end(0, 8) == 1


def test_a_histogram_needs_a_bin() -> None:
    with pytest.raises(ValueError, match="at least one bin, not 0"):
        reduce_bins({1: 1}, most=0)
