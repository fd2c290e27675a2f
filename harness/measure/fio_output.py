"""Parses fio's JSON+ into typed values, and validates every value before its use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.errors import MeasurementError
from harness.untrusted import parse_json

_HINT = "its raw output is stored in raw/ of the run"
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
    """Latencies of fdatasync. `N` is the number of calls; 0 if there were none."""

    N: Count = 0


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
        return self.sync.lat_ns if self.sync is not None and self.sync.lat_ns.N else None


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
        entries = {
            each["jobname"]: each for each in jobs if isinstance(each, dict) and type(each.get("jobname")) is str
        }
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
