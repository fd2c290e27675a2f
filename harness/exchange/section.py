"""A section of a job file in an output of fio: its options, the entries with its results, its workload. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, cast, get_args

from harness.errors import MeasurementError
from harness.exchange.document import Document, ReportedDirection, ReportedJob
from harness.exchange.places import place_of
from harness.model.fio_values import DEFAULT_BS, DEFAULT_ENGINE, KB_BASE, rates_of, size_of
from harness.model.job import Bursts, Rw, Workload

MIXED = ("rw", "randrw")
PLACE = ("filename", "directory")
_ALIASES = {
    "readwrite": "rw",
    "blocksize": "bs",
    "timeout": "runtime",
    "start_delay": "startdelay",
}
_NO_VERIFICATION = ("", "0", "none")
_TIME = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>us|usec|ms|msec|s|sec|m|min)?", re.IGNORECASE)
_MICROSECONDS = {
    "us": 1,
    "usec": 1,
    "ms": 1000,
    "msec": 1000,
    "s": 10**6,
    "sec": 10**6,
    "m": 60 * 10**6,
    "min": 6 * 10**7,
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section: `entries` has one entry for each of its processes, or one for all of them (`group_reporting`).

    fio prints only one name and the options of only one section if it reports several sections together. Then this is
    not one section, and harness/exchange/signs.py finds that out.
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
        if rw not in get_args(Rw):
            self.refuse("rw", rw, f"virt-overhead knows {', '.join(get_args(Rw))}")
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
        return place_of(filename, directory)

    @property
    def reads(self) -> bool:
        return self.rw not in ("write", "randwrite")

    @property
    def writes(self) -> bool:
        return self.rw not in ("read", "randread")

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
        limits = [limit for limit in (self._rate_iops(), self._rate()) if limit is not None]
        return self.numjobs * min(limits) if limits else None

    def _rate_iops(self) -> int | None:
        return self._limited("rate_iops")

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
            read, write = rates_of(text, self.kb_base)
        except ValueError as error:
            self.refuse(name, text, str(error))
        limits = [read] * self.reads + [write] * self.writes
        return sum(limits) if all(limits) else None

    @property
    def bursts(self) -> Bursts | None:
        """Its pauses between I/Os; None without."""
        text = self.options.get("thinktime", "0").partition(",")[0].strip()
        match = _TIME.fullmatch(text)
        if match is None:
            self.refuse("thinktime", text, "it must be a time, for example 100us")
        pause = int(match["number"]) * _MICROSECONDS[(match["unit"] or "us").lower()]
        return Bursts(self.number("thinktime_blocks"), pause / 1e6) if pause else None

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
            sizes = [size_of(size, self.kb_base) if size else DEFAULT_BS for size in text.split(",")]
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
        text = self.options.get(name, "0").rpartition("-")[2].strip()
        match = _TIME.fullmatch(text)
        if match is None:
            return 0.0
        return int(match["number"]) * _MICROSECONDS[(match["unit"] or "s").lower()] / 1e6

    def has(self, name: str) -> bool:
        """Whether an option without a value is set. Only fio 3.37 and later print those."""
        return name in self.options and self.options[name] != "0"

    def refuse(self, key: str, value: str, why: str) -> NoReturn:
        raise MeasurementError(f"{self.where}: {key} = {value[:60]!r} cannot be imported", hint=why)


def sections_of(document: Document, source: str) -> tuple[Section, ...]:
    """The sections in fio's order. Raises MeasurementError, which names `source`, if results are missing."""
    found: list[Section] = []
    left = list(document.jobs)
    while left:
        first = left[0]
        options = _options(document.options, first.options)
        section = Section(first.jobname, first.groupid, options, (first,), f"{source}: job {first.jobname}")
        entries = _processes(left, section.numjobs)
        if len(entries) not in (1, section.numjobs):
            raise MeasurementError(
                f"{section.where}: numjobs = {section.numjobs}, but there are {len(entries)} results",
                hint="restore the whole file, or measure again",
            )
        found.append(Section(section.name, section.group, options, entries, section.where))
        del left[: len(entries)]
    return tuple(found)


def _processes(entries: Sequence[ReportedJob], most: int) -> tuple[ReportedJob, ...]:
    """The first entries that are processes of one section, `most` at most."""
    first = entries[0]
    number = 1
    while number < min(most, len(entries)) and (
        (entries[number].groupid, entries[number].jobname, entries[number].options)
        == (first.groupid, first.jobname, first.options)
    ):
        number += 1
    return tuple(entries[:number])


def _options(common: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The options of [global] and of the section by their usual names, in the order in which fio applied them."""
    found: dict[str, str] = {}
    for name, value in (*common.items(), *own.items()):
        known = _ALIASES.get(name, name)
        found.pop(known, None)
        found[known] = value
    return found
