"""A section of a job file in an output of fio: its options, place, results and workload. Pure.

`check_section` finds signs that an entry is not of one section alone, or that its figures contradict each other. With
`group_reporting`, fio adds all sections of a group up in one entry, and prints the name of the first and the options of
the last one. So the entry of three disks looks like that of one. What it contains shows it.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import NoReturn, cast, get_args

from harness.errors import MeasurementError
from harness.features.exchange.document import Document, ReportedDirection, ReportedJob
from harness.features.exchange.normal_form import MIXED
from harness.measure.fio import estimate_in_flight, find_contradiction, find_histogram_contradiction
from harness.model.job import (
    DEFAULT_BS,
    DEFAULT_ENGINE,
    KB_BASE,
    Bursts,
    Rw,
    Workload,
    has_reads,
    has_trims,
    has_writes,
    parse_fio_seconds,
    parse_fio_size,
    parse_rates,
)
from harness.terminal import quoted

_SEPARATOR = re.compile(r"(?<!\\):|, ")
"""fio separates the files of a job with `:`. In a name, `:` is written `\\:`."""
_WINDOWS_DISK = re.compile(r"\\physicaldrive[0-9]+$", re.IGNORECASE)
_IN_MEMORY = "/dev/shm/"


def join_place(filename: str, directory: str) -> str:
    """fio's options `filename` and `directory` as one name. That of a directory ends with `/`."""
    if filename and directory:
        return ":".join(posixpath.join(directory, name) for name in _SEPARATOR.split(filename))
    return filename or (f"{directory.rstrip('/')}/" if directory else "")


def identify_disk(place: str) -> str:
    """What stands for the disk: each device as it is, of a file its directory, and of a file on Windows its drive.

    A job for each file of one directory is common, so the names of files do not matter. Two directories may be two
    disks.
    """
    return ", ".join(sorted({_identify_disk(name.replace("\\:", ":")) for name in _SEPARATOR.split(place) if name}))


def _identify_disk(name: str) -> str:
    if disk := _WINDOWS_DISK.search(name):
        return disk[0].strip("\\").lower()
    drive = PureWindowsPath(name).drive
    if len(drive) == 2 and drive[1] == ":":
        return drive.upper()
    if name.startswith("/dev/") and not name.startswith(_IN_MEMORY):
        return posixpath.normpath(name)
    directory = name if name.endswith("/") else posixpath.dirname(name)
    return posixpath.normpath(directory) if directory else "."


PLACE = ("filename", "directory")
_ALIASES = {
    "readwrite": "rw",
    "blocksize": "bs",
    "timeout": "runtime",
    "start_delay": "startdelay",
}
_NO_VERIFICATION = ("", "0", "none")


