"""Reads fio's normal text output (the default of fio 3.0 and later) into the form of its JSON. Pure.

Sources: show_thread_status_normal and display_lat in fio's stat.c, num2str.c, and add_job in init.c.
"""

from __future__ import annotations

import calendar
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from harness.errors import MeasurementError
from harness.terminal import quoted

REMEDY = "repair the file or measure again: fio --output-format=json+ --output=FILE"
NEWER = "measure with fio 3.16 or later (the output of 3.0 to 3.15 can also be read)"
MIXED = ("rw", "randrw")
NOTHING: Mapping[str, Any] = {
    **dict.fromkeys(("io_bytes", "bw_bytes", "runtime", "total_ios"), 0),
    "iops": 0.0,
    **{key: {"mean": 0.0} for key in ("slat_ns", "clat_ns", "lat_ns")},
}
"""A direction in which a job completed no I/O."""
_WHOLE = "copy the whole output, from the lines with (g=0) to the end, or measure again"


@dataclass(frozen=True, slots=True)
class Printed:
    """One output of fio: `values` has the keys of its JSON, and is not checked yet.

    `before` is what fio printed before it. `remarks` say what this form lacks. With `options_known`, an option that is
    not in it has fio's default. Without `timed`, its time is that of the file.
    """

    values: Mapping[str, Any]
    before: str = ""
    remarks: tuple[str, ...] = ()
    options_known: bool = True
    timed: bool = True


_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,6})?"
_SHORT = rf"{_NUMBER}[kMGTP]?"
_BYTES = rf"{_NUMBER}(?:[KMGTP]i|[kMGTP])?B"
_VERSION = re.compile(r"^fio-(?P<version>[0-9]\S{0,60})$")
_SECTION = re.compile(
    r"^(?P<name>.{1,200}): \(g=(?P<group>[0-9]{1,6})\): rw=(?P<rw>[a-z]{1,20}), bs=(?P<bs>[^=]{1,200}), "
    r"ioengine=(?P<engine>\S{1,80}), iodepth=(?P<depth>[0-9]{1,9})$"
)
_SIZES = re.compile(rf"\((?P<side>[RW])\) (?P<low>{_BYTES})-(?P<high>{_BYTES})")
_JOB = re.compile(
    r"^(?P<name>.{1,200}): \(groupid=(?P<group>[0-9]{1,6}), jobs=(?P<jobs>[0-9]{1,6})\): "
    r"err= ?(?P<error>[0-9]{1,9})(?: \((?P<why>.{0,80})\))?: pid=[0-9]+: (?P<time>\w{3} \w{3} {1,2}[0-9: ]{13,16})$"
)
_SIDE = re.compile(
    rf"^(?P<side>read|write|trim|mixed) ?: IOPS=(?P<iops>{_SHORT}), BW=\S+ \(\S+\)"
    rf"\((?P<bytes>{_BYTES})/(?P<ms>[0-9]{{1,15}})msec\)"
)
_LATENCY = re.compile(
    rf"^(?P<kind>slat|clat|lat|sync) \((?P<unit>[num])sec\) ?: min= *(?P<min>{_SHORT}), max= *(?P<max>{_SHORT}), "
    rf"avg= *(?P<mean>{_NUMBER}), stdev= *(?P<stddev>{_NUMBER})$"
)
_PERCENTILES = re.compile(r"^(?P<kind>slat|clat|lat|sync) percentiles \((?P<unit>[num])sec\):$")
_PERCENTILE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,12})?)th=\[ *([0-9]{1,15})\]")
_CPU = re.compile(rf"^cpu +: usr=(?P<usr>{_NUMBER})%, sys=(?P<sys>{_NUMBER})%, ctx=(?P<ctx>[0-9]{{1,15}}),")
_ISSUED = re.compile(r"^issued rwts?: total=(?P<reads>[0-9]{1,15}),(?P<writes>[0-9]{1,15}),")
_OF_FIO_2 = re.compile(r"^(?:read|write) ?: io=\S+, bw=\S+, iops=", re.MULTILINE)
_TERSE = re.compile(r"^[2-5];fio-")
_SAID = re.compile(r"^(?:fio: |note: |WARNING|.* terminating on signal)")

