"""Is a cell's measurement valid? Checks of rates, limits on writes, late counters and saturation. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from harness.model.job import Job
from harness.results.cells import ValidityCheck
from harness.results.journal_records import Measurement

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
    return tuple(check(arm, own, job.rate or 0) for arm, own in by_arm.items())


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
    changed = next((each for each in known if each.counters.clock != first), None)
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


def _random_rate_check(arm: str, own: Sequence[Measurement], rate: int) -> ValidityCheck:
    """Random arrivals: their number in a slice varies, so all slices together must have the rate.

    The number in t seconds has the standard deviation sqrt(rate x t). Four of them are allowed in addition.
    """
    seconds = sum(measurement.seconds for measurement in own)
    iops = sum(each.metrics["iops"] * each.seconds for each in own) / seconds
    ok = abs(iops - rate) <= RATE_TOLERANCE * rate + 4 * math.sqrt(rate / seconds)
    detail = f"{iops:.0f} of {rate} I/Os per second in all {len(own)} slices"
    return ValidityCheck(f"rate {arm}", ok=ok, detail=detail + ("" if ok else _why_not(iops, rate)))


def _rate_check(arm: str, own: Sequence[Measurement], rate: int) -> ValidityCheck:
    worst = max(own, key=lambda each: abs(each.metrics["iops"] - rate))
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
