"""Imports fio's output from elsewhere: points of host and guests become a stored run with copies of the files."""

from __future__ import annotations

import errno
import hashlib
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from harness.config.names import RunId
from harness.errors import ConfigError, MeasurementError
from harness.features.exchange.reader import Point, list_differences, list_varying, read_points
from harness.features.exchange.section import identify_disk
from harness.files import read_regular
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
from harness.results.judging import mark_better
from harness.results.records import IMPORTED
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
class SourceFile:
    """One file of an arm, as it is. `written` is when, in seconds since 1970-01-01 UTC."""

    arm: Arm
    path: Path
    data: bytes
    written: float


def read_files(request: ImportRequest) -> list[SourceFile]:
    """Every file of the request with its content. Raises ConfigError if one cannot be read, or is given twice."""
    arms = [(Arm(Place.HOST), request.host)]
    arms += [(Arm(Place.GUEST, mode), request.guests[mode.name]) for mode in request.modes if mode.attach]
    files: dict[Path, SourceFile] = {}
    for arm, paths in arms:
        for path in (file for given in paths for file in _list_files(given)):
            real = path.resolve()
            if real in files:
                raise ConfigError(
                    f"{path} is given twice: for {files[real].arm.id} and for {arm.id}",
                    hint="each file is one measurement of one arm; name each directory once",
                )
            files[real] = SourceFile(arm, path, *_read_file(path))
    return list(files.values())


def _read_file(path: Path) -> tuple[bytes, float]:
    try:
        return read_regular(path, most_bytes=JSON_BYTES, pipes=True), path.stat().st_mtime
    except OSError as error:
        hints = {errno.EFBIG: "move it away: no output of fio is as large", errno.EACCES: "check its permissions"}
        hint = hints.get(error.errno or 0, "give files of fio's output, or directories with its JSON")
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def _list_files(given: Path) -> list[Path]:
    """The file itself, or every .json file below the directory."""
    if given.exists() and not given.is_dir():
        return [given]
    if not given.is_dir():
        raise ConfigError(f"{given} does not exist", hint="give files of fio's output, or directories with its JSON")
    files = sorted(file for file in given.rglob("*.json") if file.is_file())
    if not files:
        raise ConfigError(
            f"{given} has no file whose name ends in .json", hint="give a directory with fio's JSON output"
        )
    return files


def check_belonging(request: ImportRequest, points: Sequence[tuple[SourceFile, Point]]) -> None:
    """Raises ConfigError if an arm has several disks or different jobs of one id, or a guest has no job of the host."""
    places: dict[Arm, dict[str, tuple[str, Path]]] = {}
    jobs: dict[tuple[Arm, str], tuple[SourceFile, Point]] = {}
    for file, point in points:
        if point.place:
            places.setdefault(file.arm, {}).setdefault(identify_disk(point.place), (point.place, file.path))
        first_file, first = jobs.setdefault((file.arm, point.job_id), (file, point))
        known = first.options_known and point.options_known
        if known and (first.way, first.further) != (point.way, point.further):
            one, other = (
                (first.way, point.way) if first.way != point.way else map(_show_options, (first.further, point.further))
            )
            raise ConfigError(
                f"{first_file.path} and {file.path} have the same job {point.job_id} with different options of "
                f"fio: {one} and {other}",
                hint="import them one after the other, as two runs",
            )
    for arm, of_arm in places.items():
        if len(of_arm) > 1:
            raise ConfigError(
                f"{arm.id} has files of several disks: "
                + ", ".join(f"{place} ({path})" for place, path in of_arm.values()),
                hint="give the files of one disk; in a tree of bench-fio, the directory of the disk",
            )
    jobs_of_arm = {arm: {job for job_arm, job in jobs if job_arm == arm} for arm, _ in jobs}
    of_host = jobs_of_arm.get(Arm(Place.HOST), set())
    for mode in request.modes[1:]:
        of_guest = jobs_of_arm.get(Arm(Place.GUEST, mode), set())
        if not of_host & of_guest:
            raise ConfigError(
                f"host and guest {mode.name} have no job in common: the host has {_list_jobs(of_host)}, the guest has "
                f"{_list_jobs(of_guest)}",
                hint="measure the same jobs on both",
            )


def find_copies(files: Sequence[SourceFile]) -> Iterator[tuple[Path, str]]:
    """The files with the content of another file of the same arm, each with why it is left out."""
    first: dict[tuple[Arm, bytes], Path] = {}
    for file in files:
        other = first.setdefault((file.arm, file.data), file.path)
        if other is not file.path:
            yield file.path, f"{file.path} has the content of {other}, and a copy is not another measurement"


