"""From fio's output of another tool to points: one job of one file each, with its pattern, depth and figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NoReturn, cast, get_args

from harness.analysis import METRICS, merged
from harness.analysis.metrics import Completed, metrics_of
from harness.errors import MeasurementError
from harness.exchange.document import Document, ReportedDirection, ReportedJob, read_document
from harness.model.counters import Transferred
from harness.model.fio_values import KB_BASE, size_of
from harness.model.job import Job, Rw, Workload

_BS_TOLERANCE = 0.05
"""The last block of a file may be shorter."""
_ALIASES = {"readwrite": "rw", "blocksize": "bs", "timeout": "runtime"}
_OF_WORKLOAD = frozenset({"rw", "bs", "iodepth", "numjobs", "rwmixread", "rwmixwrite", "rate_iops", "kb_base"})
_MIXED = ("rw", "randrw")
_PLACE = ("filename", "directory")
# What does not change the work of a job, or has another value in each file.
_NEUTRAL = frozenset(
    {
        *_PLACE,
        "name",
        "description",
        "loops",
        "time_based",
        "group_reporting",
        "stonewall",
        "new_group",
        "thread",
        "startdelay",
        "wait_for_previous",
        "exec_prerun",
        "exec_postrun",
        "exitall_on_error",
        "randseed",
        "percentile_list",
        "clat_percentiles",
        "lat_percentiles",
        "disk_util",
        "output",
        "output-format",
        "job_start_clock_id",
        "log_avg_msec",
        "write_bw_log",
        "write_lat_log",
        "write_iops_log",
        "write_hist_log",
        "log_hist_msec",
        "per_job_logs",
    }
)
_USUAL = frozenset({"ioengine", "direct", "size", "runtime", "ramp_time", "norandommap", "randrepeat", "invalidate"})
"""Options that say how long, where and with which system calls a job works, but not what it does."""


@dataclass(frozen=True, slots=True)
class Point:
    """One job in one output of fio. `started` in seconds since 1970-01-01 UTC, `seconds` by fio's clock."""

    source: str
    version: str
    workload: Workload
    iodepth: int
    options: Mapping[str, str]
    """fio's options that are neither part of the workload nor neutral."""
    place: str
    """The file, device or directory that the job worked on; empty if fio did not print it."""
    started: float
    seconds: float
    processes: tuple[ReportedJob, ...]
    """fio's entries for the job: one, or one for each process."""
    notes: tuple[str, ...]

    @property
    def job_id(self) -> str:
        return self.job(self.seconds).id

    def job(self, seconds: float) -> Job:
        """Its measurement point, with this time."""
        return self.workload.job(self.iodepth, ramp=0.0, seconds=seconds)

    @property
    def sides(self) -> tuple[ReportedDirection, ...]:
        """The directions in which its processes completed I/Os."""
        return tuple(side for process in self.processes for side in process.sides)

    @property
    def histogram(self) -> dict[int, int]:
        """Completions by latency in ns; empty unless each process has a histogram."""
        bins = [side.clat_ns.bins for side in self.sides]
        return dict(merged(bins)) if all(bins) else {}

    @property
    def metrics(self) -> dict[str, float]:
        """Its values by metric name. Percentiles are from the histogram; without one, there are none.

        Latencies that fio did not measure (`gtod_reduce`) are left out: it prints 0 for them.
        """
        syncs = self.processes[0].syncs if len(self.processes) == 1 else None
        found = metrics_of(Completed(self.sides, syncs))
        return {name: value for name, value in found.items() if value > 0 or not METRICS[name].is_latency}

    @property
    def own_percentiles(self) -> dict[str, float]:
        """fio's own percentiles by metric name, in seconds. Empty if the point has several processes or directions:
        percentiles cannot be merged."""
        if len(self.sides) != 1:
            return {}
        side = self.sides[0]
        found = {}
        for metric in METRICS.values():
            if metric.of == "ios" and metric.quantile is not None and side.total_ios >= metric.fewest_ios:
                value = side.clat_ns.percentile.get(f"{metric.quantile * 100:.6f}")
                if value:
                    found[metric.name] = value / 1e9
        return found

    @property
    def transferred(self) -> Transferred:
        return Transferred(
            read=sum(each.read.io_bytes for each in self.processes),
            written=sum(each.write.io_bytes for each in self.processes),
        )

    @property
    def further(self) -> dict[str, str]:
        """The options that change the work of the job and that its id does not show."""
        return {name: value for name, value in self.options.items() if name not in _USUAL}

    @property
    def buffered(self) -> bool:
        """Whether the page cache of its system took part. fio's default is buffered I/O."""
        return self.options.get("direct", "0") == "0"


def read_points(data: bytes, source: str) -> tuple[Point, ...]:
    """The points of one output of fio, in its order. Raises MeasurementError, which names `source`."""
    document = read_document(data, source)
    points = []
    for number, group in groupby(document.jobs, key=lambda job: job.groupid):
        processes = tuple(group)
        names = list(dict.fromkeys(process.jobname for process in processes))
        if len(names) > 1:
            raise MeasurementError(
                f"{source}: jobs {' and '.join(names)} ran at the same time (groupid {number}), so no figure is of one "
                "job alone",
                hint="add `stonewall` to each job, and measure again",
            )
        points.append(_point(document, processes, source))
    return tuple(points)