_LACKS = (
    "read from fio's normal text: there are no histograms; whether I/O was direct, and options such as size, rate and "
    "thinktime are not known; latencies are rounded; the share of reads is that of the I/Os; its time is taken as UTC"
)
_SECONDS_TO_NS = {"n": 1, "u": 1000, "m": 1_000_000}
_PREFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_SIDES = {"read": "reads", "write": "writes"}
_USUAL_SHARE = 1.5
_AGREE = 0.01
"""fio prints bytes with at least three digits."""


@dataclass(frozen=True, slots=True)
class _RequestedSection:
    """A line before the results: what fio was asked to do."""

    name: str
    group: int
    options: Mapping[str, str]


@dataclass(slots=True)
class _Job:
    """One block of results."""

    name: str
    group: int
    members: int
    error: int
    written: float
    sides: dict[str, dict[str, Any]] = field(default_factory=dict)
    sync: dict[str, Any] = field(default_factory=dict)
    issued: dict[str, int] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Output:
    """One report of fio: with --status-interval, a call prints several."""

    version: str
    sections: list[_RequestedSection]
    said: list[str]
    jobs: list[_Job] = field(default_factory=list)
    finished: bool = False


def is_normal_form(text: str) -> bool:
    """Whether the text has fio's normal output, perhaps not whole or of fio 2."""
    lines = [line.strip() for line in text.splitlines()]
    return any(_JOB.match(line) or _SECTION.match(line) or _SIDE.match(line) for line in lines) or bool(
        _OF_FIO_2.search("\n".join(lines))
    )


def extract_messages(text: str) -> str:
    """What fio said in a text. Of normal or terse output, these are the notes and errors; other text is as it is."""
    lines = [line.strip() for line in text.splitlines()]
    if any(_SECTION.match(line) or _JOB.match(line) or _TERSE.match(line) for line in lines):
        lines = [line for line in lines if _SAID.match(line)]
    return "\n".join(lines).strip()


def read_normal_form(text: str, source: str) -> tuple[Printed, ...]:
    """Each report of fio in the text, in their order. Raises MeasurementError, which names `source`."""
    lines = [line.strip() for line in text.splitlines()]
    _check_version(lines, source)
    outputs = [output for output in _split_outputs(lines, source) if output.jobs]
    for output in outputs:
        _require_whole(output, source)
    if not outputs:
        raise MeasurementError(
            f"{source} is fio's text output, but has no result of a job",
            hint=_WHOLE,
        )
    return tuple(_convert_output(output, source) for output in outputs)


def _check_version(lines: Sequence[str], source: str) -> None:
    versions = [match["version"] for line in lines if (match := _VERSION.match(line))]
    old = next((version for version in versions if not version.startswith("3.")), None)
    if old or any(_OF_FIO_2.match(line) for line in lines):
        what = f"fio-{old}" if old else "fio 2 (its version is not in the file)"
        raise MeasurementError(
            f"{source} is fio's text output of {what}, which cannot be read",
            hint=NEWER,
        )


def _split_outputs(lines: Sequence[str], source: str) -> Iterator[_Output]:
    output = _Output("", [], [])
    of_job = _JobLines(source)
    for line in lines:
        if match := _SECTION.match(line):
            if output.jobs:
                yield output
                output = _Output("", [], [])
            output.sections.append(_parse_section(match, source))
        elif match := _VERSION.match(line):
            output.version = f"fio-{match['version']}"
        elif match := _JOB.match(line):
            if output.finished:
                yield output
                output = _Output(output.version, output.sections, [])
            output.jobs.append(of_job.begin(match))
        elif line.startswith("Run status group "):
            output.finished = True
        elif _SAID.match(line):
            output.said.append(line)
        elif output.jobs and not output.finished:
            of_job.read(line)
    yield output


def _require_whole(output: _Output, source: str) -> None:
    """A copy may begin and end anywhere. After the line `issued rwts`, nothing follows that is needed."""
    for job in output.jobs:
        mixed = any(section.name == job.name and section.options["rw"] in MIXED for section in output.sections)
        whole = output.finished or job.issued or job.error
        if not whole or (mixed and not job.error and set(job.sides) != set(_SIDES)):
            raise MeasurementError(
                f"{source} is fio's text output, and the result of job {job.name[:60]} is not whole",
                hint=_WHOLE,
            )


