"""From fio's output of another tool to points: one job of one file each, with its pattern, depth and figures. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis import METRICS, merged
from harness.analysis.metrics import CompletedIo, read_metrics
from harness.config.names import LONGEST_NAME
from harness.errors import MeasurementError
from harness.features.exchange.document import (
    LATENCY_ROUNDING,
    Document,
    ReportedDirection,
    ReportedJob,
    read_documents,
)
from harness.features.exchange.section import PLACE, JobSection, check_section, identify_disk, split_sections
from harness.features.exchange.timeline import Stage, derive_stages, select_final
from harness.measure.fio import SyncLatency
from harness.model.counters import Transferred
from harness.model.job import FioOption, FioSection, FromFile, Job, Rw, Workload
from harness.untrusted import LARGEST


def combine(sections: Sequence[JobSection]) -> Workload:
    """The workload of several sections, named after them. Raises MeasurementError if one is not supported."""
    label = _name_sections([section.name for section in sections])
    workloads = [section.workload() for section in sections]
    rates = [workload.rate for workload in workloads]
    return Workload(
        _combine_patterns(sections),
        max(workload.bs for workload in workloads),
        sum(section.numjobs for section in sections),
        rate=sum(rate for rate in rates if rate is not None) if None not in rates else None,
        label=label,
        iodepths=(max(section.iodepth for section in sections),),
        syncs=all(section.syncs for section in sections),
        poisson=all(workload.poisson for workload in workloads),
        from_file=FromFile(
            f"{label}.fio",
            tuple(_to_model(section) for section in sections),
            saturating=not any(section.is_paced or _flushes(section) for section in sections),
            paced=all(section.is_paced for section in sections),
            flushes=any(_flushes(section) for section in sections),
        ),
    )


def _flushes(section: JobSection) -> bool:
    return any(section.options.get(name, "0") != "0" for name in ("fsync", "fdatasync"))


def _to_model(section: JobSection) -> FioSection:
    values = {"ioengine": section.engine, **section.options, "bs": str(section.bs)}
    return FioSection(
        section.name,
        tuple(FioOption(name, value) for name, value in values.items() if value),
        processes=section.numjobs,
        iodepth=section.iodepth,
    )


def _combine_patterns(sections: Sequence[JobSection]) -> Rw:
    """What the sections do together. It is random if one of them is."""
    random = any(section.rw.startswith("rand") for section in sections)
    if not any(section.writes for section in sections):
        return "randread" if random else "read"
    if not any(section.reads for section in sections):
        return "randwrite" if random else "write"
    return "randrw" if random else "rw"


def _name_sections(names: Sequence[str]) -> str:
    """`reader-and-log`, or `reader-and-3` if that is too long."""
    plain = [re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "section" for name in names]
    label = "-and-".join(plain)
    if len(label) > LONGEST_NAME:
        number = f"-and-{len(plain) - 1}"
        label = f"{plain[0][: LONGEST_NAME - len(number)].strip('-')}{number}"
    return label


_OF_WORKLOAD = frozenset({"rw", "bs", "iodepth", "numjobs", "rwmixread", "rwmixwrite", "rate_iops", "kb_base"})
# What does not change the work of a job, or has another value in each file.
_NEUTRAL = frozenset(
    {
        *PLACE,
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
        "unified_rw_reporting",
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
_USUAL = frozenset(
    {"ioengine", "direct", "buffered", "size", "runtime", "ramp_time", "norandommap", "randrepeat", "invalidate"}
)
"""Options that say how long, where and with which system calls a job works, but not what it does."""
_RESTORE = "restore the file, or measure again"
_WAITING_ENGINES = frozenset({"sync", "psync", "vsync", "pvsync", "pvsync2", "mmap"})


@dataclass(frozen=True, slots=True)
class Point:
    """One job in one output of fio. `started` in seconds since 1970-01-01 UTC, `seconds` by fio's clock."""

    source: str
    version: str
    workload: Workload
    iodepth: int
    options: Mapping[str, str]
    """fio's options that are neither part of the workload nor neutral."""
    way: str
    """How it does I/O: fio's engine, direct or buffered. Empty if that is not known."""
    place: str
    """The file, device or directory that the job worked on; empty if fio did not print it."""
    started: float
    seconds: float
    """From the first start to the last end of its processes, without the ramp."""
    sides: tuple[ReportedDirection, ...]
    """The directions in which its processes completed I/Os, without reads that verify."""
    processes: tuple[ReportedJob, ...]
    """fio's entries for the job: one, or one for each process."""
    unequal: bool
    """Whether its processes ran for different times."""
    notes: tuple[str, ...]
    options_known: bool = True
    """Whether an option that is not in `options` was not set: fio's text output has few of them."""

    @property
    def job_id(self) -> str:
        return self.job(self.seconds).id

    def job(self, seconds: float) -> Job:
        """Its measurement point, with this time."""
        return self.workload.job(self.iodepth, ramp=0.0, seconds=seconds)

    @property
    def histogram(self) -> dict[int, int]:
        """Completions by latency in ns; empty unless each process has a histogram."""
        bins = [side.clat_ns.bins for side in self.sides]
        return dict(merged(bins)) if all(bins) else {}

    @property
    def sync_histogram(self) -> dict[int, int]:
        """Calls of fdatasync by latency in ns; empty unless each process that called it has a histogram."""
        return dict(self._syncs.bins) if self._syncs is not None else {}

    @property
    def waits_for_each(self) -> bool:
        """Whether its engine waits for each I/O although a depth was requested."""
        engines = {part.partition(",")[0] for part in self.way.split("; ")}
        return self.iodepth > 1 and engines <= _WAITING_ENGINES

    @property
    def total_latencies_only(self) -> bool:
        """Whether fio printed percentiles of the total latency, but not of the completion latency."""
        return all(side.lat_ns.percentile or side.lat_ns.bins for side in self.sides) and not any(
            side.clat_ns.percentile or side.clat_ns.bins for side in self.sides
        )

    @property
    def percentiles_off(self) -> bool:
        """Whether fio measured latencies, but neither printed percentiles nor a histogram of them."""
        return not any(side.clat_ns.percentile or side.clat_ns.bins for side in self.sides)

    @property
    def metrics(self) -> dict[str, float]:
        """Its values by metric name. Percentiles are from the histogram; without one, there are none.

        The rates of several processes or directions are all I/Os and bytes by the time in which they ran: the sum of
        their own rates is more, because they neither start nor end at exactly the same time. Latencies that fio
        did not measure (`gtod_reduce`) are left out: it prints 0 for them.
        """
        values = read_metrics(CompletedIo(self.sides, self._syncs))
        if self.unequal or len(self.sides) > 1:
            values["iops"] = sum(side.total_ios for side in self.sides) / self.seconds
            values["bw"] = sum(side.io_bytes for side in self.sides) / self.seconds
        return {name: value for name, value in values.items() if value > 0 or not METRICS[name].is_latency}

    @property
    def _syncs(self) -> SyncLatency | None:
        """The calls of fdatasync of all processes; None without."""
        known = [(entry.sync.calls, entry.syncs) for entry in self.processes if entry.sync and entry.syncs]
        calls = sum(number for number, _ in known)
        if not calls:
            return None
        bins = [syncs.bins for _, syncs in known]
        return SyncLatency(
            mean=sum(number / calls * syncs.mean for number, syncs in known),
            bins=merged(bins) if all(bins) else {},
            N=calls,
        )

    @property
    def own_percentiles(self) -> dict[str, float]:
        """fio's own percentiles by metric name, in seconds. Of I/Os, empty if the point has several entries or
        directions, and of fdatasync, if it has several entries: percentiles cannot be merged."""
        percentiles = {}
        syncs = self.processes[0].syncs if len(self.processes) == 1 else None
        calls = self.processes[0].sync.calls if syncs is not None and self.processes[0].sync is not None else 0
        alone = self.sides[0] if len(self.sides) == 1 else None
        for metric in METRICS.values():
            printed = alone.clat_ns.percentile if alone is not None else {}
            number = alone.total_ios if alone is not None else 0
            if metric.of == "syncs":
                printed, number = (syncs.percentile if syncs is not None else {}), calls
            if metric.quantile is not None and number >= metric.fewest_ios:
                value = printed.get(f"{metric.quantile * 100:.6f}")
                if value:
                    percentiles[metric.name] = value / 1e9
        return percentiles

    @property
    def transferred(self) -> Transferred:
        """Its bytes by direction. fio does not print them for a mixed pattern with `unified_rw_reporting`."""
        if any(entry.unified for entry in self.processes):
            total = sum(side.io_bytes for side in self.sides)
            if self.workload.reads and self.workload.writes:
                return Transferred()
            return Transferred(read=total) if self.workload.reads else Transferred(written=total)
        return Transferred(
            read=sum(entry.read.io_bytes for entry in self.processes if entry.read in self.sides),
            written=sum(entry.write.io_bytes for entry in self.processes),
        )

    @property
    def further(self) -> dict[str, str]:
        """The options that change the work of the job and that its id does not show."""
        return {name: value for name, value in self.options.items() if name.rpartition(".")[2] not in _USUAL}

    @property
    def buffered(self) -> bool:
        """Whether the page cache of its system took part."""
        return "buffered" in self.way


