"""Prepares a disk's regions for measuring: fills them once, or brings them to the steady state that SNIA defines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from harness.analysis import steady_state
from harness.errors import MeasurementError
from harness.events import Events, Note, StepAdvanced
from harness.lab.guard import Writable, run_all
from harness.lab.transport.base import Runner
from harness.layout import files
from harness.layout.build import Layouts
from harness.layout.source import BlockSource
from harness.measure.fio import Section, Target, fill_file, job_file, marked
from harness.measure.fio_results import parse
from harness.measure.platform import PROGRAM
from harness.model.job import Job
from harness.model.profile import Conditioning
from harness.results import ConditioningRecord, RegionSteadiness
from harness.scenario.plan import STEADY_FILLS, STEADY_ROUNDS, STEADY_SECONDS

MIB = 1024**2
FILL_BLOCK = MIB
STEADY_BLOCK = 128 * 1024
"""Bytes per write of the fills before a steady state: SNIA SSS PTS v2, workload-independent preconditioning."""
FILLED_AT_ONCE = 1024 * MIB
"""Bytes on a storage in use after which its free space is checked again: the smallest reserve that must stay free."""
SLOWEST_FILL = 2 * MIB
"""Bytes per second. A slower disk is broken."""
_JOB_SECONDS = 30.0


def condition(
    runner: Runner,
    layouts: Layouts,
    method: Conditioning,
    jobs: Sequence[Job],
    *,
    seed: int,
    events: Events,
    write_limits: Mapping[str, int] = MappingProxyType({}),
    fio: str = PROGRAM,
) -> ConditioningRecord:
    """Prepare every region of `layouts` in the same way, on the host. Raises MeasurementError.

    Both methods write incompressible data to every block, because a disk answers reads of other blocks without reading.
    `steady` also runs one of `jobs` on each region in rounds (5 to 25) until all regions are steady. A region that does
    not become steady is in the record and is not an error. fio cannot write into a qcow2 file on the host. So the file
    is filled with the data of its twin, and the job does not run on it. The job writes at most `write_limits` bytes per
    second, by the region's name. `fio` is the program on the host. On a storage in use, and on disks that are
    files, the space is checked before each part is filled. SafetyError is raised if too little would stay free.
    """
    regions = layouts.regions
    steady = method == "steady"
    block, times = (STEADY_BLOCK, STEADY_FILLS) if steady else (FILL_BLOCK, 1)
    room = layouts.reserve
    if room is None:
        _fill([_Span.whole(region) for region in regions.values()], fio, block=block, times=times)
    else:
        for source in regions.values():
            for part in _parts(source):
                room.require_for(source.path, source.size, part.size)
                _fill([part], fio, block=block, times=times)
    for image in layouts.images:
        if room is not None:
            filled = image.guest.data or image.guest
            room.require_for(filled.path, filled.size, filled.size)
        files.fill_image(image)
    if not steady:
        return ConditioningRecord("fill", None, (), None)
    job = conditioning_job(jobs)
    values: dict[str, list[float]] = {name: [] for name in regions}
    fewest, most = STEADY_ROUNDS
    started = time.monotonic()
    for number in range(1, most + 1):
        for name, source in regions.items():
            values[name].append(_work(source, job, seed + number, write_limits.get(name), fio))
        if number >= fewest and all(steady_state(value).is_steady for value in values.values()):
            break
        left = (most - number) * (time.monotonic() - started) / number
        events(StepAdvanced(f"condition {runner.name}'s disk", f"round {number} of at most {most}", left))
    steadiness = tuple(_steadiness(name, iops) for name, iops in values.items())
    for region in steadiness:
        if not region.steady:
            events(Note(f"{runner.name}: {region.region} is not steady after {len(region.values)} rounds of {job.id}"))
    return ConditioningRecord("steady", job.id, steadiness, all(region.steady for region in steadiness))


def conditioning_job(jobs: Sequence[Job]) -> Job:
    """The job with the highest load on the disk: it writes, at random, with the smallest blocks, at the highest depth.

    The result has no fixed rate, and runs for STEADY_SECONDS, because the slices of a measurement are too short. Of a
    user's own file, it has what the sections have in common, without their rates and pauses.
    """
    hardest = min(jobs, key=lambda job: (not job.writes, not job.rw.startswith("rand"), job.bs, -job.iodepth))
    return replace(hardest, from_file=None, rate=None, ramp=0.0, seconds=STEADY_SECONDS)


@dataclass(frozen=True, slots=True)
class _Span:
    """`size` bytes from `offset` of a device or file."""

    writable: Writable
    offset: int
    size: int

    @classmethod
    def whole(cls, source: BlockSource) -> _Span:
        return cls(source.writable, source.offset, source.size)


def _parts(source: BlockSource) -> Iterator[_Span]:
    """The region in parts that are filled one after the other."""
    for start in range(0, source.size, FILLED_AT_ONCE):
        yield _Span(source.writable, source.offset + start, min(FILLED_AT_ONCE, source.size - start))


def _fill(parts: Sequence[_Span], fio: str, *, block: int, times: int) -> None:
    writable = [part.writable for part in parts]
    runner = writable[0].runner
    spans = [(part.writable.path, part.offset, part.size) for part in parts]
    deadline = 120 + times * sum(size for _, _, size in spans) / SLOWEST_FILL
    fill = fill_file(spans, block=block, times=times)
    done = run_all(writable, marked(fio), stdin=fill, deadline=deadline, check=False)
    if done.status != 0:
        where = ", ".join(path for path, _, _ in spans)
        raise MeasurementError(
            f"{runner.name}: filling {where} failed: {(done.stderr or done.stdout).strip()[-400:]}",
            hint="the file system is full, or the disk fails; see dmesg on that host",
        )


def _work(source: BlockSource, job: Job, seed: int, write_limit: int | None, fio: str) -> float:
    """Runs one round of the job on one region. Returns I/Os per second."""
    device = source.writable
    runner = device.runner
    section = Section(
        "condition", job, Target(device.path, source.offset, source.size, direct=True), write_limit=write_limit
    )
    done = device.run(
        marked(fio),
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


def _steadiness(region: str, values: Sequence[float]) -> RegionSteadiness:
    state = steady_state(values)
    return RegionSteadiness(region, tuple(values), state.range_share, state.excursion_share, state.is_steady)
