"""fio on host and guest: writes its job files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.analysis import merged
from harness.analysis.metrics import QUANTILES, CompletedIo, merge_syncs, read_metrics
from harness.errors import MeasurementError
from harness.lab.pin import MARK
from harness.measure.platform import ENGINE, LINUX, PROGRAM, Platform, fio_command
from harness.model.counters import Transferred
from harness.model.job import DEFAULT_ENGINE, BlockShare, Job
from harness.terminal import quoted
from harness.untrusted import parse_json, reading

_RAMP = "-ramp"
MOST_TRIMMED = 64 * 1024**2
"""Bytes that a job may trim: as many as are written again in the ramp."""
_REFILL = ("rw=write", "bs=1m", "iodepth=8", "refill_buffers=1")
_LIBAIO = f"ioengine={ENGINE}"
"""The option in a user's own file for the asynchronous I/O of the system."""


def mark_fio(program: str = PROGRAM) -> tuple[str, ...]:
    """The command of fio on Linux, with the mark of this process, by which reap finds it."""
    return "env", MARK, *fio_command(program)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of fio: `size` bytes from `offset` of `path`. `direct` is False only for a twin of a cached mode.

    `block` is the smallest I/O in bytes. Smaller ones of a workload with several sizes are rounded up. With `apart`,
    the end of it is used by jobs that trim, and the rest by the others: trimmed blocks are not read from the disk.
    Without `invalidate`, fio leaves what the page cache has of a device. Direct I/O does not need that. `engine` is
    fio's; empty for that of the system. libaio has one I/O in flight without direct I/O, io_uring has several. With
    `warm`, a buffered job finds what the page cache has.
    """

    path: str
    offset: int
    size: int
    direct: bool
    block: int = 512
    apart: bool = False
    invalidate: bool = True
    engine: str = ""
    warm: bool = False

    def part_of(self, job: Job) -> tuple[int, int]:
        """Offset and size of the part that the job uses, in bytes. Regions are multiples of 4 MiB."""
        trimmed = min(self.size // 4, MOST_TRIMMED)
        if job.trims:
            return self.offset + self.size - trimmed, trimmed
        return self.offset, min(self.size - trimmed if self.apart else self.size, job.region or self.size)


@dataclass(frozen=True, slots=True)
class TimedSection:
    """A job in a job file. `name` is unique in the file. `delay` is when fio creates it, in seconds from fio's start.

    It then waits for its start, see platform.py. Its ramp waits for its own start. Without a `delay`, it
    runs when the section before has ended. `write_limit` is the largest number of bytes that it may write per second.
    """

    name: str
    job: Job
    target: Target
    delay: float | None = None
    write_limit: int | None = None

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """fio's jobs: name and seconds. The ramp is a job of its own.

        fio does not report the bytes of its option ramp_time, but host and QEMU count them.
        """
        unchanged = (self.name, self.job.seconds)
        return ((f"{self.name}{_RAMP}", self.job.ramp), unchanged) if self.job.ramp else (unchanged,)


def job_file(
    sections: Sequence[TimedSection],
    seed: int,
    *,
    reports_start: bool = True,
    platform: Platform = LINUX,
    waits: Callable[[int], str] | None = None,
) -> str:
    """A fio job file for the platform with these sections. Those with a delay wait for their starts by `waits`.

    `reports_start` is true for a fio that reports when a job started: version 3.36 and later. Raises MeasurementError
    if fio does not accept a path.
    """
    lines = [
        "[global]",
        # Without this, fio would create a file in RAM for a missing device, which would be very fast.
        "allow_file_create=0",
        f"ioengine={platform.engine}",
        "thread=1",
        "time_based=1",
        "norandommap=1",
        "randrepeat=1",
        f"randseed={seed}",
        "refill_buffers=0",
        "scramble_buffers=1",
        "group_reporting=1",
        # virt-overhead computes percentiles from the histogram. fio's percentiles are in its output for comparison.
        f"percentile_list={':'.join(f'{quantile * 100:g}' for quantile in QUANTILES)}",
        "exitall_on_error=1",
        # virt-overhead reads the host's counters itself. At its end, fio would wait 0.25 s for a last sample.
        *(["disk_util=0"] if platform.disk_util else []),
        *([f"job_start_clock_id={platform.start_clock}"] if reports_start else []),
    ]
    number = 0
    for section in sections:
        for name, seconds in section.parts:
            wait = [waits(number)] if waits is not None else []
            lines += _release_together(name, section, seconds, wait, platform)
            number += 1
    return "\n".join(lines) + "\n"


def is_ramp(name: str) -> bool:
    return name.endswith(_RAMP)


def reports_start(version: str) -> bool:
    """Whether this fio ("fio-3.39") reports when a job started."""
    match = re.match(r"fio-([0-9]+)\.([0-9]+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= (3, 36)


def _release_together(
    name: str, section: TimedSection, seconds: float, wait: Sequence[str], platform: Platform
) -> Iterator[str]:
    """The sections of fio that wait for the same start: one, or those of a user's own file. `wait` is the option.

    They are one group, so fio reports their sums, means and histograms together, under the first name.
    """
    start = ["stonewall"]
    if section.delay is not None:
        start = [f"startdelay={_format_milliseconds(section.delay)}", *wait]
    refills = section.job.only_trims and is_ramp(name)
    # As many processes wait for the start of the ramp as for that of the job.
    refill = [*_REFILL, f"numjobs={section.job.numjobs}"]
    patterns = [refill] if refills else _list_patterns(section.job, section.target.block)
    for place, pattern in enumerate(patterns):
        yield from ("", f"[{name}+{place}]" if place else f"[{name}]")
        if place == 0:
            yield "new_group"
        yield from (f"ioengine={platform.engine}" if line == _LIBAIO else line for line in pattern)
        yield from _write_limit(section, pattern)
        yield from _write_place(section, seconds, platform)
        if place == 0 or section.delay is not None:
            yield from start


def _write_limit(section: TimedSection, pattern: Sequence[str]) -> Iterator[str]:
    """The limit of each process of this pattern: an equal part. fio accepts only one rate, so one of its own stays.

    fio limits the bytes since the start of the job, so a slower disk never waits for it. `rate=,N` limits only writes.
    """
    if section.write_limit is None or any(line.startswith(("rate=", "rate_iops=")) for line in pattern):
        return
    job = section.job
    processes = sum(section.processes for section in job.from_file.sections) if job.from_file else job.numjobs
    yield f"rate=,{max(section.write_limit // processes, 1)}"


def _write_place(section: TimedSection, seconds: float, platform: Platform) -> list[str]:
    """Where and how long fio runs. Nothing in a user's own file changes this."""
    target, job = section.target, section.job
    offset, size = target.part_of(job)
    engine = target.engine if job.from_file is None else ""
    # fio empties the page cache of its file when a job begins, and again when it begins at the start of the file.
    cold = not target.warm if job.buffered else target.direct and target.invalidate
    return [
        f"filename={_check_filename(target.path, platform)}",
        f"offset={offset}",
        f"size={size}",
        f"direct={int(target.direct and not job.buffered)}",
        *([f"ioengine={engine}"] if engine and not job.buffered else []),
        # A cached twin must have a warm cache, in the same way as a cached guest.
        f"invalidate={int(cold)}",
        f"runtime={_format_milliseconds(seconds)}",
    ]


