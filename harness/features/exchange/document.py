"""From the bytes of a file to fio's output as typed values, of any fio 3 and in each of its forms. Pure.

A version may omit what another prints. Mail, forums and terminals add marks and colours, and files have several
encodings.

Terse output (one line for each job, versions 3 to 5) has no options. The block size follows from bytes and I/Os, the
depth from the depths at which I/Os were submitted together with Little's law; random or sequential only from the name
of the job or of the file. What does not follow without doubt is an error. Source: show_thread_status_terse_all in
fio's stat.c.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Annotated, Any, NoReturn

from pydantic import Field, TypeAdapter, model_validator

from harness.errors import MeasurementError
from harness.features.exchange.normal_form import (
    NEWER,
    NOTHING,
    REMEDY,
    Printed,
    derive_read_share,
    extract_messages,
    is_normal_form,
    read_normal_form,
)
from harness.measure.fio import Count, Direction, JobEntry, Latency, Number, OutputPart
from harness.terminal import quoted
from harness.untrusted import parse_first_json, reading

_LINE = re.compile(
    r"^[ \t]*(?P<form>[2-5]);(?P<version>fio-[0-9][^;\n]{0,60});(?P<rest>[^\n]{20,20000})$", re.MULTILINE
)
_LACKS = (
    "read from fio's terse output: there are no histograms; whether I/O was direct, the engine and other options are "
    "not known; bs, iodepth, numjobs and rw are derived from the figures and the names; its time is that of the file"
)
_SIDES = {3: ("read", "write"), 4: ("read", "write", "trim"), 5: ("read", "write", "trim")}
_PERCENTILES = 20
_FIELDS_OF_SIDE = {3: 41, 4: 41, 5: 47}
_DEPTHS = (1, 2, 4, 8, 16, 32, 64)
"""The least depth of each share of I/Os. The last one is for 64 and more."""
_DEEP = (64, 128, 256, 512, 1024)
_MOST = 90.0
_ALL = 100.5
_IN_FLIGHT = (0.75, 1.1)
"""Mean number of I/Os in flight, by depth, of one process that does nothing else. Of several processes, it is more."""
_REMEDY = "measure with --output-format=json+, which has all options"
_BLOCK_SIZES = tuple(512 * 2**power for power in range(16))
_SIZE_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class _Line:
    """The fields of one line."""

    version: str
    name: str
    group: int
    error: int
    sides: dict[str, dict[str, Any]]
    costs: dict[str, Any]
    depths: tuple[float, ...]


def read_terse_form(text: str, source: str, written: float) -> tuple[Printed, ...]:
    """Each report of fio in the text, in their order. `written` (seconds since 1970) is when the file was.

    A report ends before a line that repeats the job of an earlier line in a later group, as with --status-interval or
    several calls. Raises MeasurementError, which names `source`.
    """
    matches = list(_LINE.finditer(text))
    lines = [_parse_line(match, f"{source}: line {number}") for number, match in enumerate(matches, start=1)]
    before = extract_messages(text[: matches[0].start()])
    return tuple(_convert_report(report, source, written, before) for report in _split_reports(lines))


def _split_reports(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    report: list[_Line] = []
    for line in lines:
        # Within one report, groups only grow, and the processes of a job follow each other.
        repeats = report and (
            line.group < report[-1].group
            or (line.name != report[-1].name and any(line.name == other.name for other in report))
        )
        if repeats:
            yield report
            report = []
        report.append(line)
    yield report


def _parse_line(match: re.Match[str], where: str) -> _Line:
    form, version = int(match["form"]), match["version"]
    if not version.startswith("fio-3."):
        raise MeasurementError(
            f"{where} is of {version}, which cannot be read",
            hint=NEWER,
        )
    fields = match["rest"].split(";")
    sides = _SIDES.get(form, ())
    width = _FIELDS_OF_SIDE.get(form, 0)
    begin = 3
    after = begin + width * len(sides)
    if not sides or len(fields) < after + 12:
        _refuse(where, "it is not a whole line of fio's terse output, version 3 to 5")
    try:
        read = {
            side: _parse_side(fields[begin + at * width : begin + (at + 1) * width]) for at, side in enumerate(sides)
        }
        return _Line(
            version,
            fields[0],
            int(fields[1]),
            int(fields[2]),
            read,
            {
                "usr_cpu": _parse_share(fields[after]),
                "sys_cpu": _parse_share(fields[after + 1]),
                "ctx": int(fields[after + 2]),
            },
            tuple(_parse_share(field) for field in fields[after + 5 : after + 12]),
        )
    except ValueError:
        _refuse(where, "its fields are not those of fio's terse output; a name with `;` shifts them")


def _parse_side(fields: Sequence[str]) -> dict[str, Any]:
    """One direction. Latencies are in us, I/Os are IOPS times time because their number is not printed."""
    kib, iops, milliseconds = int(fields[0]), int(fields[2]), int(fields[3])
    percentiles = {}
    for field in fields[12 : 12 + _PERCENTILES]:
        share, _, value = field.partition("%=")
        if not value:
            raise ValueError(field)
        if float(share):
            percentiles[f"{float(share):.6f}"] = int(value) * 1000
    return {
        "io_bytes": kib * 1024,
        "bw_bytes": kib * 1024 * 1000 // milliseconds if milliseconds else 0,
        "iops": float(iops),
        "runtime": milliseconds,
        "total_ios": round(iops * milliseconds / 1000),
        "slat_ns": _parse_latency(fields[4:8]),
        "clat_ns": {**_parse_latency(fields[8:12]), "percentile": percentiles},
        "lat_ns": _parse_latency(fields[32:36]),
    }


def _parse_latency(fields: Sequence[str]) -> dict[str, float]:
    return {name: float(field) * 1000 for name, field in zip(("min", "max", "mean", "stddev"), fields, strict=True)}


def _parse_share(field: str) -> float:
    if not field.endswith("%"):
        raise ValueError(field)
    return float(field[:-1])


def _convert_report(report: Sequence[_Line], source: str, written: float, before: str) -> Printed:
    entries = [_convert_line(line, report, source) for line in report]
    values = {"fio version": report[0].version, "timestamp_ms": int(written * 1000), "jobs": entries}
    return Printed(values, before, (_LACKS,), options_known=False, timed=False)


def _convert_line(line: _Line, report: Sequence[_Line], source: str) -> dict[str, Any]:
    if line.error:
        return {"jobname": line.name, "error": line.error}
    where = f"{source}: job {line.name[:60]}"
    used = [side for side, values in line.sides.items() if values["io_bytes"]]
    if "trim" in used:
        _refuse(where, "it has trims; only reads and writes can be imported")
    if not used:
        _refuse(where, "it completed no I/O")
    processes = [other for other in report if (other.name, other.group) == (line.name, line.group)]
    sizes = {_derive_block_size(line.sides[side], where) for side in used}
    if len(sizes) != 1:
        _refuse(where, "reads and writes have different block sizes")
    size = sizes.pop()
    sides = {side: _add_ios(line.sides[side], size) for side in ("read", "write")}
    options = {
        "rw": _derive_pattern(line.name, source, used, where),
        "bs": str(size),
        "iodepth": str(_derive_depth(line, used, where)),
        **({"numjobs": str(len(processes))} if len(processes) > 1 else {}),
    }
    if len(used) > 1:
        reads, writes = (sum(process.sides[side]["io_bytes"] for process in processes) for side in ("read", "write"))
        options["rwmixread"] = str(derive_read_share(reads, writes))
    return {
        "jobname": line.name,
        "groupid": line.group,
        "error": 0,
        "job options": options,
        "job_runtime": max(side["runtime"] for side in sides.values()),
        **line.costs,
        **sides,
    }


def _derive_block_size(side: dict[str, Any], where: str) -> int:
    mean = side["io_bytes"] / side["total_ios"] if side["total_ios"] else 0
    nearest: int = min(_BLOCK_SIZES, key=lambda size: abs(size - mean))
    # IOPS lose their fraction, and bytes are in KiB.
    rounding = _SIZE_TOLERANCE + 1 / max(1, side["iops"])
    if abs(nearest - mean) > rounding * nearest:
        _refuse(where, f"its I/Os have {mean:.0f} bytes on average, which is not the size of one block")
    return nearest


def _add_ios(side: dict[str, Any], size: int) -> dict[str, Any]:
    """With the number of I/Os, which follows from the bytes."""
    ios = side["io_bytes"] // size
    seconds = side["runtime"] / 1000
    return {**side, "total_ios": ios, "iops": ios / seconds if seconds else 0.0}


def _derive_depth(line: _Line, used: Sequence[str], where: str) -> int:
    """The power of two with most I/Os, if Little's law does not contradict: I/Os in flight = IOPS x latency."""
    in_flight = sum(line.sides[side]["iops"] * _read_mean_latency(line.sides[side]) / 1e9 for side in used)
    at = max(range(len(_DEPTHS)), key=lambda index: line.depths[index])
    depth = _DEPTHS[at]
    if depth == _DEPTHS[-1]:
        depth = min(_DEEP, key=lambda candidate: abs(candidate - in_flight))
    low, high = _IN_FLIGHT
    # With fsync, or several processes under group_reporting, the shares or the I/Os in flight do not fit.
    if not _MOST <= line.depths[at] <= _ALL or not low * depth <= in_flight <= high * depth:
        _refuse(
            where,
            f"iodepth and numjobs are not in terse output, and do not follow from its figures ({in_flight:.1f} I/Os in "
            f"flight on average, {line.depths[at]:g} % of them at depth {_DEPTHS[at]})",
        )
    return depth


