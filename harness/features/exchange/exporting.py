"""Exports a stored run: measurements as CSV or Parquet, fio's results as a tree that fio-plot can draw, and gauges."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import geometric_mean, stdev
from typing import Any

from harness.analysis import METRICS, Verdict, merged
from harness.analysis.metrics import QUANTILES, Unit
from harness.errors import ConfigError, MeasurementError, ResultsError
from harness.features.exchange.document import Document, LatencySpread, ReportedDirection, ReportedJob, read_documents
from harness.features.exchange.timeline import select_final
from harness.features.export_formats import Gauge, GaugeSample, TypedColumn, Value, format_openmetrics, parquet_bytes
from harness.files import read_regular, write_atomically
from harness.measure.fio import is_ramp
from harness.model.job import Job
from harness.model.mode import ModeDetail, Place
from harness.results import Journal, Measurement, MetricRecord, Run, RunStore
from harness.results.cells import CellRecord, Outcome
from harness.results.validity import split_by_length
from harness.terminal import one_line
from harness.units import short_size
from harness.untrusted import JSON_BYTES


@dataclass(frozen=True, slots=True)
class MeasurementRow:
    """One measurement. `counts` is false if no figure uses it: its round was abandoned, its slice overlapped another
    one, or a longer slice replaced it. `cell` is None for an arm that the run has no cell for."""

    run: str
    host: str
    disk: str
    mode: str
    job: Job | None
    cell: CellRecord | None
    measurement: Measurement
    counts: bool

    @property
    def void(self) -> bool:
        """Whether it belongs to a void cell. The bare host is shared with other cells, so it does not."""
        return self.cell is not None and self.cell.verdict is Verdict.VOID and self.measurement.arm != Place.HOST


def make_rows(run: Run, journal: Journal) -> list[MeasurementRow]:
    """A row for each measurement, in the order of the journal."""
    cells = {(raw, cell.mode, cell.job.id): cell for cell in run.cells for raw in cell.raw}
    jobs = {cell.job.id: cell.job for cell in run.cells}
    disks = {group.id: group.disk for group in run.groups}
    abandoned = {
        group: journal.abandoned(group) for group in {measurement.group for measurement in journal.measurements}
    }
    whole = [
        measurement for measurement in journal.measurements if measurement.round not in abandoned[measurement.group]
    ]
    used = {id(measurement) for measurement in split_by_length(whole)[0]}
    rows = []
    for measurement in journal.measurements:
        mode = measurement.arm.partition(":")[2] or measurement.arm
        rows.append(
            MeasurementRow(
                run=run.run.id,
                host=run.lab.host,
                disk=disks.get(measurement.group, ""),
                mode=mode,
                job=jobs.get(measurement.job),
                cell=cells.get((measurement.raw, mode, measurement.job)),
                measurement=measurement,
                counts=id(measurement) in used and measurement.overlap is None,
            )
        )
    return rows


def _job_column(name: str, of_type: type) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, of_type, lambda row: getattr(row.job, name) if row.job is not None else None)


def _measurement_column(name: str, of_type: type) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, of_type, lambda row: getattr(row.measurement, name))


def _metric_column(name: str) -> TypedColumn[MeasurementRow]:
    return TypedColumn(name, float, lambda row: row.measurement.metrics.get(name))


COLUMNS: tuple[TypedColumn[MeasurementRow], ...] = (
    TypedColumn("run", str, lambda row: row.run),
    TypedColumn("host", str, lambda row: row.host),
    TypedColumn("cell", str, lambda row: row.cell.id if row.cell else None),
    TypedColumn("scenario", str, lambda row: row.cell.scenario if row.cell else None),
    TypedColumn("verdict", str, lambda row: row.cell.verdict.value if row.cell else None),
    _measurement_column("group", str),
    TypedColumn("disk", str, lambda row: row.disk),
    TypedColumn("mode", str, lambda row: row.mode),
    _measurement_column("arm", str),
    _measurement_column("job", str),
    _job_column("pattern", str),
    _job_column("rw", str),
    _job_column("bs", int),
    _job_column("iodepth", int),
    _job_column("numjobs", int),
    _job_column("read_share", float),
    _job_column("rate", int),
    _measurement_column("round", int),
    _measurement_column("block", int),
    _measurement_column("boot", int),
    _measurement_column("repeat", int),
    TypedColumn("counts", bool, lambda row: row.counts),
    _measurement_column("started", float),
    _measurement_column("seconds", float),
    _measurement_column("wall", float),
    _measurement_column("discarded_s", float),
    _measurement_column("longer_s", float),
    _measurement_column("io_bytes", int),
    *map(_metric_column, METRICS),
    _measurement_column("raw", str),
    TypedColumn("notes", str, lambda row: "; ".join(row.measurement.notes) or None),
)
"""The columns of an exported table, in their order."""


# Programs skip blanks, and know the full-width forms of these characters.
_FORMULA = re.compile("\\s*[=+@\uff1d\uff0b\uff0d\uff20\u2212-]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def write_csv(rows: Sequence[MeasurementRow], path: Path) -> None:
    """Write the rows with a header. A missing value is empty; truth values are `true` and `false`. Raises OSError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.name for column in COLUMNS)
    for row in rows:
        values = (column.of(row) for column in COLUMNS)
        writer.writerow(map(_escape_cell, values))
    write_atomically(path, text.getvalue())


