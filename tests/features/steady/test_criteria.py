"""Steady state as the SNIA's performance test specification defines it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from harness.features.steady import SteadyState, judge_steadiness


def test_five_equal_rounds_are_steady() -> None:
    assert judge_steadiness([100.0] * 5) == SteadyState((100.0,) * 5, 100.0, 0.0)
    assert judge_steadiness([100.0] * 5).is_steady


def test_four_rounds_are_not_enough_however_equal() -> None:
    assert not judge_steadiness([100.0] * 4).is_steady


def test_only_the_last_five_rounds_count() -> None:
    falling = [900.0, 500.0, 300.0]
    assert not judge_steadiness([*falling, 100.0, 100.0]).is_steady
    assert judge_steadiness([*falling, 100.0, 101.0, 99.0, 100.0, 100.0]).is_steady


def test_a_range_of_a_fifth_of_the_mean_is_the_limit() -> None:
    assert judge_steadiness([100, 110, 100, 90, 100]).range_share == pytest.approx(0.20)
    assert judge_steadiness([100, 109.9, 100, 90, 100]).is_steady
    assert not judge_steadiness([100, 111, 100, 90, 100]).is_steady


def test_a_line_that_changes_by_a_tenth_of_the_mean_is_the_limit() -> None:
    assert judge_steadiness([95.1, 97.55, 100, 102.45, 104.9]).is_steady
    rising = judge_steadiness([94, 97, 100, 103, 106])
    assert rising.range_share < 0.20
    assert rising.excursion_share == pytest.approx(0.12)
    assert not rising.is_steady
    assert not judge_steadiness([106, 103, 100, 97, 94]).is_steady


@pytest.mark.parametrize("seed", range(10))
def test_slope_and_mean_are_those_of_numpy(seed: int) -> None:
    chance = random.Random(seed)
    values = [5e4 * chance.lognormvariate(0, 0.1) for _ in range(9)]
    state = judge_steadiness(values)
    assert state.slope == pytest.approx(np.polyfit(range(5), values[-5:], 1)[0])
    assert state.mean == pytest.approx(np.mean(values[-5:]))


def test_a_single_round_has_no_slope() -> None:
    state = judge_steadiness([100.0])
    assert (state.slope, state.range_share, state.excursion_share) == (0, 0, 0)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [math.nan], [math.inf]])
def test_values_that_are_not_measured_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="round"):
        judge_steadiness(values)