@dataclass(frozen=True, slots=True)
class JobSection:
    """One section: `entries` has one entry for each of its processes, or one for all of them (`group_reporting`).

    fio prints only one name and the options of only one section if it reports several sections together. Then this is
    not one section, and `check_section` finds that out.
    """

    name: str
    group: int
    options: Mapping[str, str]
    """Those of [global] as well, by fio's usual names."""
    entries: tuple[ReportedJob, ...]
    where: str
    """For messages."""

    @property
    def rw(self) -> str:
        rw = self.options.get("rw", "read").partition(":")[0]
        rw = _ALIASES.get(rw, rw)
        known = [pattern for pattern in get_args(Rw) if not has_trims(pattern)]
        if rw not in known:
            self.refuse("rw", rw, f"virt-overhead imports {', '.join(known)}")
        return rw

    @property
    def numjobs(self) -> int:
        return self.number("numjobs")

    @property
    def iodepth(self) -> int:
        return self.number("iodepth")

    @property
    def depth(self) -> int:
        """I/Os in flight of all processes together, at most."""
        return self.iodepth * self.numjobs

    @property
    def together(self) -> bool:
        """Whether one entry has the results of several processes."""
        return len(self.entries) == 1 and self.numjobs > 1

    @property
    def engine(self) -> str:
        return self.options.get("ioengine", DEFAULT_ENGINE)

    @property
    def buffered(self) -> bool:
        """Whether the page cache of its system took part. fio's default is buffered I/O; the later option counts."""
        if self.engine == "mmap":
            return True
        for name, value in reversed(list(self.options.items())):
            if name == "direct":
                return value == "0"
            if name == "buffered":
                return value != "0"
        return True

    @property
    def place(self) -> str:
        """The file, device or directory that it works on; empty if fio did not print it."""
        filename, directory = (self.options.get(name, "") for name in PLACE)
        return join_place(filename, directory)

    @property
    def reads(self) -> bool:
        return has_reads(self.rw)

    @property
    def writes(self) -> bool:
        return has_writes(self.rw)

    @property
    def verifies(self) -> bool:
        """Whether fio reads what it wrote to verify it, after it wrote everything."""
        asked = self.options.get("verify", "") not in _NO_VERIFICATION
        return asked and self.writes and self.options.get("do_verify") != "0"

    @property
    def sides(self) -> tuple[ReportedDirection, ...]:
        """The directions in which it completed I/Os of its pattern: without reads that verify."""
        verifies = self.verifies and not self.reads
        return tuple(side for entry in self.entries for side in entry.sides if not (verifies and side is entry.read))

    @property
    def ramp(self) -> float:
        """In seconds."""
        return self._seconds("ramp_time")

    @property
    def delay(self) -> float:
        """From the start of fio to the start of the section, in seconds."""
        return self._seconds("startdelay")

    @property
    def limit(self) -> float | None:
        """For how long it was to run, in seconds; None without such a limit."""
        return self._seconds("runtime") or None

    @property
    def is_paced(self) -> bool:
        """Whether a rate or pauses limit its IOPS."""
        return self.rate is not None or self.bursts is not None

    @property
    def syncs(self) -> bool:
        """Whether fdatasync follows each of its writes."""
        return self.rw in ("write", "randwrite") and self.options.get("fdatasync") == "1"

    @property
    def rate(self) -> int | None:
        """The requested I/Os per second of all processes; None for as many as possible.

        fio limits each process and direction separately. A limit of bytes per second is one of I/Os as well.
        """
        limits = [limit for limit in (self._limited("rate_iops"), self._rate()) if limit is not None]
        return self.numjobs * min(limits) if limits else None

    def _rate(self) -> int | None:
        limited = self._limited("rate")
        if limited is None:
            return None
        ios = round(limited / self.bs)
        if abs(ios * self.bs - limited) > 0.01 * limited:
            why = f"it must be a whole number of I/Os of {self.bs} bytes per second"
            self.refuse("rate", self.options["rate"], why)
        return ios

    def _limited(self, name: str) -> int | None:
        """The sum of the limits of its directions in this option; None if one of them has none. 0 is no limit."""
        text = self.options.get(name, "0")
        try:
            read, write = parse_rates(text, self.kb_base)
        except ValueError as error:
            self.refuse(name, text, str(error))
        limits = [read] * self.reads + [write] * self.writes
        return sum(limits) if all(limits) else None

    @property
    def bursts(self) -> Bursts | None:
        """Its pauses between I/Os; None without."""
        text = self.options.get("thinktime", "0").partition(",")[0].strip()
        try:
            pause = parse_fio_seconds(text, "us")
        except ValueError:
            self.refuse("thinktime", text, "it must be a time, for example 100us")
        return Bursts(self.number("thinktime_blocks"), pause) if pause else None

    @property
    def read_share(self) -> float | None:
        """The requested share of reads of a mixed pattern. The later one of fio's two options counts."""
        if self.rw not in MIXED:
            return None
        for name in reversed(list(self.options)):
            if name == "rwmixread":
                return self.number(name) / 100
            if name == "rwmixwrite":
                return (100 - self.number(name)) / 100
        return 0.5

    @property
    def kb_base(self) -> int:
        base = self.number("kb_base", KB_BASE)
        if base not in (1000, KB_BASE):
            self.refuse("kb_base", str(base), "it must be 1024 or 1000")
        return base

    @property
    def bs(self) -> int:
        """Block size in bytes."""
        for name in ("bsrange", "bssplit"):
            if name in self.options:
                self.refuse(name, self.options[name], "only jobs with one block size can be imported")
        text = self.options.get("bs", "4k")
        try:
            sizes = [parse_fio_size(size, self.kb_base) if size else DEFAULT_BS for size in text.split(",")]
        except ValueError as error:
            self.refuse("bs", text, str(error))
        # The sizes of reads, writes and trims. The last one is for those that follow as well.
        used = {sizes[0]} if self.reads else set()
        used |= {sizes[min(1, len(sizes) - 1)]} if self.writes else set()
        if len(used) != 1 or not min(used):
            self.refuse("bs", text, "only jobs with one block size can be imported, for example bs=4k")
        return used.pop()

    def workload(self) -> Workload:
        """Its workload, without depth. Raises MeasurementError if it is not one that virt-overhead knows."""
        rate = self.rate
        return Workload(
            cast(Rw, self.rw),
            self.bs,
            self.numjobs,
            self.read_share,
            rate,
            bursts=self.bursts,
            syncs=self.syncs,
            poisson=rate is not None and self.options.get("rate_process") == "poisson",
        )

    def number(self, name: str, default: int = 1) -> int:
        """The value of an option. Raises MeasurementError if it is not a whole number, or 0 except for a mix."""
        text = self.options.get(name, str(default))
        if not text.isdecimal() or len(text) > 9 or (int(text) == 0 and not name.startswith("rwmix")):
            self.refuse(name, text, "it must be a whole number")
        return int(text)

    def _seconds(self, name: str) -> float:
        """A time, whose unit is seconds without one; 0 if it is not given. The latest one of a range."""
        with suppress(ValueError):
            return parse_fio_seconds(self.options.get(name, "0").rpartition("-")[2])
        return 0.0

    def has(self, name: str) -> bool:
        """Whether an option without a value is set. Only fio 3.37 and later print those."""
        return name in self.options and self.options[name] != "0"

    def refuse(self, key: str, value: str, why: str) -> NoReturn:
        raise MeasurementError(f"{self.where}: {key} = {quoted(value)} cannot be imported", hint=why)


