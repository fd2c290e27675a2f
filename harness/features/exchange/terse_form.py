"""Reads fio's terse output (one line for each job, versions 3 to 5) into the form of its JSON. Pure.

Terse output has no options. The block size follows from bytes and I/Os, the depth from the depths at which I/Os were
submitted together with Little's law; random or sequential only from the name of the job or of the file. What does not
follow without doubt is an error. Source: show_thread_status_terse_all in fio's stat.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NoReturn

from harness.errors import MeasurementError
from harness.features.exchange.normal_form import Printed, derive_read_share, extract_messages

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


def is_terse_form(text: str) -> bool:
    """Whether the text has a line of fio's terse output."""
    return _LINE.search(text) is not None


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
            hint="measure with fio 3.16 or later (the output of 3.0 to 3.15 can also be read)",
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
