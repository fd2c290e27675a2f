"""Checks and notes of a cell: settings, rates, clock, counters, I/O of others, drift, and carry-over. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from pydantic import JsonValue

from harness.analysis import Observation, estimate_drift, find_carry_over, has_drifted
from harness.model.attach import Attachment
from harness.model.counters import Transferred
from harness.model.job import Job
from harness.model.mode import OPTIONS, Cell, Mode, Place
from harness.model.option import NOTHING, Effective
from harness.results.cells import LongerSlices, ValidityCheck
from harness.results.journal import Length, Measurement
from harness.results.records import CarryOverRecord, DriftRecord
from harness.scenario.timetable import rebuilds, stays_in_cache, takes_turns
from harness.units import format_duration, format_size

_OF_THE_DISK = ("pve_drive",)
"""Settings that are names of the disk."""


def configuration_check(requested: Attachment | Mode, effective: Effective) -> ValidityCheck | None:
    """The requested attachment, or mode, against what hypervisor and guest report. None if nothing was read back.

    Each difference fails the check. The detail names each option that was not reported.
    """
    if effective == NOTHING:
        return None
    reported = dict(effective.settings())
    expected = dict(requested.expected.settings())
    compared = {name: value for name, value in expected.items() if name in reported}
    differ = [
        f"requested {name} = {_shown(value)}, it is {_shown(reported[name])}"
        for name, value in compared.items()
        if reported[name] != value
    ]
    proven = {OPTIONS[name] for name in compared}
    unproven = dict.fromkeys(OPTIONS[name] for name in expected if OPTIONS[name] not in proven)
    detail = "; ".join(differ) or f"{len(compared)} settings are as requested"
    if unproven:
        detail += f"; not read back: {', '.join(unproven)}"
    return ValidityCheck("configuration", ok=not differ, detail=detail)


def configuration_checks(
    mode: Mode, effective: Effective, against: Effective, others: Sequence[Effective]
) -> list[ValidityCheck]:
    """The checks of a mode's own guest, of the guest that it is compared with, and of the further guests beside it.

    `effective`, `against` and `others` are what was read back of each. If the reference of a difference is not as
    requested, the difference says nothing.
    """
    guests = [(mode, effective, "")]
    if mode.against is not None:
        guests.append((mode.against, against, f" of {mode.against.name}"))
    guests += [(mode, other, f" of guest {number}") for number, other in enumerate(others, start=2)]
    return [
        replace(check, check=f"{check.check}{whose}")
        for requested, read_back, whose in guests
        if requested.attach is not None
        if (check := configuration_check(requested, read_back)) is not None
    ]


def differences(before: Effective, after: Effective) -> tuple[str, ...]:
    """What was read back differently, in words: "qemu_version 10.0.2 -> 10.1.0". Only settings that both have."""
    one, other = dict(before.settings()), dict(after.settings())
    return tuple(
        f"{name} {_shown(value)} -> {_shown(other[name])}"
        for name, value in one.items()
        if name in other and other[name] != value and name not in _OF_THE_DISK
    )


def _shown(value: JsonValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


RATE_TOLERANCE = 0.05
"""The largest difference between an arm's IOPS and the requested rate, as a share of the rate."""

BUSY = 0.95
"""If CPUs are busy for more than this share of the time, they limit a figure rather than the disk."""


def rate_checks(measurements: Iterable[Measurement], job: Job) -> tuple[ValidityCheck, ...]:
    """One check per arm of a job at a fixed rate: arms are only compared at the same IOPS."""
    by_arm: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if job.rate is not None and "iops" in measurement.metrics:
            by_arm.setdefault(measurement.arm, []).append(measurement)
    check = _random_rate_check if job.poisson else _rate_check
    return tuple(check(arm, slices, job.rate or 0) for arm, slices in by_arm.items())