def _list_patterns(job: Job, block: int) -> Iterator[list[str]]:
    if job.from_file is None:
        yield _write_pattern(job, block)
    else:
        for section in job.from_file.sections:
            yield [f"{option.name}={option.value}" for option in section.options_for(block)]


def _write_pattern(job: Job, block: int) -> list[str]:
    lines = [
        f"rw={job.rw}",
        f"bssplit={_format_sizes(job.rounded_sizes(block))}" if job.sizes else f"bs={job.bs}",
        f"iodepth={job.iodepth}",
        f"numjobs={job.numjobs}",
    ]
    if job.read_share is not None:
        lines.append(f"rwmixread={job.read_share * 100:.0f}")
    if job.rate is not None:
        lines.append(f"rate_iops={_split_rate(job.rate // job.numjobs, job.read_share)}")
    return [*lines, *_write_behaviour(job)]


def _write_behaviour(job: Job) -> Iterator[str]:
    if job.buffered:
        yield f"ioengine={DEFAULT_ENGINE}"
        # fio's own hint would double the read-ahead. dd, cp and most programs give none.
        yield "fadvise_hint=0"
    if job.random_share is not None:
        yield f"percentage_random={job.random_share * 100:.0f}"
    if job.syncs:
        yield "fdatasync=1"
    if job.durable:
        yield "sync=dsync"
    if job.bursts is not None:
        yield f"thinktime={round(job.bursts.pause * 1e6)}"
        yield f"thinktime_blocks={job.bursts.ios}"
    if job.poisson:
        # Not with io_submit_mode=offload: fio 3.33 and 3.39 sometimes did not end then. The queue is long instead.
        yield "rate_process=poisson"


