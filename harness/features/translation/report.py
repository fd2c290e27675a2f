"""The lines of other tools, the jobs that do the same I/O, what differs nevertheless, and those that a run can fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.model.job import Job
from harness.report.blocks import Aside, Block, Column, Fold, TableCell, make_table
from harness.report.numbers import NONE, significant, with_interval
from harness.report.section import ArmOfCell, Section, arms_of
from harness.results import CellRecord

MIB = 1 << 20
_YABS_SIZES = {4096: "4k", 65536: "64k", 512 * 1024: "512k", MIB: "1m"}
_YABS_MB = 1000 * 1024
"""Bytes. It divides fio's KiB/s by 1000 and calls that MB/s."""
_BEST = "shows the best of its passes, on a file that it lays out on the file system; this is the mean, on the device"
_ZEROS = "dd writes zeros, which ZFS, btrfs and many SSDs compress; fio's data is random"
_CACHE = "reads ahead through the page cache; fio reads one block after the other, past it"


@dataclass(frozen=True, slots=True)
class QuotedLine:
    """A figure of another tool, for the jobs that it `fits`. `scale`: its unit is so many of the metric's."""

    tool: str
    name: str | Callable[[Job], str]
    """As the tool writes it."""
    fits: Callable[[Job], bool]
    metric: str
    unit: str
    scale: float
    differs: str

    def call(self, job: Job) -> str:
        """What the tool calls the job."""
        return self.name if isinstance(self.name, str) else self.name(job)


def is_plain(job: Job) -> bool:
    """Whether it does one kind of I/O of one size as fast as possible."""
    return _is_unlimited(job) and not job.sizes and job.random_share is None


def _is_unlimited(job: Job) -> bool:
    """Whether it reads and writes past the page cache, as fast as possible and with nothing between its I/Os."""
    limits = (job.from_file, job.rate, job.bursts)
    return all(limit is None for limit in limits) and not (
        job.syncs or job.durable or job.poisson or job.trims or job.buffered
    )


def _is_like(rw: str, bs: int, depth: int, jobs: int = 1, share: float | None = None) -> Callable[[Job], bool]:
    """For plain jobs of this pattern, block size, iodepth, processes and share of reads."""
    return lambda job: (
        is_plain(job) and (job.rw, job.bs, job.iodepth, job.numjobs, job.read_share) == (rw, bs, depth, jobs, share)
    )


def _make_cdm() -> Iterator[QuotedLine]:
    tests = (
        ("SEQ1M", "", MIB, 8, 1),
        ("SEQ1M", "", MIB, 1, 1),
        ("RND4K", "rand", 4096, 32, 16),
        ("RND4K", "rand", 4096, 32, 1),
        ("RND4K", "rand", 4096, 1, 1),
    )
    for test, random, bs, depth, threads in tests:
        for direction in ("read", "write"):
            fits = _is_like(f"{random}{direction}", bs, depth, threads)
            name = f"{test} Q{depth}T{threads} {direction.title()}"
            yield QuotedLine("CrystalDiskMark", name, fits, "bw", "MB/s", 1e6, _BEST)


def _describe_diskspd(job: Job) -> str:
    random = " -r" if job.is_random else ""
    writes = round(100 * (1 - (job.share_of_reads or 0)))
    size = f"{job.bs // 1024}K" if job.bs % 1024 == 0 else str(job.bs)
    return f"-b{size} -o{job.iodepth} -t{job.numjobs}{random} -w{writes} -Sh"


def _describe_iometer(job: Job) -> str:
    """Block size, share of reads and random share of an access specification, as IOMeter lists them."""
    reads, random = round(100 * (job.share_of_reads or 0)), 100 if job.is_random else 0
    if job.random_share is not None:
        random = round(100 * job.random_share)
    size = f"{job.bs // 1024} KiB" if job.bs % 1024 == 0 else f"{job.bs} B"
    size = size if not job.sizes else "several sizes"
    specification = f"{size}; {reads}% Read; {random}% random"
    if job.label is not None and job.label.startswith("iometer-"):
        specification = f"{job.label.removeprefix('iometer-').title()} ({specification})"
    return f"{specification}; {job.iodepth} outstanding, {job.numjobs} workers"


def _is_specified(job: Job) -> bool:
    """Whether block sizes, shares of reads and of random I/O describe it."""
    return _is_unlimited(job) and job.share_of_reads is not None


