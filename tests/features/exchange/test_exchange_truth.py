"""An imported figure equals I/Os by the time in which the job ran, or the file is refused; never anything else."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random

import pytest

from harness.errors import MeasurementError
from harness.features.exchange.reader import Point, read_points
from tests.unit.fio_truth import WRITTEN_MS, Job, Planned, Truth, random_truth, render

FILES = 1800
TOLERANCE = 0.025
"""Processes that ran for 2 % less than others count as having run at the same time."""
DOUBTS = ("several sections", "does not show whether", "more I/Os in flight")


@cache
def truth_of(seed: int) -> Truth:
    return random_truth(Random(seed))


@cache
def points_of(seed: int) -> tuple[Point, ...] | str:
    """The points that are imported, or the reason of the refusal."""
    truth = truth_of(seed)
    try:
        return read_points(render(truth), "file.json")
    except MeasurementError as error:
        return str(error)


def wrong(truth: Truth, points: tuple[Point, ...]) -> str | None:
    """What is wrong with the imported points; None if nothing."""
    doubted = any(doubt in note for point in points for note in point.notes for doubt in DOUBTS)
    if truth.overlap:
        return None if doubted else "groups that ran at the same time are jobs of their own"
    if len(points) != len(truth.jobs):
        return None if doubted else f"{len(points)} points, but {len(truth.jobs)} jobs ran"
    for point, job in zip(points, truth.jobs, strict=True):
        if any(doubt in note for note in point.notes for doubt in DOUBTS):
            continue
        for name, value in (("iops", job.iops), ("bw", job.bw)):
            if point.metrics[name] != pytest.approx(value, rel=TOLERANCE):
                return f"{name} of {point.job_id} is {point.metrics[name]}, but I/Os by time are {value}"
        if not _is_of(point, job):
            return f"{point.job_id} is not {[section.name for section in job.sections]}"
        began = WRITTEN_MS / 1000 - truth.elapsed + job.began / 1000
        if len(job.sections) == 1 and abs(point.started - began) > 1.5 + 0.3 * len(truth.jobs):
            return f"{point.job_id} started at {point.started}, but it was {began}"
    return None


def _is_of(point: Point, job: Job) -> bool:
    """Whether it has the names of its sections, or the pattern of the only one. Sections of a moment do not count."""
    times = [sum(process.runtime for process in section.processes) for section in job.sections]
    (section, *others) = [s for s, time in zip(job.sections, times, strict=True) if time > 0.002 * sum(times)]
    if point.workload.from_file is not None:
        return point.job_id == "-and-".join(section.name for section in job.sections)
    if others:
        return False
    workload = point.workload
    return (workload.rw, workload.bs, workload.numjobs, point.iodepth) == (
        section.rw,
        section.bs,
        len(section.processes),
        section.iodepth,
    )


def described(truth: Truth) -> str:
    sections = "\n".join(map(str, truth.sections))
    return f"fio {truth.version}, {truth.elapsed} s:\n{sections}"


@pytest.mark.parametrize("part", range(6))
def test_an_imported_figure_is_ios_by_time_or_the_file_is_refused(part: int) -> None:
    for seed in range(part * FILES // 6, (part + 1) * FILES // 6):
        truth, points = truth_of(seed), points_of(seed)
        problem = wrong(truth, points) if not isinstance(points, str) else None
        assert problem is None, f"seed {seed}: {problem}\n{described(truth)}"


def test_a_file_whose_jobs_ran_one_after_the_other_is_never_refused() -> None:
    plain = [seed for seed in range(FILES) if truth_of(seed).plain]
    assert len(plain) > FILES / 10
    for seed in plain:
        points = points_of(seed)
        assert not isinstance(points, str), f"{points}\n{described(truth_of(seed))}"


def test_both_outcomes_are_frequent() -> None:
    outcomes = [isinstance(points_of(seed), str) for seed in range(600)]
    assert 100 < sum(outcomes) < 500


def test_the_generator_has_each_kind() -> None:
    truths = [truth_of(seed) for seed in range(FILES)]
    merged = [truth for truth in truths if any(_merged(truth.sections))]
    assert min(len(merged), sum(truth.overlap for truth in truths)) > 100
    unequal = [truth for truth in truths if any(max(s.runtimes) > 1.5 * min(s.runtimes) for s in truth.sections)]
    assert len(unequal) > 100


def _merged(sections: tuple[Planned, ...]) -> list[bool]:
    return [one.group == other.group and other.reported_together for one, other in pairwise(sections)]
