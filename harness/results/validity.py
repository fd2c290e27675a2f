"""Is a cell's measurement what it claims to be? Checks on what fio, the host's disk and QEMU counted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model.amplification import NONE, Amplification
from harness.model.mode import Place
from harness.results.cells import ValidityCheck
from harness.results.records import Measurement
from harness.units import format_size

TOLERANCE = 0.02
"""How far counts of the same bytes may lie apart, as a share of what fio counted."""

PROBED = 2 * 1024**2
"""Bytes that udev may read of a disk that the host wrote to, when fio closes it: it looks for signatures."""

_MULTIPLIED = 1.1
"""Beyond this it is more than metadata that a layout adds."""
RATE_TOLERANCE = 0.05
"""How far an arm's IOPS may lie from the rate that was asked of it, as a share of it."""

BUSY = 0.95
"""The share of time above which CPUs rather than the disk decide a figure."""


@dataclass(frozen=True, slots=True)
class _Count:
    """What one counter saw of one measurement in one direction, and between what it should be. All in bytes.

    `slack` is what may be still in flight when fio ended, `beside` what others may have added.
    """

    measurement: Measurement
    direction: str
    by: str
    fio: float
    seen: float
    fewest: float
    most: float
    slack: float
    beside: float

    @property
    def off(self) -> float:
        """How far the counter is beyond a bound and what was in flight, as a share of the bound; negative is less."""
        if self.seen < self.fewest:
            return -max(self.fewest - self.seen - self.slack, 0.0) / self.fewest
        return max(self.seen - self.most - self.slack - self.beside, 0.0) / self.most

    @property
    def apart(self) -> float:
        """How far the counter is from fio beyond what was in flight, as a share of fio's bytes."""
        beside = self.beside if self.seen > self.fio else 0.0
        return max(abs(self.seen - self.fio) - self.slack - beside, 0.0) / self.fio

    @property
    def amplified(self) -> bool:
        """Whether the layout multiplies bytes, beyond some metadata."""
        return self.most > _MULTIPLIED * self.fio

    @property
    def needed(self) -> str:
        """Its bounds as multiples of fio's bytes: "1.33 to 2"."""
        fewest, most = f"{self.fewest / self.fio:.3g}", f"{self.most / self.fio:.3g}"
        return fewest if fewest == most else f"{fewest} to {most}"


def byte_checks(
    measurements: Iterable[Measurement], in_flight: int, layout: Amplification = NONE
) -> tuple[ValidityCheck, ...]:
    """One check per arm: fio's bytes against those of the host's bare disk, or disks, and, for a guest, of QEMU.

    `in_flight` is iodepth x numjobs x block size in bytes: what one side may have counted and the other not yet.
    `layout` is what the disks may move for the arms that are on it, all but the host. A measurement without counters is
    not checked.
    """
    by_arm: dict[str, list[_Count]] = {}
    for measurement in measurements:
        of_disk = NONE if measurement.arm == Place.HOST else layout
        by_arm.setdefault(measurement.arm, []).extend(_counts(measurement, in_flight, of_disk))
    return tuple(_checked(arm, counts) for arm, counts in by_arm.items() if counts)


def rate_checks(measurements: Iterable[Measurement], rate: int | None) -> tuple[ValidityCheck, ...]:
    """One check per arm of a job at a fixed rate: arms are compared at the same IOPS, or not at all."""
    worst: dict[str, Measurement] = {}
    for each in measurements:
        if rate is not None and "iops" in each.metrics:
            before = worst.setdefault(each.arm, each)
            if abs(each.metrics["iops"] - rate) > abs(before.metrics["iops"] - rate):
                worst[each.arm] = each
    return tuple(_rate_check(arm, each, rate or 0) for arm, each in worst.items())


def _rate_check(arm: str, worst: Measurement, rate: int) -> ValidityCheck:
    iops = worst.metrics["iops"]
    ok = abs(iops - rate) <= RATE_TOLERANCE * rate
    detail = f"{iops:.0f} of {rate} I/Os per second in round {worst.round}"
    if not ok:
        detail += ": ask for a rate that every arm can hold" if iops < rate else ": fio could not keep the rate"
    return ValidityCheck(f"rate {arm}", ok=ok, detail=detail)


def saturation_notes(measurements: Iterable[Measurement], depth: int | None) -> tuple[str, ...]:
    """What besides the disk limits a figure: busy CPUs, and fewer I/Os in flight than asked for, by arm.

    `depth` is iodepth x numjobs; None for a job at a fixed rate, which has as few in flight as that takes. What was
    achieved follows from Little's law: IOPS x mean latency.
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
        if depth is not None and reached < 0.8 * depth
    ]
    return tuple(notes)


def _counts(measurement: Measurement, in_flight: int, of_disk: Amplification) -> list[_Count]:
    counters = measurement.counters
    return [
        _count(measurement, direction, by, in_flight, of_disk if by == "disk" else NONE)
        for direction in ("read", "written")
        for by in ("qemu", "disk")
        if counters.get(f"fio_{direction}") and f"{by}_{direction}" in counters
    ]


def _count(measurement: Measurement, direction: str, by: str, in_flight: int, needs: Amplification) -> _Count:
    counters = measurement.counters
    fio = counters[f"fio_{direction}"]
    fewest, most = fio * needs.fewest_written, fio * needs.most_written
    if direction == "read":
        written = counters.get("fio_written", 0.0)
        fewest, most = fio * needs.fewest_read, fio * needs.most_read + written * needs.read_for_write
    seen = counters[f"{by}_{direction}"]
    on_host = not measurement.arm.startswith(Place.GUEST)
    beside = PROBED if on_host and by == "disk" and direction == "read" else 0
    return _Count(measurement, direction, by, fio, seen, fewest, most, slack=in_flight * most / fio, beside=beside)


def _checked(arm: str, counts: Sequence[_Count]) -> ValidityCheck:
    wrong = [count for count in counts if abs(count.off) > TOLERANCE]
    if not wrong:
        return ValidityCheck(f"bytes {arm}", ok=True, detail=_agreement(counts))
    worst = max(wrong, key=lambda count: abs(count.off))
    first = next((count for count in wrong if count.by == "qemu" and count.measurement is worst.measurement), worst)
    whose = {"qemu": "QEMU", "disk": "the host's disk"}[first.by]
    needed = f", {first.needed} times as much is its layout's" if first.amplified else ""
    return ValidityCheck(
        f"bytes {arm}",
        ok=False,
        detail=f"round {first.measurement.round}: fio counted {format_size(first.fio)} {first.direction}, {whose} "
        f"{format_size(first.seen)} ({first.seen / first.fio:.1%}{needed}): {_reason(first)}",
    )


def _agreement(counts: Sequence[_Count]) -> str:
    who = "fio, QEMU" if any(count.by == "qemu" for count in counts) else "fio"
    amplified = [count for count in counts if count.amplified]
    if not amplified:
        most = max(count.apart for count in counts)
        return f"{who} and the disk agree within {max(most, 0.001):.1%}"
    ratios = sorted(count.seen / count.fio for count in amplified)
    found = " to ".join(dict.fromkeys(f"{ratio:.3g}" for ratio in (ratios[0], ratios[-1])))
    needed = " or ".join(dict.fromkeys(count.needed for count in amplified))
    return f"{who} and the disks agree: these moved {found} times as much, the layout needs {needed}"


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