LINES: Sequence[QuotedLine] = (
    *_make_cdm(),
    QuotedLine("dd", "bs=1M oflag=direct", _is_like("write", MIB, 1), "bw", "MB/s", 1e6, _ZEROS),
    QuotedLine(
        "dd", "bs=1M iflag=direct", _is_like("read", MIB, 1), "bw", "MB/s", 1e6, "reads from one end to the other"
    ),
    QuotedLine("pveperf", "BUFFERED READS", _is_like("read", MIB, 1), "bw", "MB/sec", MIB, _CACHE),
    QuotedLine(
        "pveperf",
        "AVERAGE SEEK TIME",
        _is_like("randread", 4096, 1),
        "lat_mean",
        "ms",
        1e-3,
        "reads 512 bytes through the page cache, anywhere on the whole disk",
    ),
    QuotedLine(
        "ioping -D",
        "avg request",
        _is_like("randread", 4096, 1),
        "lat_mean",
        "us",
        1e-6,
        "waits a second between requests, so CPU and disk have gone idle",
    ),
    QuotedLine(
        "YABS",
        lambda job: f"{_YABS_SIZES[job.bs]} mixed R/W 50/50, Total",
        lambda job: job.bs in _YABS_SIZES and _is_like("randrw", job.bs, 64, 2, 0.5)(job),
        "bw",
        "MB/s",
        _YABS_MB,
        "runs for 30 s on a file of the file system; its MB is 1000 KiB",
    ),
    QuotedLine(
        "etcd's fio",
        "fdatasync 99.00th",
        lambda job: job.syncs and job.rw == "write",
        "sync_p99",
        "ms",
        1e-3,
        "appends 2300 bytes to a file of the file system; etcd wants less than 10 ms",
    ),
    QuotedLine(
        "diskspd",
        _describe_diskspd,
        lambda job: is_plain(job) and _is_specified(job),
        "iops",
        "I/O per s",
        1,
        "runs for 10 s on a file of the file system",
    ),
    QuotedLine("IOMeter", _describe_iometer, _is_specified, "iops", "IOps", 1, "measures a test file, or a whole disk"),
)
"""In the order of the report."""


@dataclass(frozen=True, slots=True)
class Translated:
    """A line of another tool with the arms of the job that does the same I/O."""

    quoted: QuotedLine
    job: Job
    host: ArmOfCell | None
    guests: tuple[ArmOfCell, ...]

    def find_guest(self, mode: str) -> ArmOfCell | None:
        return next((guest for guest in self.guests if guest.mode == mode), None)

    def mean(self, arm: ArmOfCell | None) -> Estimate | None:
        """The mean over the blocks, in the line's unit."""
        mean = arm.mean(self.quoted.metric) if arm is not None else None
        return mean.divided_by(self.quoted.scale) if mean is not None else None


def translate(section: Section) -> tuple[Translated, ...]:
    """The lines that results of this disk fill, in the order of the tools."""
    return section.once(_translate)


def _translate(section: Section) -> tuple[Translated, ...]:
    cells: dict[Job, list[CellRecord]] = {}
    for cell in section.alone:
        cells.setdefault(cell.job, []).append(cell)
    jobs = {job: arms_of(of_job) for job, of_job in cells.items()}
    lines = (
        Translated(
            line,
            job,
            next((arm for arm in arms if arm.place == "host"), None),
            tuple(arm for arm in arms if arm.place == "guest"),
        )
        for line in LINES
        for job, arms in jobs.items()
        if line.fits(job)
    )
    return tuple(line for line in lines if any(line.mean(arm) for arm in (line.host, *line.guests)))


def yield_lines(section: Section) -> Iterator[Block]:
    """A table of these lines, folded away; nothing without any."""
    lines = translate(section)
    if not lines:
        return
    modes = [mode for mode in section.modes if any(line.find_guest(mode) for line in lines)]
    guests = [(Column(f"guest {mode}"), lambda line, mode=mode: _quote(line, line.find_guest(mode))) for mode in modes]
    table = make_table(
        lines,
        f"{section.name} in the words of other tools",
        (Column("tool", "head"), lambda line: line.quoted.tool),
        (Column("its line", "name"), lambda line: line.quoted.call(line.job)),
        (Column("job", "name"), lambda line: line.job.id),
        (Column("host"), lambda line: _quote(line, line.host)),
        *guests,
        (Column("unit", "text"), lambda line: line.quoted.unit),
        (Column("what differs", "why"), lambda line: f"{line.quoted.tool} {line.quoted.differs}"),
    )
    explained = Aside(
        "For a comparison with figures that others published. A figure of another tool may differ for the reason in "
        "the last column, and because another tool pairs no host with its guest."
    )
    yield Fold("As other tools quote it", (explained, table))


def _quote(line: Translated, arm: ArmOfCell | None) -> TableCell | str:
    mean = line.mean(arm)
    return NONE if mean is None else TableCell(significant(mean.point), title=with_interval(mean))


def to_json(section: Section) -> dict[str, Any]:
    """The same for programs: each line with the means by arm, in its unit."""
    lines = [
        {
            "tool": line.quoted.tool,
            "line": line.quoted.call(line.job),
            "job": line.job.id,
            "unit": line.quoted.unit,
            "means": {
                arm.label: mean.point
                for arm in (line.host, *line.guests)
                if arm is not None and (mean := line.mean(arm)) is not None
            },
            "differs": line.quoted.differs,
        }
        for line in translate(section)
    ]
    return {"quoted": lines} if lines else {}


REPORT = FeatureReport(contents={ReportPlace.FINDINGS: yield_lines}, section_json=to_json)
