"""What several guests, a neighbour or a backup did at the same time, and how fair it was.

Backups run beside slices: they are begun, watched, and begun again until a slice ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import fmean
from threading import Event
from typing import TYPE_CHECKING, Any

from harness.analysis import METRICS, Estimate, Samples, estimate_mean, merged, percentile_interval
from harness.analysis.samples import t_quantile
from harness.model.mode import Cell, Place
from harness.results.cells import (
    BackupRecord,
    GuestShare,
    NeighbourRecord,
    PooledPercentile,
    SeveralGuests,
    ValidityCheck,
)
from harness.results.contrasts import Blocks
from harness.results.journal import BackupCounts, Measurement, PartRecord
from harness.scenario.timetable import Slice, Timetable, backed_up

if TYPE_CHECKING:
    from harness.guest.protocol import Backup
    from harness.measure.session import Session

LEAST_TOGETHER = 0.9
"""The share of the measured time in which all jobs of an arm must run at the same time, over all its slices."""
LEAST_BACKUP = 0.9
"""The share of a slice's time in which a backup must be seen running. One that ends is begun again at once."""
ENOUGH = 0.5
"""The smallest share of slices with a backup. With fewer, what is left says little about the mode."""
FEWEST_BLOCKS = 3
"""The fewest blocks for an interval."""
_P99 = METRICS["clat_p99"]
_POLL_SECONDS = 0.05

_ByGuest = Mapping[int, Sequence[PartRecord]]
"""The jobs of each guest by its number, in the order of the blocks."""


def check_together(measurements: Iterable[Measurement]) -> list[ValidityCheck]:
    """One check per arm with several jobs: whether they ran at the same time, by fio's clocks."""
    by_arm: dict[str, list[float]] = {}
    for measurement in measurements:
        if measurement.together is not None:
            by_arm.setdefault(measurement.arm, []).append(measurement.together)
    return [
        ValidityCheck(
            f"together {arm}",
            ok=fmean(shares) >= LEAST_TOGETHER,
            detail=f"all jobs ran at the same time for {fmean(shares):.1%} of the measured time, at least "
            f"{LEAST_TOGETHER:.0%} needed"
            + ("" if fmean(shares) >= LEAST_TOGETHER else ": set a longer runtime in the profile"),
        )
        for arm, shares in by_arm.items()
    ]


def has_its_backup(slice_: Measurement) -> bool:
    """Whether a backup ran all the time of the slice, if one was to run."""
    return slice_.backup is None or slice_.backup.share >= LEAST_BACKUP


def check_backup(measurements: Sequence[Measurement], cell: Cell) -> list[ValidityCheck]:
    """The check that a backup ran; empty for a cell without one. A slice without it does not count."""
    asked = [measurement for measurement in measurements if measurement.backup is not None]
    if not cell.mode.backup or not asked:
        return []
    ran = sum(map(has_its_backup, asked))
    ok = ran >= ENOUGH * len(asked)
    detail = f"a backup ran all the time in {ran} of {len(asked)} slices"
    if not ok:
        detail += ": it ends too soon for them; set a larger span or a shorter runtime in the profile"
    return [ValidityCheck("backup", ok=ok, detail=detail)]


def note_lost_backups(measurements: Sequence[Measurement]) -> list[str]:
    """How many blocks do not count because no backup ran in them all the time."""
    asked = {(measurement.round, measurement.block) for measurement in measurements if measurement.backup is not None}
    lost = {(measurement.round, measurement.block) for measurement in measurements if not has_its_backup(measurement)}
    return [f"{len(lost)} of {len(asked)} blocks do not count, because the backup ended in them"] if lost else []


def measure_others(
    cell: Cell, blocks: Blocks, samples: Samples, confidence: float, _span_bytes: int = 0
) -> Mapping[str, Any]:
    """What the record of a cell has of other guests, of the neighbour and of the backup; nothing without blocks."""
    if not blocks.keys:
        return {}
    values: dict[str, Any] = {}
    of_guest = blocks.arms[Place.GUEST] if cell.mode.attach is not None else ()
    if cell.mode.guests > 1:
        values["several"] = compare_guests(cell, blocks, samples, confidence)
    if cell.mode.neighbour is not None:
        neighbours = [slice_.neighbour for slice_ in of_guest if slice_.neighbour is not None]
        iops, bw = (tuple(neighbour.metrics[name] for neighbour in neighbours) for name in ("iops", "bw"))
        values["neighbour"] = NeighbourRecord(cell.mode.neighbour.id, iops, bw)
    if cell.mode.backup:
        values["backup"] = BackupRecord(tuple(slice_.backup.bw for slice_ in of_guest if slice_.backup is not None))
    return values


