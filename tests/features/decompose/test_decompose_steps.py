"""A waterfall adds up: the steps add up exactly to their total, and each has its own interval."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from harness.analysis import METRICS
from harness.features.decompose.records import Waterfall, decompose
from harness.results.contrasts import Series

STEPS = (80e-6, 0.4e-6, 41e-6, -3e-6, 12e-6, 7e-6)
"""A host's latency in seconds, and what five steps add to it; one of them gains."""


def campaign(chance: random.Random, rounds: int, *, noise: float = 1e-6, luck: float = 0.2) -> list[list[float]]:
    """Values of six arms by round: `luck` is what a round's arms share, `noise` (seconds) what each has by itself."""
    shared = [math.exp(chance.gauss(0, luck)) for _ in range(rounds)]
    true = [math.fsum(STEPS[: number + 1]) for number in range(len(STEPS))]
    return [[mean + 80e-6 * (luck_of_round - 1) + chance.gauss(0, noise) for luck_of_round in shared] for mean in true]


def waterfall(arms: list[list[float]], confidence: float = 0.95) -> Waterfall:
    """The steps of arms with these latencies in the blocks of one round."""
    blocks = tuple((1, number) for number in range(len(arms[0])))
    series = [Series(METRICS["lat_mean"], blocks, tuple(arm)) for arm in arms]
    return decompose(series, confidence=confidence)


@pytest.mark.parametrize("rounds", [1, 2, 3, 12])
def test_the_steps_add_up_to_the_total_whatever_the_noise(rounds: int) -> None:
    arms = campaign(random.Random(rounds), rounds, noise=5e-6)
    costs = waterfall(arms)
    assert math.fsum(step.added.point for step in costs.steps) == pytest.approx(costs.so_far[-1].added.point, rel=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 3, 12])
def test_the_percentages_multiply_up_to_the_total(rounds: int) -> None:
    costs = waterfall(campaign(random.Random(rounds), rounds))
    product = math.prod(1 + step.loss.point for step in costs.steps)
    assert product == pytest.approx(1 + costs.so_far[-1].loss.point, rel=1e-12)
    assert costs.so_far[0] == costs.steps[0]


def test_an_interval_is_that_of_a_paired_t_test_and_the_total_has_its_own() -> None:
    arms = campaign(random.Random(5), 8)
    costs = waterfall(arms, confidence=0.9)
    pairs = [(before, after, step) for before, after, step in zip(arms[:-1], arms[1:], costs.steps, strict=True)]
    for before, after, step in pairs:
        oracle = stats.ttest_rel(after, before)
        interval = oracle.confidence_interval(0.9)
        assert (step.added.low, step.added.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        assert step.p_value == pytest.approx(oracle.pvalue, rel=1e-9)
    whole = stats.ttest_rel(arms[-1], arms[0]).confidence_interval(0.9)
    assert (costs.so_far[-1].added.low, costs.so_far[-1].added.high) == pytest.approx((whole.low, whole.high), rel=1e-9)


def test_what_the_arms_of_a_round_share_is_in_no_interval() -> None:
    arms = campaign(random.Random(1), 6, noise=0.0, luck=0.5)
    for step, truth in zip(waterfall(arms).steps, STEPS[1:], strict=True):
        assert step.added.low == pytest.approx(truth, abs=1e-12)
        assert step.added.high == pytest.approx(truth, abs=1e-12)


def test_one_round_gives_points_and_shows_nothing() -> None:
    costs = waterfall([[80e-6], [120e-6], [130e-6]])
    assert [(step.added.low, step.p_value) for step in costs.steps] == [(None, None)] * 2
    assert costs.shown == (False, False)
    assert costs.so_far[-1].added.n == 1


def test_a_step_that_changes_nothing_at_all_is_not_shown_and_one_without_any_spread_is() -> None:
    costs = waterfall([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert [step.p_value for step in costs.steps] == [1.0, 0.0]
    assert costs.shown == (False, True)


def test_what_is_shown_is_corrected_for_the_number_of_steps() -> None:
    host = [100.0, 101.0, 102.0, 103.0]
    slower = [value + added for value, added in zip(host, (3, 1, 2, 5), strict=True)]
    alone = waterfall([host, slower])
    among_eight = waterfall([host, *[slower] * 8])  # seven of the steps change nothing
    assert alone.steps[0].p_value == among_eight.steps[0].p_value == pytest.approx(0.049, abs=0.001)
    assert alone.shown[0]
    assert not among_eight.shown[0]


def test_the_intervals_of_single_steps_hold_the_truth_as_often_as_they_say() -> None:
    chance = random.Random(20260101)
    campaigns, hits, totals = 1500, 0, 0
    for _ in range(campaigns):
        costs = waterfall(campaign(chance, 5))
        third, total = costs.steps[2].added, costs.so_far[-1].added
        hits += third.low is not None and third.high is not None and third.low <= STEPS[3] <= third.high
        truth = math.fsum(STEPS[1:])
        totals += total.low is not None and total.high is not None and total.low <= truth <= total.high
    # Three standard deviations of a count of 95 % in 1500 are 1.7 %.
    assert hits / campaigns == pytest.approx(0.95, abs=0.017)
    assert totals / campaigns == pytest.approx(0.95, abs=0.017)


def test_of_steps_that_all_change_nothing_any_is_shown_at_most_once_in_twenty_waterfalls() -> None:
    chance = random.Random(4)
    campaigns, alarms, uncorrected = 600, 0, 0
    for _ in range(campaigns):
        shared = [chance.gauss(0, 10) for _ in range(5)]
        costs = waterfall([[80 + luck * 0.1 + chance.gauss(0, 2) for luck in shared] for _ in range(7)])
        alarms += any(costs.shown)
        uncorrected += any(step.p_value is not None and step.p_value <= 0.05 for step in costs.steps)
    # Three standard deviations of a count of 5 % in 600 are 2.7 %.
    assert alarms / campaigns <= 0.05 + 0.027
    assert uncorrected / campaigns > 0.15


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ([[1.0], [0.0]], "greater than 0"),
        ([[1.0], [math.nan]], "finite number"),
    ],
)
def test_invalid_arms_are_refused(arms: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _ = waterfall(arms).steps[0].loss