class _JobLines:
    """Reads the lines of one block of results after the other."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._job: _Job
        self._side: dict[str, Any] = {}
        self._percentiles: dict[str, float] | None = None
        self._factor = 1

    def begin(self, match: re.Match[str]) -> _Job:
        written = _parse_time(match["time"], f"{self._source}: job {match['name'][:60]}")
        self._job = _Job(match["name"], int(match["group"]), int(match["jobs"]), int(match["error"]), written)
        self._side, self._percentiles = {}, None
        return self._job

    def read(self, line: str) -> None:
        if line.startswith("|"):
            if self._percentiles is not None:
                for share, value in _PERCENTILE.findall(line):
                    self._percentiles[f"{float(share):.6f}"] = int(value) * self._factor
            return
        self._percentiles = None
        if match := _SIDE.match(line):
            if match["side"] == "mixed":
                raise MeasurementError(
                    f"{self._source}: job {self._job.name[:60]} has unified_rw_reporting, so reads and writes are "
                    "printed as one figure",
                    hint="measure without this option",
                )
            self._side = self._job.sides.setdefault(match["side"], {"latencies": {}})
            self._side |= {
                "iops": _parse_short(match["iops"]),
                "bytes": _parse_bytes(match["bytes"]),
                "ms": int(match["ms"]),
            }
        elif match := _LATENCY.match(line):
            factor = _SECONDS_TO_NS[match["unit"]]
            values: dict[str, Any] = {
                name: _parse_short(match[name]) * factor for name in ("min", "max", "mean", "stddev")
            }
            self._latency(match["kind"]).update(values)
        elif match := _PERCENTILES.match(line):
            self._factor = _SECONDS_TO_NS[match["unit"]]
            self._percentiles = self._latency(match["kind"]).setdefault("percentile", {})
        elif match := _CPU.match(line):
            self._job.costs = {
                "usr_cpu": float(match["usr"]),
                "sys_cpu": float(match["sys"]),
                "ctx": int(match["ctx"]),
            }
        elif match := _ISSUED.match(line):
            self._job.issued = {name: int(match[name]) for name in ("reads", "writes")}

    def _latency(self, kind: str) -> dict[str, Any]:
        if kind == "sync":
            return self._job.sync
        values: dict[str, Any] = self._side.setdefault("latencies", {}).setdefault(kind, {})
        return values


def _parse_section(match: re.Match[str], source: str) -> _RequestedSection:
    sizes = {size["side"]: (size["low"], size["high"]) for size in _SIZES.finditer(match["bs"])}
    rw = match["rw"]
    both = rw in MIXED or "bs_is_seq_rand" in match["bs"]
    used = [pair for side, pair in sizes.items() if both or ("write" in rw) == (side == "W")]
    distinct = {_parse_bytes(size) for pair in used for size in pair}
    where = f"{source}: job {match['name'][:60]}"
    if len(distinct) != 1:
        _refuse(where, f"bs = {match['bs'][:80]} cannot be imported", "only jobs with one block size can be imported")
    options = {
        "rw": rw,
        "bs": f"{distinct.pop():.0f}",
        "ioengine": match["engine"],
        "iodepth": match["depth"],
    }
    return _RequestedSection(match["name"], int(match["group"]), options)


def _convert_output(output: _Output, source: str) -> Printed:
    processes: Counter[tuple[str, int]] = Counter()
    for job in output.jobs:
        processes[job.name, job.group] += job.members
    entries = []
    for job in output.jobs:
        where = f"{source}: job {job.name[:60]}"
        options = _match_options(output, job, processes[job.name, job.group], where)
        entries.append(_convert_job(job, options, where))
    remarks = [_LACKS]
    if any(not job.error and not job.issued for job in output.jobs):
        remarks.append("the line `issued rwts` is missing, so IOPS and bytes have the digits that fio printed")
    values = {
        "fio version": output.version or "fio-3.x (version not stated)",
        "timestamp_ms": int(max(job.written for job in output.jobs) * 1000),
        "jobs": entries,
    }
    return Printed(values, "\n".join(output.said), tuple(remarks), options_known=False)


def _match_options(output: _Output, job: _Job, processes: int, where: str) -> dict[str, str]:
    """The options of the job's section, as far as the line before the results has them."""
    in_group = [section for section in output.sections if section.group == job.group]
    sections = [section for section in in_group if section.name == job.name]
    if not sections:
        _refuse(where, "its line with rw=, bs= and iodepth= is missing", _WHOLE)
    names = {section.name for section in in_group}
    if job.members > 1 and names != {other.name for other in output.jobs if other.group == job.group}:
        _refuse(
            where,
            f"its result is of the sections {', '.join(sorted(names))[:200]} together (group_reporting)",
            "add `stonewall` and `new_group` to each section, and measure again",
        )
    if any(section.options != sections[0].options for section in sections):
        _refuse(where, "several sections have this name", "give each section its own name, and measure again")
    options = dict(sections[0].options)
    if processes > 1:
        options["numjobs"] = str(processes)
    if job.members > 1:
        options["group_reporting"] = ""
    if options["rw"] in MIXED:
        alike = [other for other in output.jobs if (other.name, other.group) == (job.name, job.group)]
        reads, writes = (sum(_count_ios(other, side) for other in alike) for side in _SIDES)
        options["rwmixread"] = str(derive_read_share(reads, writes))
    return options