def _format_sizes(sizes: Iterable[BlockShare]) -> str:
    return ":".join(f"{size.bs}/{size.percent}" for size in sizes)


def _split_rate(rate: int, read_share: float | None) -> str:
    """fio limits each direction separately, so the rate of a mixed job is the sum of two rates."""
    if read_share is None:
        return str(rate)
    reads = round(rate * read_share)
    return f"{reads},{rate - reads}"


def _format_milliseconds(seconds: float) -> str:
    # fio 3.39 reads "1.5s" as one second, and "0.5s" as none.
    return f"{round(seconds * 1000)}ms"


def fill_file(targets: Sequence[tuple[str, int, int]], *, block: int, times: int = 1) -> str:
    """A job file that fills each (path, offset, size) with data that no layer can compress or drop.

    `block` is the size of each write in bytes. `times` is how often every block is written. Raises MeasurementError if
    fio does not accept a path.
    """
    lines = [
        "[global]",
        "allow_file_create=0",
        f"ioengine={LINUX.engine}",
        "direct=1",
        "rw=write",
        f"bs={block}",
        f"loops={times}",
        "iodepth=8",
        "thread=1",
        "refill_buffers=1",
        "end_fsync=1",
        "disk_util=0",
    ]
    for number, (path, offset, size) in enumerate(targets):
        lines += [
            "",
            f"[fill{number}]",
            "stonewall",
            f"filename={_check_filename(path, LINUX)}",
            f"offset={offset}",
            f"size={size}",
        ]
    return "\n".join(lines) + "\n"


def _check_filename(path: str, platform: Platform) -> str:
    try:
        return platform.filename(path)
    except ValueError as error:
        raise MeasurementError(
            f"{quoted(path)} cannot be measured: {error}",
            hint="use another name for the disk, or for the directory of its storage",
        ) from None


_HINT = "its raw output is stored in raw/ of the run"
_ROUNDING = 0.02
_BINS = 0.2
_LONGEST_NS = 8_000_000_000
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Keys of JSON are text.
_Nanoseconds = Annotated[int, Field(strict=False, ge=0, lt=1 << 63)]


class OutputPart(BaseModel):
    """A part of fio's output. Keys that nothing reads are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class Latency(OutputPart):
    """Latencies of one direction: their mean in ns, and completions by latency in ns."""

    mean: Number
    bins: Mapping[_Nanoseconds, Count] = {}


class SyncLatency(Latency):
    """Latencies of fdatasync. `N` is the number of calls; None in versions of fio that do not print it here.

    `percentile` has fio's own percentiles.
    """

    N: Count | None = None
    percentile: Mapping[str, Number] = {}


class Direction(OutputPart):
    """What a job read or wrote. `runtime` in ms."""

    io_bytes: Count
    bw_bytes: Count
    iops: Number
    runtime: Count
    total_ios: Count
    clat_ns: Latency
    lat_ns: Latency


class Syncs(OutputPart):
    lat_ns: SyncLatency
    total_ios: Count = 0

    @property
    def calls(self) -> int:
        return self.total_ios if self.lat_ns.N is None else self.lat_ns.N


class JobEntry(OutputPart):
    """One job of fio's output. CPU times in percent of `job_runtime`, which is in ms, as `job_start` is."""

    read: Direction
    write: Direction
    trim: Direction | None = None
    usr_cpu: Number
    sys_cpu: Number
    ctx: Count
    job_runtime: Count
    job_start: Count | None = None
    sync: Syncs | None = None

    @property
    def directions(self) -> tuple[Direction, ...]:
        return (self.read, self.write) if self.trim is None else (self.read, self.write, self.trim)

    @property
    def syncs(self) -> SyncLatency | None:
        return self.sync.lat_ns if self.sync is not None and self.sync.calls else None


