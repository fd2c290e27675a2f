"""Futility: a cell that the time left cannot decide gets no further samples."""

from __future__ import annotations

import math
import random

import pytest

from harness.analysis import Limit, Look, Reason, Samples, Sequential, decided, power_to_decide

PLAN = Sequential(6, 60)
LAST = Look(60, 0.05, 0.05)
BUDGET = Limit(0.1)


def latencies(overhead: float, noise: float, n: int, seed: int = 1) -> tuple[list[float], list[float]]:
    """Pairs whose mean log ratio is exactly that of `overhead`, with a spread of exactly `noise`."""
    chance = random.Random(seed)
    off = [chance.gauss(0, 1) for _ in range(n)]
    mean = math.fsum(off) / n
    sd = math.sqrt(math.fsum((each - mean) ** 2 for each in off) / (n - 1))
    host = [1e-4] * n
    return host, [1e-4 * math.exp(math.log1p(overhead) + noise * (each - mean) / sd) for each in off]


def power(overhead: float, noise: float, n: int = 13, budget: Limit = BUDGET, last: Look = LAST) -> float:
    host, guest = latencies(overhead, noise, n)
    return power_to_decide(host, guest, budget, last, higher_is_better=False)


def why(
    overhead: float, noise: float, *, reachable: int | None, target: float | None = None, n: int = 14
) -> str | None:
    host, guest = latencies(overhead, noise, n)
    return decided(
        host,
        guest,
        PLAN,
        higher_is_better=False,
        budget=Limit(0.1),
        target=target,
        cells=1,
        reachable=reachable,
    )


def test_power_grows_with_the_distance_to_the_budget_and_falls_with_noise() -> None:
    assert power(0.10, 0.2) < power(0.15, 0.2) < power(0.25, 0.2)
    assert power(0.05, 0.5) < power(0.05, 0.1)
    assert power(0.0, 0.05) > 0.99
    assert power(0.3, 0.05) > 0.99


def test_power_by_hand() -> None:
    """Exactly at the budget: t of 13 samples must change the mean by more than the last half width."""
    from scipy import stats  # noqa: PLC0415

    change = math.sqrt(1 - 13 / 60)
    half = stats.t.ppf(0.975, 59) * math.sqrt(13 / 60)
    assert power(0.1, 0.2) == pytest.approx(2 * stats.t.sf(half / change, 12), rel=1e-6)


def test_without_time_for_more_only_what_is_decided_counts() -> None:
    now = Look(13, 0.05, 0.05)
    assert power(0.0, 0.01, last=now) == 1.0
    assert power(0.1, 0.2, last=now) == 0.0


def test_without_an_interval_nothing_is_predicted() -> None:
    assert power_to_decide([1.0], [1.1], BUDGET, LAST, higher_is_better=False) == 1.0


def test_two_boots_predict_little() -> None:
    host, guest = latencies(0.1, 0.1, 10)
    boots = Samples(boots=(1,) * 5 + (2,) * 5, rounds=2)
    assert power_to_decide(host, guest, BUDGET, Look(5, 0.05, 0.05), higher_is_better=False, samples=boots) > 0.05


def test_two_limits_have_at_least_the_power_of_each() -> None:
    one, other = power(0.12, 0.2), power(0.12, 0.2, budget=Limit(absolute=1e-5))
    assert power(0.12, 0.2, budget=Limit(0.1, 1e-5, "looser")) >= max(one, other)


def test_more_cells_to_correct_for_leave_less_power() -> None:
    host, guest = latencies(0.2, 0.2, 13)
    alone, many = (
        power_to_decide(host, guest, Limit(0.1), LAST, higher_is_better=False, cells=cells) for cells in (1, 200)
    )
    assert many < alone


def test_a_loss_of_everything_is_no_limit() -> None:
    host, guest = latencies(-0.1, 0.1, 13)
    assert power_to_decide(host, guest, Limit(2.0), LAST, higher_is_better=True) == 1.0


def test_a_cell_that_the_time_left_cannot_decide_stops() -> None:
    assert why(0.101, 0.2, reachable=16) == Reason.FUTILE
    assert why(0.101, 0.2, reachable=60) is None
    assert why(0.101, 0.2, reachable=None) is None
    assert why(0.14, 0.1, reachable=25) is None


def test_a_cell_that_can_still_be_narrow_enough_goes_on() -> None:
    assert why(0.101, 0.1, reachable=18) == Reason.FUTILE
    assert why(0.101, 0.1, reachable=18, target=0.06) is None
    assert why(0.101, 0.1, reachable=18, target=0.01) == Reason.FUTILE


def test_what_has_no_budget_is_refused() -> None:
    host, guest = latencies(0.1, 0.1, 10)
    with pytest.raises(ValueError, match="needs a budget"):
        power_to_decide(host, guest, Limit(), LAST, higher_is_better=False)
    with pytest.raises(ValueError, match="at least the 10 samples"):
        power_to_decide(host, guest, Limit(0.1), Look(9, 0.05, 0.05), higher_is_better=False)
