"""Parses fio's JSON+ into typed values, and validates every value before its use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.errors import MeasurementError
from harness.untrusted import parse_json

_HINT = "its raw output is stored in raw/ of the run"
_ROUNDING = 0.02
_BINS = 0.2
_LONGEST_NS = 8_000_000_000
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Keys of JSON are text.
_Nanoseconds = Annotated[int, Field(strict=False, ge=0, lt=1 << 63)]


class Part(BaseModel):
    """A part of fio's output. Keys that nothing reads are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, defer_build=True)


class Latency(Part):
    """Latencies of one direction: their mean in ns, and completions by latency in ns."""

    mean: Number
    bins: Mapping[_Nanoseconds, Count] = {}


class SyncLatency(Latency):
    """Latencies of fdatasync. `N` is the number of calls; None in versions of fio that do not print it here.

    `percentile` has fio's own percentiles.
    """

    N: Count | None = None
    percentile: Mapping[str, Number] = {}


class Direction(Part):
    """What a job read or wrote. `runtime` in ms."""

    io_bytes: Count
    bw_bytes: Count
    iops: Number
    runtime: Count
    total_ios: Count
    clat_ns: Latency
    lat_ns: Latency


class Syncs(Part):
    """The calls of fdatasync of a job."""

    lat_ns: SyncLatency
    total_ios: Count = 0

    @property
    def calls(self) -> int:
        return self.total_ios if self.lat_ns.N is None else self.lat_ns.N


class JobEntry(Part):
    """One job of fio's output. CPU times in percent of `job_runtime`, which is in ms, as `job_start` is."""

    read: Direction
    write: Direction
    usr_cpu: Number
    sys_cpu: Number
    ctx: Count
    job_runtime: Count
    job_start: Count | None = None
    sync: Syncs | None = None

    @property
    def directions(self) -> tuple[Direction, Direction]:
        return self.read, self.write

    @property
    def syncs(self) -> SyncLatency | None:
        """The latencies of fdatasync; None if the job did not call it."""
        return self.sync.lat_ns if self.sync is not None and self.sync.calls else None


def contradiction(side: Direction) -> str | None:
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


def histogram_contradiction(side: Direction) -> str | None:
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


def in_flight(sides: Iterable[Direction], seconds: float) -> float:
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
                hint=f"{_HINT}; EIO (5) means that the disk or a layer under it failed",
            )
    return {name: _entry(entries[name], name, source) for name in names}


def _entry(found: object, name: str, source: str) -> JobEntry:
    try:
        return _ENTRY.validate_python(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise MeasurementError(f"{source} cannot be read: job {name}, {key}: {first['msg']}", hint=_HINT) from None