def _read_mean_latency(side: dict[str, Any]) -> float:
    mean: float = side["lat_ns"]["mean"] or side["clat_ns"]["mean"]
    return mean


def _derive_pattern(name: str, source: str, used: Sequence[str], where: str) -> str:
    """The option rw: its direction from the I/Os, random or sequential from the name of the job, or of the file."""
    direction = used[0] if len(used) == 1 else "rw"
    for text in (name.lower(), PurePath(source).stem.lower()):
        is_random, is_sequential = "rand" in text or "rnd" in text, "seq" in text
        if not is_random and not is_sequential:
            is_sequential = re.search(r"(?<![a-z])(read|write|rw|readwrite)(?![a-z])", text) is not None
        if is_random != is_sequential:
            return f"rand{direction}" if is_random else direction
    return _refuse(where, "terse output does not say whether I/O was random or sequential, and neither do the names")


def _refuse(where: str, what: str) -> NoReturn:
    raise MeasurementError(f"{where}: {what}", hint=_REMEDY)


_QUOTE = re.compile(r"^[ \t]{0,3}(?:>[ \t]?)+", re.MULTILINE)
"""The mark of quoted lines in mail and forums. No line of fio's output begins with `>`."""
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SPACES = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": None, "\ufeff": None})
"""Copied web pages have no-break spaces; appended files have a byte order mark in the middle."""