def clock_checks(measurements: Iterable[Measurement]) -> tuple[ValidityCheck, ...]:
    """Whether the host's kernel kept its clock source; nothing if that is not known. `measurements` by time.

    The kernel and fio read the clock for each I/O. With `tsc` that takes some ns. With `hpet` or `acpi_pm` the kernel
    reads a device, and fio needs a system call for it. So the values before and after are of two different machines.
    """
    known = [measurement for measurement in measurements if measurement.counters.clock]
    if not known:
        return ()
    first = known[0].counters.clock
    changed = next((slice_ for slice_ in known if slice_.counters.clock != first), None)
    if changed is None:
        return (ValidityCheck("clock", ok=True, detail=f"{first} in all slices"),)
    return (
        ValidityCheck(
            "clock",
            ok=False,
            detail=f"the host's kernel changed its clock source from {first} to {changed.counters.clock} in round "
            f"{changed.round}. The clock is read for each I/O, so values before and after are not comparable. Measure "
            f"again, after booting the host if it should have {first}; `dmesg | grep -i clocksource` shows the cause",
        ),
    )


def _random_rate_check(arm: str, slices: Sequence[Measurement], rate: int) -> ValidityCheck:
    """Random arrivals: their number in a slice varies, so all slices together must have the rate.

    The number in t seconds has the standard deviation sqrt(rate x t). Four of them are allowed in addition.
    """
    seconds = sum(measurement.seconds for measurement in slices)
    iops = sum(slice_.metrics["iops"] * slice_.seconds for slice_ in slices) / seconds
    ok = abs(iops - rate) <= RATE_TOLERANCE * rate + 4 * math.sqrt(rate / seconds)
    detail = f"{iops:.0f} of {rate} I/Os per second in all {len(slices)} slices"
    return ValidityCheck(f"rate {arm}", ok=ok, detail=detail + ("" if ok else _why_not(iops, rate)))


def _rate_check(arm: str, slices: Sequence[Measurement], rate: int) -> ValidityCheck:
    worst = max(slices, key=lambda slice_: abs(slice_.metrics["iops"] - rate))
    iops = worst.metrics["iops"]
    ok = abs(iops - rate) <= RATE_TOLERANCE * rate
    detail = f"{iops:.0f} of {rate} I/Os per second in round {worst.round}"
    return ValidityCheck(f"rate {arm}", ok=ok, detail=detail + ("" if ok else _why_not(iops, rate)))


def _why_not(iops: float, rate: int) -> str:
    return ": request a rate that every arm can reach" if iops < rate else ": fio could not keep to the rate"


