"""fio's JSON output as typed values, of any fio 3: a version may omit what an older or newer one prints. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, model_validator

from harness.errors import MeasurementError
from harness.measure.fio_output import Count, Direction, JobEntry, Latency, Number, Part
from harness.untrusted import parse_json, reading

_REMEDY = "repair the file or measure again: fio --output-format=json+ --output=FILE"
_YEAR_9999_MS = 253_370_764_800_000
_BEGIN = re.compile(r"^\{", re.MULTILINE)


class Spread(Latency):
    """Latencies in ns: also their smallest, largest and standard deviation, and fio's own percentiles."""

    min: Number = 0
    max: Number = 0
    stddev: Number = 0
    percentile: Mapping[str, Number] = {}


class ReportedDirection(Direction):
    """What a job read or wrote, with the spread of its latencies."""

    slat_ns: Spread
    clat_ns: Spread
    lat_ns: Spread


class _Trims(Part):
    total_ios: Count = 0


_NO_LATENCY = {"mean": 0.0}
_NOTHING = {"io_bytes": 0, "bw_bytes": 0, "iops": 0.0, "runtime": 0, "total_ios": 0} | dict.fromkeys(
    ("slat_ns", "clat_ns", "lat_ns"), _NO_LATENCY
)


class ReportedJob(JobEntry):
    """One entry of fio's jobs: a process, or with `group_reporting` all processes of a job together.

    `latency_ns`, `latency_us` and `latency_ms` have the percentage of I/Os by upper bound of their latency. With
    `unified_rw_reporting`, fio prints one direction `mixed`, which is `read` here, and `unified` is true. `elapsed` is
    the time in seconds from the start of fio to this output, rounded up.
    """

    jobname: str
    groupid: Count = 0
    error: int = 0
    elapsed: Count | None = None
    unified: bool = False
    trim: _Trims | None = None
    options: Mapping[str, str] = Field(default={}, alias="job options")
    read: ReportedDirection
    write: ReportedDirection
    latency_ns: Mapping[str, Number] = {}
    latency_us: Mapping[str, Number] = {}
    latency_ms: Mapping[str, Number] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_both_directions(cls, data: Any) -> Any:
        if isinstance(data, dict) and "mixed" in data and "read" not in data:
            return {**data, "read": data["mixed"], "write": _NOTHING, "unified": True}
        return data

    @property
    def sides(self) -> tuple[ReportedDirection, ...]:
        """The directions in which it completed I/Os."""
        return tuple(side for side in (self.read, self.write) if side.total_ios)


class _Document(Part):
    version: str = Field(alias="fio version")
    timestamp_ms: Annotated[Count, Field(lt=_YEAR_9999_MS)]
    options: Mapping[str, str] = Field(default={}, alias="global options")
    jobs: tuple[Any, ...] = Field(strict=False, min_length=1)


@dataclass(frozen=True, slots=True)
class Document:
    """One output of fio. `notes` is what fio printed before it. `written` in seconds since 1970-01-01 UTC."""

    version: str
    written: float
    notes: str
    options: Mapping[str, str]
    """The options of its section `global`."""
    jobs: tuple[ReportedJob, ...]


_DOCUMENT = TypeAdapter(_Document)
_JOB = TypeAdapter(ReportedJob)


def read_document(data: bytes, source: str) -> Document:
    """The output of fio in `data`. Raises MeasurementError, which names `source`, if it is not a whole, valid one."""
    with reading(source, MeasurementError, hint=_REMEDY):
        text = data.decode()
        begin = _BEGIN.search(text)
        if begin is None:
            said = text.strip()[:200]
            raise MeasurementError(f"{source} has no result of fio: {said or 'it is empty'}", hint=_REMEDY)
        found = parse_json(text[begin.start() :], source, MeasurementError, hint=_REMEDY)
        if "client_stats" in found:
            raise MeasurementError(
                f"{source} is of fio's client mode (client_stats), which mixes several machines",
                hint="run fio on each machine, and import its output",
            )
        document = _DOCUMENT.validate_python(found)
    if not document.version.startswith("fio-3."):
        raise MeasurementError(
            f"{source}: fio version = {document.version[:40]!r}", hint="measure with fio 3.16 or later"
        )
    jobs = tuple(_job(each, f"{source}: jobs.{number}") for number, each in enumerate(document.jobs))
    return Document(
        document.version, document.timestamp_ms / 1000, text[: begin.start()].strip(), document.options, jobs
    )


def _job(found: object, source: str) -> ReportedJob:
    # Checked first, because fio may omit everything else for a job that failed.
    if isinstance(found, dict) and (failed := found.get("error")):
        raise MeasurementError(
            f"{source}: fio's job {str(found.get('jobname'))[:60]} failed with error {str(failed)[:40]}",
            hint="find out why in fio's messages, and measure again",
        )
    with reading(source, MeasurementError, hint=_REMEDY):
        return _JOB.validate_python(found)