def decode_text(data: bytes, source: str) -> str:
    """What fio printed, with "\\n" at the end of lines, without quote marks. Raises MeasurementError."""
    text = _decode(data, source).translate(_SPACES)
    for pattern in (_COLOURS, _QUOTE, _FENCE):
        text = pattern.sub("", text)
    # Progress lines end with a carriage return alone.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _decode(data: bytes, source: str) -> str:
    """The text by its mark, or by the zeros among its first bytes, which are ASCII."""
    encoding = json.detect_encoding(data)
    if not encoding.startswith("utf-32"):
        with suppress(UnicodeDecodeError):
            return data.decode(encoding)
    raise MeasurementError(
        f"{source} is not text in UTF-8 or UTF-16",
        hint="save it as UTF-8, or measure again: fio --output-format=json+ --output=FILE",
    )


_BEGIN = re.compile(r'\{\s*"fio version"\s*:')
_ANY_OBJECT = re.compile(r"^[ \t]*\{", re.MULTILINE)
JOB_IN_TEXT = re.compile(
    r"^[ \t]*(?:(?P<normal>\S.{0,200}): \(groupid=|[345];fio-[^;\n]{1,80};(?P<terse>[^;\n]{1,200});)", re.MULTILINE
)
_AROUND_LIST = " \t\n["
_PUNCTUATION = " \t\n,[]}"
"""What a file with a list of results has between them, and at its end."""


def read_json_form(text: str, source: str) -> tuple[Printed, ...]:
    """The documents of fio in the text, in their order; none if it has no JSON. Raises MeasurementError.

    A document that is not whole, or something after it that looks like a further result, is an error: no result may be
    missing unnoticed.
    """
    # Other programs sort the keys.
    pattern = _BEGIN if _BEGIN.search(text) else _ANY_OBJECT
    first = pattern.search(text)
    if first is None:
        return ()
    documents: list[Any] = []
    gaps = [text[: first.start()]]
    begin: re.Match[str] | None = first
    while begin is not None:
        where = source if not documents else f"{source}: result {len(documents) + 1}"
        document, end = parse_first_json(text, begin.start(), where, MeasurementError, hint=REMEDY)
        documents.append(document)
        begin = pattern.search(text, end)
        gaps.append(text[end : begin.start() if begin else len(text)])
    remarks = tuple(dict.fromkeys(_collect_remarks(gaps, documents, source)))
    return tuple(
        Printed(document, before=extract_messages(gap).strip(_AROUND_LIST) if index == 0 else "", remarks=remarks)
        for index, (gap, document) in enumerate(zip(gaps, documents, strict=False))
    )