def find_contradiction(side: Direction) -> str | None:
    """What in the figures of one direction cannot be true together, in words; None if nothing.

    fio computes rates from I/Os, bytes and time, so they differ only by rounding. A disk, a guest or a file that claims
    other rates does not report what fio measured.
    """
    if not side.total_ios or not side.runtime:
        return "its time is 0" if side.total_ios else None
    rates = (("iops", side.iops, side.total_ios), ("bw_bytes", float(side.bw_bytes), side.io_bytes))
    for name, claimed, amount in rates:
        computed = amount / side.runtime * 1000
        if abs(claimed - computed) > 1 + _ROUNDING * computed:
            return f"{name} = {claimed:.6g}, but its I/Os and its time make {computed:.6g}"
    return None


def find_histogram_contradiction(side: Direction) -> str | None:
    """What a histogram says that the other figures of its direction do not, in words; None if nothing.

    A latency is in its histogram within a few percent, up to the limit of fio's bins (17 s).
    """
    bins = side.clat_ns.bins
    ios = sum(bins.values())
    if not ios or not side.total_ios:
        return None
    if abs(ios - side.total_ios) > 1 + _ROUNDING * side.total_ios:
        return f"its histogram has {ios} I/Os, but it completed {side.total_ios}"
    mean = sum(latency * number for latency, number in bins.items()) / ios
    if max(bins) < _LONGEST_NS and abs(mean - side.clat_ns.mean) > _BINS * mean + 100:
        return f"clat_ns mean = {side.clat_ns.mean:.6g}, but its histogram has {mean:.6g}"
    return None


def estimate_in_flight(sides: Iterable[Direction], seconds: float) -> float:
    """How many I/Os were in flight on average, by Little's law: completion latencies of all I/Os by the time."""
    return sum(side.total_ios * side.clat_ns.mean for side in sides) / 1e9 / seconds


_ENTRY = TypeAdapter(JobEntry)


def read_entries(output: str, names: list[str], where: str) -> dict[str, JobEntry]:
    """The jobs with these `names` in fio's output. Raises MeasurementError if one is missing or is not valid."""
    if "{" not in output:
        raise MeasurementError(f"{where}: fio printed no result: {output.strip()[-300:] or '(nothing)'}")
    source = f"{where}: fio's output"
    document = parse_json(output, source, MeasurementError, hint=_HINT, after_notes=True)
    jobs = document.get("jobs", [])
    entries: dict[Any, Any] = {}
    if isinstance(jobs, list):
        entries = {job["jobname"]: job for job in jobs if isinstance(job, dict) and type(job.get("jobname")) is str}
    missing = [name for name in names if name not in entries]
    if missing:
        raise MeasurementError(f"{source} lacks {', '.join(missing)}", hint=_HINT)
    for name in names:
        # Checked first, because fio may omit everything else for a job that failed.
        if failed := entries[name].get("error"):
            raise MeasurementError(
                f"{where}: fio's job {name} failed with error {str(failed)[:40]}",
                hint=f"{_HINT}; EIO (5) means that the disk or a layer below it failed or is gone: see `dmesg` there",
            )
    return {name: _parse_entry(entries[name], name, source) for name in names}


