"""Whether the counts of the same bytes agree: those of fio, of the disk and of QEMU. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from harness.model.base import NONE, Amplification
from harness.model.counters import FioCounts, Transferred
from harness.model.mode import Place
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
    by_arm: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        by_arm.setdefault(measurement.arm, []).append(measurement)
    checks = []
    for arm, slices in by_arm.items():
        of_disk, rounds = NONE if arm in _BARE else layout, dict.fromkeys(slice_.round for slice_ in slices)
        counts = [
            count
            for number in rounds
            for count in count_bytes([slice_ for slice_ in slices if slice_.round == number], of_disk, number)
        ]
        # What polls may read is large beside the bytes of one round of a slow job, but not beside those of many.
        if any(count.polled for count in counts):
            counts += count_bytes(slices, of_disk, None)
        if not counts:
            continue
        if cached and arm not in _BARE:
            check = _check_cached(arm, () if buffered else counts)
        else:
            check = _check_counts(arm, counts, "its control group" if arm == contained else "QEMU")
        checks.append(replace(check, detail=check.detail + _tell_uncounted(slices)))
    return tuple(checks)


def _tell_uncounted(slices: Sequence[Measurement]) -> str:
    """A remark if the check is about less than half of these slices of an arm, so that it may miss I/O of others."""
    counted = sum(slice_.counters.disk is not None for slice_ in slices)
    if not counted or 2 * counted >= len(slices):
        return ""
    return f"; this is known of {counted} of {len(slices)} slices, because others ran when the counters were read"


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
    for direction, (by, by_fio, moved) in product(("read", "written", "trimmed"), sources):
        fio, counted = (sum(getattr(count, direction) for count in several) for several in (by_fio, moved))
        if not fio:
            continue
        needs = (NONE if of_qemu is None else of_qemu) if by == "qemu" else of_disk
        fewest, most = _bound_bytes(direction, fio, needs, written=sum(count.written for count in by_fio))
        polled = _estimate_polled(whole) if by == "disk" and direction == "read" else 0.0
        # A journal is written at any time. QEMU also counts between the slices, but only that of its own guest.
        lasting = elapsed if by == "qemu" else sum(slice_.wall for slice_ in slices)
        extra = journal(lasting) if journal and (by != "qemu" or of_qemu is not None) else 0.0
        if direction == "read" and by == "qemu":
            # With the slices of other jobs of the arm.
            extra += sum(piece.ahead for piece in pieces.values())
        elif direction == "read" and ahead is not None:
            extra += ahead.count(slices, fio)
        if by == "disk" and direction == "read":
            extra += polled + sum(map(_read_probed, whole))
        if by == "disk":
            extra += sum(getattr(earlier, direction) for earlier in map(_read_earlier, whole)) * most / fio
        if by == "storage":
            # Others use the storage, too, so more bytes are not an error.
            extra = math.inf
        slack = len(by_fio) * in_flight * most / fio
        rebuild = _estimate_rebuild(whole, direction, needs)
        extra += rebuild
        counts.append(
            _ByteCount(number, direction, by, fio, counted, fewest, most, slack, extra, rebuild=rebuild, polled=polled)
        )
    return counts


def _bound_bytes(direction: str, fio: int, needs: Amplification, *, written: int) -> tuple[float, float]:
    """The fewest and the most bytes that a layout needs in this direction for those of fio, which wrote `written`."""
    if direction == "read":
        return fio * needs.fewest_read, fio * needs.most_read + written * needs.read_for_write
    if direction == "trimmed":
        return fio * needs.fewest_trimmed, fio * needs.most_trimmed
    return fio * needs.fewest_written, fio * needs.most_written


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