def split_sections(document: Document, source: str) -> tuple[JobSection, ...]:
    """The sections in fio's order. Raises MeasurementError, which names `source`, if results are missing."""
    sections: list[JobSection] = []
    left = list(document.jobs)
    while left:
        first = left[0]
        options = _merge_options(document.options, first.options)
        section = JobSection(first.jobname, first.groupid, options, (first,), f"{source}: job {first.jobname}")
        entries = _take_processes(left, section.numjobs)
        if len(entries) not in (1, section.numjobs):
            raise MeasurementError(
                f"{section.where}: numjobs = {section.numjobs}, but there are {len(entries)} results",
                hint="restore the whole file, or measure again",
            )
        sections.append(JobSection(section.name, section.group, options, entries, section.where))
        del left[: len(entries)]
    return tuple(sections)


def _take_processes(entries: Sequence[ReportedJob], most: int) -> tuple[ReportedJob, ...]:
    """The first entries that are processes of one section, `most` at most."""
    first = entries[0]
    number = 1
    while number < min(most, len(entries)) and (
        (entries[number].groupid, entries[number].jobname, entries[number].options)
        == (first.groupid, first.jobname, first.options)
    ):
        number += 1
    return tuple(entries[:number])


def _merge_options(common: Mapping[str, str], of_section: Mapping[str, str]) -> dict[str, str]:
    """The options of [global] and of the section by their usual names, in the order in which fio applied them."""
    options: dict[str, str] = {}
    for name, value in (*common.items(), *of_section.items()):
        known = _ALIASES.get(name, name)
        options.pop(known, None)
        options[known] = value
    return options


_HINT = "give each section an entry of its own: measure without group_reporting, or with stonewall in each section"
_MORE_PROCESSES = 0.1
"""From this excess of `job_runtime`, in times of the longest process, the entry has a process more."""
_FAR_ABOVE = 2.0
_ABOVE = 1.1
_FAR_FROM_MIX = 0.1
_NEAR_MIX = 0.02
_BS_TOLERANCE = 0.05
"""The last block of a file may be shorter."""


def check_section(section: JobSection) -> Iterator[str]:
    """Notes about the entries of a section that may be of several ones. Raises MeasurementError if they are."""
    for entry in section.entries:
        if entry.trim is not None and entry.trim.total_ios:
            _several(section, "it has trims")
    _check_verification(section)
    if not section.sides:
        raise MeasurementError(
            f"{section.where} completed no I/O", hint="find out why in fio's messages, and measure again"
        )
    _check_directions(section)
    yield from _check_sizes(section)
    yield from _check_processes(section)
    yield from _check_mix(section)
    yield from _check_in_flight(section)
    for side in section.sides:
        if (problem := find_contradiction(side) or find_histogram_contradiction(side)) is not None:
            raise MeasurementError(f"{section.where}: {problem}", hint="restore the file, or measure again")


def _several(section: JobSection, sign: str) -> NoReturn:
    raise MeasurementError(
        f"{section.where}: it seems that fio reported several sections together (group_reporting), so no figure is of "
        f"one job alone: {sign}",
        hint=_HINT,
    )


def _check_verification(section: JobSection) -> None:
    """Reads that verify have a time of their own only if they follow all writes of a job that only writes."""
    if section.has("verify_only"):
        section.refuse("verify_only", section.options["verify_only"], "a job that only verifies is not a measurement")
    if not section.verifies:
        return
    unified = any(entry.unified for entry in section.entries)
    for name, blended in (
        ("verify_backlog", section.options.get("verify_backlog", "0") != "0"),
        ("verify", section.reads or unified),
    ):
        if blended:
            section.refuse(
                name,
                section.options[name],
                "fio does not report the reads that verify alone; measure without verify, or with do_verify=0",
            )
    written = sum(entry.write.total_ios for entry in section.entries)
    if sum(entry.read.total_ios for entry in section.entries) > written * (1 + _NEAR_MIX) * max(
        1, section.number("loops")
    ):
        _several(section, "it read more than it wrote, although it only verifies")


