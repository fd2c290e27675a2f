"""fio on both sides of the comparison: from jobs to its job file, from its JSON+ to metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import merged
from harness.analysis.metrics import QUANTILES, metrics_of
from harness.errors import MeasurementError
from harness.lab.counters import Transferred
from harness.lab.fio_path import fio_path
from harness.lab.paths import MARK
from harness.measure.fio_output import JobEntry, read_entries
from harness.model.job import Job
from harness.untrusted import reading

_FIO = ("fio", "--output-format=json+", "-")
ARGV = ("env", MARK, *_FIO)
"""fio alone, the same on host and guest. The job file comes on standard input."""

# With what the CPUs of fio's machine had done before and after, on standard error: a login of its own for each would
# cost more than the reading.
_WITH_CPU = f'c() {{ read -r cpu </proc/stat; echo "$cpu" >&2; }}; export {MARK}; c; "$@"; status=$?; c; exit $status'
ARGV_WITH_CPU = ("sh", "-c", _WITH_CPU, "sh", *_FIO)

ENGINE = "libaio"
_RAMP = "-ramp"


@dataclass(frozen=True, slots=True)
class Target:
    """What fio opens: `size` bytes from `offset` of `path`. `direct` is False only for a twin of a cached mode."""

    path: str
    offset: int
    size: int
    direct: bool


@dataclass(frozen=True, slots=True)
class JobResult:
    """What fio measured of one job, without its ramp: `metrics` by name, in their units.

    `histogram` is completions by latency in ns. What others count beside fio includes the ramp: so do `transferred`
    and `ios`, and fio's own CPU time in seconds and its context switches.
    """

    job: str
    seconds: float
    io_bytes: int
    metrics: Mapping[str, float]
    histogram: Mapping[int, int]
    transferred: Transferred
    ios: int
    user_seconds: float
    system_seconds: float
    switches: int


def job_file(target: Target, jobs: Sequence[Job], seed: int) -> str:
    """One fio job file that runs `jobs` one after the other on `target`. MeasurementError where fio cannot name it.

    One process for all of them: in a nested guest, starting fio costs as much as a short measurement.
    """
    lines = [
        "[global]",
        f"filename={_filename(target.path)}",
        f"offset={target.offset}",
        f"size={target.size}",
        # Without this a missing device would become a file in RAM, and a very fast one.
        "allow_file_create=0",
        f"ioengine={ENGINE}",
        f"direct={int(target.direct)}",
        # A cached twin is to be served as a cached guest is: from a cache that is warm.
        f"invalidate={int(target.direct)}",
        "thread=1",
        "time_based=1",
        "norandommap=1",
        # The same offsets on all arms of a round that run the same jobs, others in the next round.
        "randrepeat=1",
        f"randseed={seed}",
        "refill_buffers=0",
        "scramble_buffers=1",
        "group_reporting=1",
        # Ours come from the histogram; fio's own are in its output, to compare them with.
        f"percentile_list={':'.join(f'{quantile * 100:g}' for quantile in QUANTILES)}",
        "exitall_on_error=1",
        # The host's own counters are read instead: at its end fio would wait for a last sample, a quarter of a second.
        "disk_util=0",
    ]
    for job in jobs:
        if job.ramp:
            # A job of its own rather than fio's ramp_time, whose bytes fio does not tell: host and QEMU count them.
            lines += _section(f"{job.id}{_RAMP}", job, job.ramp)
        lines += _section(job.id, job, job.seconds)
    return "\n".join(lines) + "\n"


def _section(name: str, job: Job, seconds: float) -> list[str]:
    lines = [
        "",
        f"[{name}]",
        "stonewall",
        f"rw={job.rw}",
        f"bs={job.bs}",
        f"iodepth={job.iodepth}",
        f"numjobs={job.numjobs}",
        f"runtime={_milliseconds(seconds)}",
    ]
    if job.read_share is not None:
        lines.append(f"rwmixread={job.read_share * 100:.0f}")
    if job.rate is not None:
        lines.append(f"rate_iops={_rates(job.rate // job.numjobs, job.read_share)}")
    return lines


def _rates(rate: int, read_share: float | None) -> str:
    """fio limits each direction by itself: a mixed job's rate is the sum of two."""
    if read_share is None:
        return str(rate)
    reads = round(rate * read_share)
    return f"{reads},{rate - reads}"


def _milliseconds(seconds: float) -> str:
    # fio 3.39 reads "1.5s" as one second, and "0.5s" as none.
    return f"{round(seconds * 1000)}ms"


def fill_file(targets: Sequence[tuple[str, int, int]], *, block: int, times: int = 1) -> str:
    """A job file that fills each (path, offset, size) with data that no layer can compress or drop.

    `block` is the size of each write in bytes; `times` is how often every block is written. MeasurementError where fio
    cannot name a path.
    """
    lines = [
        "[global]",
        "allow_file_create=0",
        f"ioengine={ENGINE}",
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
        lines += ["", f"[fill{number}]", "stonewall", f"filename={_filename(path)}", f"offset={offset}", f"size={size}"]
    return "\n".join(lines) + "\n"


def _filename(path: str) -> str:
    try:
        return fio_path(path)
    except ValueError as error:
        raise MeasurementError(
            f"{path!r} cannot be measured: {error}", hint="name the disk, or the directory of its storage, otherwise"
        ) from None


def parse(output: str, jobs: Sequence[Job], where: str) -> list[JobResult]:
    """The results of `jobs` from fio's JSON+, in their order. MeasurementError where fio failed or left one out."""
    names = [name for job in jobs for name in ((job.id, f"{job.id}{_RAMP}") if job.ramp else (job.id,))]
    entries = read_entries(output, names, where)
    # Numbers that fio prints are right one by one, and may still be impossible together.
    with reading(f"{where}: fio's output", MeasurementError, hint="its raw output is kept in raw/ of the run"):
        return [_result(job, entries[job.id], entries[f"{job.id}{_RAMP}"] if job.ramp else None, where) for job in jobs]


def _result(job: Job, entry: JobEntry, ramp: JobEntry | None, where: str) -> JobResult:
    entries = [entry] if ramp is None else [ramp, entry]
    sides = [side for side in entry.directions if side.total_ios]
    if not sides:
        raise MeasurementError(f"{where}: fio's job {job.id} completed no I/O at all")
    return JobResult(
        job=job.id,
        seconds=max(side.runtime for side in sides) / 1000,
        io_bytes=sum(side.io_bytes for side in sides),
        metrics=metrics_of(sides),
        histogram=merged(side.clat_ns.bins for side in sides),
        transferred=Transferred(
            read=sum(each.read.io_bytes for each in entries),
            written=sum(each.write.io_bytes for each in entries),
        ),
        ios=sum(side.total_ios for each in entries for side in each.directions),
        user_seconds=sum(each.usr_cpu * each.job_runtime for each in entries) / 100_000,
        system_seconds=sum(each.sys_cpu * each.job_runtime for each in entries) / 100_000,
        switches=sum(each.ctx for each in entries),
    )
