"""How often an interval of all planned rounds holds the truth, under noise of several kinds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from harness.analysis import Limit, Verdict, estimate_added, estimate_overhead, judge
from tests.simulation.campaigns import Floats, overheads
from tests.simulation.stated import stated

CAMPAIGNS = 40_000
TRUTH = 0.12
NOISE = 0.03
# The standard deviation of a count of 95 % in 40000 is 0.11 %: about three of them.
TOLERANCE = 0.003
ROUNDS = (3, 5, 10)

Pairs = Callable[[np.random.Generator, int], tuple[Floats, Floats]]


def quiet_disk(chance: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    host = 50_000 * np.exp(chance.normal(0, NOISE, (CAMPAIGNS, n)))
    return host, 50_000 * (1 - TRUTH) * np.exp(chance.normal(0, NOISE, (CAMPAIGNS, n)))


def drifting_disk(chance: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Half of the disk's speed is gone at the end, and every round has its own luck as well; both arms share it."""
    disk = 50_000 * np.linspace(1, 0.5, n) * np.exp(chance.normal(0, 0.1, (CAMPAIGNS, n)))
    host, guest = quiet_disk(chance, n)
    return host * disk, guest * disk


def heavy_tails(chance: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    host = 50_000 * np.exp(NOISE * chance.standard_t(3, (CAMPAIGNS, n)))
    return host, 50_000 * (1 - TRUTH) * np.exp(NOISE * chance.standard_t(3, (CAMPAIGNS, n)))


def skewed(chance: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Guests that now and then lose a lot: exponential losses whose log has the mean that is the truth."""
    host, guest = quiet_disk(chance, n)
    return host, guest * np.exp(0.1 - chance.exponential(0.1, (CAMPAIGNS, n)))


def drift_inside_of_rounds(chance: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Drift that a pair does not share: its arms are half a round apart, in random order, 30 % are lost in all."""
    host, guest = quiet_disk(chance, n)
    between_arms = -math.log(0.7) / (2 * n)
    return host, guest * np.exp(between_arms * chance.choice([-1, 1], (CAMPAIGNS, n)))


def coverage(pairs: Pairs, n: int) -> float:
    host, guest = pairs(np.random.default_rng(n), n)
    return float(overheads(np.log(guest / host), 0.95).covers(TRUTH).mean())


@pytest.mark.parametrize("n", ROUNDS)
@pytest.mark.parametrize("pairs", [quiet_disk, drifting_disk, heavy_tails, skewed, drift_inside_of_rounds])
def test_the_campaigns_compute_what_the_package_computes(pairs: Pairs, n: int) -> None:
    host, guest = (values[:50] for values in pairs(np.random.default_rng(n), n))
    many = overheads(np.log(guest / host), 0.95)
    for index, (one_host, one_guest) in enumerate(zip(host.tolist(), guest.tolist(), strict=True)):
        one = estimate_overhead(one_host, one_guest, higher_is_better=True)
        assert one.low == pytest.approx(many.low[index], rel=1e-9, abs=1e-12)
        assert one.high == pytest.approx(many.high[index], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("column", "n"), list(enumerate(ROUNDS)))
@pytest.mark.parametrize(
    ("row", "pairs"), [("log-normal", quiet_disk), ("log-normal, disk loses half of its speed", drifting_disk)]
)
def test_the_interval_covers_the_truth_as_often_as_it_says(row: str, pairs: Pairs, column: int, n: int) -> None:
    covered = coverage(pairs, n)
    assert 0.94 <= covered <= 0.96
    assert covered == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize(("column", "n"), list(enumerate(ROUNDS)))
def test_heavy_tails_make_the_interval_wider_than_it_need_be(column: int, n: int) -> None:
    covered = coverage(heavy_tails, n)
    assert 0.95 <= covered <= 0.98
    assert covered == pytest.approx(stated("Student t, 3 degrees of freedom")[column], abs=TOLERANCE)


@pytest.mark.parametrize(("column", "n"), list(enumerate(ROUNDS)))
@pytest.mark.parametrize(
    ("row", "pairs"),
    [
        ("skewed: exponential losses of 10 %", skewed),
        ("log-normal, 30 % drift that the pairs do not share", drift_inside_of_rounds),
    ],
)
def test_where_the_interval_misses_its_level_the_docs_say_by_how_much(
    row: str, pairs: Pairs, column: int, n: int
) -> None:
    assert coverage(pairs, n) == pytest.approx(stated(row)[column], abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["share", "absolute", "looser", "stricter"])
def test_a_guest_exactly_at_its_budget_is_rarely_called_exceeding_or_within(kind: str) -> None:
    """100 us on the host, 110 us in the guest, against 10 % and 10 us, which here are the same thing."""
    budget = {
        "share": Limit(0.1),
        "absolute": Limit(absolute=1e-5),
        "looser": Limit(0.1, 1e-5, "looser"),
        "stricter": Limit(0.1, 1e-5, "stricter"),
    }[kind]
    confidence, campaigns, n = budget.interval_confidence(0.95), 8000, 5
    guests = 1.1e-4 + np.random.default_rng(5).normal(0, 2e-6, (campaigns, n))
    said = [
        judge(
            estimate_overhead([1e-4] * n, guest, higher_is_better=False, confidence=confidence),
            budget,
            estimate_added([1e-4] * n, guest, confidence=confidence),
        )
        for guest in guests.tolist()
    ]
    # The count's own standard deviation is 0.17 %: four of them. The log and its difference are not quite one limit.
    assert said.count(Verdict.EXCEEDS) / campaigns <= 0.025 + 0.007
    assert said.count(Verdict.WITHIN) / campaigns <= (0.05 if kind == "looser" else 0.025) + 0.007
    assert said.count(Verdict.INCONCLUSIVE) > 0