def _check_directions(section: JobSection) -> None:
    for entry in section.entries:
        if entry.unified:
            continue
        if entry.read.total_ios and not section.reads and not section.verifies:
            _several(section, f"rw = {section.rw}, but it has reads")
        if entry.write.total_ios and not section.writes:
            _several(section, f"rw = {section.rw}, but it has writes")


def _check_sizes(section: JobSection) -> Iterator[str]:
    bs = section.bs
    for side in section.sides:
        mean = side.io_bytes / side.total_ios
        if abs(mean - bs) <= _BS_TOLERANCE * bs:
            continue
        if section.ramp and 0 < side.io_bytes - side.total_ios * bs <= 2 * section.depth * bs:
            yield (
                "the I/Os in flight at the end of ramp_time count as bytes, but not as I/Os, so its bandwidth is up to "
                f"{mean / bs - 1:.0%} too high, or its IOPS are too low"
            )
            continue
        ramp = ", also with those in flight at the end of ramp_time" if section.ramp else ""
        raise MeasurementError(
            f"{section.where}: bs = {bs}, but its I/Os have {mean:.0f} bytes on average{ramp}",
            hint="only jobs with one block size can be imported",
        )


def _check_processes(section: JobSection) -> Iterator[str]:
    """`job_runtime` is the sum over the processes in the entry."""
    if len(section.entries) > 1:
        return
    (entry,) = section.entries
    numjobs, total = section.numjobs, entry.job_runtime / 1000
    runs = [side.runtime / 1000 for side in entry.sides]
    longest = sum(runs) if section.verifies else max(runs)
    excess = total - numjobs * longest
    if excess > _MORE_PROCESSES * longest + 0.02 * numjobs:
        _several(
            section,
            f"numjobs = {numjobs}, but job_runtime is that of {total / longest:.1f} processes ({total:.1f} s, and the "
            f"longest took {longest:.1f} s)",
        )
    if excess > numjobs * (0.005 + 0.001 * longest):
        yield (
            f"job_runtime is {total / longest:.2f} times the time of the longest process, more than numjobs = "
            f"{numjobs}: fio may have reported several sections together (group_reporting)"
        )
    limit = section.limit
    if numjobs > 1 and limit is not None and longest > limit * 1.1 + 5.0 and total < numjobs * longest * 0.95:
        _several(section, f"runtime = {limit:g} s, but a process ran for {longest:.1f} s and others did not")
    if numjobs > 1 and total < numjobs * (longest * 0.99 - 0.005):
        yield (
            f"its {numjobs} processes did not run for the same time: {longest:.1f} s the longest, "
            f"{total / numjobs:.1f} s on average; or fio reported several sections together (group_reporting). "
            "Its IOPS are all I/Os by the time of the longest"
        )


def _check_mix(section: JobSection) -> Iterator[str]:
    """Rates set the shares of reads and writes as well, so they are compared only without."""
    share = section.read_share
    if share is None or "rate" in section.options or "rate_iops" in section.options:
        return
    if any(entry.unified for entry in section.entries):
        return
    reads = sum(entry.read.total_ios for entry in section.entries)
    ios = reads + sum(entry.write.total_ios for entry in section.entries)
    chance = 5 * math.sqrt(max(share * (1 - share), 0.01) / ios) + section.depth / ios
    differs = abs(reads / ios - share)
    said = f"{reads / ios:.0%} of its I/Os are reads, but rwmixread = {share * 100:.0f}"
    if differs > _FAR_FROM_MIX + chance:
        _several(section, said)
    if differs > _NEAR_MIX + chance:
        yield f"{said}: fio may have reported several sections together (group_reporting)"


def _check_in_flight(section: JobSection) -> Iterator[str]:
    """Little's law. I/Os that were in flight at the end of the ramp were longer in flight than the job ran."""
    seconds = max(side.runtime for side in section.sides) / 1000
    if not seconds:
        return
    slowest = max(side.clat_ns.max for side in section.sides) / 1e9 if section.ramp else 0.0
    allowed = section.depth * (1 + slowest / seconds)
    flying = estimate_in_flight(section.sides, seconds)
    if not math.isfinite(flying):
        return
    said = f"{flying:.0f} I/Os were in flight by its latency and IOPS, but iodepth x numjobs = {section.depth}"
    if flying > _FAR_ABOVE * allowed:
        _several(section, said)
    if flying > _ABOVE * allowed:
        yield f"{said}: there were more I/Os in flight than one section has"
