"""Imports fio's output from elsewhere: points of host and guests become a stored run with copies of the files."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from harness.errors import MeasurementError
from harness.exchange.notes import cell_notes
from harness.exchange.reader import Point, read_points
from harness.exchange.request import ImportRequest
from harness.exchange.sources import SourceFile, check_belonging, source_files
from harness.measure.phases import MEASURE
from harness.model.cell import Arm, Cell
from harness.model.counters import Counters, FioCounts
from harness.model.job import Job
from harness.results import (
    SCHEMA_VERSION,
    CellContext,
    Efficiency,
    GroupRecord,
    LabInfo,
    Measurement,
    RoundEvent,
    Run,
    RunInfo,
    RunStore,
    assemble,
)
from harness.results.judging import with_better
from harness.results.records import IMPORTED
from harness.run_id import RunId


@dataclass(frozen=True, slots=True)
class _Sample:
    """One point of an arm, with the path of its file's copy in the run."""

    arm: Arm
    point: Point
    raw: str


_Samples = dict[Arm, dict[str, list[_Sample]]]
"""By arm and id of the job, in the order of time."""


def import_run(request: ImportRequest, reports: Path) -> tuple[RunStore, tuple[str, ...]]:
    """Store a run with all points of the files, and return it with a message for each file that was left out.

    Raises ConfigError if the files do not belong together, MeasurementError with all files that cannot be read (nothing
    is stored then), and ResultsError if the run cannot be stored.
    """
    files = source_files(request)
    points: dict[Path, tuple[Point, ...]] = {}
    bad: dict[Path, str] = {}
    for file in files:
        try:
            points[file.path] = read_points(file.data, str(file.path), file.written)
        except MeasurementError as error:
            bad[file.path] = str(error)
    if bad and (not request.keep_going or not points):
        raise MeasurementError(
            f"{len(bad)} of {len(files)} files cannot be imported, so nothing was imported:\n"
            + "\n".join(bad.values()),
            hint="--keep-going imports the other files and lists these in the report",
        )
    good = [file for file in files if file.path in points]
    check_belonging(request, [(file, point) for file in good for point in points[file.path]])
    store = RunStore.create(reports, RunId.new())
    raw = {file.path: _copy(store, file, bad) for file in files}
    samples = _samples((file.arm, point, raw[file.path]) for file in good for point in points[file.path])
    origin: dict[str, JsonValue] = {
        raw[file.path]: _origin(file)
        | ({"left out": bad[file.path]} if file.path in bad else _version(points[file.path]))
        for file in files
    }
    store.write_results(_run(request, store, samples, origin))
    return store, tuple(bad.values())


def _origin(file: SourceFile) -> dict[str, JsonValue]:
    return {"arm": file.arm.id, "from": str(file.path), "sha256": hashlib.sha256(file.data).hexdigest()}


def _version(points: Sequence[Point]) -> dict[str, JsonValue]:
    return {"fio": points[0].version, "options": {point.job_id: dict(point.options) for point in points}}


def _copy(store: RunStore, file: SourceFile, bad: Mapping[Path, str]) -> str:
    """Store the file as it is, and return the path of the copy relative to the run."""
    kind = "left-out-" if file.path in bad else ""
    name = f"{kind}{file.arm.id}-{'-'.join(file.path.parts[-3:])}"
    return store.save_raw(name, file.data.decode(errors="surrogateescape"))


def _samples(found: Iterator[tuple[Arm, Point, str]]) -> _Samples:
    samples: _Samples = {}
    for arm, point, raw in found:
        samples.setdefault(arm, {}).setdefault(point.job_id, []).append(_Sample(arm, point, raw))
    for of_arm in samples.values():
        for several in of_arm.values():
            several.sort(key=lambda sample: sample.point.started)
    return samples