def read_points(data: bytes, source: str, written: float | None = None) -> tuple[Point, ...]:
    """The points of the outputs of fio in `data`, in their order. Raises MeasurementError, which names `source`.

    `written` is when the file was, for forms of fio's output that have no time.
    """
    documents = select_final(read_documents(data, source, written), source)
    return tuple(point for document in documents for point in derive_points(document, source))


def derive_points(document: Document, source: str) -> tuple[Point, ...]:
    """The points of a document. Raises MeasurementError, which names `source`, if one would not be right."""
    sections = split_sections(document, source)
    for section in sections:
        _require_possible_times(document, section)
        for problem in _find_impossible_latencies(section):
            raise MeasurementError(f"{section.where}: {problem}", hint=_RESTORE)
    signs = {id(section): tuple(check_section(section)) for section in sections}
    stages = derive_stages(sections, source)
    last = max(stage.span.last for stage in stages)
    return tuple(
        _derive_point(
            document, stage, last, source, [note for section in stage.sections for note in signs[id(section)]]
        )
        for stage in stages
    )


def _require_possible_times(document: Document, section: JobSection) -> None:
    times = {
        "its time": max((side.runtime for side in section.sides), default=1),
        "its start": max(entry.job_runtime / (section.numjobs if section.together else 1) for entry in section.entries),
    }
    for name, milliseconds in times.items():
        if milliseconds > document.written * 1000 or (name == "its time" and not milliseconds):
            raise MeasurementError(f"{section.where}: {name} is impossible", hint=_RESTORE)


