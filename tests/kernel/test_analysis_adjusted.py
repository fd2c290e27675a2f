"""Values of blocks: adjusted for the environment, and of percentiles of all blocks together."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev

import pytest

from harness.analysis import estimate_overhead, percentile
from harness.analysis.adjusted import HALF_BIN, adjust_values, pool_means, pool_percentiles


def make_times(rng: random.Random, blocks: int, arms: int) -> list[list[float]]:
    """Slices of 0.25 s in random order, a block every 10 s."""
    return [[10 * block + 0.27 * place for place in rng.sample(range(arms), arms)] for block in range(blocks)]


def make_noise(rng: random.Random, times: Sequence[Sequence[float]], tau: float) -> list[list[float]]:
    """Arms that see the same environment, which forgets what it was within `tau` seconds."""
    moments = sorted(time for row in times for time in row)
    environment = {moments[0]: rng.gauss(0, 1)}
    for before, moment in pairwise(moments):
        kept = math.exp(-(moment - before) / tau)
        environment[moment] = kept * environment[before] + math.sqrt(1 - kept * kept) * rng.gauss(0, 1)
    return [[0.1 * environment[time] + rng.gauss(0, 0.03) for time in row] for row in times]


def differ(rows: Sequence[Sequence[float]], one: int, other: int) -> list[float]:
    return [row[one] - row[other] for row in rows]


def test_values_of_slices_in_a_common_environment_differ_less_after_the_adjustment() -> None:
    rng = random.Random(1)
    raw, adjusted = [], []
    for _ in range(30):
        times = make_times(rng, 12, 8)
        values = make_noise(rng, times, tau=1.0)
        raw.append(stdev(differ(values, 0, 1)))
        adjusted.append(stdev(differ(adjust_values(values, times), 0, 1)))
    assert fmean(adjusted) < 0.85 * fmean(raw)


def test_what_a_block_has_in_common_does_not_enter_a_difference() -> None:
    rng = random.Random(2)
    times = make_times(rng, 12, 6)
    values = [[rng.gauss(0, 0.03) for _ in row] for row in times]
    drifting = [[value + 0.5 * block for value in row] for block, row in enumerate(values)]
    plain, spread = (stdev(differ(adjust_values(rows, times), 0, 1)) for rows in (values, drifting))
    assert spread == pytest.approx(plain, rel=0.1)


@pytest.mark.parametrize(("blocks", "arms"), [(3, 8), (10, 2), (1, 1), (0, 0)])
def test_few_blocks_or_arms_are_returned_as_they_are(blocks: int, arms: int) -> None:
    rng = random.Random(3)
    times = make_times(rng, blocks, arms)
    values = [[rng.gauss(0, 1) for _ in row] for row in times]
    assert adjust_values(values, times) == values


def test_values_without_times_of_their_own_are_returned_as_they_are() -> None:
    rng = random.Random(4)
    values = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(8)]
    assert adjust_values(values, [[float(block)] * 4 for block in range(8)]) == values


def test_an_arm_without_spread_keeps_its_values_and_does_not_matter_to_the_others() -> None:
    rng = random.Random(5)
    times = make_times(rng, 10, 5)
    values = [[*row[:4], 2.0] for row in make_noise(rng, times, tau=1.0)]
    adjusted = adjust_values(values, times)
    assert [row[4] for row in adjusted] == [2.0] * 10
    assert [row[:4] for row in adjusted] == adjust_values([row[:4] for row in values], [row[:4] for row in times])


def test_an_arm_that_blocks_lack_says_what_the_moments_of_the_other_blocks_were_like() -> None:
    rng = random.Random(10)
    spread: dict[str, list[float]] = {"whole": [], "partly": [], "without": []}
    for _ in range(30):
        times = make_times(rng, 12, 8)
        values = make_noise(rng, times, tau=1.0)
        gaps = [
            [value if place < 2 or rng.random() < 0.7 else math.nan for place, value in enumerate(row)]
            for row in values
        ]
        adjusted = {
            "whole": adjust_values(values, times),
            "partly": adjust_values(gaps, times),
            "without": [row[:2] for row in values],
        }
        assert [list(map(math.isnan, row)) for row in adjusted["partly"]] == [
            list(map(math.isnan, row)) for row in gaps
        ]
        for arms, rows in adjusted.items():
            spread[arms].append(stdev(differ(rows, 0, 1)))
    assert fmean(spread["whole"]) < fmean(spread["partly"]) < 0.9 * fmean(spread["without"])


def test_an_arm_with_three_values_keeps_them_and_does_not_matter_to_the_others() -> None:
    rng = random.Random(11)
    times = make_times(rng, 10, 5)
    values = [
        [*row[:4], row[4] if block < 3 else math.nan] for block, row in enumerate(make_noise(rng, times, tau=1.0))
    ]
    adjusted = adjust_values(values, times)
    assert [row[4] for row in adjusted[:3]] == [row[4] for row in values[:3]]
    assert [row[:4] for row in adjusted] == adjust_values([row[:4] for row in values], [row[:4] for row in times])


def test_the_units_of_an_arm_do_not_matter() -> None:
    rng = random.Random(6)
    times = make_times(rng, 10, 5)
    values = make_noise(rng, times, tau=1.0)
    moved = adjust_values(
        [[value + 7 for value in row] for row in values], [[time + 1.8e9 for time in row] for row in times]
    )
    for row, other in zip(adjust_values(values, times), moved, strict=True):
        assert [value - 7 for value in other] == pytest.approx(row, abs=1e-5)


def test_rows_of_different_length_and_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="a value and a time of each arm"):
        adjust_values([[1.0, 2.0], [1.0]], [[1.0, 2.0], [1.0, 2.0]])
    times = make_times(random.Random(7), 4, 3)
    with pytest.raises(ValueError, match="finite"):
        adjust_values([[math.inf, 0.0, 0.1] for _ in times], times)


def make_latencies(rng: random.Random, ios: int, scale: float = 1e5) -> Counter[int]:
    """Log-normal latencies in fio's bins."""
    counts: Counter[int] = Counter()
    for _ in range(ios):
        latency = int(scale * math.exp(rng.gauss(0, 1)))
        width = max((1 << latency.bit_length() - 1) >> 6, 1)
        counts[latency - latency % width + width // 2] += 1
    return counts


def test_the_mean_of_the_values_is_the_percentile_of_all_blocks_together() -> None:
    rng = random.Random(8)
    histograms = [make_latencies(rng, ios) for ios in (200, 300, 400, 250)]
    values = pool_percentiles(histograms, 0.99)
    together = percentile(sum(histograms, Counter()), 0.99)
    assert together is not None
    assert fmean(values) == pytest.approx(math.log(together), abs=2 * HALF_BIN)


def test_a_block_with_more_slow_ios_has_a_larger_value() -> None:
    rng = random.Random(9)
    histograms = [make_latencies(rng, 300, scale) for scale in (1e5, 1e5, 2e5, 1e5)]
    values = pool_percentiles(histograms, 0.9)
    assert max(values) == values[2]


def test_blocks_that_are_equal_have_equal_values() -> None:
    histogram = make_latencies(random.Random(10), 500)
    values = pool_percentiles([histogram] * 5, 0.5)
    assert values == [values[0]] * 5
    assert pool_percentiles([histogram], 0.5) == pytest.approx([values[0]])


def test_a_percentile_of_ten_times_fewer_ios_is_not_smaller_for_that_reason() -> None:
    """The mean of the blocks' own percentiles is: the p99 of 120 I/Os is mostly their largest or second largest."""
    rng = random.Random(11)
    losses = []
    for _ in range(20):
        host = pool_percentiles([make_latencies(rng, 1200) for _ in range(10)], 0.99)
        guest = pool_percentiles([make_latencies(rng, 120) for _ in range(10)], 0.99)
        losses.append(estimate_overhead(map(math.exp, host), map(math.exp, guest), higher_is_better=False).point)
    assert fmean(losses) == pytest.approx(0.0, abs=0.06)


def test_a_percentile_beside_a_step_is_as_uncertain_as_the_step_is_high() -> None:
    """10 of 800 I/Os take 50 times as long. Another 800 may have fewer than 8, so that their p99 is a fast one."""
    slow = (2, 0, 1, 2, 1, 2, 1, 1)
    values = pool_percentiles([{100_000: 50, 110_000: 50 - number, 5_000_000: number} for number in slow], 0.99)
    half_width = 2.36 * stdev(values) / math.sqrt(len(values))
    assert half_width > 0.8 * math.log(50)


@pytest.mark.parametrize("blocks", [107, 108, 200])
def test_one_block_of_many_that_stalls_makes_a_percentile_uncertain_and_no_value_too_large(blocks: int) -> None:
    quick = {50_000 + 1500 * step: 100 for step in range(100)}
    stalled = {int(1e6 * 1.18**step): 180 for step in range(50)}
    host = pool_percentiles([quick] * blocks, 0.99)
    guest = pool_percentiles([quick] * (blocks - 1) + [stalled], 0.99)
    together = percentile(sum(map(Counter, [quick] * (blocks - 1) + [stalled]), Counter()), 0.99)
    assert together is not None
    assert fmean(guest) == pytest.approx(math.log(together), abs=2 * HALF_BIN)
    loss = estimate_overhead(map(math.exp, host), map(math.exp, guest), higher_is_better=False)
    assert loss.low is not None
    assert loss.high is not None
    assert loss.low < 0
    assert loss.high > 10


def test_a_block_without_completions_says_nothing_about_a_percentile() -> None:
    histogram = {100_000: 99, 5_000_000: 1}
    assert pool_percentiles([histogram, {}, histogram], 0.5) == pytest.approx(pool_percentiles([histogram] * 3, 0.5))


def test_the_mean_of_the_values_is_the_mean_of_all_completions() -> None:
    values = pool_means([0.1, 0.0, 0.4, 0.1], [10, 0, 5, 5])
    assert fmean(values) == pytest.approx(math.log(0.175))
    assert max(values) == values[2]
    assert values[1] == pytest.approx(math.log(0.175))
    with pytest.raises(ValueError, match="blocks with completions"):
        pool_means([0.0], [0])


@pytest.mark.parametrize(
    ("histograms", "share", "message"),
    [
        ([], 0.99, "blocks with completions"),
        ([{}], 0.99, "blocks with completions"),
        ([{1: 1}], 1.0, "between 0 and 1"),
    ],
)
def test_impossible_percentiles_are_refused(histograms: list[dict[int, int]], share: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pool_percentiles(histograms, share)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99, 0.999])
def test_blocks_that_are_alike_have_the_percentile_itself(share: float) -> None:
    for number in range(1, 40):
        block = {100_000: 7 * number, 200_000: 3 * number, 900_000: 1}
        (whole,) = set(pool_percentiles([block], share))
        assert pool_percentiles([block] * 20, share) == [pytest.approx(whole, rel=1e-9)] * 20
