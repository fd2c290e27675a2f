"""Makes a disk's regions ready to be measured: filled once, or brought to the steady state that SNIA asks for."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from harness.analysis import steady_state
from harness.errors import MeasurementError
from harness.events import Events, Note, StepAdvanced
from harness.lab.guard import run_all
from harness.lab.transport.base import Runner
from harness.layout import qcow2
from harness.layout.build import Layouts
from harness.layout.source import BlockSource
from harness.measure.fio import ARGV, Target, fill_file, job_file, parse
from harness.model.job import Job
from harness.model.profile import Conditioning
from harness.results import ConditioningRecord, RegionSteadiness
from harness.scenario.plan import STEADY_FILLS, STEADY_ROUNDS

MIB = 1024**2
FILL_BLOCK = MIB
STEADY_BLOCK = 128 * 1024
"""Bytes per write of the fills before a steady state: SNIA SSS PTS v2, workload-independent preconditioning."""
SLOWEST_FILL = 2 * MIB
"""Bytes per second; a disk that takes less is broken rather than slow."""
_JOB_SECONDS = 30.0


def condition(
    runner: Runner, layouts: Layouts, method: Conditioning, jobs: Sequence[Job], *, seed: int, events: Events
) -> ConditioningRecord:
    """Make every region of `layouts` ready, each in the same way, on the host.

    Whatever the method, every block is written with data that cannot be compressed: one that was never written is
    answered without a look at the disk. `steady` works each region with one of `jobs` in rounds until all are steady
    (5 rounds at least, 25 at most); which regions did not get there is in the record, and no error. A qcow2 file, into
    which the host cannot write by itself, is filled with the data of its twin, and is not worked any further.
    """
    regions = layouts.regions
    steady = method == "steady"
    _fill(regions.values(), block=STEADY_BLOCK if steady else FILL_BLOCK, times=STEADY_FILLS if steady else 1)
    for image in layouts.images:
        qcow2.fill(image)
    if not steady:
        return ConditioningRecord("fill", None, (), None)
    job = conditioning_job(jobs)
    values: dict[str, list[float]] = {name: [] for name in regions}
    fewest, most = STEADY_ROUNDS
    started = time.monotonic()
    for number in range(1, most + 1):
        for name, source in regions.items():
            values[name].append(_work(source, job, seed + number))
        if number >= fewest and all(steady_state(each).is_steady for each in values.values()):
            break
        left = (most - number) * (time.monotonic() - started) / number
        events(StepAdvanced(f"work {runner.name}'s disk until steady", f"round {number} of at most {most}", left))
    found = tuple(_steadiness(name, each) for name, each in values.items())
    for region in found:
        if not region.steady:
            events(Note(f"{runner.name}: {region.region} is not steady after {len(region.values)} rounds of {job.id}"))
    return ConditioningRecord("steady", job.id, found, all(region.steady for region in found))


def conditioning_job(jobs: Sequence[Job]) -> Job:
    """The job that wears the disk most: of those that write, the one with the smallest blocks, then the deepest.

    At full speed, whatever its rate is.
    """
    hardest = min(jobs, key=lambda job: (not job.writes, not job.rw.startswith("rand"), job.bs, -job.iodepth))
    return replace(hardest, rate=None)


def _fill(sources: Collection[BlockSource], *, block: int, times: int) -> None:
    writable = [source.writable for source in sources]
    runner = writable[0].runner
    spans = [(each.path, source.offset, source.size) for each, source in zip(writable, sources, strict=True)]
    deadline = 120 + times * sum(size for _, _, size in spans) / SLOWEST_FILL
    fill = fill_file(spans, block=block, times=times)
    done = run_all(writable, ARGV, stdin=fill, deadline=deadline, check=False)
    if done.status != 0:
        where = ", ".join(path for path, _, _ in spans)
        raise MeasurementError(
            f"{runner.name}: filling {where} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="a full file system or a failing disk; see dmesg there",
        )


def _work(source: BlockSource, job: Job, seed: int) -> float:
    """I/Os per second of one round of the job on one region."""
    device = source.writable
    runner = device.runner
    text = job_file(Target(device.path, source.offset, source.size, direct=True), [job], seed)
    done = device.run(ARGV, stdin=text, deadline=_JOB_SECONDS + 3 * job.wall, check=False)
    if done.status != 0:
        raise MeasurementError(
            f"{runner.name}: conditioning {source.path} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="a failing disk; see dmesg there",
        )
    (result,) = parse(done.stdout, [job], f"{runner.name}, conditioning {source.path}")
    return result.metrics["iops"]


def _steadiness(region: str, values: Sequence[float]) -> RegionSteadiness:
    state = steady_state(values)
    return RegionSteadiness(region, tuple(values), state.range_share, state.excursion_share, state.is_steady)