def _is_copy(one: Point, other: Point) -> bool:
    """Two measurements never have the same bytes, times and latencies."""
    return one.started == other.started and one.processes == other.processes


def _show_options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in options.items()) or "none"


def _list_jobs(jobs: set[str]) -> str:
    return ", ".join(sorted(jobs)) or "no job that could be read"


NOT_ALTERNATING = (
    "imported: host and guest were not measured in alternation, so a change of the host between the two counts as "
    "overhead; neither the bytes nor the configuration of the guest were checked"
)


def note_cell(by_arm: Mapping[Arm, Sequence[Point]]) -> Iterator[str]:
    """The notes of a cell whose arms have these points, each at least one."""
    guests = [(arm, points) for arm, points in by_arm.items() if arm.place is Place.GUEST]
    host = by_arm[Arm(Place.HOST)]
    for _, points in guests:
        yield NOT_ALTERNATING
        if len(host) != len(points):
            yield (
                f"{len(host)} results of the host and {len(points)} of the guest: only the first "
                f"{min(len(host), len(points))} of each, in the order of time, are compared"
            )
        if any(_is_copy(one, other) for one in host for other in points):
            yield "host and guest have the same result, so one is a copy of the other, which loses nothing"
        if differ := list(list_differences(host, points)):
            yield f"host and guest differ in {', '.join(differ)}"
    for arm, points in by_arm.items():
        yield from _note_arm(arm, points)


def _note_arm(arm: Arm, points: Sequence[Point]) -> Iterator[str]:
    if any(point.buffered for point in points):
        yield f"{arm.id}: fio did not use direct I/O (direct=1), so a page cache may have served it"
    if vary := list(list_varying(points)):
        yield f"{arm.id}: its results differ in {', '.join(vary)}"
    if any(point.waits_for_each for point in points):
        yield f"{arm.id}: fio's engine waits for each I/O, so each process had one in flight, not {points[0].iodepth}"
    if further := points[0].further:
        yield f"{arm.id}: fio ran the job with further options: {_show_options(further)}"
    if not all("clat_mean" in point.metrics for point in points):
        yield f"{arm.id}: fio measured no latencies"
    elif not all(point.histogram for point in points):
        yield from _note_percentiles(arm, points)


def _note_percentiles(arm: Arm, points: Sequence[Point]) -> Iterator[str]:
    if all(point.total_latencies_only for point in points):
        yield (
            f"{arm.id}: no percentiles of the completion latency: fio measured only those of the total latency "
            "(lat_percentiles)"
        )
    elif any(point.percentiles_off for point in points):
        yield f"{arm.id}: no percentiles: fio printed neither percentiles nor a histogram of the completion latency"
    elif len(points) == 1 and (names := points[0].own_percentiles):
        yield f"{arm.id}: {', '.join(names)} {'is' if len(names) == 1 else 'are'} as fio printed, without a histogram"
    else:
        yield (
            f"{arm.id}: no percentiles, because fio's output has no histograms and percentiles cannot be averaged; "
            "measure with --output-format=json+"
        )


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
    files = read_files(request)
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
    bad.update(find_copies([file for file in files if file.path in points]))
    good = [file for file in files if file.path not in bad]
    check_belonging(request, [(file, point) for file in good for point in points[file.path]])
    with _create_run(reports) as store:
        raw = {file.path: _copy(store, file, bad) for file in files}
        samples = _sort_samples((file.arm, point, raw[file.path]) for file in good for point in points[file.path])
        origin: dict[str, JsonValue] = {
            raw[file.path]: _describe_origin(file)
            | ({"left out": bad[file.path]} if file.path in bad else _describe_version(points[file.path]))
            for file in files
        }
        store.write_results(_assemble_run(request, store, samples, origin))
    return store, tuple(bad.values())


@contextmanager
def _create_run(reports: Path) -> Iterator[RunStore]:
    """A new run, which is the latest one after the block. If the block fails, nothing of it stays: the files are
    elsewhere."""
    store = RunStore.create(reports, RunId.new(), is_latest=False)
    try:
        yield store
        store.become_latest()
    except BaseException:
        shutil.rmtree(store.path, ignore_errors=True)
        raise


def _describe_origin(file: SourceFile) -> dict[str, JsonValue]:
    return {"arm": file.arm.id, "from": str(file.path), "sha256": hashlib.sha256(file.data).hexdigest()}


def _describe_version(points: Sequence[Point]) -> dict[str, JsonValue]:
    return {"fio": points[0].version, "options": {point.job_id: dict(point.options) for point in points}}


