"""Histograms with few bins: what they keep of fio's, and how exact their quantiles are."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.analysis import reduce_bins, upper_end
from tests.build import lognormal


@pytest.mark.parametrize(("sigma", "per_octave"), [(0.05, 64), (0.5, 8), (2.0, 2)])
def test_a_histogram_is_as_fine_as_its_bins_allow_and_keeps_every_io(sigma: float, per_octave: int) -> None:
    found = reduce_bins(lognormal(sigma))
    assert found.per_octave == per_octave
    assert 20 < len(found.bins) <= 80
    assert found.ios == 20_000


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
