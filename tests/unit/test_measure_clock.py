"""The clocks of machines, and how late their jobs start."""

from __future__ import annotations

import pytest

from harness.lab.transport.local import LocalRunner
from harness.measure.platform import MOST_LATE_SECONDS, Clocks


def test_a_guest_that_was_booted_again_is_known_to_start_its_jobs_late() -> None:
    clocks = Clocks()
    clocks.started(LocalRunner("guest on lab"), [0.03, 0.04, 0.05])
    booted_again = LocalRunner("guest on lab")
    assert clocks.late(booted_again) == 0.04
    assert clocks.late(LocalRunner("host lab")) == 0.0
    # Its jobs were released 40 ms earlier, and still started 10 ms late.
    clocks.started(booted_again, [0.01])
    assert clocks.late(booted_again) == pytest.approx(0.05)


def test_guests_of_one_name_are_not_corrected_for_each_other() -> None:
    clocks = Clocks()
    clocks.started(LocalRunner("guest on lab"), [0.03])
    guests = [LocalRunner("guest on lab") for _ in range(3)]
    assert [clocks.late(guest) for guest in guests] == [0.03] * 3
    for guest, late in zip(guests, (0.01, 0.02, -0.01), strict=True):
        clocks.started(guest, [late])
    assert [clocks.late(guest) for guest in guests] == pytest.approx([0.04, 0.05, 0.02])


def test_fio_that_was_not_ready_says_nothing_about_waking_up() -> None:
    clocks = Clocks()
    clocks.started(LocalRunner("guest on lab"), [MOST_LATE_SECONDS + 0.1])
    assert clocks.late(LocalRunner("guest on lab")) == 0.0
    assert clocks.startup.late > 0
