"""Byte accounting: what fio counted against what the host's disks and QEMU counted. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model.base import NONE, Amplification
from harness.model.cell import Place
from harness.model.counters import FioCounts, Transferred
from harness.results.cells import ValidityCheck
from harness.results.journal import Measurement
from harness.units import format_size

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


def check_bytes(
    measurements: Iterable[Measurement], in_flight: int, layout: Amplification = NONE
) -> tuple[ValidityCheck, ...]:
    """One check per arm: fio's bytes against those of the host's bare disk or disks and, for a guest, of QEMU.

    On a storage in use, the disks also move the bytes of others, so only fewer bytes than fio's are a fault.

    `in_flight` is iodepth x numjobs x block size in bytes: one side may have counted these bytes and the other not yet.
    `layout` is what the disks may move for the arms on it, which are all arms except host and reference. A measurement
    without counters is not checked.
    """
    by_round: dict[tuple[str, int], list[Measurement]] = {}
    for measurement in measurements:
        by_round.setdefault((measurement.arm, measurement.round), []).append(measurement)
    by_arm: dict[str, list[_ByteCount]] = {}
    for (arm, _), slices in by_round.items():
        by_arm.setdefault(arm, []).extend(
            _count_bytes(slices, in_flight, NONE if arm in _BARE else layout, slices[0].round)
        )
    # What polls may read is large beside the bytes of one round of a slow job, but not beside those of many.
    for arm, counts in by_arm.items():
        if any(count.polled for count in counts):
            every = [slice_ for (other, _), slices in by_round.items() if other == arm for slice_ in slices]
            by_arm[arm] = [*counts, *_count_bytes(every, in_flight, NONE if arm in _BARE else layout, None)]
    return tuple(_check_counts(arm, counts) for arm, counts in by_arm.items() if counts)


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
    slices: Sequence[Measurement], in_flight: int, of_disk: Amplification, number: int | None
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
    counts = []
    for direction in ("read", "written"):
        for by, by_fio, moved in sources:
            fio, counted = (sum(getattr(count, direction) for count in several) for several in (by_fio, moved))
            if not fio:
                continue
            needs = NONE if by == "qemu" else of_disk
            fewest, most = fio * needs.fewest_written, fio * needs.most_written
            if direction == "read":
                for_writes = sum(count.written for count in by_fio) * needs.read_for_write
                fewest, most = fio * needs.fewest_read, fio * needs.most_read + for_writes
            polled, extra = 0.0, 0.0
            if by == "disk" and direction == "read":
                polled = _estimate_polled(whole)
                extra = polled + sum(map(_read_probed, whole))
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
    per_byte = needs.rebuild_read if direction == "read" else needs.rebuild_written
    arrays = [slice_.counters.array for slice_ in slices if per_byte and slice_.counters.array is not None]
    rebuilt = [array.rebuilt for array in arrays if array.state == "rebuilding"]
    return sum(size * per_byte + REBUILD_IN_FLIGHT * (per_byte + 1) for size in rebuilt)


def _check_counts(arm: str, counts: Sequence[_ByteCount]) -> ValidityCheck:
    wrong = [count for count in counts if abs(count.off) > TOLERANCE]
    if not wrong:
        return ValidityCheck(f"bytes {arm}", ok=True, detail=_describe_agreement(counts))
    worst = max(wrong, key=lambda count: abs(count.off))
    first = next((count for count in wrong if count.by == "qemu" and count.round == worst.round), worst)
    whose = {"qemu": "QEMU", "disk": "the host's disk", "storage": "the disks below the storage"}[first.by]
    needed = f"; its layout needs {first.needed} times as much as fio" if first.amplified else ""
    if first.polled and first.off > 0:
        needed += f"; {format_size(first.polled)} allowed for {_POLLERS}"
    return ValidityCheck(
        f"bytes {arm}",
        ok=False,
        detail=f"{first.where}: fio counted {format_size(first.fio)} {first.direction}, {whose} "
        f"{format_size(first.counted)} ({first.counted / first.fio:.1%}{needed}): {_explain(first)}",
    )


def _describe_agreement(counts: Sequence[_ByteCount]) -> str:
    names = {"qemu": "QEMU", "disk": "the disk", "storage": "the disks below the storage"}
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


def _explain(count: _ByteCount) -> str:
    match count.by, count.direction, count.off < 0:
        case "qemu", _, True:
            return "the guest's own cache served the rest, or the guest sent requests that QEMU does not count as data"
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
            return "the layers write more than requested (metadata, journal, parity), or something else wrote"
