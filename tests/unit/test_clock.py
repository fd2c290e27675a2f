"""The clocks of two machines: compared with that of this process, with a bound of the error."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.errors import HostError
from harness.lab.transport.base import Completed
from harness.lab.transport.local import LocalRunner
from harness.measure.clock import GOOD_SECONDS, Clock, Clocks

RUNNER = LocalRunner("host here")


class Slow(LocalRunner):
    """Takes some time to ask and to answer, except in its second reading. The time of each way is in seconds."""

    def __init__(self, ask: float, answer: float) -> None:
        super().__init__("host far")
        self._ask, self._answer, self._asked = ask, answer, 0

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        self._asked += 1
        quick = self._asked == 2
        time.sleep(0.0 if quick else self._ask)
        done = super().run(argv, deadline=deadline, stdin=stdin, check=check)
        time.sleep(0.0 if quick else self._answer)
        return done


class Printing(LocalRunner):
    def __init__(self, text: str) -> None:
        super().__init__("host lab")
        self._text = text

    def run(
        self, argv: Sequence[str], *, deadline: float, stdin: str | bytes | None = None, check: bool = True
    ) -> Completed:
        del stdin, check, deadline
        return Completed(tuple(argv), 0, self._text, "")


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def test_a_moment_of_this_process_is_the_uptime_of_the_machine_within_the_error() -> None:
    clock = Clocks().read(RUNNER)
    assert clock.uptime(time.monotonic()) == pytest.approx(uptime(), abs=clock.error + 0.01)
    assert clock.error < 0.2


def test_an_uptime_is_the_moment_that_it_was_made_of() -> None:
    clock = Clock(offset=123.25, error=0.01)
    assert clock.uptime(10.0) == 133.25
    assert clock.moment(133.25) == 10.0


def test_the_quickest_reading_counts() -> None:
    clock = Clocks().read(Slow(0.2, 0.2))
    assert clock.error < 0.15
    assert clock.uptime(time.monotonic()) == pytest.approx(uptime(), abs=clock.error + 0.01)


@pytest.mark.parametrize(("ask", "answer"), [(0.3, 0.0), (0.0, 0.3)])
def test_the_error_bounds_a_way_that_is_longer_than_the_other(
    ask: float, answer: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.measure.clock.MOST_READINGS", 1)
    clock = Clocks().read(Slow(ask, answer))
    assert clock.error >= 0.15
    assert clock.uptime(time.monotonic()) == pytest.approx(uptime(), abs=clock.error + 0.01)


def test_a_large_error_needs_longer_pauses_and_a_good_reading_none() -> None:
    # A slice that is late by the error, and the next one that is early by it, still do not overlap.
    assert Clock(100.0, GOOD_SECONDS + 0.15).needs_apart == pytest.approx(0.3)
    assert Clock(100.0, GOOD_SECONDS).needs_apart == 0.0


@pytest.mark.parametrize("text", ["", "\n", "long ago\n", "nan 1.0\n", "1e999 1\n"])
def test_a_clock_that_cannot_be_read_is_an_error_that_names_the_machine(text: str) -> None:
    with pytest.raises(HostError, match="host lab: /proc/uptime"):
        Clocks().read(Printing(text))


def test_a_later_reading_makes_use_of_an_earlier_one() -> None:
    slow = Slow(0.3, 0.0)
    clocks = Clocks()
    first = clocks.read(slow)
    later = clocks.read(slow)
    assert first.error < 0.15
    # The reading of the second call took 0.3 s, and alone would have an error of 0.15 s.
    assert later.error < first.error + 0.001


def test_readings_show_together_more_than_the_best_of_them() -> None:
    one, other = Clock(offset=10.00, error=0.05), Clock(offset=10.06, error=0.05)
    both = one.narrowed(other)
    assert both.offset == pytest.approx(10.03)
    assert both.error == pytest.approx(0.02)


def test_a_clock_that_was_changed_is_read_anew() -> None:
    assert Clock(offset=10.0, error=0.05).narrowed(Clock(offset=11.0, error=0.05)) == Clock(11.0, 0.05)


def test_an_old_reading_is_less_exact() -> None:
    assert Clock(offset=10.0, error=0.05).older(100.0).error == pytest.approx(0.07)


def test_jobs_are_released_earlier_by_the_time_by_which_they_started_late() -> None:
    clocks = Clocks()
    assert clocks.late(RUNNER) == 0.0
    clocks.started(RUNNER, [0.02, 0.03, 0.5])
    assert clocks.late(RUNNER) == pytest.approx(0.03)
    clocks.started(RUNNER, [-0.01, 0.01, 0.01])  # although they were released 30 ms earlier
    assert clocks.late(RUNNER) == pytest.approx(0.04)
    clocks.started(RUNNER, [-0.2])
    assert clocks.late(RUNNER) == 0.0


def test_a_fio_that_was_not_ready_gets_more_time_the_next_time() -> None:
    clocks = Clocks()
    clocks.started(RUNNER, [0.02])
    clocks.started(RUNNER, [0.7, 0.8, 0.9])
    assert clocks.startup.late == pytest.approx(0.82)
    assert clocks.late(RUNNER) == pytest.approx(0.02)
    clocks.started(RUNNER, [0.0])
    assert clocks.startup.late == pytest.approx(0.82)
