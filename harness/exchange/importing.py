"""Imports fio's output from elsewhere: points of host and guests become a stored run with copies of the files."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from harness.errors import ConfigError, MeasurementError
from harness.exchange.notes import cell_notes
from harness.exchange.reader import Point, read_points
from harness.measure.phases import MEASURE
from harness.model.attach import Unknown
from harness.model.base import Device
from harness.model.counters import Counters, FioCounts
from harness.model.job import Job
from harness.model.mode import Arm, Cell, Mode, Place
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
from harness.results.records import IMPORTED
from harness.run_id import RunId
from harness.units import format_size
from harness.untrusted import JSON_BYTES

HOST = Mode("host", Device(), attach=None)


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import: files or directories by arm, and the names that the run gives them.

    `hardware` says what was measured, if it is real hardware; None: not known. With `keep_going`, files that cannot be
    read are left out.
    """

    host: tuple[Path, ...]
    guests: Mapping[str, tuple[Path, ...]]
    disk: str
    scenario: str
    hardware: str | None
    keep_going: bool
    command: str

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The host, and one mode for each guest."""
        return (HOST, *(Mode(name, Device(), Unknown()) for name in self.guests))


@dataclass(frozen=True, slots=True)
class _File:
    """One file of an arm, as it is."""

    arm: Arm
    path: Path
    data: bytes


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
    files = _files(request)
    points: dict[Path, tuple[Point, ...]] = {}
    bad: dict[Path, str] = {}
    for file in files:
        try:
            points[file.path] = read_points(file.data, str(file.path))
        except MeasurementError as error:
            bad[file.path] = str(error)
    if bad and (not request.keep_going or not points):
        raise MeasurementError(
            f"{len(bad)} of {len(files)} files cannot be imported, so nothing was imported:\n"
            + "\n".join(bad.values()),
            hint="--keep-going imports the other files and lists these in the report",
        )
    good = [file for file in files if file.path in points]
    _check_belonging(request, [(file, point) for file in good for point in points[file.path]])
    store = RunStore.create(reports, RunId.new())
    raw = {file.path: _copy(store, file, bad) for file in files}
    samples = _samples((file.arm, point, raw[file.path]) for file in good for point in points[file.path])
    origin: dict[str, JsonValue] = {
        raw[file.path]: {
            "arm": file.arm.id,
            "from": str(file.path),
            "sha256": hashlib.sha256(file.data).hexdigest(),
            **({"left out": bad[file.path]} if file.path in bad else {"fio": points[file.path][0].version}),
        }
        for file in files
    }
    store.write_results(_run(request, store, samples, origin))
    return store, tuple(bad.values())


def _files(request: ImportRequest) -> list[_File]:
    """Every file of the request with its content."""
    arms = [(Arm(Place.HOST), request.host)]
    arms += [(Arm(Place.GUEST, mode), request.guests[mode.name]) for mode in request.modes if mode.attach]
    found: dict[Path, _File] = {}
    for arm, paths in arms:
        for path in (each for given in paths for each in _expanded(given)):
            real = path.resolve()
            if real in found:
                raise ConfigError(
                    f"{path} is given twice: for {found[real].arm.id} and for {arm.id}",
                    hint="each file is one measurement of one arm; name each directory once",
                )
            found[real] = _File(arm, path, _content(path))
    return list(found.values())


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(JSON_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from None
    if len(data) > JSON_BYTES:
        raise ConfigError(
            f"{path} is larger than {format_size(JSON_BYTES)}, which no output of fio is", hint="move it away"
        )
    return data


def _expanded(given: Path) -> list[Path]:
    """The file itself, or every .json file below the directory."""
    if given.is_file():
        return [given]
    if not given.is_dir():
        raise ConfigError(f"{given} does not exist", hint="give files of fio's JSON output, or directories with them")
    found = sorted(each for each in given.rglob("*.json") if each.is_file())
    if not found:
        raise ConfigError(
            f"{given} has no file whose name ends in .json", hint="give a directory with fio's JSON output"
        )
    return found


def _check_belonging(request: ImportRequest, points: Sequence[tuple[_File, Point]]) -> None:
    """Raises ConfigError if an arm mixes several disks or different jobs of one id, or has no job of the host."""
    places: dict[Arm, dict[str, Path]] = {}
    jobs: dict[tuple[Arm, str], tuple[_File, Point]] = {}
    for file, point in points:
        if point.place:
            places.setdefault(file.arm, {}).setdefault(point.place, file.path)
        first_file, first = jobs.setdefault((file.arm, point.job_id), (file, point))
        if first.further != point.further:
            raise ConfigError(
                f"{first_file.path} and {file.path} have the same job {point.job_id} with different options of fio: "
                f"{_shown(first.further)} and {_shown(point.further)}",
                hint="import them one after the other, as two runs",
            )
    for arm, of_arm in places.items():
        if len(of_arm) > 1:
            raise ConfigError(
                f"{arm.id} has files of several disks: "
                + ", ".join(f"{place} ({path})" for place, path in of_arm.items()),
                hint="give the files of one disk; in a tree of bench-fio, the directory of the disk",
            )
    own = {arm: {job for each, job in jobs if each == arm} for arm, _ in jobs}
    of_host = own.get(Arm(Place.HOST), set())
    for mode in request.modes[1:]:
        of_guest = own.get(Arm(Place.GUEST, mode), set())
        if not of_host & of_guest:
            raise ConfigError(
                f"host and guest {mode.name} have no job in common: the host has {_listed(of_host)}, the guest has "
                f"{_listed(of_guest)}",
                hint="measure the same jobs on both",
            )


def _shown(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in options.items()) or "none"


def _listed(jobs: set[str]) -> str:
    return ", ".join(sorted(jobs)) or "no job that could be read"


def _copy(store: RunStore, file: _File, bad: Mapping[Path, str]) -> str:
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
    seconds = sum(each.seconds for each in measurements)
    return Run(
        SCHEMA_VERSION,
        RunInfo(
            id=store.path.name,
            started=min(each.started for each in measurements),
            finished=max(each.started + each.wall for each in measurements),
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
        tuple(assemble(cells, measurements, contexts)),
    )


def _jobs(samples: _Samples) -> tuple[Job, ...]:
    """Each job once, with the longest time for which it ran."""
    found: dict[str, Job] = {}
    for of_arm in samples.values():
        for job_id, several in of_arm.items():
            longest = max(several, key=lambda sample: sample.point.seconds).point
            if job_id not in found or found[job_id].seconds < longest.seconds:
                found[job_id] = longest.job(longest.seconds)
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
    own = point.own_percentiles if alone and not point.histogram else {}
    return Measurement(
        group=group,
        round=number,
        arm=sample.arm.id,
        repeat=1,
        job=point.job_id,
        started=point.started,
        seconds=point.seconds,
        wall=point.seconds,
        metrics=point.metrics | own,
        io_bytes=sum(side.io_bytes for side in point.sides),
        raw=sample.raw,
        counters=Counters(fio=FioCounts(read=point.transferred.read, written=point.transferred.written)),
        histogram=point.histogram,
        notes=tuple(f"{sample.arm.id}: {note}" for note in point.notes),
    )


def _context(cell: Cell, group: str, samples: _Samples) -> CellContext:
    by_arm = {arm: [each.point for each in samples.get(arm, {}).get(cell.job.id, [])] for arm in cell.arms}
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
