"""What an array can deliver by its level, and how much of that it delivers."""

from __future__ import annotations

import math
import random

import pytest

from harness.analysis import METRICS
from harness.features.arrays.records import ScalingMetric
from harness.features.arrays.scaling import ideal_speedup
from harness.model.base import Shape
from harness.results.contrasts import Series, contrast


@pytest.mark.parametrize(
    ("shape", "reads", "sequential_writes", "random_writes"),
    [
        (Shape(0, 4), 4, 4, 4),
        (Shape(1, 2), 2, 1, 1),
        (Shape(1, 3), 3, 1, 1),
        (Shape(10, 4), 4, 2, 2),
        (Shape(5, 3), 3, 2, 1),  # parity from the other data block: one read, two writes
        (Shape(5, 4), 4, 3, 1),
        (Shape(5, 8), 8, 7, 2),
        (Shape(6, 4), 4, 2, 1),  # one read, three writes
        (Shape(6, 6), 6, 4, 1),
        (Shape(6, 12), 12, 10, 2),
        (Shape(5, 8, legs=2), 8, 6, 2),
        (Shape(1, 4, legs=2), 4, 2, 2),
    ],
    ids=str,
)
def test_reads_scale_with_the_disks_and_writes_with_what_they_cost(
    shape: Shape, reads: float, sequential_writes: float, random_writes: float
) -> None:
    assert ideal_speedup(shape, read_share=1, full_stripe=False) == reads
    assert ideal_speedup(shape, read_share=0, full_stripe=True) == pytest.approx(sequential_writes)
    assert ideal_speedup(shape, read_share=0, full_stripe=False) == pytest.approx(random_writes)


def test_a_mixture_lies_between_as_the_disks_time_does() -> None:
    # Of ten I/Os seven are reads of one, three writes of four: 19 I/Os of disks.
    assert ideal_speedup(Shape(5, 8), read_share=0.7, full_stripe=False) == pytest.approx(8 / 1.9)


def test_many_disks_cost_four_ios_for_a_small_write_with_parity_and_six_with_two() -> None:
    for level, cost in ((5, 4), (6, 6)):
        shape = Shape(level, 20)
        assert shape.written(full_stripe=False) + shape.read_for_write(full_stripe=False) == cost


@pytest.mark.parametrize(("level", "disks", "legs"), [(5, 1, 1), (6, 2, 1), (4, 4, 1), (0, 5, 2), (5, 2, 2), (0, 4, 0)])
def test_an_impossible_array_is_refused(level: int, disks: int, legs: int) -> None:
    with pytest.raises(ValueError, match=f"RAID {level} over {disks} disks in {legs} legs is not a possible array"):
        Shape(level, disks, legs)


def test_a_share_of_reads_above_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
        ideal_speedup(Shape(0, 2), read_share=1.5, full_stripe=False)


def scaling(single: list[float], array: list[float], *, disks: int, ideal: float) -> ScalingMetric:
    """An array against a single disk in the blocks of one round."""
    blocks = tuple((1, number) for number in range(len(single)))
    found = contrast(*(Series(METRICS["iops"], blocks, tuple(arm)) for arm in (single, array)))
    assert found is not None
    return ScalingMetric.of(found.times, disks=disks, ideal=ideal)


def test_efficiency_and_share_of_the_ideal_are_the_speedup_divided() -> None:
    found = scaling([100.0, 200.0, 150.0], [180.0, 370.0, 260.0], disks=4, ideal=2.0)
    assert found.speedup.point == pytest.approx((1.8 * 1.85 * 260 / 150) ** (1 / 3))
    assert found.speedup.low is not None
    for each, by in ((found.efficiency, 4), (found.of_ideal, 2)):
        assert each.point == found.speedup.point / by
        assert each.low == found.speedup.low / by
        assert each.n == 3


def test_one_round_has_no_interval() -> None:
    found = scaling([100.0], [180.0], disks=2, ideal=2.0)
    assert found.efficiency.point == pytest.approx(0.9)
    assert (found.efficiency.low, found.of_ideal.high) == (None, None)


def test_a_disk_that_is_faster_in_one_round_than_in_the_next_makes_no_interval_wider() -> None:
    single = [100.0, 1000.0, 10.0]
    found = scaling(single, [value * 3 for value in single], disks=4, ideal=4.0)
    assert found.efficiency.low == pytest.approx(0.75)
    assert found.efficiency.high == pytest.approx(0.75)


def test_the_interval_holds_the_true_efficiency_as_often_as_stated() -> None:
    chance = random.Random(7)
    campaigns, hits = 1500, 0
    for _ in range(campaigns):
        single = [1e5 * math.exp(chance.gauss(0, 0.1)) for _ in range(5)]
        array = [value * 3.2 * math.exp(chance.gauss(0, 0.04)) for value in single]
        found = scaling(single, array, disks=4, ideal=4.0).efficiency
        hits += found.low is not None and found.high is not None and found.low <= 0.8 <= found.high
    # Three standard deviations of a count of 95 % in 1500 are 1.7 %.
    assert hits / campaigns == pytest.approx(0.95, abs=0.017)
