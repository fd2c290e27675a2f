"""How much time fio gets to start: what it needed before, with a margin."""

from __future__ import annotations

import pytest

from harness.measure.platform import (
    LEAST_STARTUP_SECONDS,
    MOST_UNREADY_SECONDS,
    STARTUP_MARGIN,
    STARTUP_SECONDS,
    STARTUP_SECONDS_PER_SLICE,
    Startup,
)

USUAL = STARTUP_SECONDS + 100 * STARTUP_SECONDS_PER_SLICE


def test_the_time_follows_from_the_slowest_start_that_was_seen() -> None:
    startup = Startup()
    assert startup.seconds(100) == USUAL
    startup.record_ready(0.9, 100)
    startup.record_ready(0.5, 50)
    assert startup.seconds(100) == pytest.approx(STARTUP_MARGIN * 0.9)
    startup.record_ready(1.9, 100)
    assert startup.seconds(100) == USUAL


def test_a_start_with_more_slices_gets_more_time_than_one_with_few() -> None:
    startup = Startup()
    startup.record_ready(0.55, 50)
    assert startup.seconds(50) == pytest.approx(STARTUP_MARGIN * 0.55)
    assert 3 * startup.seconds(50) < startup.seconds(500) < STARTUP_SECONDS + 500 * STARTUP_SECONDS_PER_SLICE
    startup.record_ready(1.9, 500)
    assert startup.seconds(50) == pytest.approx(STARTUP_MARGIN * 0.55)


def test_a_slow_login_is_not_multiplied_by_the_number_of_slices() -> None:
    startup = Startup()
    startup.record_ready(1.3, 50)
    assert startup.seconds(500) == pytest.approx(STARTUP_MARGIN * (1.3 + 450 * 0.003))
    startup.record_ready(3.0, 500)
    assert startup.seconds(500) == pytest.approx(STARTUP_MARGIN * 3.0)


def test_the_counters_of_the_first_slice_can_always_be_read() -> None:
    startup = Startup()
    startup.record_ready(0.1, 100)
    assert startup.seconds(100) == LEAST_STARTUP_SECONDS


def test_after_a_late_start_the_usual_time_and_more_is_planned() -> None:
    startup = Startup()
    startup.record_ready(0.6, 100)
    startup.record_late(0.5)
    assert startup.seconds(100) == USUAL + 0.5
    startup.record_late(100.0)
    assert startup.late == MOST_UNREADY_SECONDS
