"""The pause after a slice: long enough for the I/Os in flight, as far as that is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, count

import pytest

from harness.measure.pauses import pause_after
from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import GUARD_SECONDS
from tests.unit.measurements import A_SLICE

JOB = Job("randread", 4096, iodepth=32, ramp=0, seconds=1)
OTHER = replace(JOB, iodepth=1)


STARTS = count(1000, 100)


def measured(seconds: float, job: Job = JOB) -> Measurement:
    return replace(A_SLICE, job=job.id, started=next(STARTS), seconds=seconds)


def pause(*measurements: Measurement, job: Job = JOB, rotational: bool = False) -> float:
    return pause_after(job, measurements, rotational=rotational)


def test_before_the_first_round_the_pause_grows_with_the_ios_in_flight() -> None:
    assert pause(job=OTHER) < pause(job=JOB) < pause(job=replace(JOB, numjobs=4)) < 1
    assert pause(job=replace(JOB, iodepth=128)) == pause(job=replace(JOB, numjobs=4))


def test_a_hard_disk_needs_a_longer_pause() -> None:
    assert pause(rotational=True) == pytest.approx(GUARD_SECONDS + 32 / 80)
    assert pause(rotational=True) > pause()


def test_once_measured_the_longest_end_of_the_job_counts() -> None:
    assert pause(measured(1.02), measured(1.3), measured(1.0)) == pytest.approx(GUARD_SECONDS + 0.3)
    assert pause(measured(1.02), rotational=True) == pytest.approx(GUARD_SECONDS + 0.02)


def test_one_slice_in_fifty_may_end_later() -> None:
    ends = [measured(1.0 + number / 1000) for number in range(101)]
    assert pause(*ends) == pytest.approx(GUARD_SECONDS + 0.098)


def run_of(overlaps: list[float], *, number: int = 1) -> list[Measurement]:
    """Slices of a round, of which each overlaps the next by so many seconds."""
    starts = accumulate((1.0 - overlap for overlap in overlaps), initial=100.0 * number)
    return [replace(measured(1.0), round=number, started=start) for start in starts]


def test_the_pause_grows_by_what_slices_overlapped_in_each_round() -> None:
    assert pause(*run_of([-0.1, 0.2, -0.1])) == pytest.approx(GUARD_SECONDS + 0.2)
    assert pause(*run_of([0.2]), *run_of([0.1, -0.1], number=2)) == pytest.approx(GUARD_SECONDS + 0.3)
    assert pause(*run_of([-0.1, -0.2])) == GUARD_SECONDS


def test_a_machine_that_was_stuck_once_does_not_make_all_pauses_long() -> None:
    assert pause(*run_of([30.0, -0.1])) == pytest.approx(GUARD_SECONDS + 0.5)
    assert pause(*run_of([30.0] + [-0.1] * 60)) == GUARD_SECONDS


def test_the_ends_of_other_jobs_do_not_count() -> None:
    assert pause(measured(1.5, OTHER)) == pause()
    assert pause(measured(1.5, OTHER), measured(1.1)) == pytest.approx(GUARD_SECONDS + 0.1)


def test_the_pause_is_never_shorter_than_the_start_of_a_slice_needs() -> None:
    assert pause(measured(0.9)) == GUARD_SECONDS
    assert pause(measured(1.0)) == GUARD_SECONDS