def _escape_cell(value: Value) -> Value:
    """A spreadsheet takes a text that begins with such a character for a formula. A text is one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_parquet(rows: Sequence[MeasurementRow], path: Path) -> None:
    """Write the rows with typed columns. Raises ConfigError without pyarrow, and OSError."""
    write_atomically(path, parquet_bytes(rows, COLUMNS, needed_for="--parquet", extra="parquet"))


RanSlice = tuple[ReportedJob, ...]
"""fio's entries for one slice: one, or one for each process."""
_Side = Callable[[ReportedJob], ReportedDirection]
_Weighted = Sequence[tuple[Mapping[str, float], int]]


def merge_slices(job: Job, slices: Sequence[RanSlice], version: str) -> dict[str, Any]:
    """The document with one job, like fio's own, for the slices of one arm and job.

    Slices ran one after the other: their bytes, I/Os and times add up. Processes of one slice ran at the same time: the
    longest time counts.
    """
    every = [entry for slice_ in slices for entry in slice_]
    sides: dict[str, _Side] = {"read": lambda entry: entry.read, "write": lambda entry: entry.write}
    ios = [entry.read.total_ios + entry.write.total_ios for entry in every]
    times = [entry.job_runtime for entry in every]
    buckets = ("latency_ns", "latency_us", "latency_ms")
    entry = {
        "jobname": job.id,
        "groupid": 0,
        "error": 0,
        "job options": _list_options(job),
        **{name: _merge_direction(slices, side) for name, side in sides.items()},
        "job_runtime": sum(max(entry.job_runtime for entry in slice_) for slice_ in slices),
        "usr_cpu": _average([entry.usr_cpu for entry in every], times),
        "sys_cpu": _average([entry.sys_cpu for entry in every], times),
        "ctx": sum(entry.ctx for entry in every),
        **{name: _merge_shares([(getattr(e, name), n) for e, n in zip(every, ios, strict=True)]) for name in buckets},
    }
    return {"fio version": version, "global options": {}, "jobs": [entry]}


