"""Checks and notes of a cell's measurement: configuration, rates, clock, counters, drift, others. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pydantic import JsonValue

from harness.analysis import estimate_drift, has_drifted
from harness.model.attach import Attachment
from harness.model.cell import Cell, Place
from harness.model.counters import Transferred
from harness.model.effective import NOTHING, Effective
from harness.model.job import Job
from harness.model.mode import OPTIONS, Mode
from harness.results.cells import ValidityCheck
from harness.results.journal import Measurement
from harness.results.records import DriftRecord
from harness.scenario.timetable import rebuilds, stays_in_cache, takes_turns
from harness.units import format_size

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

LIMITED = 0.95
"""From this share of fio's limit, a slice is as fast as the limit."""

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


def write_limit_checks(measurements: Iterable[Measurement]) -> tuple[ValidityCheck, ...]:
    """One check per arm whose writes fio limited, so that the run keeps its limit of bytes written.

    A slice that reached fio's limit shows the limit and not the arm.
    """
    by_arm: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.write_limit:
            share = (
                measurement.counters.fio.written / max(measurement.wall, measurement.seconds) / measurement.write_limit
            )
            by_arm.setdefault(measurement.arm, []).append(share)
    return tuple(
        ValidityCheck(
            f"write limit {arm}",
            ok=max(shares) < LIMITED,
            detail=f"the fastest slice wrote at {max(shares) * 100:.0f} % of the rate that the limit of the bytes "
            f"written allowed; at {LIMITED * 100:.0f} % or more, it shows this rate. A larger write_rate in the "
            "scenario, or a larger limit, allows more",
        )
        for arm, shares in by_arm.items()
    )


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

    `depth` is iodepth x numjobs. It is None for a job at a fixed rate, which has only as many I/Os in flight as the
    rate needs. The achieved number follows from Little's law: IOPS x mean latency.
    """
    worst: dict[tuple[str, str], float] = {}
    for measurement in measurements:
        place = "the guest's" if measurement.in_guest else "the host's"
        # On a host arm, both shares are about the host: while fio ran, and also with the login before and after.
        for whose, share in (
            (place, measurement.counters.cpu_busy),
            ("the host's", measurement.counters.host_cpu_busy),
        ):
            worst[measurement.arm, whose] = max(worst.get((measurement.arm, whose), 0.0), share or 0.0)
    notes = [
        f"{arm}: {whose} CPUs were {share:.0%} busy, so they limit the figure rather than the disk"
        for (arm, whose), share in worst.items()
        if share > BUSY
    ]
    achieved: dict[str, float] = {}
    for measurement in measurements:
        if {"iops", "lat_mean"} <= measurement.metrics.keys():
            reached = measurement.metrics["iops"] * measurement.metrics["lat_mean"]
            achieved[measurement.arm] = min(achieved.get(measurement.arm, reached), reached)
    notes += [
        f"{arm}: {reached:.3g} I/Os in flight on average, {depth} requested"
        for arm, reached in achieved.items()
        if depth is not None and reached < 0.8 * depth
    ]
    return tuple(notes)


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


def host_drift(measurements: Iterable[Measurement]) -> tuple[DriftRecord, ...]:
    """The drift of each job of one group on the bare host, in I/Os per second, in the order of the jobs."""
    by_job: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.arm == Place.HOST and measurement.metrics.get("iops", 0.0) > 0:
            by_job.setdefault(measurement.job, []).append(measurement)
    drifts = []
    for job, several in by_job.items():
        if len({slice_.started for slice_ in several}) < 2:
            continue
        change = estimate_drift([slice_.started for slice_ in several], [slice_.metrics["iops"] for slice_ in several])
        drifts.append(DriftRecord(job, change, has_drifted(change, DRIFT_BOUND)))
    return tuple(drifts)


def drift_checks(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[ValidityCheck]:
    """The failed check if the host of the cell's job drifted too much, and the cell's arms do not alternate.

    `modes` are those of all cells of the group.
    """
    if _alternates(cell, modes):
        return []
    return [ValidityCheck(DRIFT, ok=False, detail=_words(drift)) for drift in _of(drifts, cell)]


def drift_notes(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[str]:
    """The note if the host of the cell's job drifted too much, and the cell's arms alternate. `modes` as above."""
    if not _alternates(cell, modes):
        return []
    valid = "the arms alternate within seconds, so the overhead is valid"
    return [f"{_words(drift)}; {valid}" for drift in _of(drifts, cell)]


def _alternates(cell: Cell, modes: Sequence[Mode]) -> bool:
    """Whether the slices of the cell's arms alternate within seconds: `timetables` decides that for the whole group."""
    apart = rebuilds(cell.mode) or any(stays_in_cache(arm, cell.job) for arm in cell.arms)
    return not takes_turns(modes) and not apart


def _of(drifts: Iterable[DriftRecord], cell: Cell) -> list[DriftRecord]:
    return [drift for drift in drifts if drift.job == cell.job.id and drift.too_much]


def _words(drift: DriftRecord) -> str:
    return (
        f"the bare host changed by {drift.change.point:+.1%} while the group was measured, more than "
        f"{DRIFT_BOUND:.0%}: warm up the host, or find out what else it does"
    )
