"""The highest load that keeps a latency: known curves are found, and the intervals cover as often as they state."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from harness.analysis import LimitedBy, Load, SearchLimits, Sustained, load_curve, next_rates, sustained

CAPACITY = 20_000.0
SPEED = 0.985 * CAPACITY
LIMITS = SearchLimits(SPEED, lowest=110)
BOUND = 1e-3

Curve = Callable[[float], float]


def mm1(load: float) -> float:
    """The p99 of the time in an M/M/1 system, in seconds."""
    return math.log(100) / (CAPACITY - load)


def with_fixed_part(load: float) -> float:
    """A device with 200 us in addition to the queue."""
    return 200e-6 + mm1(load)


def answer(curve: Curve) -> float:
    """The load at which the curve reaches the bound, by bisection."""
    low, high = 0.0, SPEED
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) < BOUND else (low, middle)
    return low


def searched(curve: Curve, chance: random.Random, *, blocks: int, scatter: float) -> tuple[Sustained | None, int]:
    """A whole search, and its rounds. Each block has its own capacity, and the sampling error of a p99."""
    measured: dict[int | None, tuple[list[float], list[float]]] = {}
    rounds = 0
    while rates := next_rates(loads := _loads(measured), BOUND, LIMITS):
        rounds += 1
        assert rounds <= 16
        for rate in rates:
            iops, latencies = measured.setdefault(rate, ([], []))
            for _ in range(blocks):
                load = min(rate or SPEED, SPEED)
                noise = chance.gauss(0, math.sqrt(0.99 * 0.01 / 3000) / 0.01 / math.log(100))
                slower = min(load * math.exp(chance.gauss(0, scatter)), SPEED)
                iops.append(load)
                latencies.append(curve(slower) * (1 + noise))
    return sustained(loads, BOUND), rounds


def _loads(measured: dict[int | None, tuple[list[float], list[float]]]) -> list[Load]:
    return [Load(rate, tuple(iops), tuple(latencies)) for rate, (iops, latencies) in measured.items()]


@pytest.mark.parametrize("curve", [mm1, with_fixed_part])
@pytest.mark.parametrize("blocks", [2, 4])
def test_intervals_of_whole_searches_contain_the_known_answer(curve: Curve, blocks: int) -> None:
    truth, covered, runs = answer(curve), 0, 60
    points = []
    for seed in range(runs):
        found, _ = searched(curve, random.Random(seed), blocks=blocks, scatter=0.01)
        assert found is not None
        assert found.point is not None
        assert found.low is not None
        assert found.high is not None
        points.append(found.point)
        covered += found.low <= truth <= found.high
    assert covered >= 0.88 * runs  # Of 60 intervals at 95 %, fewer than 53 contain it once in 100 times.
    assert sum(points) / runs == pytest.approx(truth, rel=0.01)


def test_a_search_ends_with_rates_close_to_the_bound_that_have_enough_samples() -> None:
    found, rounds = searched(mm1, random.Random(1), blocks=4, scatter=0.0)
    assert found is not None
    assert found.point == pytest.approx(answer(mm1), rel=0.01)
    assert rounds <= 9


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
    assert next_rates([], BOUND, SearchLimits(SPEED, lowest=110, highest=8000)) == (1000, 2000, 4000, 8000)
    assert next_rates([], BOUND, SearchLimits(SPEED, lowest=3000)) == (4920, 9850, None)


def test_rates_are_multiples_of_what_fio_can_divide_among_its_processes() -> None:
    rates = next_rates([], BOUND, SearchLimits(SPEED, lowest=110, step=7))
    assert all(rate % 7 == 0 for rate in rates if rate is not None)


def test_below_a_bound_that_no_rate_keeps_lower_rates_are_tried_down_to_the_lowest() -> None:
    loads = [Load(None, (SPEED,) * 8, (1e-2,) * 8)]
    tried: list[int | None] = []
    while rates := next_rates(loads, BOUND, LIMITS):
        tried += rates
        loads += [Load(rate, (float(rate or 0),) * 8, (5e-3,) * 8) for rate in rates]
    assert tried == [4920, 1230, 308]
