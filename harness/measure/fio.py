"""fio on host and guest: writes job files, and reads metrics from its JSON+ output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis import merged
from harness.analysis.metrics import QUANTILES, metrics_of
from harness.errors import MeasurementError
from harness.lab.fio_path import fio_path
from harness.lab.paths import MARK
from harness.measure.fio_output import JobEntry, read_entries
from harness.model.counters import Transferred
from harness.model.job import Job
from harness.untrusted import reading

_FIO = ("fio", "--output-format=json+", "-")
ARGV = ("env", MARK, *_FIO)
"""Only fio, with the same arguments on host and guest. The job file is on standard input."""

# Also prints the CPU times of fio's machine before and after, on standard error. Separate logins for these two readings
# would take much longer.
_WITH_CPU = f'c() {{ read -r cpu </proc/stat; echo "$cpu" >&2; }}; export {MARK}; c; "$@"; status=$?; c; exit $status'
ARGV_WITH_CPU = ("sh", "-c", _WITH_CPU, "sh", *_FIO)

ENGINE = "libaio"
_RAMP = "-ramp"


@dataclass(frozen=True, slots=True)
class Target:
    """The target of fio: `size` bytes from `offset` of `path`. `direct` is False only for a twin of a cached mode."""

    path: str
    offset: int
    size: int
    direct: bool


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job. `metrics` are by name, in their units, without the ramp.

    `histogram` has completions by latency in ns, without the ramp. The counters of host and QEMU include the ramp. So
    `transferred`, `ios`, `switches` and fio's CPU time (seconds) include it as well.
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
    """A fio job file that runs `jobs` one after the other on `target`.

    All jobs run in one process, because in a nested guest the start of fio takes as long as a short measurement. Raises
    MeasurementError if fio does not accept the path.
    """
    lines = [
        "[global]",
        f"filename={_filename(target.path)}",
        f"offset={target.offset}",
        f"size={target.size}",
        # Without this, fio would create a file in RAM for a missing device, which would be very fast.
        "allow_file_create=0",
        f"ioengine={ENGINE}",
        f"direct={int(target.direct)}",
        # A cached twin must have a warm cache, in the same way as a cached guest.
        f"invalidate={int(target.direct)}",
        "thread=1",
        "time_based=1",
        "norandommap=1",
        # All arms of a round that run the same jobs use the same offsets. The next round uses others.
        "randrepeat=1",
        f"randseed={seed}",
        "refill_buffers=0",
        "scramble_buffers=1",
        "group_reporting=1",
        # virt-overhead computes percentiles from the histogram. fio's percentiles are in its output for comparison.
        f"percentile_list={':'.join(f'{quantile * 100:g}' for quantile in QUANTILES)}",
        "exitall_on_error=1",
        # virt-overhead reads the host's counters itself. At its end, fio would wait 0.25 s for a last sample.
        "disk_util=0",
    ]
    for job in jobs:
        if job.ramp:
            # A separate job instead of fio's ramp_time: fio does not report the bytes of ramp_time, but host and QEMU
            # count them.
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
    """fio limits each direction separately, so the rate of a mixed job is the sum of two rates."""
    if read_share is None:
        return str(rate)
    reads = round(rate * read_share)
    return f"{reads},{rate - reads}"


def _milliseconds(seconds: float) -> str:
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
            f"{path!r} cannot be measured: {error}",
            hint="use another name for the disk, or for the directory of its storage",
        ) from None


def parse(output: str, jobs: Sequence[Job], where: str) -> list[JobResult]:
    """The results of `jobs` from fio's JSON+, in their order. Raises MeasurementError if fio failed or omitted one."""
    names = [name for job in jobs for name in ((job.id, f"{job.id}{_RAMP}") if job.ramp else (job.id,))]
    entries = read_entries(output, names, where)
    # Numbers that are valid one by one can still be impossible together.
    with reading(f"{where}: fio's output", MeasurementError, hint="its raw output is stored in raw/ of the run"):
        return [_result(job, entries[job.id], entries[f"{job.id}{_RAMP}"] if job.ramp else None, where) for job in jobs]


def _result(job: Job, entry: JobEntry, ramp: JobEntry | None, where: str) -> JobResult:
    entries = [entry] if ramp is None else [ramp, entry]
    sides = [side for side in entry.directions if side.total_ios]
    if not sides:
        raise MeasurementError(f"{where}: fio's job {job.id} completed no I/O")
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
