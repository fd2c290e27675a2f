"""I/O patterns: workloads as listed in scenarios, jobs, and sections of a fio file. Pure.

A job is a workload with a depth and a duration. Names such as `randread-4k` are parsed here; harness/model/workloads.py
has the workloads with names of their own. Functions raise ValueError, which says what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, computed_field, model_validator

from harness.config.names import choices
from harness.model.values import Count, FileValue, RecordValue
from harness.units import parse_size, short_size

DEFAULT_ENGINE = "psync"
"""fio's own default on Linux."""
DEFAULT_BS = 4096
"""fio's own default, in bytes."""
_SIZE = re.compile(
    r"(?:(?P<hex>0x[0-9a-f]{1,12})|(?P<number>[0-9]{1,15}))(?P<unit>[kmgtp]?)(?P<ending>b|i|ib)?", re.I | re.A
)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
KB_BASE = 1024
"""fio's default for `kb_base`."""
_OTHER_BASE = {1024: 1000, 1000: 1024}
# A size is a number with its unit, at the beginning or after one of these marks. In bssplit, a share follows "/".
SIZES = {
    "ba": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bs": re.compile(r"(?P<before>^|,)(?P<size>[^,]+)"),
    "bsrange": re.compile(r"(?P<before>^|[,:-])(?P<size>[^,:-]+)"),
    "bssplit": re.compile(r"(?P<before>^|[,:])(?P<size>[^,:/]+)"),
}


def parse_fio_size(text: str, kb_base: int = KB_BASE) -> int:
    """The size in bytes as fio reads it, with its option `kb_base` (1024 or 1000). Raises ValueError.

    `4k`, `4kb` and `4ki` are 4 x kb_base. Only `4kib` has the other base: 4000 bytes by default, which surprises.
    Source: __get_mult_bytes in fio's parse.c. fio ignores what it does not know (`4.5k` is 4 bytes); that is an error.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or ((match["ending"] or "b").lower() != "b" and not match["unit"]):
        raise ValueError(f'"{text.strip()}" is not a size; allowed: for example 4096 or 4k (k is 1024)')
    if match["hex"]:
        return int(match["hex"], 16)  # fio ignores units after it
    base = _OTHER_BASE[kb_base] if (match["ending"] or "").lower() == "ib" else kb_base
    factor: int = base ** _POWERS[match["unit"].lower()]
    return int(match["number"]) * factor


_TIME = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[a-z]*)")
_MICROSECONDS = {
    **dict.fromkeys(("us", "usec"), 1),
    **dict.fromkeys(("ms", "msec"), 1000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 10**6),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 10**6),
    **dict.fromkeys(("h", "hour", "hours"), 3600 * 10**6),
    **dict.fromkeys(("d", "day", "days"), 86400 * 10**6),
}


def parse_fio_seconds(text: str, unit: str = "s") -> float:
    """The time in seconds as fio reads it. `unit` is that of a number without one. Raises ValueError."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or (match["unit"] or unit) not in _MICROSECONDS:
        raise ValueError("allowed: a number with a unit, for example 100us or 5s")
    return int(match["number"]) * _MICROSECONDS[match["unit"] or unit] / 1e6


def find_block_sizes(values: Mapping[str, str]) -> tuple[int, ...]:
    """Every block size in bytes of a section with these options. fio prefers bssplit to bsrange, and both to bs."""
    for option in ("bssplit", "bsrange", "bs"):
        if option in values:
            value = values[option]
            sizes = tuple(parse_fio_size(match["size"], read_base(values)) for match in SIZES[option].finditer(value))
            # In `,8k`, the size of reads is fio's default.
            return (DEFAULT_BS, *sizes) if value.startswith(",") or value.endswith(",") else sizes
    return (DEFAULT_BS,)


def read_base(values: Mapping[str, str]) -> int:
    """What k stands for in the sizes of a section with these options."""
    return int(values.get("kb_base", KB_BASE))


def round_up_sizes(option: str, value: str, block: int, kb_base: int = KB_BASE) -> str:
    """The value of an option, with block sizes rounded up to multiples of `block` bytes. Other values are unchanged."""
    if option not in SIZES:
        return value

    def in_blocks(match: re.Match[str]) -> str:
        size = parse_fio_size(match["size"], kb_base)
        return match[0] if size % block == 0 else f"{match['before']}{-(-size // block) * block}"

    return SIZES[option].sub(in_blocks, value)


