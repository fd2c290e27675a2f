"""Checks and notes of a cell: settings, rates, clock, counters, drift, I/O of others, and byte accounting. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from pydantic import JsonValue

from harness.analysis import estimate_drift, has_drifted
from harness.model.attach import Attachment
from harness.model.base import NONE, Amplification
from harness.model.counters import FioCounts, Transferred
from harness.model.job import Job
from harness.model.mode import OPTIONS, Cell, Mode, Place
from harness.model.option import NOTHING, Effective
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

    Both are means over the arm's measurements: one slice that the machine disturbed says nothing about the figure.

    `depth` is iodepth x numjobs. It is None for a job at a fixed rate, which has only as many I/Os in flight as the
    rate needs. The achieved number follows from Little's law: IOPS x mean latency.
    """
    busy, in_flight = defaultdict[tuple[str, str], list[float]](list), defaultdict[str, list[float]](list)
    for measurement in measurements:
        shares = (measurement.counters.cpu_busy, measurement.counters.host_cpu_busy)
        # On a host arm, both are about the host: while fio ran, and also with the login before and after.
        in_guest = {"the guest's": shares[:1], "the host's": shares[1:]}
        for whose, of_slice in (in_guest if measurement.in_guest else {"the host's": shares}).items():
            if known := [share for share in of_slice if share is not None]:
                busy[measurement.arm, whose].append(max(known))
        if {"iops", "lat_mean"} <= measurement.metrics.keys():
            in_flight[measurement.arm].append(measurement.metrics["iops"] * measurement.metrics["lat_mean"])
    notes = [
        f"{arm}: {whose} CPUs were {share:.0%} busy, so they limit the figure rather than the disk"
        for (arm, whose), share in ((key, fmean(shares)) for key, shares in busy.items())
        if share > BUSY
    ]
    notes += [
        f"{arm}: {reached:.3g} I/Os in flight on average, {depth} requested"
        for arm, reached in ((arm, fmean(reached)) for arm, reached in in_flight.items())
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
    return [ValidityCheck(DRIFT, ok=False, detail=_words(drift, cell)) for drift in _of(drifts, cell)]


def drift_notes(drifts: Iterable[DriftRecord], cell: Cell, modes: Sequence[Mode]) -> list[str]:
    """The note if the baseline drifted too much in the cell's job, and the cell's arms alternate. `modes` as above."""
    if not _alternates(cell, modes):
        return []
    valid = "the arms alternate within seconds, so the overhead is valid"
    return [f"{_words(drift, cell)}; {valid}" for drift in _of(drifts, cell)]


def _alternates(cell: Cell, modes: Sequence[Mode]) -> bool:
    """Whether the slices of the cell's arms alternate within seconds: `timetables` decides that for the whole group."""
    apart = rebuilds(cell.mode) or any(stays_in_cache(arm, cell.job) for arm in cell.arms)
    return not takes_turns(modes) and not apart


def _of(drifts: Iterable[DriftRecord], cell: Cell) -> list[DriftRecord]:
    return [drift for drift in drifts if drift.job == cell.job.id and drift.too_much]


def _words(drift: DriftRecord, cell: Cell) -> str:
    changed = (
        f"the {'bare host' if cell.mode.detail.has_bare_host else 'host twin'} changed by {drift.change.point:+.1%}"
    )
    more = f"while the group was measured, more than {DRIFT_BOUND:.0%}"
    return f"{changed} {more}: warm up the host, or find out what else it does"


TOLERANCE = 0.02
"""The largest difference between counts of the same bytes, as a share of what fio counted."""

PROBED = 2 * 1024**2
"""Bytes that udev may read from a disk: it looks for signatures when fio on the host closes the disk after writing."""

REBUILD_IN_FLIGHT = 1024**2
"""Bytes of each member that a recovery may have in flight at a reading, and bytes of superblocks and bitmaps that it
writes in a slice. RAID 5 and 6 recover at most 256 stripes of 4 KiB at once (stripe_cache_size in md.rst)."""

_DEVIATIONS = 4
"""How many standard deviations more polls than expected may have happened in the slices."""
_POLLERS = "programs that also read while nothing was measured"
_MULTIPLIED = 1.1
"""Beyond this factor, a layout adds more than metadata."""

_BARE = frozenset({Place.HOST, Place.REFERENCE})
"""The arms on a bare device."""


@dataclass(frozen=True, slots=True)
class _ByteCount:
    """The value of one counter for the slices of an arm in one round and direction, with its bounds. All in bytes.

    `round` is None for all rounds together. `slack` is what may still be in flight when fio ended. `extra` is what
    other programs, the slice before, and `rebuild`, the recovery of an array, may have added. `polled` is the part of
    `extra` by programs that also used the disk while nothing was measured.
    """

    round: int | None
    direction: str
    by: str
    fio: float
    counted: float
    fewest: float
    most: float
    slack: float
    extra: float
    rebuild: float = 0.0
    polled: float = 0.0

    @property
    def off(self) -> float:
        """How far the counter is beyond a bound with its slack, as a share of the bound; negative is below."""
        if self.counted < self.fewest:
            return -max(self.fewest - self.counted - self.slack, 0.0) / self.fewest
        return max(self.counted - self.most - self.slack - self.extra, 0.0) / self.most

    @property
    def difference(self) -> float:
        """The difference between the counter and fio beyond `slack` and `extra`, as a share of fio's bytes."""
        extra = self.extra if self.counted > self.fio else 0.0
        return max(abs(self.counted - self.fio) - self.slack - extra, 0.0) / self.fio

    @property
    def amplified(self) -> bool:
        """Whether the layout moves a multiple of the bytes, beyond some metadata."""
        return self.most > _MULTIPLIED * self.fio

    @property
    def needs_polls(self) -> bool:
        """Whether the counter would be too high without what polls may have added."""
        return (
            self.polled > 0 and self.counted - self.most - self.slack - self.extra + self.polled > TOLERANCE * self.most
        )

    @property
    def where(self) -> str:
        return "all rounds" if self.round is None else f"round {self.round}"

    @property
    def needed(self) -> str:
        """Its bounds as multiples of fio's bytes: "1.33 to 2"."""
        fewest, most = f"{self.fewest / self.fio:.3g}", f"{self.most / self.fio:.3g}"
        return fewest if fewest == most else f"{fewest} to {most}"


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """The most bytes that kernels have read ahead at the end of a slice: on the bare disk, and on volumes.

    A job begins again at the end of its `region`. The disk may go on there, and is read ahead each time.
    """

    bare: int
    volume: int
    region: int

    def count(self, slices: Sequence[Measurement], read: int) -> float:
        """The bytes in these slices of one arm, in which fio read so many."""
        return (self.bare if slices[0].arm in _BARE else self.volume) * (len(slices) + read / self.region)


def check_bytes(
    measurements: Iterable[Measurement],
    in_flight: int,
    layout: Amplification = NONE,
    *,
    cached: bool = False,
    contained: str = "",
    inside: Amplification | None = None,
    journal: Callable[[float], float] | None = None,
    ahead: ReadAhead | None = None,
    buffered: bool = False,
) -> tuple[ValidityCheck, ...]:
    """One check per arm: fio's bytes against those of the host's bare disk or disks and, for a guest, of QEMU.

    On a storage in use, the disks also move the bytes of others, so only fewer bytes than fio's are a fault.

    `in_flight` is iodepth x numjobs x block size in bytes: one side may have counted these bytes and the other not yet.
    `layout` is what the disks may move for the arms on it, which are all arms except host and reference. With `cached`,
    the host's memory may serve these arms, so their bytes are only compared with QEMU's. A measurement without counters
    is not checked. The arm `contained` is in a container, whose control group counts instead of QEMU. `inside` is what
    a file system in the guest moves, which QEMU counts as well, and `journal` what it moves in so many seconds. `ahead`
    is what a kernel may read ahead. The memory of a cached guest may serve what is `buffered`, before QEMU sees it.
    """
    count_bytes = partial(_count_bytes, in_flight=in_flight, of_qemu=inside, journal=journal, ahead=ahead)
    by_round: dict[tuple[str, int], list[Measurement]] = {}
    for measurement in measurements:
        by_round.setdefault((measurement.arm, measurement.round), []).append(measurement)
    by_arm: dict[str, list[_ByteCount]] = {}
    for (arm, _), slices in by_round.items():
        by_arm.setdefault(arm, []).extend(count_bytes(slices, NONE if arm in _BARE else layout, slices[0].round))
    # What polls may read is large beside the bytes of one round of a slow job, but not beside those of many.
    for arm, counts in by_arm.items():
        if any(count.polled for count in counts):
            every = [slice_ for (other, _), slices in by_round.items() if other == arm for slice_ in slices]
            by_arm[arm] = [*counts, *count_bytes(every, NONE if arm in _BARE else layout, None)]
    return tuple(
        _check_cached(arm, () if buffered else counts)
        if cached and arm not in _BARE
        else _check_counts(arm, counts, "its control group" if arm == contained else "QEMU")
        for arm, counts in by_arm.items()
        if counts
    )


def _check_cached(arm: str, counts: Sequence[_ByteCount]) -> ValidityCheck:
    """An arm that is declared as cached. How much its disk moved is a result, and no fault."""
    by_qemu = [count for count in counts if count.by == "qemu"]
    declared = "its mode is declared as cached, so the disk may move other bytes than fio"
    check = _check_counts(arm, by_qemu) if by_qemu else ValidityCheck(f"bytes {arm}", ok=True, detail=declared)
    return replace(check, detail=f"{check.detail}; {declared}") if by_qemu and check.ok else check


def _estimate_polled(slices: Iterable[Measurement]) -> float:
    """Bytes that programs which poll the disk may have read in these slices.

    The number of polls in the slices varies like that of a Poisson process: its standard deviation is the root of what
    is expected. A poll counts as a whole.
    """
    backgrounds = [slice_.counters.background for slice_ in slices if slice_.counters.background is not None]
    expected, burst = (
        sum(background.expected for background in backgrounds),
        max((background.burst for background in backgrounds), default=0),
    )
    return expected + _DEVIATIONS * math.sqrt(expected * burst) + burst


def _read_probed(measurement: Measurement) -> int:
    """In runs of earlier versions, udev may have read in any slice."""
    background = measurement.counters.background
    return PROBED if background is None else background.probed


def _read_earlier(measurement: Measurement) -> Transferred:
    """Bytes that the slice before may have had in flight when the counters were read."""
    background = measurement.counters.background
    return Transferred() if background is None else background.earlier


def _count_bytes(
    slices: Sequence[Measurement],
    of_disk: Amplification,
    number: int | None,
    *,
    in_flight: int,
    of_qemu: Amplification | None,
    journal: Callable[[float], float] | None,
    ahead: ReadAhead | None,
) -> list[_ByteCount]:
    """The counts of these slices of one arm together. Single slices may be short: a small write counts much."""
    whole = [slice_ for slice_ in slices if slice_.counters.disk is not None]
    shared = [slice_ for slice_ in slices if slice_.counters.disk is None and slice_.counters.storage is not None]
    pieces = {slice_.raw: slice_.counters.arm for slice_ in slices if slice_.counters.arm is not None}
    sources: list[tuple[str, Sequence[FioCounts | Transferred], Sequence[Transferred | None]]] = [
        ("disk", [slice_.counters.fio for slice_ in whole], [slice_.counters.disk for slice_ in whole]),
        ("storage", [slice_.counters.fio for slice_ in shared], [slice_.counters.storage for slice_ in shared]),
        ("qemu", [piece.fio for piece in pieces.values()], [piece.qemu for piece in pieces.values()]),
    ]
    elapsed = max(slice_.started + slice_.seconds for slice_ in slices) - min(slice_.started for slice_ in slices)
    counts = []
    for direction in ("read", "written", "trimmed"):
        for by, by_fio, moved in sources:
            fio, counted = (sum(getattr(count, direction) for count in several) for several in (by_fio, moved))
            if not fio:
                continue
            needs = (NONE if of_qemu is None else of_qemu) if by == "qemu" else of_disk
            fewest, most = fio * needs.fewest_written, fio * needs.most_written
            if direction == "read":
                for_writes = sum(count.written for count in by_fio) * needs.read_for_write
                fewest, most = fio * needs.fewest_read, fio * needs.most_read + for_writes
            elif direction == "trimmed":
                fewest, most = fio * needs.fewest_trimmed, fio * needs.most_trimmed
            polled = 0.0
            # A journal is written at any time. QEMU also counts between the slices, but only that of its own guest.
            lasting = elapsed if by == "qemu" else sum(slice_.wall for slice_ in slices)
            extra = journal(lasting) if journal and (by != "qemu" or of_qemu is not None) else 0.0
            if direction == "read" and by == "qemu":
                # With the slices of other jobs of the arm.
                extra += sum(piece.ahead for piece in pieces.values())
            elif direction == "read" and ahead is not None:
                extra += ahead.count(slices, fio)
            if by == "disk" and direction == "read":
                polled = _estimate_polled(whole)
                extra += polled + sum(map(_read_probed, whole))
            if by == "disk":
                extra += (
                    sum(getattr(moved_before, direction) for moved_before in map(_read_earlier, whole)) * most / fio
                )
            if by == "storage":
                # Others read and write there, too. So more bytes are no fault of the measurement.
                extra = math.inf
            slack = len(by_fio) * in_flight * most / fio
            rebuild = _estimate_rebuild(whole, direction, needs)
            counts.append(
                _ByteCount(
                    number,
                    direction,
                    by,
                    fio,
                    counted,
                    fewest,
                    most,
                    slack=slack,
                    extra=extra + rebuild,
                    rebuild=rebuild,
                    polled=polled,
                )
            )
    return counts


def _estimate_rebuild(slices: Sequence[Measurement], direction: str, needs: Amplification) -> float:
    """Bytes that the recovery of an array may have moved in these slices, by md's own count of what it rebuilt."""
    per_byte = {"read": needs.rebuild_read, "written": needs.rebuild_written}.get(direction, 0.0)
    arrays = [slice_.counters.array for slice_ in slices if per_byte and slice_.counters.array is not None]
    rebuilt = [array.rebuilt for array in arrays if array.state == "rebuilding"]
    return sum(size * per_byte + REBUILD_IN_FLIGHT * (per_byte + 1) for size in rebuilt)


def _check_counts(arm: str, counts: Sequence[_ByteCount], qemu: str = "QEMU") -> ValidityCheck:
    wrong = [count for count in counts if abs(count.off) > TOLERANCE]
    if not wrong:
        return ValidityCheck(f"bytes {arm}", ok=True, detail=_describe_agreement(counts, qemu))
    worst = max(wrong, key=lambda count: abs(count.off))
    first = next((count for count in wrong if count.by == "qemu" and count.round == worst.round), worst)
    whose = {"qemu": qemu, "disk": "the host's disk", "storage": "the disks below the storage"}[first.by]
    needed = f"; its layout needs {first.needed} times as much as fio" if first.amplified else ""
    if first.polled and first.off > 0:
        needed += f"; {format_size(first.polled)} allowed for {_POLLERS}"
    return ValidityCheck(
        f"bytes {arm}",
        ok=False,
        detail=f"{first.where}: fio counted {format_size(first.fio)} {first.direction}, {whose} "
        f"{format_size(first.counted)} ({first.counted / first.fio:.1%}{needed}): {_explain(first)}",
    )


def _describe_agreement(counts: Sequence[_ByteCount], qemu: str) -> str:
    names = {"qemu": qemu, "disk": "the disk", "storage": "the disks below the storage"}
    others = [name for by, name in names.items() if any(count.by == by for count in counts)]
    who = ", ".join(["fio", *others[:-1]])
    amplified = [count for count in counts if count.amplified and count.by != "storage"]
    if not amplified:
        most = max(count.difference for count in counts)
        shared = "; those disks may have moved more, for others" if names["storage"] in others else ""
        polled = [count for count in counts if count.needs_polls]
        allowed = (
            f", with {format_size(max(count.polled for count in polled))} allowed for {_POLLERS}" if polled else ""
        )
        return f"{who} and {others[-1]} agree within {max(most, 0.001):.1%}{allowed}{shared}"
    ratios = sorted(count.counted / count.fio for count in amplified)
    factors = " to ".join(dict.fromkeys(f"{ratio:.3g}" for ratio in (ratios[0], ratios[-1])))
    needed = " or ".join(dict.fromkeys(count.needed for count in amplified))
    words = f"{who} and the disks agree: the disks moved {factors} times as much as fio, the layout needs {needed}"
    rebuild = max(count.rebuild for count in counts)
    return words + (f", and the rebuild up to {format_size(rebuild)} in a round" if rebuild else "")


_DECLARE = "If the mode is meant to use the host's memory, declare it with cached = true"


def _explain(count: _ByteCount) -> str:
    match count.by, count.direction, count.off < 0:
        case _, "trimmed", less:
            return "a layer did not pass the rest on" if less else "something else trimmed the disk"
        case "qemu", _, True:
            return "the guest's own cache served the rest, or the guest sent requests that QEMU does not count as data"
        case "qemu", _, False:
            return "something else in the guest used the disk"
        case _, "read", less:
            never = "the rest did not come from the disk: the host's page cache served it, or it was never written"
            return f"{never}. {_DECLARE}" if less else "read-ahead, or something else read from the disk"
        case _, _, True:
            return (
                "the rest was not on the disk at the job's end: the host's page cache holds it, or zeros were dropped. "
                f"{_DECLARE}"
            )
        case _:
            return "the layers write more than requested (metadata, journal, parity), or something else wrote"
