"""A path as the limit of arrays: it is found with its limit where it was planted, and nowhere else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from harness.features.arrays.bottleneck import PathLoad, find_path_limits

A, B = "0000:00:10.0", "0000:00:11.0"
SAMPLES = 6
DISK = 8.0
"""MB/s of a disk."""

ONE_8, ONE_16, TWO_16 = {A: 8}, {A: 16}, {A: 8, B: 8}
ARRAYS = {"raid0-8": ONE_8, "raid0-16": ONE_16, "raid0-16-paths": TWO_16}


def loads(throughput: Callable[[dict[str, int]], float], *, noise: float = 0.02, seed: int = 1) -> list[PathLoad]:
    """The arrays with this throughput, which varies from sample to sample by `noise`, on each array by itself."""
    chance = random.Random(seed)
    return [
        PathLoad(name, disks, _around(throughput(disks), noise, chance), _by_number(disks))
        for name, disks in ARRAYS.items()
    ]


def _around(value: float, noise: float, chance: random.Random) -> Sequence[float]:
    return [value * math.exp(chance.gauss(0, noise)) for _ in range(SAMPLES)]


def _by_number(disks: dict[str, int]) -> dict[str, float]:
    return {path: number / sum(disks.values()) for path, number in disks.items()}


def limited(limit: float) -> Callable[[dict[str, int]], float]:
    """A stripe is as fast as its slowest path allows."""
    return lambda disks: len(disks) * min(limit, *(number * DISK for number in disks.values()))


@pytest.mark.parametrize("limit", [16.0, 32.0, 48.0, 64.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_planted_limit_is_found_within_a_tenth(limit: float, seed: int) -> None:
    found = find_path_limits(loads(limited(limit), seed=seed))
    assert set(found) == {A}, "B has only one array, which does not show a plateau"
    limit_found = found[A].record
    plateau = limit_found.bw
    assert plateau.point == pytest.approx(limit, rel=0.1)
    assert plateau.low is not None
    assert plateau.low > 0.9 * limit
    assert limit_found.growth.point == pytest.approx(1.0, abs=0.05)
    assert limit_found.gain.point == pytest.approx(2.0, abs=0.1)
    assert (limit_found.fewer, limit_found.more, limit_found.paths, found[A].array) == (8, 16, 2, "raid0-16")


OTHER_LIMITS = {
    "none: disks scale": lambda disks: sum(disks.values()) * DISK,
    "CPU, a thread or a short queue: all arrays are alike": lambda _: 40.0,
    "the disks are slower together, on two paths as well": lambda disks: 40.0 + sum(disks.values()) / 4,
    "the path is wide enough for 15 of 16 disks": limited(15 * DISK),
}


@pytest.mark.parametrize("throughput", OTHER_LIMITS.values(), ids=OTHER_LIMITS)
def test_no_limit_is_found_where_none_was_planted(throughput: Callable[[dict[str, int]], float]) -> None:
    assert [find_path_limits(loads(throughput, noise=0.05, seed=seed)) for seed in range(20)] == [{}] * 20


def test_a_second_path_that_adds_a_little_is_no_proof() -> None:
    assert find_path_limits(loads(lambda disks: 32.0 * (1.2 if len(disks) == 2 else 1.0))) == {}


@pytest.mark.parametrize("missing", ["raid0-8", "raid0-16", "raid0-16-paths"])
def test_without_a_smaller_array_or_a_second_path_nothing_is_claimed(missing: str) -> None:
    assert find_path_limits([load for load in loads(limited(32.0)) if load.array != missing]) == {}


def test_one_sample_proves_nothing() -> None:
    single = [PathLoad(each.array, each.disks, each.throughput[:1], each.shares) for each in loads(limited(32.0))]
    assert find_path_limits(single) == {}


def test_what_a_mirror_writes_twice_counts_twice_on_the_path() -> None:
    mirrored = [
        PathLoad(each.array, each.disks, each.throughput, {path: 2 * share for path, share in each.shares.items()})
        for each in loads(limited(32.0))
    ]
    assert find_path_limits(mirrored)[A].record.bw.point == pytest.approx(64.0, rel=0.1)


def test_an_array_of_more_disks_on_two_paths_does_not_show_that_the_second_path_helps() -> None:
    more = [
        PathLoad(each.array, {A: 16, B: 8} if len(each.disks) == 2 else each.disks, each.throughput, each.shares)
        for each in loads(limited(32.0))
    ]
    assert find_path_limits(more) == {}
