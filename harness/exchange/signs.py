"""Signs that an entry of fio is not of one section alone, or that its figures contradict each other. Pure.

With `group_reporting`, fio adds all sections of a group up in one entry, and prints the name of the first and the
options of the last one. So the entry of three disks looks like that of one. What it contains shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NoReturn

from harness.errors import MeasurementError
from harness.exchange.section import MIXED, Section
from harness.measure.fio_output import contradiction, in_flight

_HINT = "give each section an entry of its own: measure without group_reporting, or with stonewall in each section"
_MORE_PROCESSES = 0.1
"""From this excess of `job_runtime`, in times of the longest process, the entry has a process more."""
_FAR_ABOVE = 2.0
_ABOVE = 1.1
_FAR_FROM_MIX = 0.1
_NEAR_MIX = 0.02
_BS_TOLERANCE = 0.05
"""The last block of a file may be shorter."""


def check_section(section: Section) -> Iterator[str]:
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
        if (problem := contradiction(side)) is not None:
            raise MeasurementError(f"{section.where}: {problem}", hint="restore the file, or measure again")


def _several(section: Section, sign: str) -> NoReturn:
    raise MeasurementError(
        f"{section.where}: it seems that fio reported several sections together (group_reporting), so no figure is of "
        f"one job alone: {sign}",
        hint=_HINT,
    )


def _check_verification(section: Section) -> None:
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


def _check_directions(section: Section) -> None:
    for entry in section.entries:
        if entry.unified:
            continue
        if entry.read.total_ios and not section.reads and not section.verifies:
            _several(section, f"rw = {section.rw}, but it has reads")
        if entry.write.total_ios and not section.writes:
            _several(section, f"rw = {section.rw}, but it has writes")


def _check_sizes(section: Section) -> Iterator[str]:
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


def _check_processes(section: Section) -> Iterator[str]:
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


def _check_mix(section: Section) -> Iterator[str]:
    """Rates set the shares of reads and writes as well, so they are compared only without."""
    share = section.read_share
    if share is None or section.rw not in MIXED or "rate" in section.options or "rate_iops" in section.options:
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


def _check_in_flight(section: Section) -> Iterator[str]:
    """Little's law. I/Os that were in flight at the end of the ramp were longer in flight than the job ran."""
    seconds = max(side.runtime for side in section.sides) / 1000
    if not seconds:
        return
    slowest = max(side.clat_ns.max for side in section.sides) / 1e9 if section.ramp else 0.0
    allowed = section.depth * (1 + slowest / seconds)
    flying = in_flight(section.sides, seconds)
    if not math.isfinite(flying):
        return
    said = f"{flying:.0f} I/Os were in flight by its latency and IOPS, but iodepth x numjobs = {section.depth}"
    if flying > _FAR_ABOVE * allowed:
        _several(section, said)
    if flying > _ABOVE * allowed:
        yield f"{said}: there were more I/Os in flight than one section has"