def _copy(store: RunStore, file: SourceFile, bad: Mapping[Path, str]) -> str:
    """Store the file as it is, and return the path of the copy relative to the run."""
    kind = "left-out-" if file.path in bad else ""
    name = f"{kind}{file.arm.id}-{'-'.join(file.path.parts[-3:])}"
    return store.save_raw(name, file.data.decode(errors="surrogateescape"))


def _sort_samples(points: Iterator[tuple[Arm, Point, str]]) -> _Samples:
    samples: _Samples = {}
    for arm, point, raw in points:
        samples.setdefault(arm, {}).setdefault(point.job_id, []).append(_Sample(arm, point, raw))
    for of_arm in samples.values():
        for several in of_arm.values():
            several.sort(key=lambda sample: sample.point.started)
    return samples


def _assemble_run(request: ImportRequest, store: RunStore, samples: _Samples, origin: dict[str, JsonValue]) -> Run:
    jobs = _collect_jobs(samples)
    group = f"{request.scenario}-{request.disk}"
    rounds = _write_journal(store, group, samples)
    measurements = [measurement for several in rounds for measurement in several]
    cells = [Cell(request.scenario, request.disk, mode, job) for job in jobs for mode in request.modes]
    contexts = {cell.id: _to_context(cell, group, samples) for cell in cells}
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
        (_record_group(group, request.disk, rounds),),
        mark_better(assemble(cells, measurements, contexts)),
    )


def _collect_jobs(samples: _Samples) -> tuple[Job, ...]:
    """Each job once, with the longest time for which it ran, and with pauses if they limited one of its arms."""
    by_id: dict[str, list[Point]] = {}
    for of_arm in samples.values():
        for job_id, several in of_arm.items():
            by_id.setdefault(job_id, []).extend(sample.point for sample in several)
    longest: dict[str, Job] = {}
    for job_id, points in by_id.items():
        limited = max(points, key=lambda point: (point.workload.bursts is not None, point.workload.poisson))
        longest[job_id] = limited.job(max(point.seconds for point in points))
    order = sorted(longest.values(), key=lambda job: (job.pattern, job.bs, job.numjobs, job.iodepth))
    return tuple(order)


def _write_journal(store: RunStore, group: str, samples: _Samples) -> list[list[Measurement]]:
    """Write the journal: round n has the n-th file of each arm and job. Returns the measurements of each round."""
    alone = {arm: {job for job, several in jobs.items() if len(several) == 1} for arm, jobs in samples.items()}
    by_round: list[list[Measurement]] = []
    for arm, jobs in samples.items():
        for job, several in jobs.items():
            for index, sample in enumerate(several):
                if index == len(by_round):
                    by_round.append([])
                by_round[index].append(_to_measurement(group, index + 1, sample, alone=job in alone[arm]))
    for number, several_of_round in enumerate(by_round, start=1):
        several_of_round.sort(key=lambda measurement: measurement.started)
        store.append(RoundEvent("begun", group, number, len(several_of_round), None), *several_of_round)
    return by_round


def _to_measurement(group: str, number: int, sample: _Sample, *, alone: bool) -> Measurement:
    """The sample as a measurement. fio's own percentiles count only `alone`: they cannot be averaged over files."""
    point = sample.point
    percentiles = point.own_percentiles if alone else {}
    return Measurement(
        group=group,
        round=number,
        arm=sample.arm.id,
        repeat=1,
        job=point.job_id,
        started=point.started,
        seconds=point.seconds,
        wall=point.seconds,
        metrics=percentiles | point.metrics,
        io_bytes=sum(side.io_bytes for side in point.sides),
        raw=sample.raw,
        counters=Counters(fio=FioCounts(read=point.transferred.read, written=point.transferred.written)),
        histogram=point.histogram,
        sync_histogram=point.sync_histogram,
        notes=tuple(f"{sample.arm.id}: {note}" for note in point.notes),
    )


def _to_context(cell: Cell, group: str, samples: _Samples) -> CellContext:
    by_arm = {arm: [sample.point for sample in samples.get(arm, {}).get(cell.job.id, [])] for arm in cell.arms}
    missing = [arm.id for arm, points in by_arm.items() if not points]
    return CellContext(
        host=IMPORTED,
        group=group,
        span_bytes=0,
        notes=() if missing else tuple(note_cell(by_arm)),
        skipped=f"no file of {' and of '.join(missing)} has this job" if missing else None,
    )


def _record_group(group: str, disk: str, rounds: Sequence[Sequence[Measurement]]) -> GroupRecord:
    return GroupRecord(
        id=group,
        disk=disk,
        orders=tuple(tuple(dict.fromkeys(measurement.arm for measurement in several)) for several in rounds),
        looks=(),
        stopped="the last imported file",
        conditioning=None,
        drift=(),
        rounds=tuple(range(1, len(rounds) + 1)),
    )
