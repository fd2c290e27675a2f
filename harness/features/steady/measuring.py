"""Runs a job on the regions of a disk in rounds until they are steady."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from harness.errors import MeasurementError
from harness.events import Note, StepAdvanced
from harness.feature import find_conditioner
from harness.features.steady import judge_steadiness
from harness.layout import BlockSource
from harness.measure.fio import Target, TimedSection, job_file, mark_fio, parse
from harness.measure.prepare import FilledRegions
from harness.model.job import Job
from harness.results import ConditioningRecord, RegionSteadiness

_STEADY = find_conditioner("steady")
ROUNDS, SECONDS = _STEADY.rounds, _STEADY.seconds
_JOB_SECONDS = 30.0


def make_steady(filled: FilledRegions) -> ConditioningRecord:
    """Run one of the jobs on each region in rounds until all are steady. Raises MeasurementError.

    A region that does not become steady is in the record and is not an error.
    """
    runner, events = filled.runner, filled.events
    job = choose_job(filled.jobs)
    limits = filled.write_limits(job)
    values: dict[str, list[float]] = {name: [] for name in filled.by_name}
    fewest, most = ROUNDS
    started = time.monotonic()
    for number in range(1, most + 1):
        for name, source in filled.by_name.items():
            values[name].append(_run_job(source, job, filled.seed + number, limits.get(name), filled.fio))
        if number >= fewest and all(judge_steadiness(iops).is_steady for iops in values.values()):
            break
        left = (most - number) * (time.monotonic() - started) / number
        events(StepAdvanced(f"condition {runner.name}'s disk", f"round {number} of at most {most}", left))
    regions = tuple(make_record(name, iops) for name, iops in values.items())
    for region in regions:
        if not region.steady:
            events(Note(f"{runner.name}: {region.region} is not steady after {len(region.values)} rounds of {job.id}"))
    return ConditioningRecord("steady", job.id, regions, all(region.steady for region in regions))


def choose_job(jobs: Sequence[Job]) -> Job:
    """The job with the highest load on the disk: it writes, at random, with the smallest blocks, at the highest depth.

    The result has no fixed rate, and runs for SECONDS, because the slices of a measurement are too short. Of a
    user's own file, it has what the sections have in common, without their rates and pauses. Nothing is trimmed.
    """

    def load(job: Job) -> tuple[bool, bool, bool, int, int]:
        return job.trims, not job.writes, not job.is_random, job.bs, -job.iodepth

    hardest = min(jobs, key=load)
    if hardest.trims:
        hardest = replace(hardest, rw="randwrite" if hardest.is_random else "write")
    return replace(hardest, from_file=None, rate=None, ramp=0.0, seconds=SECONDS)


def _run_job(source: BlockSource, job: Job, seed: int, write_limit: int | None, fio: str) -> float:
    """Run one round of the job on one region. Returns I/Os per second."""
    device = source.writable
    runner = device.runner
    section = TimedSection(
        "condition", job, Target(device.path, source.offset, source.size, direct=True), write_limit=write_limit
    )
    done = device.run(
        mark_fio(fio),
        stdin=job_file([section], seed, reports_start=False),
        deadline=_JOB_SECONDS + 3 * job.wall,
        check=False,
    )
    if done.status != 0:
        raise MeasurementError(
            f"{runner.name}: conditioning {source.path} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="the disk fails; see dmesg on that host",
        )
    (result,) = parse(done.stdout, [section], f"{runner.name}, conditioning {source.path}")
    return result.metrics["iops"]


def make_record(region: str, values: Sequence[float]) -> RegionSteadiness:
    state = judge_steadiness(values)
    return RegionSteadiness(region, tuple(values), state.range_share, state.excursion_share, state.is_steady)