def _collect_remarks(gaps: list[str], documents: list[Any], source: str) -> Iterator[str]:
    """What the reader must know of the text around the documents. Raises MeasurementError if it may be a result."""
    names = {str(job.get("jobname")) for document in documents for job in _list_jobs(document)}
    for number, gap in enumerate(gaps):
        texts = {match["normal"] or match["terse"] for match in JOB_IN_TEXT.finditer(gap)}
        if others := sorted(texts - names):
            raise MeasurementError(
                f"{source} has results in JSON, and fio's text output of another job: {others[0][:60]}",
                hint="save the output of each call of fio in its own file",
            )
        if texts:
            yield "the file also has fio's text output of the same jobs (--output-format), which is not used"
        elif number > 0 and (rest := " ".join(gap.strip().strip(_PUNCTUATION).split())):
            if _ANY_OBJECT.search(gap):
                raise MeasurementError(
                    f"{source} has something after the result that may be a further one, and is not whole: {rest[:80]}",
                    hint=REMEDY,
                )
            yield f"the file has other text after the result: {rest[:100]}"


def _list_jobs(document: object) -> Iterator[Mapping[str, Any]]:
    jobs = document.get("jobs") if isinstance(document, dict) else None
    yield from (job for job in (jobs if isinstance(jobs, list) else []) if isinstance(job, dict))


_YEAR_9999_MS = 253_370_764_800_000
_EARLY = re.compile(r"fio-3\.([0-9]|1[0-5])(?![0-9])")
_TIME_OF_NO_FILE = 86400.0
LATENCY_ROUNDING = 0.05
"""fio prints latencies as text with few digits, and percentiles as the middle of a bin of its histogram."""
_ALSO_TERSE = "the file also has fio's terse output of the same jobs (--output-format), which is not used"


class LatencySpread(Latency):
    """Latencies in ns: also their smallest, largest and standard deviation, and fio's own percentiles."""

    min: Number = 0
    max: Number = 0
    stddev: Number = 0
    percentile: Mapping[str, Number] = {}

    def find_contradiction(self) -> str | None:
        """Which value is not between the smallest and the largest latency, in words; None if all are.

        fio 3.0 to 3.14 fill the list of percentiles with zeros.
        """
        low, high = self.min * (1 - LATENCY_ROUNDING), self.max * (1 + LATENCY_ROUNDING)
        values = {"mean": self.mean} | {f"percentile {share[:20]}": value for share, value in self.percentile.items()}
        wrong = (f"{name} = {value:.6g}" for name, value in values.items() if value and not low <= value <= high)
        name = next(wrong, None) if self.max else None
        return f"{name}, but min = {self.min:.6g} and max = {self.max:.6g}" if name else None


class ReportedDirection(Direction):
    """What a job read or wrote, with the spread of its latencies."""

    slat_ns: LatencySpread
    clat_ns: LatencySpread
    lat_ns: LatencySpread


class _Trims(Direction):
    """Nothing but their number is needed, because an output with trims is refused."""

    io_bytes: Count = 0
    bw_bytes: Count = 0
    iops: Number = 0.0
    runtime: Count = 0
    total_ios: Count = 0
    clat_ns: Latency = Latency(mean=0.0)
    lat_ns: Latency = Latency(mean=0.0)


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
            return {**data, "read": data["mixed"], "write": NOTHING, "unified": True}
        return data

    @property
    def sides(self) -> tuple[ReportedDirection, ...]:
        """The directions in which it completed I/Os."""
        return tuple(side for side in (self.read, self.write) if side.total_ios)


class _Document(OutputPart):
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
    remarks: tuple[str, ...] = ()
    """What a reader must know of its form."""
    options_known: bool = True
    """Whether an option that it does not have was not set."""
    timed: bool = True
    """Whether `written` is of the output itself, not of its file."""


_DOCUMENT = TypeAdapter(_Document)
_JOB = TypeAdapter(ReportedJob)


def read_documents(data: bytes, source: str, written: float | None = None) -> tuple[Document, ...]:
    """Every output of fio in `data`, in their order: JSON, or else terse lines or normal text.

    `written` is when the file was, in seconds since 1970-01-01 UTC: terse output has no time. Raises MeasurementError,
    which names `source`, if one is not whole or not valid.
    """
    with reading(source, MeasurementError, hint=REMEDY):
        text = decode_text(data, source)
        printed = read_json_form(text, source)
        if not printed:
            printed = _read_text_forms(text, source, written or _TIME_OF_NO_FILE)
    if not printed:
        said = text.strip()[:200]
        raise MeasurementError(f"{source} has no result of fio: {said or 'it is empty'}", hint=REMEDY)
    if len(printed) == 1:
        return (_parse_document(printed[0], source),)
    return tuple(_parse_document(one, f"{source}: result {number}") for number, one in enumerate(printed, start=1))


