"""The time that a run needs at least: what one group takes longer does not shorten the others."""

from __future__ import annotations

import pytest

from harness.results.records import Planned, PlannedGroup

GROUPS = (
    PlannedGroup("hdd", 12, 3, 12, fio_s=100.0, seconds=200.0),
    PlannedGroup("optane", 12, 3, 12, fio_s=60.0, seconds=160.0),
)
PLANNED = Planned(GROUPS, fio_s=180.0, seconds=360.0)
"""With 20 s of fio in the searches of the second group. The work takes twice as long as fio runs."""


@pytest.mark.parametrize(
    ("spent", "ended", "left"),
    [
        ({}, (), 360.0),
        ({"hdd": 50.0}, (), 260.0),
        ({"hdd": 400.0}, (), 160.0),
        ({"hdd": 40.0}, ("hdd",), 160.0),
        ({"hdd": 400.0, "optane": 90.0}, ("hdd",), 0.0),
    ],
    ids=["nothing measured", "half a group", "many more rounds", "decided early", "further rounds only"],
)
def test_the_time_that_is_left_is_that_of_the_fewest_rounds_of_each_group(
    spent: dict[str, float], ended: tuple[str, ...], left: float
) -> None:
    assert PLANNED.seconds_left(spent, ended) == pytest.approx(left)