def _list_options(job: Job) -> dict[str, str]:
    options = {"rw": job.rw, "bs": short_size(job.bs), "iodepth": str(job.iodepth), "numjobs": str(job.numjobs)}
    if job.read_share is not None:
        options["rwmixread"] = f"{job.read_share * 100:.0f}"
    if job.rate is not None:
        options["rate_iops"] = str(job.rate // job.numjobs)
    return options


def _merge_direction(slices: Sequence[RanSlice], side: _Side) -> dict[str, Any]:
    by_slice = [[side(entry) for entry in slice_] for slice_ in slices]
    every = [side for several in by_slice for side in several]
    runtime = sum(max(side.runtime for side in several) for several in by_slice)
    io_bytes, ios = sum(side.io_bytes for side in every), sum(side.total_ios for side in every)
    rates = [sum(side.iops for side in several) for several in by_slice]
    bw_bytes = round(io_bytes / runtime * 1000) if runtime else 0
    counts = [side.total_ios for side in every]
    return {
        "io_bytes": io_bytes,
        "io_kbytes": io_bytes // 1024,
        "bw_bytes": bw_bytes,
        "bw": bw_bytes // 1024,
        "iops": ios / runtime * 1000 if runtime else 0.0,
        "iops_min": min(rates),
        "iops_max": max(rates),
        "iops_mean": sum(rates) / len(rates),
        "iops_stddev": stdev(rates) if len(rates) > 1 else 0.0,
        "iops_samples": len(rates),
        "runtime": runtime,
        "total_ios": ios,
        "slat_ns": _merge_latency([side.slat_ns for side in every], counts),
        "clat_ns": _merge_latency([side.clat_ns for side in every], counts),
        "lat_ns": _merge_latency([side.lat_ns for side in every], counts),
    }


def _merge_latency(several: Sequence[LatencySpread], counts: Sequence[int]) -> dict[str, Any]:
    """Their mean and standard deviation weighted by I/Os, and the percentiles of the merged histograms."""
    known = [(spread, count) for spread, count in zip(several, counts, strict=True) if count]
    if not known:
        return {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
    total = sum(count for _, count in known)
    mean = sum(spread.mean * count for spread, count in known) / total
    variance = sum(count * (spread.stddev**2 + (spread.mean - mean) ** 2) for spread, count in known) / total
    latency: dict[str, Any] = {
        "min": min(spread.min for spread, _ in known),
        "max": max(spread.max for spread, _ in known),
        "mean": mean,
        "stddev": math.sqrt(variance),
        "N": total,
    }
    if all(spread.bins for spread, _ in known):
        bins = merged(spread.bins for spread, _ in known)
        latency["percentile"] = _compute_percentiles(bins)
        latency["bins"] = {str(bound): bins[bound] for bound in sorted(bins)}
    return latency


def _compute_percentiles(bins: Mapping[int, int]) -> dict[str, int]:
    """The percentiles in ns, by fio's keys, as fio has them: also where only a few I/Os are beyond them."""
    percentiles: dict[str, int] = {}
    total, below = sum(bins.values()), 0
    ranks = [(quantile, math.ceil(quantile * total - 1e-9)) for quantile in QUANTILES]
    for latency in sorted(bins):
        before, below = below, below + bins[latency]
        percentiles |= {f"{quantile * 100:.6f}": latency for quantile, rank in ranks if before < rank <= below}
    return percentiles


def _average(values: Iterable[float], weights: Sequence[float]) -> float:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


def _merge_shares(several: _Weighted) -> dict[str, float]:
    """The percentages by bucket, weighted by I/Os."""
    keys = dict.fromkeys(key for shares, _ in several for key in shares)
    weights = [count for _, count in several]
    return {key: _average([shares.get(key, 0.0) for shares, _ in several], weights) for key in keys}


@dataclass(frozen=True, slots=True)
class _Key:
    """What one file of the tree is about."""

    disk: str
    arm: str
    mode: ModeDetail | None
    """What the name of the arm's mode stands for; None for the bare host."""
    job: Job

    @property
    def path(self) -> Path:
        """DISK/ARM/BS/RW-IODEPTH-NUMJOBS.json. A mixed job has one more directory with its share of reads."""
        job = self.job
        mixed = [f"{job.rw}{job.read_share * 100:.0f}"] if job.read_share is not None else []
        bs = short_size(job.bs) + (f"-i{job.rate}" if job.rate is not None else "")
        return Path(self.disk, self.arm.replace(":", "-"), *mixed, bs, f"{job.rw}-{job.iodepth}-{job.numjobs}.json")


def write_tree(store: RunStore, rows: Iterable[MeasurementRow], directory: Path) -> list[Path]:
    """Write one file for each disk, arm and job with the slices that count, and return their paths.

    Raises ConfigError if the directory has files already, and ResultsError if a raw file does not fit to the journal.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"--fio-plot {directory}: it has files already", hint="name a new or empty directory")
    slices = _collect_slices(store, tuple(rows))
    paths: dict[Path, _Key] = {}
    for key in slices:
        # Some file systems ignore case.
        if (other := paths.setdefault(Path(str(key.path).casefold()), key)) != key:
            raise ResultsError(
                f"{key.path} would be the file of {other.job.id} and of {key.job.id}, or of two modes of one name",
                hint="fio-plot cannot tell them apart; export them as --csv",
            )
    for key in paths.values():
        path = key.path
        parts = slices[key]
        versions = ", ".join(dict.fromkeys(document.version for document, _ in parts))
        content = merge_slices(key.job, [slice_ for _, slice_ in parts], versions)
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / path, json.dumps(content, indent=1) + "\n")
    return [directory / key.path for key in paths.values()]


def _collect_slices(store: RunStore, rows: Sequence[MeasurementRow]) -> dict[_Key, list[tuple[Document, RanSlice]]]:
    """fio's results of the slices that count, by file of the tree."""
    by_raw: dict[str, list[MeasurementRow]] = defaultdict(list)
    for row in rows:
        by_raw[row.measurement.raw].append(row)
    slices: dict[_Key, list[tuple[Document, RanSlice]]] = defaultdict(list)
    for raw, rows_of_raw in by_raw.items():
        if any(row.counts for row in rows_of_raw):
            documents = _read(store.path / raw)
            for row, (document, ran) in zip(rows_of_raw, _match_rows(raw, rows_of_raw, documents), strict=True):
                # fio-plot shows one fio. What several guests did together is in no output of fio.
                together = sum(not part.neighbour for part in row.measurement.parts)
                if row.counts and row.job is not None and together <= 1:
                    mode = row.cell.mode_detail if row.cell and row.measurement.arm != Place.HOST else None
                    slices[_Key(row.disk, row.measurement.arm, mode, row.job)].append((document, ran))
    return slices


def _read(path: Path) -> tuple[Document, ...]:
    try:
        # In a directory of somebody else, a link could lead to another file.
        content = read_regular(path, most_bytes=JSON_BYTES, flags=os.O_NOFOLLOW)
        return tuple(select_final(read_documents(content, str(path)), str(path)))
    except OSError as error:
        raise ResultsError(
            f"{path} cannot be read: {error.strerror}", hint="--fio-plot needs raw/ of the run; --csv does not"
        ) from None
    except MeasurementError as error:
        raise ResultsError(error.message, hint="restore the file from a backup; --csv does not need it") from None


def _match_rows(
    raw: str, rows: Sequence[MeasurementRow], documents: Sequence[Document]
) -> list[tuple[Document, RanSlice]]:
    """The entries of each row in the file. Both are in the order of the slices."""
    groups = [
        (document, tuple(group))
        for document in documents
        for _, group in groupby(document.jobs, key=lambda job: job.groupid)
    ]
    left = [(document, group) for document, group in groups if not is_ramp(group[0].jobname)]
    matches = []
    for row in rows:
        first = row.measurement.parts[0] if row.measurement.parts else row.measurement
        fitting = [slice_ for slice_ in left if _sum_figures(slice_[1]) == (first.io_bytes, first.seconds)]
        fitting = fitting or [slice_ for slice_ in left if _is_imported_as(slice_[1], first.io_bytes, first.seconds)]
        if not fitting:
            raise ResultsError(
                f"{raw} has no result with {first.io_bytes} bytes in {first.seconds:g} s, which "
                f"the journal has for {row.measurement.arm}, {row.measurement.job}",
                hint="the files of the run were changed; restore them from a backup",
            )
        matches.append(fitting[0])
        left.remove(fitting[0])
    return matches


def _is_imported_as(entries: RanSlice, io_bytes: int, seconds: float) -> bool:
    """Whether an import makes these figures of the entries: of writes alone if the reads verify, or of processes that
    started at different times."""
    written = sum(entry.write.io_bytes for entry in entries), max(entry.write.runtime for entry in entries) / 1000
    every, longest = _sum_figures(entries)
    return written == (io_bytes, seconds) or (every == io_bytes and longest < seconds)


def _sum_figures(entries: RanSlice) -> tuple[int, float]:
    """Bytes and seconds of a slice."""
    sides = [side for entry in entries for side in entry.sides]
    return sum(side.io_bytes for side in sides), max((side.runtime for side in sides), default=0) / 1000


VERDICTS = tuple(outcome for outcome in Outcome if outcome is not Outcome.BASELINE)
_VALUES: dict[Unit, tuple[str, str]] = {
    "IO/s": ("virt_overhead_ios_per_second", "I/Os per second, the mean over the blocks."),
    "B/s": ("virt_overhead_bytes_per_second", "Bytes per second, the mean over the blocks."),
    "s": ("virt_overhead_latency_seconds", "Latency, the mean over the blocks of this mean or percentile."),
}


def make_gauges(run: Run) -> list[Gauge]:
    """The gauges of a stored run, also without samples. Void cells have a verdict and no figures."""
    return [
        *_list_times(run),
        Gauge(
            "virt_overhead_verdict",
            "1 for the verdict of the cell, 0 for the others.",
            tuple(
                GaugeSample(label_cell(cell) | {"verdict": outcome.value}, float(cell.outcome is outcome))
                for cell in run.cells
                if not cell.is_baseline
                for outcome in VERDICTS
            ),
        ),
        *_list_losses(run),
        *_list_values(run),
    ]


def label_cell(cell: CellRecord) -> dict[str, str]:
    """The labels of a cell. They are the same in every run, so a cell is one series over the nights."""
    names = {"lab_host": cell.host, "disk": cell.disk, "scenario": cell.scenario, "mode": cell.mode}
    cached = {"cached": "yes"} if cell.is_cached else {}
    return names | {"fio_job": cell.job.id, "cell": cell.id} | cached


def _list_times(run: Run) -> Iterator[Gauge]:
    of_scenarios = dict.fromkeys((cell.host, cell.disk, cell.scenario) for cell in run.cells)
    labels = [{"lab_host": host, "disk": disk, "scenario": scenario} for host, disk, scenario in of_scenarios]
    started = tuple(GaugeSample(names, run.run.started) for names in labels)
    yield Gauge("virt_overhead_run_started_timestamp_seconds", "When the run began, since 1970-01-01 UTC.", started)
    finished = run.run.finished
    yield Gauge(
        "virt_overhead_run_finished_timestamp_seconds",
        "When the run ended, since 1970-01-01 UTC.",
        () if finished is None else tuple(GaugeSample(names, finished) for names in labels),
    )
    facts = {"run": run.run.id, "profile": run.run.profile, "status": run.run.status}
    real = {"real_hardware": "yes" if run.lab.representative else "no"}
    yield Gauge(
        "virt_overhead_run_info",
        "1, with what the run was. Labs without real hardware say nothing about a disk.",
        tuple(GaugeSample(names | facts | real, 1.0) for names in labels),
    )


def _list_metrics(run: Run) -> Iterator[tuple[CellRecord, dict[str, str], MetricRecord]]:
    """The metrics of the cells that may be compared, with their labels."""
    for cell in run.cells:
        for name, metric in cell.metrics.items() if cell.usable else ():
            main = "yes" if name == cell.job.headline else "no"
            yield cell, label_cell(cell) | {"metric": name, "main": main}, metric


def _list_losses(run: Run) -> Iterator[Gauge]:
    estimated = [
        (labels, metric.overhead)
        for cell, labels, metric in _list_metrics(run)
        if metric.overhead and not cell.is_baseline
    ]
    read: dict[str, tuple[str, Callable[..., float | None]]] = {
        "virt_overhead_loss_ratio": (
            "What the guest loses against its host: 1 - guest/host of throughput, guest/host - 1 of latency.",
            lambda loss: loss.point,
        ),
        "virt_overhead_loss_low_ratio": ("The lower end of the interval of the loss.", lambda loss: loss.low),
        "virt_overhead_loss_high_ratio": ("The upper end of the interval of the loss.", lambda loss: loss.high),
        "virt_overhead_samples": ("Samples behind the loss.", lambda loss: float(loss.n)),
    }
    for name, (about, value) in read.items():
        samples = ((labels, value(loss)) for labels, loss in estimated)
        yield Gauge(name, about, tuple(GaugeSample(labels, point) for labels, point in samples if point is not None))


def _list_values(run: Run) -> Iterator[Gauge]:
    samples: dict[str, list[GaugeSample]] = {name: [] for name, _ in _VALUES.values()}
    for _, labels, metric in _list_metrics(run):
        for place in (Place.HOST, Place.TWIN, Place.GUEST):
            values = metric.samples(place)
            if values and min(values) > 0:
                name, _ = _VALUES[METRICS[labels["metric"]].unit]
                samples[name].append(GaugeSample(labels | {"place": str(place)}, geometric_mean(values)))
    for name, about in _VALUES.values():
        yield Gauge(name, about, tuple(samples[name]))


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Which run to export, and where to; None for a form that is not wanted."""

    run: Path
    csv: Path | None
    parquet: Path | None
    fio_plot: Path | None
    openmetrics: Path | None = None


def export_run(request: ExportRequest) -> list[str]:
    """Write the requested forms, and return a line about each.

    Raises ConfigError if none is requested or one cannot be written, and ResultsError if the run cannot be read.
    """
    of_slices = (request.csv, request.parquet, request.fio_plot)
    if not any((*of_slices, request.openmetrics)):
        raise ConfigError(
            "nothing to export",
            hint="add --csv FILE, --parquet FILE, --fio-plot DIR, --openmetrics FILE, --share FILE or --post URL",
        )
    store = RunStore.open(request.run)
    run = store.read_results()
    _check_targets(store, [path for path in (*of_slices, request.openmetrics) if path is not None])
    if any(of_slices) and not store.journal_path.exists():
        raise ResultsError(
            f"{store.journal_path} does not exist, so there are no measurements to export",
            hint="restore it from a backup; --openmetrics and --share need results.json only",
        )
    done = []
    if request.openmetrics is not None:
        with _report_failures(request.openmetrics):
            write_atomically(request.openmetrics, format_openmetrics(make_gauges(run)))
        done.append(f"metrics of {len(run.cells)} cells: {request.openmetrics}")
        if not any(of_slices):
            return done
    journal = store.read_journal()
    rows = make_rows(run, journal)
    done += journal.notes
    for path, write in ((request.csv, write_csv), (request.parquet, write_parquet)):
        if path is not None:
            with _report_failures(path):
                write(rows, path)
            done.append(f"{len(rows)} measurements: {path}")
    if request.fio_plot is not None:
        valid = [row for row in rows if not row.void]
        with _report_failures(request.fio_plot):
            files = write_tree(store, valid, request.fio_plot)
        done.append(f"{len(files)} files for fio-plot: {request.fio_plot}")
        void = dict.fromkeys(row.cell.id for row in rows if row.void and row.cell)
        done += [f"{cell} is void: left out of the files for fio-plot" for cell in void]
    return done


def _check_targets(store: RunStore, paths: Sequence[Path]) -> None:
    """Raises ConfigError if a form would replace another one, or the run itself."""
    whole = [path.resolve() for path in paths]
    for path, real in zip(paths, whole, strict=True):
        if whole.count(real) > 1:
            raise ConfigError(f"{path} is given for two forms, and one would replace the other", hint="name two files")
        if real in (store.results_path, store.journal_path):
            raise ConfigError(f"{path} is a file of the run, which would be lost", hint="name another file")


@contextmanager
def _report_failures(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror or error}",
            hint=f"check that {path.parent} exists and has space, and that this user may write there",
        ) from error