def compare_guests(cell: Cell, blocks: Blocks, samples: Samples, confidence: float) -> SeveralGuests:
    """What each of several guests got in these blocks."""
    guest, host = (_group_by_guest(blocks.arms[arm]) for arm in (Place.GUEST, Place.HOST))
    metric = "iops" if cell.job.is_random else "bw"
    of_guest, of_host = (_read_values(parts, metric) for parts in (guest, host))
    shares, host_shares = (_estimate_shares(values, samples, confidence) for values in (of_guest, of_host))
    return SeveralGuests(
        metric,
        tuple(
            GuestShare(
                number,
                guest=of_guest[number],
                host=of_host[number],
                share=shares[number],
                host_share=host_shares[number],
                p99=_pool_p99(guest[number], confidence),
                host_p99=_pool_p99(host[number], confidence),
            )
            for number in guest
        ),
        fairness=estimate_fairness(list(zip(*of_guest.values(), strict=True)), confidence=confidence),
        host_fairness=estimate_fairness(list(zip(*of_host.values(), strict=True)), confidence=confidence),
    )


def _group_by_guest(slices: Iterable[Measurement]) -> _ByGuest:
    parts: dict[int, list[PartRecord]] = {}
    for slice_ in slices:
        for part in slice_.parts:
            parts.setdefault(part.number, []).append(part)
    return parts


def _read_values(parts: _ByGuest, metric: str) -> dict[int, tuple[float, ...]]:
    return {number: tuple(part.metrics[metric] for part in slices) for number, slices in parts.items()}


def _estimate_shares(values: Mapping[int, Sequence[float]], samples: Samples, confidence: float) -> dict[int, Estimate]:
    """The share of each guest, as the mean of its shares of the blocks."""
    totals = [sum(block) for block in zip(*values.values(), strict=True)]
    return {
        number: estimate_mean(
            [amount / total for amount, total in zip(amounts, totals, strict=True)],
            confidence=confidence,
            samples=samples,
        )
        for number, amounts in values.items()
    }


def _pool_p99(parts: Sequence[PartRecord], confidence: float) -> PooledPercentile | None:
    assert _P99.quantile is not None
    p99 = percentile_interval(merged(part.histogram for part in parts), _P99.quantile, confidence=confidence)
    return PooledPercentile(p99.point, p99.low, p99.high, p99.ios) if p99 is not None else None


def compute_jain_index(amounts: Sequence[float]) -> float:
    """Jain's fairness index of what each user got: (sum x)^2 / (n * sum x^2), from 1/n to 1.

    1 if all got the same, k/n if k of n users share everything equally. It does not depend on the unit. Source: R.
    Jain, D. Chiu, W. Hawe, "A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems", DEC Research Report TR-301, 1984. ValueError for no user, or amounts that are negative, not
    finite or all 0.
    """
    if not amounts or any(not math.isfinite(amount) or amount < 0 for amount in amounts) or not any(amounts):
        raise ValueError(f"amounts must be finite, not negative and not all 0, not {list(amounts)}")
    # Divided by the largest, the squares can neither overflow nor vanish.
    shares = [amount / max(amounts) for amount in amounts]
    index = math.fsum(shares) ** 2 / (len(shares) * math.fsum(share * share for share in shares))
    return min(max(index, 1 / len(shares)), 1.0)


def estimate_fairness(blocks: Sequence[Sequence[float]], *, confidence: float = 0.95) -> Estimate:
    """Jain's index of what users got in all blocks together. `blocks[i][j]` is the amount of user j in block i.

    The index of a single short block is smaller, because chance does not favour the same user in every block. So the
    amounts are added up first. The interval is that of the jackknife over the blocks, with Student's t (Tukey 1958;
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 11), within 1/n and 1. Fewer than three
    blocks give no interval. ValueError as for `compute_jain_index`, and for blocks of different length.
    """
    users = len(blocks[0]) if blocks else 0
    if any(len(block) != users for block in blocks):
        raise ValueError("each block needs an amount of each user")
    totals = [math.fsum(block[user] for block in blocks) for user in range(users)]
    point, n = compute_jain_index(totals), len(blocks)
    if n < FEWEST_BLOCKS:
        return Estimate(point, None, None, n)
    left_out = [[max(total - one, 0.0) for total, one in zip(totals, block, strict=True)] for block in blocks]
    if not all(map(any, left_out)):
        # Without the block that has everything, nobody has anything.
        return Estimate(point, None, None, n)
    without = list(map(compute_jain_index, left_out))
    mean = fmean(without)
    error = math.sqrt((n - 1) / n * math.fsum((index - mean) ** 2 for index in without))
    half = t_quantile((1 + confidence) / 2, n - 1) * error
    return Estimate(point, max(point - half, 1 / users), min(point + half, 1.0), n)


