"""How often the test for carry-over and the rule for futility are wrong, and what they find."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from harness.analysis import CarryOver, Limit, Observation, Sequential, find_carry_over, power_to_decide
from harness.results.validity import CARRY_OVER_ERROR_RATE, CARRY_OVER_MATTERS
from tests.simulation.stated import stated

JOBS = 300
NOISE = 0.03


@cache
def job(seed: int, arms: int, blocks: int, *, loud: float, after_arm: float, after_job: float) -> CarryOver:
    """One job. Other jobs run between its blocks, so the arm before a block is any. The last arm has `loud` noise."""
    chance = random.Random(seed)
    found: list[Observation] = []
    for block in range(blocks):
        level, previous = chance.gauss(0, 0.3), chance.randrange(arms)
        for place, arm in enumerate(chance.sample(range(arms), arms)):
            noise = NOISE * (loud if arm == arms - 1 else 1)
            value = level - 0.1 * arm + chance.gauss(0, noise)
            value += (after_arm if previous == 1 else 0) + (after_job if place == 0 else 0)
            found.append(Observation(block, f"arm {arm}", f"arm {previous}", value, after_other_job=place == 0))
            previous = arm
    return find_carry_over(found)


@pytest.mark.parametrize(("column", "design"), list(enumerate([(2, 30), (3, 12), (3, 30), (5, 12)])))
def test_carry_over_is_found_and_rarely_where_there_is_none(column: int, design: tuple[int, int]) -> None:
    for row, loud, after_arm, after_job in (
        ("no carry-over", 1.0, 0.0, 0.0),
        ("no carry-over, one arm with five times the noise", 5.0, 0.0, 0.0),
        ("5 % less after one arm", 1.0, -0.05, 0.0),
        ("5 % more after another job", 1.0, 0.0, 0.05),
    ):
        several = [job(seed, *design, loud=loud, after_arm=after_arm, after_job=after_job) for seed in range(JOBS)]
        shown = sum(each.shown() for each in several) / JOBS
        if not after_arm and not after_job:
            # Three standard deviations of a count of 5 % in 300.
            assert shown <= 0.05 + 0.038
        assert shown == pytest.approx(stated(row)[column], abs=0.012)


@pytest.mark.parametrize(("column", "design"), list(enumerate([(2, 30), (3, 12), (3, 30), (5, 12)])))
def test_a_job_is_measured_again_if_the_whole_interval_of_the_effect_matters(
    column: int, design: tuple[int, int]
) -> None:
    for row, after_arm in (("again, no carry-over", 0.0), ("again, 5 % less", -0.05), ("again, 10 % less", -0.1)):
        several = [job(seed, *design, loud=1.0, after_arm=after_arm, after_job=0.0) for seed in range(JOBS)]
        assert all(abs(each.effect or 0) >= each.at_least(CARRY_OVER_ERROR_RATE) for each in several)
        again = sum(each.at_least(CARRY_OVER_ERROR_RATE) >= 0.1 * CARRY_OVER_MATTERS for each in several) / JOBS
        assert again == pytest.approx(stated(row)[column], abs=0.012)


@pytest.mark.parametrize(
    ("column", "overhead"), [(0, 0.10), (1, 0.12), (2, 0.15)], ids=["at its budget", "above it", "far above"]
)
def test_futility_stops_what_would_not_be_decided_and_rarely_what_would(column: int, overhead: float) -> None:
    """After 12 of 18 samples with a noise of 10 %; the budget is 10 %."""
    chance = np.random.default_rng(3)
    last = Sequential(6, 18).look(18)
    assert last is not None
    stopped, lost = 0, 0
    for ratios in (np.log1p(overhead) + chance.normal(0, 0.1, (JOBS, 18))).tolist():
        host, guest = [1.0] * 18, np.exp(ratios).tolist()

        def power(n: int, host: list[float] = host, guest: list[float] = guest) -> float:
            return power_to_decide(host[:n], guest[:n], Limit(0.1), last, higher_is_better=False)

        futile = power(12) < 0.05
        stopped += futile
        # With all samples, the power is 1 if the last look decides, else 0.
        lost += futile and power(18) == 1
    assert lost / JOBS <= 0.05
    assert [stopped / JOBS, lost / JOBS] == pytest.approx(
        [stated("stopped for futility")[column], stated("of all, the last look would have decided")[column]], abs=0.004
    )
