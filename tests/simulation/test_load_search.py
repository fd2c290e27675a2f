"""How often the interval of the highest load contains the truth, over whole searches."""

from __future__ import annotations

import random

import pytest

from tests.simulation.load_search import CAPACITY, Arm
from tests.simulation.stated import stated

SEARCHES = 200
SHARES = (0.5, 0.8, 0.95)
"""The highest load, as a share of the capacity."""
# The standard deviation of a count of 95 % in 200 is 1.5 %: two of them.
TOLERANCE = 0.03


def coverage(share: float, scatter: float, fixed: float) -> float:
    truth = share * CAPACITY
    covered = 0
    for seed in range(SEARCHES):
        arm = Arm(fixed, scatter, random.Random(seed))
        found = arm.search(arm.p99(truth), blocks=4)
        assert found is not None
        low, high = found.low or 0.0, CAPACITY if found.high is None else found.high
        covered += low <= truth <= high
    return covered / SEARCHES


@pytest.mark.parametrize(("column", "share"), list(enumerate(SHARES)))
@pytest.mark.parametrize(
    ("row", "scatter", "fixed"),
    [
        ("a queue, 1 % scatter of the load", 0.01, 0.0),
        ("a queue, 5 % scatter of the load", 0.05, 0.0),
        ("a queue and 200 us, 1 % scatter of the load", 0.01, 200e-6),
    ],
)
def test_intervals_of_searches_cover_as_often_as_stated(
    row: str, scatter: float, fixed: float, column: int, share: float
) -> None:
    assert coverage(share, scatter, fixed) == pytest.approx(stated(row)[column], abs=TOLERANCE)