def _find_impossible_latencies(section: JobSection) -> Iterator[str]:
    """Latencies that cannot be true together: of a file that was changed, or of counters that overflowed."""
    for side in section.sides:
        for name, spread in (("clat_ns", side.clat_ns), ("lat_ns", side.lat_ns)):
            if problem := spread.find_contradiction():
                yield f"{name} {problem}"
        if 0 < side.lat_ns.mean < side.clat_ns.mean * (1 - LATENCY_ROUNDING):
            yield (f"lat_ns mean = {side.lat_ns.mean:.6g}, but clat_ns mean, a part of it, = {side.clat_ns.mean:.6g}")
    seconds = max((side.runtime for side in section.sides), default=0) / 1000
    syncs = [entry.sync for entry in section.entries if entry.sync]
    for sync in syncs:
        if (number := sum(sync.lat_ns.bins.values())) and abs(number - sync.calls) > 1 + 0.02 * sync.calls:
            yield f"the histogram of fdatasync has {number} calls, but there were {sync.calls}"
    syncing = sum(sync.calls * sync.lat_ns.mean for sync in syncs) / 1e9
    if section.syncs and syncing > 2 * section.depth * seconds:
        yield f"its calls of fdatasync took {syncing:.6g} s together, but it ran for {seconds:g} s"


def _derive_point(document: Document, stage: Stage, last: float, source: str, signs: Sequence[str]) -> Point:
    first = stage.sections[0]
    several = len(stage.sections) > 1
    workload = combine(stage.sections) if several else _to_workload(first)
    notes = [f"fio printed: {' '.join(document.notes.split())[:300]}"] if document.notes else []
    notes += document.remarks
    point = Point(
        source=source,
        version=document.version,
        workload=workload,
        iodepth=max(section.iodepth for section in stage.sections),
        options={
            f"{section.name}.{name}" if several else name: value
            for section in stage.sections
            for name, value in section.options.items()
            if _is_shown(name, value, workload)
        },
        way="; ".join(dict.fromkeys(map(_describe_engine, stage.sections))) if document.options_known else "",
        place=_require_one_place(stage.sections, source),
        started=_derive_start(document, stage, last),
        seconds=stage.seconds,
        sides=tuple(side for section in stage.sections for side in section.sides),
        processes=tuple(entry for section in stage.sections for entry in section.entries),
        unequal=stage.unequal,
        notes=(*notes, *stage.notes, *signs, *_note_stage(stage)),
        options_known=document.options_known,
    )
    # Numbers that are valid one by one can still be impossible together.
    values = point.own_percentiles | point.metrics
    most = {name: document.written if METRICS[name].is_latency else LARGEST for name in values}
    impossible = [name for name, value in values.items() if not value <= most[name]]
    timed = 0 < point.seconds <= document.written
    if impossible or not timed or point.started < 0:
        what = ", ".join(impossible) or ("its start" if timed else "its time")
        raise MeasurementError(f"{first.where}: {what} is impossible", hint=_RESTORE)
    return point


