"""A job file of fio, when its processes ran and what they did, and the output that fio makes of it.

`render` adds up and prints as fio's stat.c does (`__show_run_stats`, `sum_thread_stats`, `add_ddir_status_json`): with
group_reporting, the name and the start are those of the first process of a group, the options those of the last one,
I/Os, bytes and `job_runtime` are sums, and the time is that of the longest process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

WRITTEN_MS = 1_700_000_000_000
PRINTS_START = ("3.36", "3.41")
PRINTS_FLAGS = ("3.41",)
_SIDES = ("read", "write")


@dataclass(frozen=True)
class Process:
    """What one process did from `start`, in ms from the start of fio, without its ramp. I/Os by direction."""

    start: int
    runtime: int
    ios: tuple[int, int]

    @property
    def end(self) -> int:
        return self.start + self.runtime


@dataclass(frozen=True)
class Planned:
    """A section of the job file. Its processes run for `runtimes` (ms) with `rates` (IOPS)."""

    name: str
    group: int
    rw: str
    bs: int
    iodepth: int
    runtimes: tuple[int, ...]
    rates: tuple[int, ...]
    read_share: float
    reported_together: bool
    waits: str = ""
    """stonewall, wait_for_previous (fio's other name of it), wait_for, or empty."""
    waits_for: str = ""
    """The name of the section before, with wait_for."""
    new_group: bool = False
    delays: tuple[int, ...] = ()
    """startdelay in seconds of each process; empty: none."""
    ramp: int = 0
    """In seconds."""
    limit: int | None = None
    rate_limit: int | None = None
    unified: bool = False
    processes: tuple[Process, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """When it ran, with its ramp."""
        return min(each.start for each in self.processes) - 1000 * self.ramp, max(each.end for each in self.processes)

    def meets(self, other: Planned) -> bool:
        """Whether both ran at the same time for longer than fio's times are exact."""
        shared = min(self.span[1], other.span[1]) - max(self.span[0], other.span[0])
        return shared > 25 + 0.003 * min(self.span[1] - self.span[0], other.span[1] - other.span[0])

    def options(self, version: str) -> dict[str, str]:
        """As fio prints them: without a value only since 3.37."""
        flags = {"stonewall": "", "wait_for_previous": "", "new_group": "", "group_reporting": ""}
        on = {self.waits, *(["new_group"] if self.new_group else [])}
        on |= {"group_reporting"} if self.reported_together else set()
        found = {"rw": self.rw, "bs": str(self.bs), "iodepth": str(self.iodepth), "ioengine": "libaio", "direct": "1"}
        found["numjobs"] = str(len(self.runtimes))
        if self.rw.endswith("rw"):
            found["rwmixread"] = f"{self.read_share * 100:.0f}"
        if self.ramp:
            found["ramp_time"] = str(self.ramp)
        if self.delays:
            low, high = min(self.delays), max(self.delays)
            found["startdelay"] = str(low) if low == high else f"{low}-{high}"
        if self.limit is not None:
            found["runtime"] = str(self.limit)
        if self.rate_limit is not None:
            found["rate_iops"] = str(self.rate_limit)
        if self.waits_for:
            found["wait_for"] = self.waits_for
        if self.unified:
            found["unified_rw_reporting"] = "mixed"
        return found | ({name: "" for name in flags if name in on} if version in PRINTS_FLAGS else {})


@dataclass(frozen=True)
class Job:
    """Sections that ran at the same time, and their figures: I/Os and bytes by the time in which they ran."""

    sections: tuple[Planned, ...]

    @property
    def processes(self) -> list[Process]:
        return [each for section in self.sections for each in section.processes]

    @property
    def began(self) -> int:
        return min(each.start for each in self.processes)

    @property
    def seconds(self) -> float:
        return (max(each.end for each in self.processes) - self.began) / 1000

    @property
    def iops(self) -> float:
        return sum(sum(each.ios) for each in self.processes) / self.seconds

    @property
    def bw(self) -> float:
        return sum(sum(each.ios) * section.bs for section in self.sections for each in section.processes) / self.seconds


@dataclass(frozen=True)
class Truth:
    """What ran. `overlap` is true if sections of different groups ran at the same time."""

    version: str
    sections: tuple[Planned, ...]
    elapsed: int
    jobs: tuple[Job, ...] = field(default=())
    overlap: bool = False

    @property
    def plain(self) -> bool:
        """Whether every section ran alone, all of its processes for the same time: nothing that may be refused."""
        return (
            not self.overlap
            and all(len(job.sections) == 1 for job in self.jobs)
            and all(max(each.runtimes) - min(each.runtimes) < 0.02 * max(each.runtimes) for each in self.sections)
            and all(each.waits or each is self.sections[0] for each in self.sections)
            and not any(each.waits == "wait_for" or each.delays for each in self.sections)
            and all(each.reported_together == self.sections[0].reported_together for each in self.sections)
        )


def scheduled(version: str, sections: Sequence[Planned], random: Random) -> Truth:
    """The sections with their processes, by fio's rules of what waits for what."""
    ran: list[Planned] = []
    barrier = end = 0
    starting = random.randint(20, 150)
    for section in sections:
        if section.waits:
            barrier = end
            starting = random.randint(20, 150)
        processes = []
        for number, (runtime, rate) in enumerate(zip(section.runtimes, section.rates, strict=True)):
            delay = 1000 * section.delays[number] if section.delays else 0
            start = max(barrier, delay) + starting + random.randint(0, 3) + 1000 * section.ramp
            ios = max(1, round(rate * runtime / 1000))
            reads = ios if section.rw.endswith("read") else 0 if "write" in section.rw else None
            reads = round(ios * section.read_share) if reads is None else reads
            processes.append(Process(start, runtime, (reads, ios - reads)))
        ran.append(replace(section, processes=tuple(processes)))
        end = max(end, ran[-1].span[1])
    elapsed = math.ceil((end + random.randint(10, 300)) / 1000)
    jobs: list[Job] = []
    overlap = False
    for section in ran:
        meeting = [job for job in jobs if any(section.meets(other) for other in job.sections)]
        before = [other for job in meeting for other in job.sections]
        overlap |= any(other.group != section.group for other in before)
        first = jobs.index(meeting[0]) if meeting else len(jobs)
        jobs = [*jobs[:first], Job((*before, section)), *(job for job in jobs[first:] if job not in meeting)]
    return Truth(version, tuple(ran), elapsed, tuple(jobs), overlap)


def render(truth: Truth) -> bytes:
    """fio's JSON of what ran."""
    entries: list[list[tuple[Planned, Process]]] = []
    last: int | None = None
    for section in truth.sections:
        for process in section.processes:
            if not entries or not section.reported_together or last != section.group:
                entries.append([])
            entries[-1].append((section, process))
            last = section.group
    jobs = [_entry(truth, members) for members in entries]
    document = {
        "fio version": f"fio-{truth.version}",
        "timestamp": WRITTEN_MS // 1000,
        "timestamp_ms": WRITTEN_MS,
        "jobs": jobs,
    }
    return json.dumps(document).encode()


def _entry(truth: Truth, members: Sequence[tuple[Planned, Process]]) -> dict[str, Any]:
    first, last = members[0], members[-1]
    found: dict[str, Any] = {"jobname": first[0].name, "groupid": first[0].group}
    if truth.version in PRINTS_START:
        found["job_start"] = WRITTEN_MS - truth.elapsed * 1000 + first[1].start
    found |= {"error": 0, "elapsed": truth.elapsed, "job options": last[0].options(truth.version)}
    if first[0].unified:
        found["mixed"] = _direction(
            [(section, process, sum(process.ios)) for section, process in members],
            also=[process for _, process in members],
        )
    else:
        for number, side in enumerate(_SIDES):
            found[side] = _direction([(section, process, process.ios[number]) for section, process in members])
    calls = {"min": 0, "max": 0, "mean": 0.0, "stddev": 0.0, "N": 0}
    total = sum(process.runtime for _, process in members)
    return found | {
        "sync": {"total_ios": 0, "lat_ns": calls},
        "job_runtime": total,
        "usr_cpu": 1.0,
        "sys_cpu": 1.0,
        "ctx": 1,
    }


def _direction(done: Sequence[tuple[Planned, Process, int]], also: Sequence[Process] = ()) -> dict[str, Any]:
    ios = sum(number for _, _, number in done)
    io_bytes = sum(number * section.bs for section, _, number in done)
    runtime = max(
        [process.runtime for _, process, number in done if number] + [process.runtime for process in also] or [0]
    )
    # By Little's law, if each process always has all of its I/Os in flight.
    flying = sum(
        section.iodepth * process.runtime * number / max(sum(process.ios), 1) for section, process, number in done
    )
    mean = flying * 1e6 / ios if ios else 0.0
    latency = {"min": int(mean / 2), "max": int(mean * 4), "mean": mean, "stddev": mean / 10, "N": ios}
    return {
        "io_bytes": io_bytes,
        "io_kbytes": io_bytes >> 10,
        "bw_bytes": io_bytes * 1000 // runtime if runtime else 0,
        "bw": io_bytes * 1000 // runtime // 1024 if runtime else 0,
        "iops": round(1000.0 * ios / runtime, 6) if runtime else 0.0,
        "runtime": runtime,
        "total_ios": ios,
        "slat_ns": latency | {"mean": 0.0},
        "clat_ns": latency,
        "lat_ns": latency,
    }


def random_truth(random: Random) -> Truth:
    """A job file of one to three groups of one or two sections, and how it ran. Many are simple, some are not."""
    version = random.choice(("3.16", "3.33", "3.36", "3.41"))
    simple = random.random() < 0.4
    together = random.random() < 0.5
    sections: list[Planned] = []
    group = 0
    for number in range(random.randint(1, 3)):
        waits = random.choice(("stonewall", "wait_for_previous")) if simple or random.random() < 0.6 else ""
        group += 1 if number else 0
        for place in range(1 if simple else random.choice((1, 1, 1, 2, 3))):
            mine = waits if number and place == 0 else ""
            if place and random.random() < 0.15:
                mine = "wait_for"
            sections.append(_section(random, f"s{number}{place}", group, simple=simple, together=together, waits=mine))
            if mine == "wait_for":
                sections[-1] = replace(sections[-1], waits_for=sections[-2].name)
            if number and place == 0 and not waits:
                sections[-1] = replace(sections[-1], new_group=True)
    if random.random() < 0.1:
        sections = [replace(section, unified=True) for section in sections]
    return scheduled(version, sections, random)


def _section(random: Random, name: str, group: int, *, simple: bool, together: bool, waits: str) -> Planned:
    numjobs = random.choice((1, 1, 1, 2, 3, 4, 8))
    longest = random.choice((400, 3000, 10_000, 10_000, 10_000, 60_000))
    runtimes = [longest + random.randint(0, 2) for _ in range(numjobs)]
    if not simple and random.random() < 0.3:
        runtimes = [random.randint(longest // 10, longest) for _ in range(numjobs)]
    rate = random.choice((100, 1500, 20_000))
    limited = random.random() < 0.15
    rates = [rate if limited else max(50, round(rate * random.uniform(0.5, 1.5))) for _ in range(numjobs)]
    delays: tuple[int, ...] = ()
    if not simple and random.random() < 0.15:
        delays = tuple(random.choice(([5] * numjobs, [random.randint(0, 12) for _ in range(numjobs)])))
    rw = random.choice(("read", "write", "randread", "randwrite", "randrw", "rw"))
    return Planned(
        name,
        group,
        rw,
        random.choice((4096, 4096, 65536)),
        random.choice((1, 4, 32)),
        tuple(runtimes),
        tuple(rates),
        random.choice((0.5, 0.7)),
        reported_together=together if simple or random.random() < 0.9 else not together,
        waits=waits,
        delays=delays,
        ramp=random.choice((0, 0, 0, 2)) if simple or random.random() < 0.8 else 5,
        limit=longest // 1000 or None if random.random() < 0.7 else None,
        rate_limit=rate if limited and not rw.endswith("rw") else None,
    )
