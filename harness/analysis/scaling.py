"""How an array of disks scales against one of them: what its level can give, and what it gives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from harness.analysis.estimate import Estimate, log_ratios, mean_interval

_PARITY = {5: 1, 6: 2}


@dataclass(frozen=True, slots=True)
class Shape:
    """An md array: its RAID level, its disks, and whether it is one array or a stripe over two (`legs`) of them."""

    level: int
    disks: int
    legs: int = 1

    def __post_init__(self) -> None:
        known = self.level in (0, 1, 5, 6, 10) and self.legs >= 1
        if not known or self.disks % self.legs or self.data_disks < 1:
            raise ValueError(f"no array: RAID {self.level} over {self.disks} disks in {self.legs} legs")

    @property
    def disks_of_leg(self) -> int:
        return self.disks // self.legs

    @property
    def copies(self) -> int:
        """How often each block is stored: all disks of a leg in RAID 1, two in RAID 10, else once."""
        return self.disks_of_leg if self.level == 1 else 2 if self.level == 10 else 1

    @property
    def parity(self) -> int:
        """Parity blocks of a stripe."""
        return _PARITY.get(self.level, 0)

    @property
    def data_disks(self) -> int:
        """Data blocks of a leg's stripe, for levels with parity; the disks of a leg for others."""
        return self.disks_of_leg - self.parity

    def written(self, *, full_stripe: bool) -> float:
        """Blocks written to disks for each block written to the array."""
        if not self.parity:
            return self.copies
        return self.disks_of_leg / self.data_disks if full_stripe else 1 + self.parity

    def read_for_write(self, *, full_stripe: bool) -> float:
        """Blocks read from disks for each block written to the array: a partial stripe's parity needs old blocks.

        md takes the cheaper way: the old data and parity (read-modify-write), or the stripe's other data
        (reconstruct-write): `handle_stripe_dirtying` in the kernel's drivers/md/raid5.c.
        """
        if not self.parity or full_stripe:
            return 0
        return min(1 + self.parity, self.data_disks - 1)


def ideal_speedup(shape: Shape, *, read_share: float, full_stripe: bool) -> float:
    """How many times one disk's throughput the level can give, were disks the only limit.

    `read_share` of the I/Os are reads, each of which keeps one disk busy; a write keeps as many as its level has it
    written and read: RAID 0 one, 1 and 10 its copies, 5 and 6 data and parity. Reads gain the number of disks at every
    level. `full_stripe` says that writes come in whole stripes, as sequential ones do: their parity needs no reading.
    ValueError for a share outside of 0 to 1.
    """
    if not 0 <= read_share <= 1:
        raise ValueError(f"a share of reads is between 0 and 1, not {read_share}")
    per_write = shape.written(full_stripe=full_stripe) + shape.read_for_write(full_stripe=full_stripe)
    return shape.disks / (read_share + (1 - read_share) * per_write)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An array against the single disk: how many times it, of k times it, and of what the level can give."""

    speedup: Estimate
    efficiency: Estimate
    of_ideal: Estimate


def scaling(
    single: Iterable[float], array: Iterable[float], *, disks: int, ideal: float, confidence: float = 0.95
) -> Scaling:
    """The scaling of a metric where higher is better, from its paired rounds.

    The speedup is the geometric mean of the rounds' ratios with Student's t interval on their logarithms; efficiency
    and share of the ideal are the same, divided. ValueError as for `estimate_overhead`.
    """
    speedup = mean_interval([math.exp(log) for log in log_ratios(single, array)], confidence=confidence)
    return Scaling(speedup, _divided(speedup, disks), _divided(speedup, ideal))


def _divided(estimate: Estimate, by: float) -> Estimate:
    low = None if estimate.low is None else estimate.low / by
    high = None if estimate.high is None else estimate.high / by
    return Estimate(estimate.point / by, low, high, estimate.n)