def late_counter_notes(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """The arms whose bytes on the disk were never checked, because a slice always began before the host's reading."""
    counted: dict[str, bool] = {}
    for measurement in measurements:
        counters = measurement.counters
        if counters.fio.ios is not None:
            counted[measurement.arm] = (
                counted.get(measurement.arm, False) or counters.host is not None or counters.disk is not None
            )
    return tuple(
        f"{arm}: the host's counters were read too late in every slice, so its bytes were not checked"
        for arm, known in counted.items()
        if not known
    )


def saturation_notes(measurements: Iterable[Measurement], depth: int | None) -> tuple[str, ...]:
    """What limits a figure in addition to the disk: busy CPUs, and fewer I/Os in flight than requested, by arm.

    All are means over the arm's measurements: one slice that the machine disturbed says nothing about the figure.
    `depth` is iodepth x numjobs. It is None for a job at a fixed rate, which has only as many I/Os in flight as the
    rate needs. The achieved number follows from Little's law: IOPS x mean latency.
    """
    busy, loads = defaultdict[tuple[str, str], list[float]](list), defaultdict[str, list[tuple[float, ...]]](list)
    for measurement in measurements:
        while_fio_ran, of_host = measurement.counters.cpu_busy, measurement.counters.host_cpu_busy
        of_slice = {"the host's": [while_fio_ran, of_host]}  # the second includes the login before and after
        if measurement.in_guest:
            of_slice = {"the guest's": [while_fio_ran], "the host's": [of_host]}
        for whose, shares in of_slice.items():
            if known := [share for share in shares if share is not None]:
                busy[measurement.arm, whose].append(max(known))
        iops, latency = measurement.metrics.get("iops"), measurement.metrics.get("lat_mean")
        if depth is not None and iops and latency:
            loads[measurement.arm].append((iops * latency, depth / iops, measurement.seconds))
    notes = [
        f"{arm}: {whose} CPUs were {share:.0%} busy, so they limit the figure rather than the disk"
        for (arm, whose), share in ((of, fmean(shares)) for of, shares in busy.items())
        if share > BUSY
    ]
    for arm, of_arm in loads.items():
        notes += _note_short_queue(arm, depth or 0, *map(fmean, zip(*of_arm, strict=True)))
    return tuple(notes)


def _note_short_queue(arm: str, depth: int, reached: float, latency: float, seconds: float) -> list[str]:
    """Why fewer I/Os than `depth` were in flight, if they were. `latency` is that behind a full queue: depth / IOPS.

    A slice begins with an empty queue, and its last I/Os drain: together half a `latency` is missing from its mean.
    """
    filling = depth * (1 - latency / 2 / seconds)
    if reached < 0.9 * depth and filling < 0.95 * depth and reached > 0.9 * filling:
        short = f"slices of {format_duration(seconds)} are short for I/Os of {format_duration(latency)}"
        bias = f"while the queue fills and drains, latencies are {1 - reached / depth:.0%} too low (IOPS are not)"
        return [f'{arm}: {short}: {bias}; set `runtime = "{math.ceil(6 * latency)} s"` in the profile']
    return [f"{arm}: {reached:.3g} I/Os in flight on average, {depth} requested"] if reached < 0.8 * depth else []


def others_notes(measurements: Iterable[Measurement]) -> tuple[str, ...]:
    """How many bytes others moved, for a cell on a storage in use; nothing for disks that only the run uses.

    It is the difference between all bytes of the disks and those of the arms: by the counters of the arm's volume, or
    by fio if the volume is a file. It includes what the storage itself adds, for example metadata and mirrors. Arms
    whose reads come from a cache move fewer bytes than fio counts. They do not reduce the bytes of others.
    """
    by_arm: dict[str, list[tuple[Transferred, Transferred]]] = {}
    for measurement in measurements:
        counters = measurement.counters
        if counters.storage is not None:
            transferred = counters.disk or Transferred(counters.fio.read, counters.fio.written)
            by_arm.setdefault(measurement.arm, []).append((counters.storage, transferred))
    total, others = Transferred(), Transferred()
    for counted in by_arm.values():
        moved, transferred = (sum(several, Transferred()) for several in zip(*counted, strict=True))
        total += moved
        others += Transferred(max(moved.read - transferred.read, 0), max(moved.written - transferred.written, 0))
    everything = total.read + total.written
    if not everything:
        return ()
    share = (others.read + others.written) / everything
    note = (
        f"while this cell was measured, {share:.1%} of the bytes on the storage's disks were not its own: "
        f"{format_size(others.read)} read and {format_size(others.written)} written by others and by the storage "
        "itself (metadata, mirrors)"
    )
    return (note,)


DRIFT = "drift"
"""The name of the check."""
DRIFT_BOUND = 0.2
"""The largest harmless change of the bare host from the group's first measurement to its last.

Cells whose arms alternate within seconds get a note beyond it, because the drift cancels in each block. The other cells
are void, because their arms were measured up to a round apart.
"""
DRIFT_CONFIDENCE = 0.985
"""Of the drift's interval. At 95 %, a host whose values are correlated by 0.9 would seem to drift too often."""


def host_drift(measurements: Iterable[Measurement], arm: str = Place.HOST) -> tuple[DriftRecord, ...]:
    """The drift of each job of one group on this arm of the host, in I/Os per second, in the order of the jobs."""
    by_job: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.arm == arm and measurement.metrics.get("iops", 0.0) > 0:
            by_job.setdefault(measurement.job, []).append(measurement)
    drifts = []
    for job, several in by_job.items():
        times, values = [slice_.started for slice_ in several], [slice_.metrics["iops"] for slice_ in several]
        if len(set(times)) > 1:
            change = estimate_drift(times, values, confidence=DRIFT_CONFIDENCE)
            drifts.append(DriftRecord(job, change, has_drifted(change, DRIFT_BOUND)))
    return tuple(drifts)


def drift_checks(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[ValidityCheck]:
    """The failed check if the baseline drifted too much in the cell's job, and the cell's arms do not alternate.

    `modes` are those of all cells of the group.
    """
    if _alternates(cell, modes):
        return []
    return [ValidityCheck(DRIFT, ok=False, detail=_describe_drift(drift, cell)) for drift in _find_large(drifts, cell)]


def drift_notes(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[str]:
    """The note if the baseline drifted too much in the cell's job, and the cell's arms alternate. `modes` as above."""
    if not _alternates(cell, modes):
        return []
    valid = "the arms alternate within seconds, so the overhead is valid"
    return [f"{_describe_drift(drift, cell)}; {valid}" for drift in _find_large(drifts, cell)]


def _alternates(cell: Cell, modes: Sequence[Mode]) -> bool:
    """Whether the slices of the cell's arms alternate within seconds: `timetables` decides that for the whole group."""
    apart = rebuilds(cell.mode) or any(stays_in_cache(arm, cell.job) for arm in cell.arms)
    return not takes_turns(modes) and not apart


def _find_large(drifts: Iterable[DriftRecord], cell: Cell) -> list[DriftRecord]:
    return [drift for drift in drifts if drift.job == cell.job.id and drift.too_much]


def _describe_drift(drift: DriftRecord, cell: Cell) -> str:
    changed = (
        f"the {'bare host' if cell.mode.detail.has_bare_host else 'host twin'} changed by {drift.change.point:+.1%}"
    )
    more = f"while the group was measured, more than {DRIFT_BOUND:.0%}"
    return f"{changed} {more}: warm up the host, or find out what else it does"


CARRY_OVER_ERROR_RATE = 0.01
"""How often a group without any carry-over shows some, over all its jobs and looks together."""
DISCARDED_SLICES = (4, 16)
"""The time at the beginning of a slice that does not count if slices depend on the arm before, in times of the measured
time. If the first is not enough, the second follows. In this time, the arm's own load replaces what the arm before has
left in a cache.
"""
LEAST_SECONDS = 0.5
"""The same for slices that are shorter than this: how long a cache needs does not depend on the length of a slice."""
CARRY_OVER_MATTERS = 1 / 3
"""The smallest effect for which a job is measured again, as a share of the target of the overhead's half width.

The whole interval of the effect must be beyond it: by noise alone, the largest of several estimates mostly is.
In blocks of random order, an effect changes the overhead by about half of it: at most a sixth of the target.
"""
_USUAL_TARGET = 0.10
"""The target of a plan without one: a share, as `smoke` promises."""
MOST_APART_SECONDS = 1.0
"""Between slices that are further apart, another timetable begins: no arm ran directly before."""


def find_carry_overs(
    measurements: Sequence[Measurement], jobs: Iterable[Job], *, target: float | None = None, looks: int = 1
) -> tuple[CarryOverRecord, ...]:
    """What each job of one group shows about carry-over, by its headline metric. Jobs with too few slices are left out.

    `measurements` are those of the group in the order of time. A job whose slices became longer is tested once for each
    length, the shortest first. `target` is the half width of the overhead's interval that is wanted, as a share.
    `looks` is how often the group is tested at most, while it is measured.
    """
    least = CARRY_OVER_MATTERS * (_USUAL_TARGET if target is None else target)
    tests = []
    for job in jobs:
        lengths = sorted({measurement.length for measurement in measurements if measurement.job == job.id})
        tests += [
            (job, length.discarded_s, find_carry_over(_collect_observations(measurements, job, length)))
            for length in lengths
            if length.longer_s == lengths[-1].longer_s
        ]
    enough = len({job for job, _, tested in tests if tested.enough})
    error_rate = CARRY_OVER_ERROR_RATE / (max(enough, 1) * looks)
    return tuple(
        CarryOverRecord(
            job=job.id,
            discarded_s=seconds,
            p_value=tested.p_value,
            effect=tested.effect,
            cause=tested.cause,
            shown=tested.shown(error_rate),
            at_least=tested.at_least(error_rate),
            matters=tested.at_least(error_rate) >= least,
        )
        for job, seconds, tested in tests
        if tested.p_value is not None and tested.effect is not None and tested.cause is not None
    )


def find_longer_slices(
    records: Sequence[CarryOverRecord], measurements: Iterable[Measurement], jobs: Iterable[Job]
) -> dict[Job, float]:
    """The jobs that need longer slices, with the seconds at the beginning of each slice that are to be discarded.

    `records` is what `find_carry_overs` returned for the group with these `measurements`. A job is left out if the
    effect is too small to matter, if its longest slices are too few for a test, or if the last of DISCARDED_SLICES was
    tried.
    """
    last = {record.job: record for record in records}
    reached: dict[str, float] = {}
    for measurement in measurements:
        reached[measurement.job] = max(measurement.discarded_s, reached.get(measurement.job, 0.0))
    needed = {}
    for job in jobs:
        tested = last.get(job.id)
        if tested is None or not (tested.shown and tested.matters) or tested.discarded_s < reached[job.id]:
            continue
        longer = (times * max(job.seconds, LEAST_SECONDS) for times in DISCARDED_SLICES)
        if (seconds := next((duration for duration in longer if duration > tested.discarded_s), None)) is not None:
            needed[job] = seconds
    return needed


def split_by_length(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[Measurement]]:
    """The measurements that count, and those that longer slices of the same job and group replaced.

    Of the replaced ones, only the shortest slices are returned: the result without any discarding.
    """
    several = list(measurements)
    lengths: dict[tuple[str, str], set[Length]] = {}
    for slice_ in several:
        lengths.setdefault((slice_.group, slice_.job), set()).add(slice_.length)
    counted, replaced = [], []
    for slice_ in several:
        of_job = lengths[slice_.group, slice_.job]
        if slice_.length == max(of_job):
            counted.append(slice_)
        elif slice_.length == min(of_job):
            replaced.append(slice_)
    return counted, replaced


def note_longer(job: Job, longer: LongerSlices | None) -> list[str]:
    """That the cell's slices are longer than the profile's, if its I/Os were too slow for those."""
    if longer is None or not longer.longer_s:
        return []
    planned, ran = (format_duration(seconds) for seconds in (job.seconds, job.seconds + longer.longer_s))
    return [f"slices of {ran} instead of {planned}, which were short for its I/Os: they said {longer.naive.point:.1%}"]


def note_carry_over(records: Sequence[CarryOverRecord], longer: LongerSlices | None) -> list[str]:
    """What a reader of a cell must know. `records` is what the cell's job shows, the shortest slices first."""
    shown = [record for record in records if record.shown]
    if not shown:
        return []
    effect = (
        f"a slice is {shown[-1].effect:+.1%} different (at least {shown[-1].at_least:.1%}) "
        f"if {shown[-1].cause} ran before it"
    )
    if longer is None or not longer.discarded_s:
        so = (
            ", so the arms disturb each other"
            if shown[-1].matters
            else ": not shown to be large enough to measure it again"
        )
        return [f"carry-over: {effect}{so}"]
    before = f"the overhead with all of each slice is {longer.naive.point:.1%}"
    if longer.naive.low is not None and longer.naive.high is not None:
        before += f" [{longer.naive.low:.1%}, {longer.naive.high:.1%}]"
    if shown[-1].discarded_s >= longer.discarded_s:
        still = f"although its first {longer.discarded_s:g} s do not count, so the arms disturb each other"
        return [f"carry-over: {effect}, {still}; {before}; let slices run for longer (`ramp` of the profile)"]
    doubt = "" if records[-1].discarded_s >= longer.discarded_s else "; the longer slices are too few for another test"
    return [f"carry-over: {effect}, so the first {longer.discarded_s:g} s of each slice do not count; {before}{doubt}"]


def _collect_observations(measurements: Sequence[Measurement], job: Job, length: Length) -> list[Observation]:
    """The slices of the job with this length, if another slice ran directly before.

    An arm that always follows itself shows nothing: its slices have a timetable of their own. It is left out.
    """
    blocks: dict[tuple[int, int], int] = {}
    observations = []
    for before, slice_ in pairwise(measurements):
        value = slice_.metrics.get(job.headline, 0.0)
        if slice_.job != job.id or slice_.length != length or slice_.overlap is not None or value <= 0:
            continue
        if _measure_gap(before, slice_) > MOST_APART_SECONDS:
            continue
        block = blocks.setdefault((slice_.round, slice_.block), len(blocks))
        other = before.job != job.id
        observations.append(Observation(block, slice_.arm, before.arm, math.log(value), after_other_job=other))
    alternating = {observation.arm for observation in observations if observation.previous != observation.arm}
    return [observation for observation in observations if observation.arm in alternating]


def _measure_gap(before: Measurement, slice_: Measurement) -> float:
    """Seconds from the end of a slice to the start of the next one, or of its ramp."""
    ramp = max(slice_.wall - slice_.seconds, 0.0)
    return slice_.started - ramp - (before.started + before.seconds)
