"""The pause after a slice: long enough for the I/Os in flight, as far as that is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.measure.pauses import pause_after
from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.timetable import GUARD_SECONDS

JOB = Job("randread", 4096, iodepth=32, ramp=0, seconds=1)
OTHER = replace(JOB, iodepth=1)


def measured(seconds: float, job: Job = JOB) -> Measurement:
    return Measurement("g", 1, "host", 1, job.id, 0.0, seconds, 1.0, {}, 0, "raw")


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


def test_the_ends_of_other_jobs_do_not_count() -> None:
    assert pause(measured(1.5, OTHER)) == pause()
    assert pause(measured(1.5, OTHER), measured(1.1)) == pytest.approx(GUARD_SECONDS + 0.1)


def test_the_pause_is_never_shorter_than_the_start_of_a_slice_needs() -> None:
    assert pause(measured(0.9)) == GUARD_SECONDS
    assert pause(measured(1.0)) == GUARD_SECONDS