def _parse_entry(entry: object, name: str, source: str) -> JobEntry:
    try:
        return _ENTRY.validate_python(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise MeasurementError(f"{source} cannot be read: job {name}, {key}: {first['msg']}", hint=_HINT) from None


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. `metrics` are by name, in their units, without the ramp.

    `started` is the start of the job in seconds of the machine's uptime, without the ramp, and `ramp_started` the start
    of its ramp, or of the job if it has none; None if this fio does not report them. `histogram` has completions by
    latency in ns, without the ramp, and `sync_histogram` calls of fdatasync. The counters of host and QEMU include the
    ramp. So `transferred`, `ios`, `switches` and fio's CPU time (seconds) include it as well.
    """

    job: str
    seconds: float
    started: float | None
    ramp_started: float | None
    io_bytes: int
    metrics: Mapping[str, float]
    histogram: Mapping[int, int]
    sync_histogram: Mapping[int, int]
    transferred: Transferred
    ios: int
    user_seconds: float
    system_seconds: float
    switches: int
    completed: CompletedIo
    """What the metrics are from."""


def add_results(results: Sequence[JobResult]) -> JobResult:
    """The result of jobs that ran at the same time: the sum of their throughputs, and the latencies of all their I/Os.

    `job`, `seconds` and the starts are those of the first one.
    """
    first, *others = results
    if not others:
        return first
    syncs = [result.completed.syncs for result in results if result.completed.syncs is not None]
    completed = CompletedIo([side for result in results for side in result.completed.sides], merge_syncs(syncs))
    return replace(
        first,
        io_bytes=sum(result.io_bytes for result in results),
        metrics=read_metrics(completed),
        histogram=merged(result.histogram for result in results),
        sync_histogram=merged(result.sync_histogram for result in results),
        transferred=sum((result.transferred for result in results), Transferred()),
        ios=sum(result.ios for result in results),
        user_seconds=sum(result.user_seconds for result in results),
        system_seconds=sum(result.system_seconds for result in results),
        switches=sum(result.switches for result in results),
        completed=completed,
    )


_IMPOSSIBLE = "the machine reports figures that fio cannot have measured; its raw output is stored in raw/ of the run"
_SHORTEST = 0.5
"""Of the requested time. fio runs each job for all of it."""
_FLYING = 2.0
"""Times of the I/Os in flight that a job allows: by Little's law, with a generous margin for the ends of a slice."""


def parse(output: str, sections: Sequence[TimedSection], where: str, *, within: float | None = None) -> list[JobResult]:
    """The results of `sections` from fio's JSON+, in order. `within` is the time in which fio ran, in seconds.

    Raises MeasurementError, which names the machine `where`, if fio failed or omitted a job, or if its figures
    contradict each other, the job or the time.
    """
    entries = read_entries(output, [name for section in sections for name, _ in section.parts], where)
    # Numbers that are valid one by one can still be impossible together.
    with reading(f"{where}: fio's output", MeasurementError, hint="its raw output is stored in raw/ of the run"):
        results = [_make_result(section, [entries[name] for name, _ in section.parts], where) for section in sections]
    for section, result in zip(sections, results, strict=True):
        _require_possible(section, [entries[name] for name, _ in section.parts], result, where, within)
    return results


def _require_possible(
    section: TimedSection, entries: Sequence[JobEntry], result: JobResult, where: str, within: float | None
) -> None:
    sides = [side for entry in entries for side in entry.directions]
    problems = [problem(side) for side in sides for problem in (find_contradiction, find_histogram_contradiction)]
    seconds, depth = result.seconds, section.job.depth
    if seconds < _SHORTEST * section.job.seconds or (within is not None and seconds > within):
        longest = "" if within is None else f", and fio ran for at most {within:.6g} s"
        problems.append(f"it took {seconds:.6g} s, but {section.job.seconds:g} s were requested{longest}")
    elif (
        flying := estimate_in_flight([side for side in entries[-1].directions if side.total_ios], seconds)
    ) > _FLYING * depth:
        problems.append(f"{flying:.6g} I/Os were in flight by its latency and IOPS, but it allows {depth}")
    for problem in problems:
        if problem is not None:
            raise MeasurementError(f"{where}: fio's job {section.name}: {problem}", hint=_IMPOSSIBLE)


def _make_result(section: TimedSection, entries: Sequence[JobEntry], where: str) -> JobResult:
    """The result of the last entry. The ramp, if there is one, comes before it."""
    entry = entries[-1]
    sides = [side for side in entry.directions if side.total_ios]
    if not sides:
        raise MeasurementError(f"{where}: fio's job {section.name} completed no I/O")
    completed = CompletedIo(sides, entry.syncs)
    return JobResult(
        job=section.job.id,
        seconds=max(side.runtime for side in sides) / 1000,
        started=_convert_milliseconds(entry.job_start),
        ramp_started=_convert_milliseconds(entries[0].job_start),
        io_bytes=sum(side.io_bytes for side in sides),
        metrics=read_metrics(completed),
        histogram=merged(side.clat_ns.bins for side in sides),
        sync_histogram=entry.syncs.bins if entry.syncs is not None else {},
        transferred=Transferred(
            read=sum(entry.read.io_bytes for entry in entries),
            written=sum(entry.write.io_bytes for entry in entries),
            trimmed=sum(entry.trim.io_bytes for entry in entries if entry.trim is not None),
        ),
        ios=sum(side.total_ios for entry in entries for side in entry.directions),
        user_seconds=sum(entry.usr_cpu * entry.job_runtime for entry in entries) / 100_000,
        system_seconds=sum(entry.sys_cpu * entry.job_runtime for entry in entries) / 100_000,
        switches=sum(entry.ctx for entry in entries),
        completed=completed,
    )


def _convert_milliseconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
