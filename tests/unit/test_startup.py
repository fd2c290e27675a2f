"""How much time fio gets to start: what it needed before, with a margin."""

from __future__ import annotations

import pytest

from harness.measure.startup import LEAST_SECONDS, MOST_LATE_SECONDS, SECONDS, SECONDS_PER_SLICE, Startup


def test_more_jobs_need_more_time_and_what_was_seen_needs_less() -> None:
    startup = Startup()
    assert startup.seconds(100) == SECONDS + 100 * SECONDS_PER_SLICE
    startup.was_ready(1.0, 100)
    assert startup.seconds(100) == pytest.approx(1.6)
    assert startup.seconds(1) == LEAST_SECONDS
    startup.was_ready(0.5, 100)  # The longest time counts.
    assert startup.seconds(100) == pytest.approx(1.6)
    startup.was_ready(1.9, 100)
    assert startup.seconds(100) == SECONDS + 100 * SECONDS_PER_SLICE


def test_after_a_late_start_the_usual_time_and_more_is_planned() -> None:
    startup = Startup()
    startup.was_ready(1.0, 100)
    startup.was_late(0.5)
    assert startup.seconds(100) == SECONDS + 100 * SECONDS_PER_SLICE + 0.5
    startup.was_late(100.0)
    assert startup.late == MOST_LATE_SECONDS
