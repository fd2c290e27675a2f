"""p values of "the budget is exceeded": they are Student's, and they agree with the intervals."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from harness.analysis import Limit, Verdict, estimate_added, estimate_overhead, exceeds_p_value, judge


def latencies(seed: int) -> tuple[list[float], list[float]]:
    """A disk around 100 us, 2 to 9 rounds, and a guest near the edge of 10 % and 10 us."""
    chance = random.Random(seed)
    host = [1e-4 * math.exp(chance.gauss(0, 0.1)) for _ in range(chance.randint(2, 9))]
    worse, noise = chance.uniform(0.02, 0.25), chance.uniform(0.005, 0.06)
    return host, [value * math.exp(worse + chance.gauss(0, noise)) for value in host]


@pytest.mark.parametrize("seed", range(30))
def test_p_values_of_one_limit_are_those_of_scipy(seed: int) -> None:
    host, guest = latencies(seed)
    ratios = np.log(np.array(guest) / np.array(host))
    share = stats.ttest_1samp(ratios, math.log(1.1), alternative="greater").pvalue
    fewer = stats.ttest_1samp(ratios, math.log(0.9), alternative="less").pvalue
    added = stats.ttest_rel(np.array(guest) - 1e-5, host, alternative="greater").pvalue
    for budget, higher_is_better, expected in (
        (Limit(0.1), False, share),
        (Limit(0.1), True, fewer),
        (Limit(absolute=1e-5), False, added),
    ):
        found = exceeds_p_value(host, guest, budget, higher_is_better=higher_is_better)
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_of_two_limits_looser_takes_the_larger_p_and_stricter_twice_the_smaller(seed: int) -> None:
    host, guest = latencies(seed)

    def p(budget: Limit) -> float:
        value = exceeds_p_value(host, guest, budget, higher_is_better=False)
        assert value is not None
        return value

    parts = p(Limit(0.1)), p(Limit(absolute=1e-5))
    assert p(Limit(0.1, 1e-5, "looser")) == max(parts)
    assert p(Limit(0.1, 1e-5, "stricter")) == min(1, 2 * min(parts))


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(
    "budget",
    [Limit(0.1), Limit(absolute=1e-5), Limit(0.1, 1e-5, "looser"), Limit(0.1, 1e-5, "stricter")],
    ids=["share", "absolute", "looser", "stricter"],
)
def test_interval_and_p_value_always_give_the_same_verdict(budget: Limit, confidence: float) -> None:
    exceeding = 0
    for seed in range(500):
        host, guest = latencies(seed)
        level = budget.interval_confidence(confidence)
        overhead = estimate_overhead(host, guest, higher_is_better=False, confidence=level)
        verdict = judge(overhead, budget, estimate_added(host, guest, confidence=level))
        p = exceeds_p_value(host, guest, budget, higher_is_better=False)
        assert p is not None
        assert (verdict is Verdict.EXCEEDS) == (p <= (1 - confidence) / 2)
        exceeding += verdict is Verdict.EXCEEDS
    assert 20 < exceeding < 480


def test_interval_and_p_value_give_the_same_verdict_where_higher_is_better() -> None:
    exceeding = 0
    for seed in range(500):
        guest, host = latencies(seed)
        verdict = judge(estimate_overhead(host, guest, higher_is_better=True), Limit(0.1))
        p = exceeds_p_value(host, guest, Limit(0.1), higher_is_better=True)
        assert p is not None
        assert (verdict is Verdict.EXCEEDS) == (p <= 0.025)
        exceeding += verdict is Verdict.EXCEEDS
    assert 20 < exceeding < 480


def test_one_round_and_no_budget_have_no_p_value() -> None:
    assert exceeds_p_value([1.0], [2.0], Limit(0.1), higher_is_better=False) is None
    assert exceeds_p_value([1.0, 1.1], [2.0, 2.1], Limit(), higher_is_better=False) is None


def test_rounds_without_spread_are_certain() -> None:
    host, twice, half = [1.0] * 3, [2.0] * 3, [0.5] * 3
    assert exceeds_p_value(host, twice, Limit(0.9), higher_is_better=False) == 0
    assert exceeds_p_value(host, twice, Limit(1.0), higher_is_better=False) == 1
    assert exceeds_p_value(host, twice, Limit(1.1), higher_is_better=False) == 1
    assert exceeds_p_value(host, half, Limit(0.4), higher_is_better=True) == 0
    assert exceeds_p_value(host, half, Limit(0.5), higher_is_better=True) == 1


def test_rounding_is_no_evidence() -> None:
    # Each ratio is 1.5, but the differences of logs are off in their last bits, by luck all to one side: p = 0.003.
    host = [3400.0, 3100.0, 3900.0, 1700.0, 3600.0]
    guest = [value * 1.5 for value in host]
    p = exceeds_p_value(host, guest, Limit(0.5), higher_is_better=False)
    assert p is not None
    assert p >= 0.5
    assert judge(estimate_overhead(host, guest, higher_is_better=False), Limit(0.5)) is Verdict.WITHIN


def test_more_than_everything_cannot_be_lost() -> None:
    assert exceeds_p_value([1.0, 2.0], [1e-9, 1e-9], Limit(1.0), higher_is_better=True) == 1


def test_an_absolute_budget_where_higher_is_better_is_refused() -> None:
    with pytest.raises(ValueError, match="lower is better"):
        exceeds_p_value([1.0, 2.0], [1.0, 2.0], Limit(absolute=0.1), higher_is_better=True)
