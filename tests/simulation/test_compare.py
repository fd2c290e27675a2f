"""Comparisons of replayed runs whose truth is known: nothing changed, or every arm changed by 5 % or 10 %."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.features.compare.comparison import compare, list_arms
from harness.features.compare.records import ChangeFinding, ComparisonOutcome
from tests.simulation.stated import stated
from tests.unit.replayed_runs import replayed

PAIRS = 20
TOLERANCE = 0.03
"""Three standard deviations of a share of 98 % among the arms of all pairs."""


def findings(factor: float, noise: float) -> tuple[Counter[ChangeFinding], Counter[ComparisonOutcome]]:
    """What 20 comparisons show: of each arm, and together."""
    arms: Counter[ChangeFinding] = Counter()
    outcomes: Counter[ComparisonOutcome] = Counter()
    for number in range(PAIRS):
        found = compare(replayed(2 * number, noise=noise), replayed(2 * number + 1, factor=factor, noise=noise))
        arms.update(arm.metrics[arm.headline].finding for arm in list_arms(found))
        outcomes[found.outcome] += 1
    return arms, outcomes


def test_the_same_twice_is_equal_or_undecided_in_at_least_95_percent_of_cells() -> None:
    arms, outcomes = findings(1.0, 0.05)
    assert arms[ChangeFinding.EQUAL] + arms[ChangeFinding.UNDECIDED] >= 0.95 * arms.total()
    assert outcomes[ComparisonOutcome.EQUAL] + outcomes[ComparisonOutcome.UNDECIDED] >= 0.9 * PAIRS


@pytest.mark.parametrize("percent", [5, 10])
def test_a_planted_loss_is_found_with_the_stated_power(percent: int) -> None:
    noises = (0.02, 0.05)
    for noise, power in zip(noises, stated(f"{percent} % slower"), strict=True):
        arms, outcomes = findings(1 - percent / 100, noise)
        assert arms[ChangeFinding.WORSE] >= (power - TOLERANCE) * arms.total()
        assert arms[ChangeFinding.BETTER] == 0
        assert outcomes[ComparisonOutcome.WORSE] >= (power - TOLERANCE) * PAIRS