def _read_text_forms(text: str, source: str, written: float) -> tuple[Printed, ...]:
    """The outputs in normal text or terse lines. Of both, the normal text, which has more options. Else none."""
    jobs = list(JOB_IN_TEXT.finditer(text))
    normal, terse = ({match[form] for match in jobs if match[form]} for form in ("normal", "terse"))
    if normal and terse:
        if others := sorted(normal ^ terse):
            raise MeasurementError(
                f"{source} has fio's normal text and terse lines, but not of the same jobs: {others[0][:60]}",
                hint="save the output of each call of fio in its own file",
            )
        return tuple(
            replace(printed, remarks=(*printed.remarks, _ALSO_TERSE)) for printed in read_normal_form(text, source)
        )
    if _LINE.search(text):
        return read_terse_form(text, source, written)
    return read_normal_form(text, source) if is_normal_form(text) else ()


def _parse_document(printed: Printed, source: str) -> Document:
    with reading(source, MeasurementError, hint=REMEDY):
        if "client_stats" in printed.values:
            raise MeasurementError(
                f"{source} is of fio's client mode (client_stats), which mixes several machines",
                hint="run fio on each machine, and import its output",
            )
        version = printed.values["fio version"]
        if not isinstance(version, str) or not version.startswith("fio-3."):
            raise MeasurementError(f"{source} is of {quoted(str(version))}, which cannot be read", hint=NEWER)
        document = _DOCUMENT.validate_python(printed.values)
    jobs = tuple(
        _parse_job(_complete(entry, document), f"{source}: jobs.{number}", document.version)
        for number, entry in enumerate(document.jobs)
    )
    return Document(
        document.version,
        document.timestamp_ms / 1000,
        printed.before,
        document.options,
        jobs,
        printed.remarks,
        printed.options_known,
        printed.timed,
    )


def _parse_job(entry: object, source: str, version: str) -> ReportedJob:
    # Checked first, because fio may omit everything else for a job that failed.
    if isinstance(entry, dict) and (failed := entry.get("error")):
        raise MeasurementError(
            f"{source}: fio's job {str(entry.get('jobname'))[:60]} failed with error {str(failed)[:40]}",
            hint="find out why in fio's messages, and measure again",
        )
    hint = NEWER if _EARLY.match(version) else REMEDY
    with reading(f"{source} (of {version[:40]})", MeasurementError, hint=hint):
        return _JOB.validate_python(entry)


def _complete(entry: object, document: _Document) -> object:
    """The entry with what fio 3.0 to 3.7 did not print yet: `bw_bytes` is since 3.2, and `job_runtime` since 3.8.

    `job_runtime` is the sum over the processes of the entry, which are taken to have run for the same time.
    """
    if not isinstance(entry, dict):
        return entry
    sides = {name: entry[name] for name in ("read", "write") if isinstance(entry.get(name), dict)}
    for name, side in sides.items():
        if "bw_bytes" not in side and type(side.get("io_bytes")) is type(side.get("runtime")) is int:
            runtime = side["runtime"]
            sides[name] = {**side, "bw_bytes": side["io_bytes"] * 1000 // runtime if runtime > 0 else 0}
    if "job_runtime" in entry:
        return {**entry, **sides}
    runtimes = [side["runtime"] for side in sides.values() if type(side.get("runtime")) is int]
    return {
        **entry,
        **sides,
        **({"job_runtime": max(runtimes) * _count_processes(entry, document)} if runtimes else {}),
    }


def _count_processes(entry: Mapping[str, Any], document: _Document) -> int:
    """How many processes an entry is of: those of `numjobs`, unless each of them has its own."""
    alike = sum(
        (job.get("jobname"), job.get("groupid")) == (entry.get("jobname"), entry.get("groupid"))
        for job in document.jobs
        if isinstance(job, dict)
    )
    options = entry.get("job options")
    numjobs = (dict(options) if isinstance(options, dict) else {}).get("numjobs", document.options.get("numjobs", "1"))
    return int(numjobs) if alike == 1 and isinstance(numjobs, str) and numjobs.isdecimal() and len(numjobs) < 7 else 1
