"""Percentiles of latency histograms, against numpy on the same I/Os one by one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from harness.analysis import merged, percentile, percentile_interval

RECORDED = Path(__file__).parent / "data" / "fio"


def latencies(seed: int, ios: int) -> Counter[int]:
    chance = random.Random(seed)
    return Counter(round(chance.lognormvariate(11, 0.5)) // 512 * 512 for _ in range(ios))


@pytest.mark.parametrize("q", [0.25, 0.5, 0.9, 0.99])
@pytest.mark.parametrize(("seed", "ios"), [(1, 1000), (2, 1001), (3, 1999), (4, 30_000)])
def test_percentiles_agree_with_numpy_on_the_expanded_histogram(seed: int, ios: int, q: float) -> None:
    bins = latencies(seed, ios)
    expanded = np.repeat(list(bins.keys()), list(bins.values()))
    assert percentile(bins, q) == pytest.approx(np.quantile(expanded, q, method="inverted_cdf") / 1e9)


def test_latencies_in_ns_become_seconds() -> None:
    assert percentile({80_000: 100}, 0.5) == pytest.approx(80e-6)


def test_a_rank_is_not_pushed_up_by_rounding() -> None:
    assert percentile(dict.fromkeys(range(1, 101), 1), 0.55) == pytest.approx(55e-9)


@pytest.mark.parametrize(("q", "fewest"), [(0.5, 20), (0.99, 1000), (0.999, 10_000), (0.9999, 100_000)])
def test_a_percentile_needs_ten_ios_beyond_it(q: float, fewest: int) -> None:
    assert percentile({1000: fewest - 1}, q) is None
    assert percentile({1000: fewest}, q) == pytest.approx(1e-6)
    assert percentile({}, q) is None


def test_a_percentile_is_the_bin_of_the_io_of_that_rank() -> None:
    bins = {3000: 10, 1000: 500, 2000: 490}
    assert percentile(bins, 0.5) == pytest.approx(1e-6)
    assert percentile(bins, 0.99) == pytest.approx(2e-6)


def fios_percentiles() -> Iterator[tuple[Mapping[int, int], float, int]]:
    """Each percentile in fio's recorded outputs with the histogram beside it: bins, share, latency in ns."""
    for name in ("few", "note", "three_jobs"):
        text = (RECORDED / f"{name}.json").read_text()
        for job in json.loads(text[text.index("{") :])["jobs"]:
            for side in (job["read"], job["write"]):
                if side["total_ios"]:
                    bins = {int(latency): ios for latency, ios in side["clat_ns"]["bins"].items()}
                    yield from (
                        (bins, float(percent) / 100, latency)
                        for percent, latency in side["clat_ns"]["percentile"].items()
                    )


def test_percentiles_are_fios_own_wherever_enough_ios_completed() -> None:
    compared = 0
    for bins, q, latency_ns in fios_percentiles():
        ours = percentile(bins, q)
        assert (ours is None) == (round(sum(bins.values()) * (1 - q), 6) < 10)
        if ours is not None:
            assert round(ours * 1e9) == latency_ns
            compared += 1
    assert compared == 19


def test_merging_adds_up_the_ios_of_every_round() -> None:
    rounds = [latencies(seed, 5000) for seed in range(4)]
    together = merged(rounds)
    assert together.total() == 20_000
    expanded = np.concatenate([np.repeat(list(bins.keys()), list(bins.values())) for bins in rounds])
    assert percentile(together, 0.999) == pytest.approx(np.quantile(expanded, 0.999, method="inverted_cdf") / 1e9)
    assert merged([]) == {}


def test_rounds_too_short_for_a_percentile_have_one_together() -> None:
    rounds = [latencies(seed, 600) for seed in range(2)]
    assert [percentile(bins, 0.99) for bins in rounds] == [None, None]
    assert percentile(merged(rounds), 0.99) is not None


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99, 0.999])
@pytest.mark.parametrize("ios", [1000, 1010, 3333, 20_000, 1_000_000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_interval_covers_as_often_as_stated_by_the_exact_binomial(q: float, ios: int, confidence: float) -> None:
    # One I/O per bin, so that an end of the interval is its rank.
    interval = percentile_interval(dict.fromkeys(range(1, ios + 1), 1), q, confidence=confidence)
    if interval is None:
        assert ios * (1 - q) < 10
        return
    low, high = round(interval.low * 1e9), round(interval.high * 1e9)
    exact = stats.binom.cdf(high - 1, ios, q) - stats.binom.cdf(low - 1, ios, q)
    assert confidence <= exact < confidence + 0.025
    assert interval.ios == ios
    assert interval.point == percentile(dict.fromkeys(range(1, ios + 1), 1), q)


def test_few_ios_and_extreme_confidence_give_no_interval() -> None:
    assert percentile_interval({1000: 999}, 0.5) is None
    assert percentile_interval({1000: 1000}, 0.99) is not None
    assert percentile_interval({1000: 1000}, 0.99, confidence=0.9999) is None


@pytest.mark.parametrize("q", [0.0, 1.0, 99.0])
def test_a_quantile_outside_of_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match=r"0\.99, not"):
        percentile({1: 10_000}, q)
    with pytest.raises(ValueError, match="confidence must be a share"):
        percentile_interval({1: 10_000}, 0.5, confidence=95)
