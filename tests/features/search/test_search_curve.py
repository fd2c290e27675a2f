"""The highest load that keeps a latency: known curves are found, and the intervals cover as often as they state."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from harness.features.search.curve import LimitedBy, Load, SearchLimits, Sustained, load_curve, next_rates, sustained
from tests.simulation.load_search import CAPACITY, FULL_SPEED, Arm

LIMITS = SearchLimits(FULL_SPEED, lowest=110)
BOUND = 1e-3


@pytest.mark.parametrize("fixed", [0.0, 200e-6])
@pytest.mark.parametrize("blocks", [2, 4])
def test_intervals_of_whole_searches_contain_the_known_answer(fixed: float, blocks: int) -> None:
    truth, covered, searches = CAPACITY - math.log(100) / (BOUND - fixed), 0, 40
    points = []
    for seed in range(searches):
        found = Arm(fixed, 0.01, random.Random(seed)).search(BOUND, blocks=blocks)
        assert found is not None
        assert found.point is not None
        assert found.low is not None
        assert found.high is not None
        points.append(found.point)
        covered += found.low <= truth <= found.high
    assert covered >= 0.85 * searches  # Of 40 intervals at 95 %, fewer than 34 contain it once in 300 times.
    assert sum(points) / searches == pytest.approx(truth, rel=0.01)


def test_a_search_ends_with_rates_close_to_the_bound_that_have_enough_samples() -> None:
    arm = Arm(0.0, 0.0, random.Random(1))
    found = arm.search(BOUND, blocks=4)
    assert found is not None
    assert found.point is not None
    below = max((load for load in arm.loads if load.achieved < found.point), key=lambda load: load.achieved)
    above = min((load for load in arm.loads if load.achieved > found.point), key=lambda load: load.achieved)
    assert above.achieved / below.achieved <= 1.03
    assert min(len(below.iops), len(above.iops)) >= 8
    assert arm.rounds <= 9


def test_less_latency_at_more_load_is_averaged_away() -> None:
    curve = load_curve(
        [
            Load(1000, (1000.0, 1000.0), (100e-6, 100e-6)),
            Load(2000, (2000.0, 2000.0), (400e-6, 400e-6)),
            Load(3000, (3000.0, 3000.0), (100e-6, 100e-6)),
        ],
        BOUND,
    )
    assert [point.latency for point in curve] == pytest.approx([100e-6, 200e-6, 200e-6])


def flat(latency: float, speed: float) -> list[Load]:
    """Each I/O takes the same time, whatever the load: null_blk with a completion time."""
    rates: Sequence[int | None] = (1000, 2000, None)
    return [
        Load(rate, (float(rate or speed),) * 4, tuple(latency * (1 + wobble) for wobble in (0.01, -0.01, 0.005, 0)))
        for rate in rates
    ]


def test_a_device_with_a_fixed_completion_time_sustains_its_full_speed_or_nothing() -> None:
    slow_enough, too_slow = sustained(flat(500e-6, 4000), BOUND), sustained(flat(2e-3, 4000), BOUND)
    assert slow_enough == Sustained(LimitedBy.FULL_SPEED, 4000, 4000, 4000)
    assert too_slow is not None
    assert (too_slow.limited_by, too_slow.point, too_slow.low) == (LimitedBy.LOWEST, None, None)


def test_a_rate_that_the_arm_does_not_reach_counts_as_above_the_bound() -> None:
    fast = (100e-6,) * 4
    reached = [Load(rate, (float(rate),) * 4, fast) for rate in (1000, 2000)]
    unreached = Load(3000, (2500.0, 2510.0, 2490.0, 2500.0), fast)
    assert sustained(reached, BOUND) == Sustained(LimitedBy.HIGHEST, 2000, 2000, None)
    found = sustained([*reached, unreached], BOUND)
    assert found is not None
    assert (found.limited_by, found.point) == (LimitedBy.FULL_SPEED, 2500)
    assert next_rates([*reached, unreached], BOUND, SearchLimits(2500, lowest=110)) == (2240,)


def test_one_sample_of_a_rate_gives_no_result_and_is_measured_again() -> None:
    once = [Load(None, (20_000.0,), (5e-3,)), Load(2000, (2000.0,), (100e-6,))]
    assert sustained(once, BOUND) is None
    assert next_rates(once, BOUND, LIMITS) == (None, 2000)


def test_the_first_rates_are_full_speed_or_the_highest_allowed_rate_and_steps_below_it() -> None:
    assert next_rates([], BOUND, LIMITS) == (2460, 4920, 9850, None)
    assert next_rates([], BOUND, SearchLimits(FULL_SPEED, lowest=110, highest=8000)) == (1000, 2000, 4000, 8000)
    assert next_rates([], BOUND, SearchLimits(FULL_SPEED, lowest=3000)) == (4920, 9850, None)


def test_rates_are_multiples_of_what_fio_can_divide_among_its_processes() -> None:
    rates = next_rates([], BOUND, SearchLimits(FULL_SPEED, lowest=110, step=7))
    assert all(rate % 7 == 0 for rate in rates if rate is not None)


def test_no_rate_is_above_the_highest_allowed_one() -> None:
    assert next_rates([], BOUND, SearchLimits(FULL_SPEED, lowest=110, highest=8239, step=2))[-1] == 8238


def test_below_a_bound_that_no_rate_keeps_lower_rates_are_tried_down_to_the_lowest() -> None:
    loads = [Load(None, (FULL_SPEED,) * 8, (1e-2,) * 8)]
    tried: list[int | None] = []
    while rates := next_rates(loads, BOUND, LIMITS):
        tried += rates
        loads += [Load(rate, (float(rate or 0),) * 8, (5e-3,) * 8) for rate in rates]
    assert tried == [4920, 1230, 308]


def test_the_highest_load_is_never_below_a_rate_that_was_kept_within_the_bound() -> None:
    chance = random.Random(3)
    for _ in range(300):
        rates = sorted(chance.sample(range(1000, 20_000, 100), 6))
        loads = [
            Load(rate, (chance.uniform(0.96, 1.0) * rate,) * 4, tuple(chance.lognormvariate(-7, 0.5) for _ in range(4)))
            for rate in rates
        ]
        loads.append(Load(None, (chance.uniform(5000, 20_000),) * 4, (0.5,) * 4))
        bound = math.exp(-7 + chance.gauss(0, 0.5))
        found = sustained(loads, bound)
        assert found is not None
        kept = [load.achieved for load in loads if math.prod(load.latencies) ** 0.25 < bound]
        assert (found.point or 0.0) >= max(kept, default=0.0)
        assert found.point is None or found.high is None or found.high >= found.point
