"""Batches of blocks for percentiles: every block is in one, each has enough I/Os, and no more blocks than it needs."""

from __future__ import annotations

import random
from itertools import groupby, pairwise

import pytest

from harness.analysis import METRICS, Samples, batches, fewest_rounds, first_blocks, merged, percentile

SEEDS = range(200)


def drawn(seed: int) -> tuple[list[list[int]], int, list[int]]:
    """I/Os of one to three arms, how many a sample needs, and the boot of each block."""
    chance = random.Random(seed)
    blocks, rate = chance.randint(1, 40), chance.choice([3, 30, 300, 3000])
    ios = [[chance.randint(0, 2 * rate) for _ in range(blocks)] for _ in range(chance.randint(1, 3))]
    of_boot = chance.choice([blocks, 1, 2, 5])
    return ios, chance.choice([20, 100, 1000]), [1 + at // of_boot for at in range(blocks)]


def sums(ios: list[list[int]], batch: range) -> list[int]:
    return [sum(arm[batch.start : batch.stop]) for arm in ios]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_batch_has_enough_ios_of_each_arm_and_every_block_is_in_one_batch(seed: int) -> None:
    ios, fewest, boots = drawn(seed)
    found = batches(ios, fewest, boots)
    assert all(min(sums(ios, batch)) >= fewest for batch in found)
    enough = all(sum(arm) >= fewest for arm in ios)
    assert [at for batch in found for at in batch] == (list(range(len(boots))) if enough else [])


@pytest.mark.parametrize("seed", SEEDS)
def test_within_one_boot_no_more_batches_of_even_size_are_possible(seed: int) -> None:
    ios, fewest, _ = drawn(seed)
    found, blocks = batches(ios, fewest), len(ios[0])
    if found:
        assert max(map(len, found)) - min(map(len, found)) <= 1
    for more in range(len(found) + 1, blocks + 1):
        ends = [blocks * index // more for index in range(more + 1)]
        assert any(min(sums(ios, range(*pair))) < fewest for pair in pairwise(ends))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_mixes_boots_only_if_a_boot_has_too_few_ios_and_then_has_whole_boots(seed: int) -> None:
    ios, fewest, boots = drawn(seed)
    whole, at = [], 0
    for _, own in groupby(boots):
        whole.append(range(at, at := at + len(list(own))))
    short = any(min(sums(ios, boot)) < fewest for boot in whole)
    found = batches(ios, fewest, boots)
    if not short:
        assert all(len({boots[block] for block in batch}) == 1 for batch in found)
    elif found:
        ends = {0, *(boot.stop for boot in whole)}
        assert {batch.start for batch in found} | {batch.stop for batch in found} <= ends


@pytest.mark.parametrize("seed", range(20))
def test_the_batches_together_have_the_percentile_of_all_ios(seed: int) -> None:
    chance = random.Random(seed)
    blocks = [merged({chance.randint(1, 50) * 1000: 1} for _ in range(chance.randint(100, 400))) for _ in range(30)]
    found = batches([[bins.total() for bins in blocks]], 1000)
    assert 2 <= len(found) < 30
    of_batches = [merged(blocks[at] for at in batch) for batch in found]
    for q in (0.5, 0.9, 0.99):
        assert percentile(merged(of_batches), q) == percentile(merged(blocks), q)


def test_a_block_with_enough_ios_is_a_sample_by_itself() -> None:
    assert batches([[1000, 1200, 1000], [5000, 1000, 1001]], 1000, [1, 1, 4]) == [range(1), range(1, 2), range(2, 3)]


def test_the_slowest_arm_decides_how_long_a_batch_is() -> None:
    fast, slow = [4000] * 10, [400] * 10
    assert [len(batch) for batch in batches([fast, slow], 1000)] == [3, 3, 4]
    assert [len(batch) for batch in batches([fast], 1000)] == [1] * 10


def test_a_slow_block_weighs_as_much_as_a_fast_one() -> None:
    assert [len(batch) for batch in batches([[3000, 3000, 3000, 500, 600, 3000, 3000, 3000]], 1000)] == [2, 2, 2, 2]


def test_uneven_blocks_make_batches_a_little_longer_than_their_mean_needs() -> None:
    chance = random.Random(1)
    ios = [[chance.randint(80, 120) for _ in range(20_000)] for _ in range(3)]
    assert 20_000 / 13 < len(batches(ios, 1000)) < 20_000 / 10


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one arm"):
        batches([], 1000)
    with pytest.raises(ValueError, match="as many numbers"):
        batches([[1, 2], [1]], 1000)
    with pytest.raises(ValueError, match="as many numbers"):
        batches([[1, 2]], 1000, [1])
    with pytest.raises(ValueError, match="at least one I/O, not 0"):
        batches([[1, 2]], 0)


def test_samples_in_batches_have_the_boots_of_their_first_blocks() -> None:
    assert first_blocks([2, 3, 1]) == [0, 2, 5]
    assert Samples((1, 1, 4, 4, 4, 9), rounds=3).in_batches([2, 3, 1]) == Samples((1, 4, 9), rounds=3)
    assert Samples(rounds=3).in_batches([2, 3]) == Samples(rounds=3)
    assert Samples((1, 2)).in_batches([]) == Samples((1, 2))


@pytest.mark.parametrize(
    ("ios", "blocks", "reboot", "rounds"),
    [
        (100, 2, False, 10),
        (100, 2, True, 10),
        (600, 4, False, 1),
        (600, 4, True, 2),
        (5000, 2, False, 1),
        (0, 2, True, None),
    ],
)
def test_two_samples_take_so_many_rounds(ios: float, blocks: int, reboot: bool, rounds: int | None) -> None:
    assert fewest_rounds(ios, 1000, blocks, reboot=reboot) == rounds


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_like_those_expected_give_two_samples_and_no_fewer_do(seed: int) -> None:
    chance = random.Random(seed)
    ios, blocks, reboot = chance.randint(5, 3000), chance.randint(1, 4), chance.random() < 0.5
    rounds = fewest_rounds(ios, 1000, blocks, reboot=reboot)
    assert rounds is not None

    def samples(rounds: int) -> int:
        boots = [1 + at // blocks if reboot else 1 for at in range(rounds * blocks)]
        found = batches([[ios] * len(boots)], 1000, boots)
        return len({boots[batch.start] for batch in found}) if reboot else len(found)

    assert samples(rounds) >= 2
    assert rounds == 1 or samples(rounds - 1) < 2


def test_a_metric_says_how_many_ios_a_sample_needs() -> None:
    assert {name: metric.fewest_ios for name, metric in METRICS.items() if metric.fewest_ios > 1} == {
        "clat_p50": 20,
        "clat_p99": 1000,
        "clat_p999": 10_000,
        "sync_p99": 1000,
    }
