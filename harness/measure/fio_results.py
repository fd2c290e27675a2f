"""What fio measured: the results of its jobs, from its JSON+ output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.analysis import merged
from harness.analysis.metrics import Completed, all_syncs, metrics_of
from harness.errors import MeasurementError
from harness.measure.fio import Section
from harness.measure.fio_output import JobEntry, contradiction, histogram_contradiction, in_flight, read_entries
from harness.model.counters import Transferred
from harness.untrusted import reading


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
    completed: Completed
    """What the metrics are from."""


def together(results: Sequence[JobResult]) -> JobResult:
    """The result of jobs that ran at the same time: the sum of their throughputs, and the latencies of all their I/Os.

    `job`, `seconds` and the starts are those of the first one.
    """
    first, *others = results
    if not others:
        return first
    syncs = [result.completed.syncs for result in results if result.completed.syncs is not None]
    completed = Completed([side for result in results for side in result.completed.sides], all_syncs(syncs))
    return replace(
        first,
        io_bytes=sum(result.io_bytes for result in results),
        metrics=metrics_of(completed),
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


def parse(output: str, sections: Sequence[Section], where: str, *, within: float | None = None) -> list[JobResult]:
    """The results of `sections` from fio's JSON+, in order. `within` is the time in which fio ran, in seconds.

    Raises MeasurementError, which names the machine `where`, if fio failed or omitted a job, or if its figures
    contradict each other, the job or the time.
    """
    entries = read_entries(output, [name for section in sections for name, _ in section.parts], where)
    # Numbers that are valid one by one can still be impossible together.
    with reading(f"{where}: fio's output", MeasurementError, hint="its raw output is stored in raw/ of the run"):
        results = [_result(section, [entries[name] for name, _ in section.parts], where) for section in sections]
    for section, result in zip(sections, results, strict=True):
        _require_possible(section, [entries[name] for name, _ in section.parts], result, where, within)
    return results


def _require_possible(
    section: Section, entries: Sequence[JobEntry], result: JobResult, where: str, within: float | None
) -> None:
    sides = [side for entry in entries for side in entry.directions]
    problems = [problem(side) for side in sides for problem in (contradiction, histogram_contradiction)]
    seconds, depth = result.seconds, section.job.depth
    if seconds < _SHORTEST * section.job.seconds or (within is not None and seconds > within):
        longest = "" if within is None else f", and fio ran for at most {within:.6g} s"
        problems.append(f"it took {seconds:.6g} s, but {section.job.seconds:g} s were requested{longest}")
    elif (flying := in_flight([side for side in entries[-1].directions if side.total_ios], seconds)) > _FLYING * depth:
        problems.append(f"{flying:.6g} I/Os were in flight by its latency and IOPS, but it allows {depth}")
    for problem in problems:
        if problem is not None:
            raise MeasurementError(f"{where}: fio's job {section.name}: {problem}", hint=_IMPOSSIBLE)


def _result(section: Section, entries: Sequence[JobEntry], where: str) -> JobResult:
    """The result of the last entry. The ramp, if there is one, comes before it."""
    entry = entries[-1]
    sides = [side for side in entry.directions if side.total_ios]
    if not sides:
        raise MeasurementError(f"{where}: fio's job {section.name} completed no I/O")
    completed = Completed(sides, entry.syncs)
    return JobResult(
        job=section.job.id,
        seconds=max(side.runtime for side in sides) / 1000,
        started=_seconds(entry.job_start),
        ramp_started=_seconds(entries[0].job_start),
        io_bytes=sum(side.io_bytes for side in sides),
        metrics=metrics_of(completed),
        histogram=merged(side.clat_ns.bins for side in sides),
        sync_histogram=entry.syncs.bins if entry.syncs is not None else {},
        transferred=Transferred(
            read=sum(entry.read.io_bytes for entry in entries),
            written=sum(entry.write.io_bytes for entry in entries),
        ),
        ios=sum(side.total_ios for entry in entries for side in entry.directions),
        user_seconds=sum(entry.usr_cpu * entry.job_runtime for entry in entries) / 100_000,
        system_seconds=sum(entry.sys_cpu * entry.job_runtime for entry in entries) / 100_000,
        switches=sum(entry.ctx for entry in entries),
        completed=completed,
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