def _is_shown(name: str, value: str, workload: Workload) -> bool:
    """Whether the option can change the work, and the workload does not show it. `rw=randread:8` has a part that is."""
    if name == "rw":
        return ":" in value
    return name not in _NEUTRAL | _OF_WORKLOAD and not (name == "rate" and workload.rate is not None)


def _to_workload(section: JobSection) -> Workload:
    """Without the calls of fdatasync that this fio did not measure, the workload has no figure of them."""
    workload = section.workload()
    return replace(workload, syncs=workload.syncs and all(entry.syncs for entry in section.entries))


def _describe_engine(section: JobSection) -> str:
    """How it does I/O: not part of a job's id, but figures of different ways do not belong together."""
    return f"{section.engine}, {'buffered' if section.buffered else 'direct'}"


def _require_one_place(sections: Sequence[JobSection], source: str) -> str:
    """The place that all sections use. Raises MeasurementError if they use different devices."""
    places = list(dict.fromkeys(section.place for section in sections if section.place))
    if len({identify_disk(place) for place in places}) > 1:
        names = " and ".join(section.name for section in sections)
        raise MeasurementError(
            f"{source}: jobs {names} ran at the same time on several disks: {', '.join(places)}",
            hint="measure one disk at a time: add `stonewall` to each section",
        )
    return ", ".join(places)


def _derive_start(document: Document, stage: Stage, last: float) -> float:
    """fio reports the start since 3.36. Before, it is the time of the output, less the time of what ran since then."""
    reported = [entry.job_start for section in stage.sections for entry in section.entries]
    known = [start for start in reported if start is not None]
    clock = any("job_start_clock_id" in section.options for section in stage.sections)
    if len(known) == len(reported) and not clock and min(known) / 1000 <= document.written:
        return min(known) / 1000
    return document.written - (last - stage.span.began)


def _note_stage(stage: Stage) -> Iterator[str]:
    disks = [identify_disk(section.place) for section in stage.sections if section.place]
    if disks and len(several := disks[0].split(", ")) > 1:
        yield f"it worked on several disks at the same time: {' and '.join(several)}"
    if len(stage.sections) > 1:
        names = " and ".join(section.name for section in stage.sections)
        yield f"sections {names} ran at the same time: one job, with the sum of their I/Os"
    if stage.unequal:
        runs = stage.runs
        yield (
            f"its processes did not run for the same time: {min(runs):.1f} to {max(runs):.1f} s. Its IOPS are all I/Os "
            f"by the {stage.seconds:.1f} s from the first start to the last end"
        )
    verifying = [section for section in stage.sections if section.verifies]
    if verifying:
        yield "fio read what it wrote to verify it; these reads are not counted"
    for section in stage.sections:
        if any(entry.unified for entry in section.entries):
            yield "fio reported reads and writes together (unified_rw_reporting)"


def list_varying(points: Sequence[Point]) -> Iterator[str]:
    """In what the points of one arm and job differ: "size (1g or 8g)"."""
    values = [{"fio version": point.version, **point.options} for point in points if point.options_known]
    for name in dict.fromkeys(name for value in values for name in value):
        shown = sorted({value.get(name, "not set") or "set" for value in values})
        if len(shown) > 1:
            yield f"{name} ({' or '.join(shown)})"


def list_differences(several: Sequence[Point], others: Sequence[Point]) -> Iterator[str]:
    """In what two sets of points of one job differ: "fio version (fio-3.28 / fio-3.36)"."""
    values = [[{"fio version": point.version, **point.options} for point in points] for points in (several, others)]
    known = all(point.options_known for point in (*several, *others))
    for name in dict.fromkeys(name for points in values for point in points for name in point):
        if not known and not all(name in point for points in values for point in points):
            continue
        shown = [" or ".join(sorted({point.get(name, "not set") or "set" for point in points})) for points in values]
        if shown[0] != shown[1]:
            yield f"{name} ({shown[0]} / {shown[1]})"