@dataclass(frozen=True, slots=True)
class Copy:
    """One backup, from the first to the last moment at which it was seen running, and the bytes copied in between.

    The moments are those of this process's monotonic clock. `ended` is when it had certainly ended.
    """

    first: float
    last: float
    copied: int
    ended: float


@dataclass(frozen=True, slots=True)
class Copies:
    """All backups of a timetable, in the order of time."""

    copies: Sequence[Copy] = ()

    def share(self, begun: float, ended: float) -> float:
        """The share of this time in which one was seen running, 0 to 1."""
        covered = sum(max(min(copy.last, ended) - max(copy.first, begun), 0.0) for copy in self.copies)
        return covered / max(ended - begun, 1e-9)

    def rate(self, begun: float, ended: float) -> float:
        """Bytes per second of those that ran in this time, over their own time."""
        near = [copy for copy in self.copies if copy.first < ended and copy.last > begun]
        return sum(copy.copied for copy in near) / max(sum(copy.last - copy.first for copy in near), 1e-9)

    def after(self, begun: float, ended: float) -> float:
        """Seconds after this time until those had ended that ran in it."""
        return max([0.0, *(copy.ended - ended for copy in self.copies if copy.first < ended and copy.last > begun)])

    def disturb(self, begun: float, ended: float) -> bool:
        """Whether one may have run in this time."""
        return any(copy.first < ended and copy.ended > begun for copy in self.copies)


def accompany(session: Session, table: Timetable, start: float) -> Backups | None:
    """The backups of a timetable that begins at the moment `start`; None if none are to run."""
    backups = {arm: session.backup(arm) for arm in dict.fromkeys(slice_.arm for slice_ in table.slices)}
    slices = [(slice_, backup) for slice_ in table.slices if (backup := backups[slice_.arm]) is not None]
    return Backups(slices, start) if slices else None


class Backups:
    """A `Companion`: backs the disk of each of these slices up while it runs."""

    def __init__(self, slices: Sequence[tuple[Slice, Backup]], start: float) -> None:
        self._slices = slices
        self._start = start
        self._stopped = Event()
        self.copies = Copies()

    def run(self, stopped: Event) -> None:
        """As a `Companion`. The event cancels the running backup. Raises HostError, GuestError."""
        self._stopped = stopped
        copies: list[Copy] = []
        for planned, backup in self._slices:
            if not self._wait_until(self._start + planned.start - planned.lead):
                break
            copies += self._back_up_during(planned, backup)
        self.copies = Copies(copies)

    def find_left_over(self, planned: Slice, first: float, ended: float) -> str:
        """`backup` if a backup for another slice still ran during this one; empty if none did."""
        return "backup" if not backed_up(planned.arm) and self.copies.disturb(first, ended) else ""

    def count(self, planned: Slice, begun: float, ended: float) -> BackupCounts | None:
        """What was copied beside a slice whose fio ran from `begun` to `ended`; None if no backup was to run."""
        if not backed_up(planned.arm):
            return None
        # fio waits for its last I/Os, which a backup may delay by seconds: it must run until fio issues no more.
        issued = begun + planned.job.seconds
        after = max(ended - issued, self.copies.after(begun, issued))
        share, rate = self.copies.share(begun, issued), self.copies.rate(begun, issued)
        return BackupCounts(round(share, 4), round(rate), round(after, 3))

    def _back_up_during(self, planned: Slice, backup: Backup) -> list[Copy]:
        end = self._start + planned.end
        copies: list[Copy] = []
        with ExitStack() as stack:
            stack.callback(backup.cancel)
            while not self._stopped.is_set() and time.monotonic() < end:
                backup.begin()
                copies.append(self._watch_copy(backup, end))
        if copies:
            last = copies.pop()
            copies.append(Copy(last.first, last.last, last.copied, time.monotonic()))
        return copies

    def _watch_copy(self, backup: Backup, end: float) -> Copy:
        """The copy that has just begun, until it ends or the slice does."""
        first = last = time.monotonic()
        copied = 0
        while (now := backup.copied()) is not None:
            copied, last = now, time.monotonic()
            if last >= end or not self._wait_until(last + _POLL_SECONDS):
                break
        return Copy(first, last, copied, time.monotonic())

    def _wait_until(self, moment: float) -> bool:
        """Wait until this moment. False if the timetable has failed meanwhile."""
        return not self._stopped.wait(max(moment - time.monotonic(), 0.0))