def parse_rates(value: str, kb_base: int = KB_BASE) -> tuple[int, int]:
    """The I/Os per second of reads and of writes, of one process; 0 for no limit. One value is for both."""
    limits = [parse_fio_size(limit, kb_base) if limit.strip() else 0 for limit in value.split(",")]
    if len(limits) > 3:
        raise ValueError("allowed: the rates of reads, of writes and of trims")
    return limits[0], limits[1] if len(limits) > 1 else limits[0]


@dataclass(frozen=True, slots=True)
class FioOption(FileValue):
    """An option that fio gets as it is in the file."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Overridden(FileValue):
    """An option of the file that virt-overhead sets itself."""

    name: str
    value: str
    """In the file; empty for an option without a value."""
    instead: str
    """What applies instead, in words."""


@dataclass(frozen=True, slots=True)
class FioSection(FileValue):
    """One section of the file, with the options that it has from [global] and from included files."""

    name: str
    """As in the file."""
    options: Annotated[tuple[FioOption, ...], Strict(False)]
    """Those that fio gets."""
    processes: Count
    """fio's numjobs."""
    iodepth: Count
    """I/Os in flight of each process; 1 with an engine that waits for each I/O."""
    overridden: Annotated[tuple[Overridden, ...], Strict(False)] = ()
    """Those that virt-overhead sets itself."""

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every block size in bytes, the limits of ranges, and fio's default if there is none."""
        values = {option.name: option.value for option in self.options}
        return find_block_sizes(values)

    @property
    def text(self) -> str:
        """The options in one line."""
        return " ".join(f"{option.name}={option.value}" for option in self.options)

    def options_for(self, block: int) -> tuple[FioOption, ...]:
        """The options for a disk whose logical blocks have `block` bytes: other block sizes are rounded up."""
        base = read_base({option.name: option.value for option in self.options})
        rounded = (
            FioOption(option.name, round_up_sizes(option.name, option.value, block, base)) for option in self.options
        )
        return tuple(rounded)


