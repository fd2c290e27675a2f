"""Waiting ends with what was waited for, or by its deadline, and asks at the deadline once more."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice, repeat

import pytest

from harness.signals import Deadline, attempts, growing, wait_until


def after(asked: int, answer: str) -> Callable[[], str | None]:
    """A condition whose answer is true when it is asked for the time after `asked` others."""
    answers = iter([*repeat(None, asked), answer])
    return lambda: next(answers)


def test_a_condition_that_is_already_true_needs_no_time() -> None:
    started = time.monotonic()
    assert wait_until(lambda: "up", deadline=1200, every=600) == "up"
    assert time.monotonic() - started < 300


def test_the_first_true_answer_is_returned() -> None:
    assert wait_until(after(3, "up"), deadline=60, every=0.001) == "up"


def test_a_condition_that_stays_false_returns_its_last_result_at_the_deadline() -> None:
    started = time.monotonic()
    assert wait_until(list, deadline=0.05, every=600) == []
    assert 0.05 <= time.monotonic() - started < 300


def test_a_deadline_that_has_passed_still_allows_one_check() -> None:
    assert wait_until(lambda: "up", deadline=Deadline.after(-1), every=30) == "up"
    assert not wait_until(lambda: False, deadline=Deadline.after(-1), every=30)


def test_the_condition_is_checked_again_at_the_deadline() -> None:
    end = Deadline.after(0.05)
    assert wait_until(lambda: end.passed, deadline=end, every=30)


def test_an_error_of_the_condition_ends_the_waiting() -> None:
    def ended() -> bool:
        raise RuntimeError("the guest has ended")

    with pytest.raises(RuntimeError, match="the guest has ended"):
        wait_until(ended, deadline=60, every=30)


def test_steps_that_share_a_deadline_get_the_time_that_is_left() -> None:
    end = Deadline.after(60)
    assert 59 < end.left <= 60
    assert not end.passed
    assert Deadline.after(-1).passed


def test_the_last_attempt_is_the_one_whose_pause_would_end_too_late() -> None:
    assert [next(attempts(Deadline.after(60), [pause])).is_last for pause in (1, 120)] == [False, True]
    assert [each.number for each in attempts(Deadline.after(60), [0.0, 0.0, 0.0])] == [1, 2, 3]


def test_pauses_grow_to_the_longest_and_stay_there() -> None:
    assert list(islice(growing(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