def _run(request: ImportRequest, store: RunStore, samples: _Samples, origin: dict[str, JsonValue]) -> Run:
    jobs = _jobs(samples)
    group = f"{request.scenario}-{request.disk}"
    rounds = _journal(store, group, samples)
    measurements = [measurement for several in rounds for measurement in several]
    cells = [Cell(request.scenario, request.disk, mode, job) for job in jobs for mode in request.modes]
    contexts = {cell.id: _context(cell, group, samples) for cell in cells}
    seconds = sum(measurement.seconds for measurement in measurements)
    return Run(
        SCHEMA_VERSION,
        RunInfo(
            id=store.path.name,
            started=min(measurement.started for measurement in measurements),
            finished=max(measurement.started + measurement.wall for measurement in measurements),
            command=request.command,
            profile=IMPORTED,
            seed=0,
            status="complete",
            scenarios={request.scenario: f"{request.disk}: imported output of fio"},
            phases={MEASURE: seconds},
            efficiency=Efficiency.of(seconds, seconds),
        ),
        LabInfo(
            host=IMPORTED,
            kind=IMPORTED,
            accel="unknown",
            representative=request.hardware is not None,
            why=f"stated at the import: {request.hardware}"
            if request.hardware
            else "virt-overhead did not examine the lab",
        ),
        {"harness": {"version": version("virt-overhead"), "python": platform.python_version()}, IMPORTED: origin},
        (_group(group, request.disk, rounds),),
        with_better(assemble(cells, measurements, contexts)),
    )


def _jobs(samples: _Samples) -> tuple[Job, ...]:
    """Each job once, with the longest time for which it ran, and with pauses if they limited one of its arms."""
    by_id: dict[str, list[Point]] = {}
    for of_arm in samples.values():
        for job_id, several in of_arm.items():
            by_id.setdefault(job_id, []).extend(sample.point for sample in several)
    found: dict[str, Job] = {}
    for job_id, points in by_id.items():
        limited = max(points, key=lambda point: (point.workload.bursts is not None, point.workload.poisson))
        found[job_id] = limited.job(max(point.seconds for point in points))
    order = sorted(found.values(), key=lambda job: (job.pattern, job.bs, job.numjobs, job.iodepth))
    return tuple(order)


def _journal(store: RunStore, group: str, samples: _Samples) -> list[list[Measurement]]:
    """Write the journal: round n has the n-th file of each arm and job. Returns the measurements of each round."""
    alone = {arm: {job for job, several in jobs.items() if len(several) == 1} for arm, jobs in samples.items()}
    by_round: list[list[Measurement]] = []
    for arm, jobs in samples.items():
        for job, several in jobs.items():
            for index, sample in enumerate(several):
                if index == len(by_round):
                    by_round.append([])
                by_round[index].append(_measurement(group, index + 1, sample, alone=job in alone[arm]))
    for number, several_of_round in enumerate(by_round, start=1):
        several_of_round.sort(key=lambda each: each.started)
        store.append(RoundEvent("begun", group, number, len(several_of_round), None))
        for measurement in several_of_round:
            store.append(measurement)
    return by_round


def _measurement(group: str, number: int, sample: _Sample, *, alone: bool) -> Measurement:
    """The sample as a measurement. fio's own percentiles count only `alone`: they cannot be averaged over files."""
    point = sample.point
    own = point.own_percentiles if alone else {}
    return Measurement(
        group=group,
        round=number,
        arm=sample.arm.id,
        repeat=1,
        job=point.job_id,
        started=point.started,
        seconds=point.seconds,
        wall=point.seconds,
        metrics=own | point.metrics,
        io_bytes=sum(side.io_bytes for side in point.sides),
        raw=sample.raw,
        counters=Counters(fio=FioCounts(read=point.transferred.read, written=point.transferred.written)),
        histogram=point.histogram,
        sync_histogram=point.sync_histogram,
        notes=tuple(f"{sample.arm.id}: {note}" for note in point.notes),
    )


def _context(cell: Cell, group: str, samples: _Samples) -> CellContext:
    by_arm = {arm: [sample.point for sample in samples.get(arm, {}).get(cell.job.id, [])] for arm in cell.arms}
    missing = [arm.id for arm, points in by_arm.items() if not points]
    return CellContext(
        host=IMPORTED,
        group=group,
        span_bytes=0,
        notes=() if missing else tuple(cell_notes(by_arm)),
        skipped=f"no file of {' and of '.join(missing)} has this job" if missing else None,
    )


def _group(group: str, disk: str, rounds: Sequence[Sequence[Measurement]]) -> GroupRecord:
    return GroupRecord(
        id=group,
        disk=disk,
        orders=tuple(tuple(dict.fromkeys(each.arm for each in several)) for several in rounds),
        looks=(),
        stopped="the last imported file",
        conditioning=None,
        drift=(),
        rounds=tuple(range(1, len(rounds) + 1)),
    )