def _convert_job(job: _Job, options: Mapping[str, str], where: str) -> dict[str, Any]:
    if job.error:
        return {"jobname": job.name, "error": job.error}
    if job.sides.keys() - _SIDES.keys():
        _refuse(where, "it has trims", "only reads and writes can be imported")
    bs = int(options["bs"])
    sides = {name: _convert_side(job, name, bs) for name in _SIDES}
    longest = max(side["runtime"] for side in sides.values())
    entry = {
        "jobname": job.name,
        "groupid": job.group,
        "error": 0,
        "job options": dict(options),
        "job_runtime": longest * job.members,
        "usr_cpu": 0.0,
        "sys_cpu": 0.0,
        "ctx": 0,
        **job.costs,
        **sides,
    }
    if "mean" in job.sync:
        calls = max(1, job.issued.get("writes", 0))
        entry["sync"] = {"total_ios": calls, "lat_ns": {**job.sync, "N": calls}}
    return entry


def _convert_side(job: _Job, name: str, bs: int) -> Mapping[str, Any]:
    printed = job.sides.get(name)
    if printed is None:
        return NOTHING
    seconds = printed["ms"] / 1000
    total = _count_ios(job, name)
    # The bytes have three digits. The I/Os are exact, and so are the bytes, unless the last block was shorter.
    exact = total * bs
    io_bytes = exact if abs(exact - printed["bytes"]) <= _AGREE * exact else round(printed["bytes"])
    return {
        "io_bytes": io_bytes,
        "bw_bytes": int(io_bytes / seconds) if seconds else 0,
        "runtime": printed["ms"],
        "total_ios": total,
        "iops": total / seconds if seconds else 0.0,
        **{f"{kind}_ns": {"mean": 0.0, **printed["latencies"].get(kind, {})} for kind in ("slat", "clat", "lat")},
    }


def _count_ios(job: _Job, side: str) -> int:
    """Its I/Os in this direction: exact with the line `issued rwts`, else with the digits of IOPS."""
    printed = job.sides.get(side)
    if printed is None:
        return 0
    return job.issued.get(_SIDES[side]) or round(printed["iops"] * printed["ms"] / 1000)


def derive_read_share(reads: int, writes: int) -> int:
    """The option rwmixread in percent that explains these I/Os. Shares near a multiple of 5 are taken as that."""
    share = 100 * reads / max(1, reads + writes)
    usual = 5 * round(share / 5)
    return usual if abs(share - usual) <= _USUAL_SHARE else round(share)


def _parse_short(text: str) -> float:
    """ "62.5k" is 62500."""
    prefix = text[-1] if text[-1] in _PREFIXES else ""
    return float(text.removesuffix(prefix)) * _PREFIXES[prefix]


def _parse_bytes(text: str) -> float:
    """ "64.0KiB" is 65536, "41.0MB" is 41000000."""
    number = text.removesuffix("B")
    digits = number.rstrip("KMGTPik")
    prefix = number[len(digits) :]
    return float(digits) * (_BINARY.get(prefix) or _PREFIXES[prefix])


def _parse_time(text: str, where: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text, "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        _refuse(where, f"{quoted(text)} is not a time", "restore the file, or measure again")


def _refuse(where: str, what: str, hint: str) -> NoReturn:
    raise MeasurementError(f"{where}: {what}", hint=hint)
