"""How often an advice holds that is measured again, with known truth."""

from __future__ import annotations

import math
import random

import pytest

from harness.analysis import Change, estimate_paired_change
from harness.features.answers.advice import _predict_ratio

PAIRS = 1000
STATED = 0.95
TOLERANCE = 3 * math.sqrt(STATED * (1 - STATED) / PAIRS)
"""Three standard deviations of the share among so many."""


def measured(chance: random.Random, blocks: int, noise: float, ratio: float = 1.1) -> Change:
    """One mode as a multiple of another, in so many blocks."""
    after = [ratio * chance.lognormvariate(0, noise) for _ in range(blocks)]
    return estimate_paired_change([1.0] * blocks, after)


def shares(
    first: int,
    fresh: int,
    noises: tuple[float, float] = (0.03, 0.03),
) -> tuple[float, float]:
    """How often the fresh estimate is where it is expected, and how often in the interval of the first run."""
    chance = random.Random(first * 1000 + fresh)
    expected = within = 0
    for _ in range(PAIRS):
        one = measured(chance, first, noises[0])
        other = measured(chance, fresh, noises[1])
        low, high = _predict_ratio(one, other)
        expected += low <= other.ratio <= high
        assert one.low is not None
        assert one.high is not None
        within += one.low <= other.ratio <= one.high
    return expected / PAIRS, within / PAIRS


@pytest.mark.parametrize(("first", "fresh"), [(3, 3), (12, 12), (12, 4), (4, 12)])
def test_the_fresh_estimate_is_where_it_is_expected_as_often_as_stated(first: int, fresh: int) -> None:
    expected, _ = shares(first, fresh)
    assert expected >= STATED - TOLERANCE


def test_the_interval_of_the_first_run_alone_has_the_fresh_estimate_less_often() -> None:
    expected, within = shares(12, 12)
    assert within < 0.9 < STATED - TOLERANCE <= expected


def test_fresh_blocks_that_scatter_more_are_no_change() -> None:
    expected, _ = shares(12, 12, noises=(0.02, 0.08))
    assert expected >= STATED - TOLERANCE


def test_a_change_is_noticed() -> None:
    chance = random.Random(3)
    missed = 0
    for _ in range(PAIRS):
        one, other = measured(chance, 12, 0.03), measured(chance, 12, 0.03, ratio=1.0)
        low, high = _predict_ratio(one, other)
        missed += low <= other.ratio <= high
    assert missed < 0.01 * PAIRS
