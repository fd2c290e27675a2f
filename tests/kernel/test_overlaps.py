"""Which slices ran at the same time, and which ran alone between two readings of the counters."""

from __future__ import annotations

import pytest

from harness.measure.ran_slices import Times, alone_between, find_overlapping

ON_TIME = [Times(0.0, 0.25), Times(0.35, 0.6), Times(0.7, 0.95), Times(1.05, 1.3)]
READINGS = [Times(moment, moment + 0.002) for moment in (-0.05, 0.3, 0.65, 1.0, 1.35)]


def _alone(slices: list[Times]) -> list[bool]:
    return [alone_between(slices, number, *READINGS[number : number + 2]) for number in range(len(slices))]


def test_slices_on_time_do_not_overlap_and_run_alone() -> None:
    assert [find_overlapping(ON_TIME, number) for number in range(4)] == [None] * 4
    assert _alone(ON_TIME) == [True] * 4


def test_a_slice_that_ran_into_the_next_one() -> None:
    slices = [ON_TIME[0], Times(0.5, 0.75), *ON_TIME[2:]]
    assert [find_overlapping(slices, number) for number in range(4)] == [None, 2, 1, None]
    assert _alone(slices) == [True, False, False, True]


@pytest.mark.parametrize("late", [Times(1.06, 1.31), Times(0.9, 1.15)])
def test_a_slice_so_late_that_it_ran_during_one_after_the_next(late: Times) -> None:
    slices = [ON_TIME[0], late, *ON_TIME[2:]]
    assert find_overlapping(slices, 3) == 1
    assert find_overlapping(slices, 1) in (2, 3)
    assert not any(_alone(slices)[each] for each in (1, 3))


def test_a_slice_that_ran_later_but_alone_has_no_counts_and_spoils_those_between_whose_readings_it_ran() -> None:
    slices = [ON_TIME[0], Times(0.96, 1.04), *ON_TIME[2:]]
    assert [find_overlapping(slices, number) for number in range(4)] == [None] * 4
    assert _alone(slices) == [True, False, False, False]


def test_readings_during_the_slice_itself_do_not_count() -> None:
    own = [Times(0.0, 0.25)]
    assert not alone_between(own, 0, Times(-0.001, 0.01), READINGS[1])
    assert not alone_between(own, 0, READINGS[0], Times(0.2, 0.21))
    # fio reports times in milliseconds.
    assert alone_between(own, 0, Times(-0.001, 0.001), Times(0.249, 0.251))