def _point(document: Document, processes: tuple[ReportedJob, ...], source: str) -> Point:
    first = processes[0]
    where = f"{source}: job {first.jobname}"
    named = {**document.options, **first.options}
    options = {_ALIASES.get(name, name): value for name, value in named.items()}
    workload, iodepth = _workload(options, where), _number(options, "iodepth", where)
    if len(processes) not in (1, workload.numjobs):
        raise MeasurementError(
            f"{where}: numjobs = {workload.numjobs}, but there are {len(processes)} results",
            hint="restore the whole file, or measure again",
        )
    sides = [side for process in processes for side in process.sides]
    if not sides:
        raise MeasurementError(f"{where} completed no I/O", hint="find out why in fio's messages, and measure again")
    _check_sizes(sides, workload.bs, where)
    point = Point(
        source=source,
        version=document.version,
        workload=workload,
        iodepth=iodepth,
        options={name: value for name, value in options.items() if name not in _NEUTRAL | _OF_WORKLOAD},
        place=next((options[name] for name in _PLACE if options.get(name)), ""),
        started=_started(document, processes, options),
        seconds=max(side.runtime for side in sides) / 1000,
        processes=processes,
        notes=(f"fio printed: {' '.join(document.notes.split())[:300]}",) if document.notes else (),
    )
    # Numbers that are valid one by one can still be impossible together.
    impossible = [name for name, value in point.metrics.items() if not math.isfinite(value)]
    timed = 0 < point.seconds <= document.written
    if impossible or not timed or point.started < 0:
        what = ", ".join(impossible) or ("its start" if timed else "its time")
        raise MeasurementError(f"{where}: {what} is impossible", hint="restore the file, or measure again")
    return point


def _started(document: Document, processes: Sequence[ReportedJob], options: Mapping[str, str]) -> float:
    """fio reports the start since 3.36. Before, it is the time of the output, less the time that the job took."""
    reported = processes[0].job_start
    if reported is not None and "job_start_clock_id" not in options and reported / 1000 <= document.written:
        return reported / 1000
    return document.written - max(process.job_runtime for process in processes) / 1000


def _workload(options: Mapping[str, str], where: str) -> Workload:
    rw = options.get("rw", "read")
    rw = _ALIASES.get(rw, rw)
    if rw not in get_args(Rw):
        _refuse(where, "rw", rw, f"virt-overhead knows {', '.join(get_args(Rw))}")
    numjobs = _number(options, "numjobs", where)
    return Workload(
        cast(Rw, rw),
        _block_size(options, where),
        numjobs,
        _read_share(options, where) if rw in _MIXED else None,
        _rate(options, rw, numjobs, where) if "rate_iops" in options else None,
    )


def _block_size(options: Mapping[str, str], where: str) -> int:
    text = options.get("bs", "4k")
    base = _number(options, "kb_base", where, KB_BASE)
    if base not in (1000, KB_BASE):
        _refuse(where, "kb_base", str(base), "it must be 1024 or 1000")
    try:
        sizes = {size_of(size, base) for size in text.split(",") if size}
    except ValueError:
        sizes = set()
    for name in ("bsrange", "bssplit"):
        if name in options:
            _refuse(where, name, options[name], "only jobs with one block size can be imported")
    if len(sizes) != 1 or not min(sizes):
        _refuse(where, "bs", text, "only jobs with one block size can be imported, for example bs=4k")
    return sizes.pop()


def _read_share(options: Mapping[str, str], where: str) -> float:
    reads = _number(options, "rwmixread", where, 50)
    if "rwmixread" not in options and "rwmixwrite" in options:
        reads = 100 - _number(options, "rwmixwrite", where)
    return reads / 100


def _rate(options: Mapping[str, str], rw: str, numjobs: int, where: str) -> int:
    """The requested IOPS of all processes. fio limits each process and direction separately."""
    text = options["rate_iops"]
    parts = text.split(",")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        _refuse(where, "rate_iops", text, "it must be a whole number, or two with a comma for reads and writes")
    reads, writes = int(parts[0]), int(parts[-1])
    return numjobs * (reads + writes if rw in _MIXED else writes if "write" in rw else reads)


def _number(options: Mapping[str, str], name: str, where: str, default: int = 1) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or (int(text) == 0 and not name.startswith("rwmix")):
        _refuse(where, name, text, "it must be a whole number")
    return int(text)


def _check_sizes(sides: Sequence[ReportedDirection], bs: int, where: str) -> None:
    for side in sides:
        mean = side.io_bytes / side.total_ios
        if abs(mean - bs) > _BS_TOLERANCE * bs:
            raise MeasurementError(
                f"{where}: bs = {bs}, but its I/Os have {mean:.0f} bytes on average",
                hint="only jobs with one block size can be imported",
            )


def _refuse(where: str, key: str, value: str, why: str) -> NoReturn:
    raise MeasurementError(f"{where}: {key} = {value[:60]!r} cannot be imported", hint=why)


def differences(several: Sequence[Point], others: Sequence[Point]) -> Iterator[str]:
    """In what two sets of points of one job differ: "fio version (fio-3.28 / fio-3.36)"."""
    values = [[{"fio version": each.version, **each.options} for each in points] for points in (several, others)]
    for name in dict.fromkeys(name for points in values for each in points for name in each):
        shown = [" or ".join(sorted({each.get(name, "not set") or "set" for each in points})) for points in values]
        if shown[0] != shown[1]:
            yield f"{name} ({shown[0]} / {shown[1]})"
