"""Is a cell's measurement what it claims to be? Checks on what fio, the host's disk and QEMU counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.results.records import Measurement, ValidityCheck
from harness.units import format_size

TOLERANCE = 0.02
"""How far counts of the same bytes may lie apart, as a share of what fio counted."""

BUSY = 0.95
"""The share of time above which CPUs rather than the disk decide a figure."""


@dataclass(frozen=True, slots=True)
class _Count:
    """What one counter saw of one measurement in one direction. `slack` is bytes still in flight when fio ended."""

    measurement: Measurement
    direction: str
    by: str
    fio: float
    seen: float
    slack: float

    @property
    def off(self) -> float:
        """How far the counter is from fio beyond what was in flight, as a share of fio's bytes; negative is less."""
        apart = self.seen - self.fio
        beyond = max(abs(apart) - self.slack, 0.0)
        return (beyond if apart > 0 else -beyond) / self.fio


def byte_checks(measurements: Iterable[Measurement], in_flight: int) -> tuple[ValidityCheck, ...]:
    """One check per arm: fio's bytes against those of the host's bare disk and, for a guest, of QEMU.

    `in_flight` is iodepth x numjobs x block size in bytes: what one side may have counted and the other not yet.
    A measurement without counters is not checked.
    """
    by_arm: dict[str, list[_Count]] = {}
    for measurement in measurements:
        by_arm.setdefault(measurement.arm, []).extend(_counts(measurement, in_flight))
    return tuple(_checked(arm, counts) for arm, counts in by_arm.items() if counts)


def saturation_notes(measurements: Iterable[Measurement], depth: int) -> tuple[str, ...]:
    """What besides the disk limits a figure: busy CPUs, and fewer I/Os in flight than asked for, by arm.

    `depth` is iodepth x numjobs. What was achieved follows from Little's law: IOPS x mean latency.
    """
    worst: dict[tuple[str, str], float] = {}
    for each in measurements:
        place = "the guest's" if each.arm.startswith("guest") else "the host's"
        # On a host arm both are the host's: while fio ran, and with the login around it.
        for whose, counter in ((place, "cpu_busy"), ("the host's", "host_cpu_busy")):
            share = each.counters.get(counter, 0.0)
            worst[each.arm, whose] = max(worst.get((each.arm, whose), 0.0), share)
    notes = [
        f"{arm}: {whose} CPUs were {share:.0%} busy: the figure is theirs rather than the disk's"
        for (arm, whose), share in worst.items()
        if share > BUSY
    ]
    achieved: dict[str, float] = {}
    for each in measurements:
        if {"iops", "lat_mean"} <= each.metrics.keys():
            reached = each.metrics["iops"] * each.metrics["lat_mean"]
            achieved[each.arm] = min(achieved.get(each.arm, reached), reached)
    notes += [
        f"{arm}: {reached:.3g} I/Os in flight on average, {depth} asked for"
        for arm, reached in achieved.items()
        if reached < 0.8 * depth
    ]
    return tuple(notes)


def _counts(measurement: Measurement, in_flight: int) -> list[_Count]:
    counters = measurement.counters
    return [
        _Count(measurement, direction, by, counters[f"fio_{direction}"], counters[f"{by}_{direction}"], in_flight)
        for direction in ("read", "written")
        for by in ("qemu", "disk")
        if counters.get(f"fio_{direction}") and f"{by}_{direction}" in counters
    ]


def _checked(arm: str, counts: Sequence[_Count]) -> ValidityCheck:
    wrong = [count for count in counts if abs(count.off) > TOLERANCE]
    if not wrong:
        most = max(abs(count.off) for count in counts)
        who = "fio, QEMU" if any(count.by == "qemu" for count in counts) else "fio"
        return ValidityCheck(f"bytes {arm}", ok=True, detail=f"{who} and the disk agree within {max(most, 0.001):.1%}")
    worst = max(wrong, key=lambda count: abs(count.off))
    first = next((count for count in wrong if count.by == "qemu" and count.measurement is worst.measurement), worst)
    whose = {"qemu": "QEMU", "disk": "the host's disk"}[first.by]
    return ValidityCheck(
        f"bytes {arm}",
        ok=False,
        detail=f"round {first.measurement.round}: fio counted {format_size(first.fio)} {first.direction}, {whose} "
        f"{format_size(first.seen)} ({first.seen / first.fio:.1%}): {_reason(first)}",
    )


def _reason(count: _Count) -> str:
    match count.by, count.direction, count.off < 0:
        case "qemu", _, True:
            return "the guest's own cache served the rest, or it sent what QEMU does not count as data"
        case "qemu", _, False:
            return "something else in the guest used the disk"
        case _, "read", True:
            return "the rest did not come from the disk: the host's page cache served it, or it was never written"
        case _, "read", False:
            return "read-ahead, or something else read from the disk"
        case _, _, True:
            return (
                "the rest was not on the disk at the job's end: the host's page cache holds it, or zeros were dropped"
            )
        case _:
            return "the layers write more than they are asked for (metadata, journal, parity), or something else wrote"