@dataclass(frozen=True, slots=True)
class FromFile(FileValue):
    """The sections of a user's own fio file that run at the same time. fio reports them as one."""

    file: str
    """Path of the file, relative to the scenario's folder."""
    sections: Annotated[tuple[FioSection, ...], Strict(False)]
    """In the order of the file."""
    saturating: Annotated[bool, Strict()]
    """Whether every section always keeps as many I/Os in flight as its depth allows."""
    paced: Annotated[bool, Strict()]
    """Whether every section has a rate or pauses, which limit its IOPS."""
    flushes: Annotated[bool, Strict()]
    """Whether a section calls fsync or fdatasync."""

    @property
    def depth(self) -> int:
        """I/Os in flight of all processes together."""
        return sum(section.iodepth * section.processes for section in self.sections)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every block size in bytes, each once, the smallest first."""
        return tuple(sorted({size for section in self.sections for size in section.block_sizes}))


# Not randtrimwrite: fio 3.33 and 3.39 only trim then, and never write.
Rw = Literal["read", "write", "randread", "randwrite", "rw", "randrw", "trim", "randtrim", "trimwrite"]

PATTERNS: Mapping[str, Rw] = {
    "seqread": "read",
    "seqwrite": "write",
    "seqrw": "rw",
    "randread": "randread",
    "randwrite": "randwrite",
    "randrw": "randrw",
    "seqtrim": "trim",
    "randtrim": "randtrim",
    "seqtrimwrite": "trimwrite",
}
"""The usual name of a pattern, and its name in fio."""
_PATTERN_OF_RW = {rw: pattern for pattern, rw in PATTERNS.items()}

_WORKLOAD = re.compile(
    r"(?P<pattern>[a-z]+)-(?P<bs>[0-9]+[a-z]*)"
    r"(?:-nj(?P<numjobs>[0-9]{1,15}))?(?:-r(?P<reads>[0-9]{1,15}))?(?:-i(?P<rate>[0-9]{1,15}))?(?P<buffered>-buffered)?"
)
_GRAMMAR = (
    "PATTERN-BS[-njNUMJOBS][-rREADS][-iIOPS][-buffered], for example randread-4k, randrw-8k-r67 or randread-4k-i1000 "
    "(the depth is iodepth of [profile.NAME]); a named workload, for example wal or cdm8; or a file NAME.fio"
)
_LARGEST_BS = 16 * 1024**2
_LARGEST_RATE = 10_000_000
REFILL_SECONDS = 0.5
"""For how long a job that only trims writes what it will trim, in its ramp."""


@dataclass(frozen=True, slots=True)
class BlockShare(FileValue):
    """One block size of a pattern with several, and the share of the I/Os that have it."""

    bs: Count
    """In bytes."""
    percent: Count
    """Share of the I/Os, in percent."""


@dataclass(frozen=True, slots=True)
class Bursts(FileValue):
    """I/Os in bursts. After every `ios` I/Os of a process, it waits."""

    ios: Count
    """I/Os of a process between two pauses."""
    pause: Annotated[float, Strict()]
    """In seconds."""


@dataclass(frozen=True, slots=True)
class Workload(RecordValue):
    """An I/O pattern without depth and times, as listed in a scenario: `randread-4k`, `randrw-8k-nj4-r67-i1000`."""

    rw: Rw
    """fio's name of the pattern."""
    bs: int
    """Block size in bytes; the largest one if there are several."""
    numjobs: int = 1
    """Processes that run the job at the same time."""
    read_share: float | None = None
    """Share of reads in a mixed pattern, 0 to 1; null for a pattern that only reads or only writes."""
    rate: int | None = None
    """I/Os per second requested, of all processes together; null for as many as possible."""
    label: str | None = None
    """Its own name, for example "wal"; null if the name follows from the other values."""
    iodepths: Annotated[tuple[Count, ...], Strict(False)] = ()
    """Its own depths; empty: those of the profile."""
    sizes: Annotated[tuple[BlockShare, ...], Strict(False)] = ()
    """Block sizes and their shares; empty: all I/Os have the size `bs`."""
    random_share: float | None = None
    """Share of random I/Os, 0 to 1; null: all of a random pattern, and none of a sequential one."""
    syncs: bool = False
    """Whether fdatasync follows each write. Its latency is measured. Not for mixed patterns: fio also calls it after
    each read there."""
    durable: bool = False
    """Whether each write is durable when it completes (O_DSYNC)."""
    bursts: Bursts | None = None
    """Pauses between I/Os; null: none."""
    poisson: bool = False
    """Whether the I/Os of `rate` arrive at random times, independent of each other, as in a Poisson process."""
    region: int | None = None
    """Bytes that it uses at most of the arm's region; null: all of them."""
    seconds_each: float | None = None
    """Seconds of a slice in profiles with `own_times`; null: those of the profile."""
    from_file: FromFile | None = None
    """What fio gets, from a user's own file. Then the other values describe all of its sections together. `read_share`
    is null as well if sections that read and sections that write run at their own speed."""
    buffered: Annotated[bool, Strict(), Field(exclude_if=lambda value: not value)] = False
    """Whether it goes through the page cache of the machine that it runs on (direct=0); left out if it does not."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pattern(self) -> str:
        """The usual name of the pattern. fio's `read` is `seqread` here, so `-k seqread` does not match `randread`."""
        return _PATTERN_OF_RW[self.rw]

    @property
    def name(self) -> str:
        """The name in a scenario file."""
        return self.label or "-".join(self.parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """Pattern and block size, then what differs from the default of one process at full speed."""
        parts = [self.pattern, short_size(self.bs)]
        if self.numjobs != 1:
            parts.append(f"nj{self.numjobs}")
        if self.read_share is not None:
            parts.append(f"r{self.read_share * 100:.0f}")
        if self.rate is not None:
            parts.append(f"i{self.rate}")
        if self.buffered:
            parts.append("buffered")
        return tuple(parts)

    @property
    def headline(self) -> str:
        """The metric that people quote for this workload: IOPS of random patterns, bandwidth of sequential ones.

        With a fixed rate, every arm has the same IOPS. Then the metric is the mean completion latency; of random
        arrivals, the mean latency with the time in the queue. Of bursts, it is the mean completion latency as well,
        because the pauses limit the IOPS. Of writes that are flushed, it is the mean latency of fdatasync.
        """
        if self.syncs:
            return "sync_mean"
        if self.poisson:
            return "lat_mean"
        if self.rate is not None or self.bursts is not None or (self.from_file and self.from_file.paced):
            return "clat_mean"
        return "iops" if self.is_random else "bw"

    @property
    def is_saturating(self) -> bool:
        """Whether it always keeps as many I/Os in flight as its depth allows."""
        if self.trims or self.buffered:
            # fio waits for each trim, and one that is dropped costs next to nothing. Memory answers some reads at once.
            return False
        if self.from_file is not None:
            return self.from_file.saturating
        return self.rate is None and self.bursts is None and not self.syncs

    @property
    def is_random(self) -> bool:
        return self.rw.startswith("rand")

    @property
    def reads(self) -> bool:
        return has_reads(self.rw)

    @property
    def writes(self) -> bool:
        return has_writes(self.rw)

    @property
    def trims(self) -> bool:
        """Whether it trims blocks. Then it has a part of the arm's region that no other job uses."""
        return has_trims(self.rw)

    def count_used(self, span: int) -> int:
        """The bytes that it uses of a region of `span` bytes."""
        return min(self.region or span, span)

    @property
    def reads_ahead(self) -> bool:
        """Whether the kernel reads more than it asks for, also after the end of a slice."""
        return self.buffered and self.reads

    def count_ahead(self, read_ahead: int) -> int:
        """The most bytes that the kernel has read ahead of it at the end of a slice, with windows of so many bytes.

        One window may be in use while the next is read. Each has at least the size of a request (Linux: readahead.c).
        """
        return 2 * (read_ahead + self.bs) * self.numjobs if self.reads_ahead else 0

    @property
    def only_trims(self) -> bool:
        """Whether it leaves trimmed blocks behind. Then its ramp writes them again."""
        return self.trims and not self.rw.endswith("write")

    @property
    def share_of_reads(self) -> float | None:
        """The share of reads in its I/Os, 0 to 1; None if each of several sections of a file has its own speed."""
        if self.read_share is None and self.reads and self.writes:
            return None
        return self.read_share if self.read_share is not None else float(self.reads)

    @property
    def flushes(self) -> bool:
        """Whether it calls fdatasync or fsync, whose latency is then measured."""
        return self.syncs or (self.from_file is not None and self.from_file.flushes)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Every block size in bytes. With a file, also the limits of ranges."""
        if self.from_file is not None:
            return self.from_file.block_sizes
        return tuple(size.bs for size in self.sizes) or (self.bs,)

    @property
    def io(self) -> Workload:
        """The same I/O without a name and without own depths, times and region. Equal ones do the same I/O."""
        return replace(Workload(*_read_values(self)), label=None, iodepths=(), region=None, seconds_each=None)

    def rounded_sizes(self, block: int) -> tuple[BlockShare, ...]:
        """`sizes` for a disk whose logical blocks have `block` bytes: smaller ones are rounded up, and added up."""
        percents: dict[int, int] = {}
        for block_share in self.sizes:
            size = max(block_share.bs, block)
            percents[size] = percents.get(size, 0) + block_share.percent
        return tuple(BlockShare(bs, percent) for bs, percent in percents.items())

    def depths(self, profile: tuple[int, ...]) -> tuple[int, ...]:
        """The depths that it has in a profile with these depths: those of both, or all of its own if there is none."""
        if not self.iodepths:
            return profile
        return tuple(depth for depth in self.iodepths if depth in profile) or self.iodepths

    def job(self, iodepth: int, *, ramp: float, seconds: float) -> Job:
        """The workload at this depth, measured for `seconds` after `ramp` seconds."""
        ramp = max(ramp, REFILL_SECONDS) if self.only_trims else ramp
        return Job(*_read_values(self), iodepth=iodepth, ramp=ramp, seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Workload):
    """One fio measurement point, as requested."""

    iodepth: Annotated[int, Field(ge=1)]
    """I/Os in flight per job process."""
    ramp: float
    """Seconds before the measured time begins."""
    seconds: float
    """Measured time requested."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> str:
        """For example `randread-4k-qd32`; `-nj4`, `-r70` and `-i1000` follow where the workload sets them.

        A workload with a name of its own and one depth has only this name: `wal`, `cdm7-seq1m-q8t1-read`.
        """
        if self.label is not None:
            return self.label if len(self.iodepths) == 1 else f"{self.label}-qd{self.iodepth}"
        pattern, bs, *suffixes = self.parts
        return "-".join((pattern, bs, f"qd{self.iodepth}", *suffixes))

    @property
    def workload(self) -> Workload:
        """The workload in the scenario: the job without depth and times."""
        return Workload(*_read_values(self))

    @property
    def depth(self) -> int:
        """I/Os in flight of all processes together."""
        return self.from_file.depth if self.from_file is not None else self.iodepth * self.numjobs

    @property
    def wall(self) -> float:
        """Seconds that fio runs for this job: ramp and measured time."""
        return self.ramp + self.seconds

    @model_validator(mode="before")
    @classmethod
    def _without_computed(cls, data: Any) -> Any:
        """Drops the computed values, which a record also has."""
        return {key: data[key] for key in data if key not in ("id", "pattern")} if isinstance(data, dict) else data


def _read_values(workload: Workload) -> tuple[Any, ...]:
    """The values of a workload, or of a job without its depth and times, in the order of the fields."""
    return tuple(getattr(workload, field.name) for field in fields(Workload))


def has_reads(rw: str) -> bool:
    """Whether fio's pattern of this name has reads."""
    return rw not in ("write", "randwrite") and not has_trims(rw)


def has_writes(rw: str) -> bool:
    """Whether it has writes. What only trims is refilled before, and changes the disk as well."""
    return rw not in ("read", "randread")


def has_trims(rw: str) -> bool:
    return "trim" in rw


def parse_workload(text: str) -> Workload:
    """The workload of `text`, for example "randread-4k" or "randrw-8k-nj4-r67-i1000". Raises ValueError."""
    match = _WORKLOAD.fullmatch(text)
    if match is None:
        raise ValueError(f"not a workload; allowed: {_GRAMMAR}")
    pattern, reads = match["pattern"], match["reads"]
    if pattern not in PATTERNS:
        raise ValueError(f"no such pattern; {choices(pattern, PATTERNS)}")
    bs = parse_size(match["bs"])
    if bs == 0 or bs % 512 or bs > _LARGEST_BS:
        raise ValueError("not a valid block size; allowed: multiples of 512 bytes up to 16m")
    numjobs = int(match["numjobs"] or 1)
    if not 1 <= numjobs <= 64:
        raise ValueError("numjobs out of range; allowed: nj1 to nj64")
    mixed = pattern in ("seqrw", "randrw")
    if mixed != (reads is not None):
        raise ValueError(
            f"a mixed pattern needs a share of reads in percent; allowed: for example {pattern}-{match['bs']}-r70"
            if mixed
            else "a share of reads (-r) is for mixed patterns; allowed: seqrw, randrw"
        )
    if reads is not None and not 1 <= int(reads) <= 99:
        raise ValueError("share of reads out of range; allowed: r1 to r99 (percent)")
    read_share = int(reads) / 100 if reads is not None else None
    if has_trims(pattern):
        if match["rate"] is not None or match["buffered"] is not None:
            raise ValueError("a rate (-i) and -buffered are for reads and writes; allowed: trims as fast as possible")
        # fio waits for each trim, whatever the depth is.
        return Workload(PATTERNS[pattern], bs, numjobs, iodepths=(1,))
    rate = _parse_rate(match["rate"], numjobs, read_share)
    if match["buffered"] is None:
        return Workload(PATTERNS[pattern], bs, numjobs, read_share, rate)
    if has_writes(PATTERNS[pattern]):
        raise ValueError("buffered writes end in memory; allowed: buffered reads, or wal-buffered, which flushes each")
    # A read of the page cache has no queue.
    return Workload(PATTERNS[pattern], bs, numjobs, read_share, rate, iodepths=(1,), buffered=True)


def _parse_rate(text: str | None, numjobs: int, read_share: float | None) -> int | None:
    """The requested IOPS. fio limits each process and direction separately, in whole numbers."""
    if text is None:
        return None
    rate = int(text)
    if not 1 <= rate <= _LARGEST_RATE or rate % numjobs:
        raise ValueError("not a rate that fio supports; allowed: i1 to i10000000, a multiple of numjobs")
    if read_share is not None and not 1 <= round(rate / numjobs * read_share) < rate // numjobs:
        raise ValueError("the rate is too low for a mix of reads and writes; allowed: more I/Os per second")
    return rate
