"""fio on host and guest: writes its job files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.analysis.metrics import QUANTILES
from harness.errors import MeasurementError
from harness.lab.paths import MARK
from harness.measure.platform import ENGINE, LINUX, PROGRAM, Platform, fio_command
from harness.model.job import BlockShare, Job

_RAMP = "-ramp"
_LIBAIO = f"ioengine={ENGINE}"
"""The option in a user's own file for the asynchronous I/O of the system."""


def marked(program: str = PROGRAM) -> tuple[str, ...]:
    """The command of fio on Linux, with the mark of this process, by which reap finds it."""
    return "env", MARK, *fio_command(program)


@dataclass(frozen=True, slots=True)
class Target:
    """The target of fio: `size` bytes from `offset` of `path`. `direct` is False only for a twin of a cached mode.

    `block` is the smallest I/O in bytes. Smaller ones of a workload with several sizes are rounded up.
    """

    path: str
    offset: int
    size: int
    direct: bool
    block: int = 512


@dataclass(frozen=True, slots=True)
class Section:
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
    sections: Sequence[Section],
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
    """Whether fio's job with this name is the ramp of a section."""
    return name.endswith(_RAMP)


def reports_start(version: str) -> bool:
    """Whether this fio ("fio-3.39") reports when a job started."""
    match = re.match(r"fio-([0-9]+)\.([0-9]+)", version)
    return match is not None and (int(match[1]), int(match[2])) >= (3, 36)


def _release_together(
    name: str, section: Section, seconds: float, wait: Sequence[str], platform: Platform
) -> Iterator[str]:
    """The sections of fio that wait for the same start: one, or those of a user's own file. `wait` is the option.

    They are one group, so fio reports their sums, means and histograms together, under the first name.
    """
    start = ["stonewall"]
    if section.delay is not None:
        start = [f"startdelay={_format_milliseconds(section.delay)}", *wait]
    for place, pattern in enumerate(_patterns(section.job, section.target.block)):
        yield from ("", f"[{name}+{place}]" if place else f"[{name}]")
        if place == 0:
            yield "new_group"
        yield from (f"ioengine={platform.engine}" if line == _LIBAIO else line for line in pattern)
        yield from _write_limit(section, pattern)
        yield from _place(section, seconds, platform)
        if place == 0 or section.delay is not None:
            yield from start


def _write_limit(section: Section, pattern: Sequence[str]) -> Iterator[str]:
    """The limit of each process of this pattern: an equal part. fio accepts only one rate, so one of its own stays.

    fio limits the bytes since the start of the job, so a slower disk never waits for it. `rate=,N` limits only writes.
    """
    if section.write_limit is None or any(line.startswith(("rate=", "rate_iops=")) for line in pattern):
        return
    job = section.job
    processes = sum(section.processes for section in job.from_file.sections) if job.from_file else job.numjobs
    yield f"rate=,{max(section.write_limit // processes, 1)}"


def _place(section: Section, seconds: float, platform: Platform) -> list[str]:
    """Where and how long fio runs. Nothing in a user's own file changes this."""
    job, target = section.job, section.target
    return [
        f"filename={_check_filename(target.path, platform)}",
        f"offset={target.offset}",
        f"size={min(target.size, job.region or target.size)}",
        f"direct={int(target.direct)}",
        # A cached twin must have a warm cache, in the same way as a cached guest.
        f"invalidate={int(target.direct)}",
        f"runtime={_format_milliseconds(seconds)}",
    ]


def _patterns(job: Job, block: int) -> Iterator[list[str]]:
    """The I/O pattern of each section of fio. `block` as in Target."""
    if job.from_file is None:
        yield _pattern(job, block)
    else:
        for section in job.from_file.sections:
            yield [f"{option.name}={option.value}" for option in section.options_for(block)]


def _pattern(job: Job, block: int) -> list[str]:
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
    return [*lines, *_behaviour(job)]


def _behaviour(job: Job) -> Iterator[str]:
    """What only some workloads do."""
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
            f"{path!r} cannot be measured: {error}",
            hint="use another name for the disk, or for the directory of its storage",
        ) from None
