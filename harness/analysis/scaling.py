"""How an array of disks scales against a single disk: what its RAID level can deliver, and what it delivers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.analysis.estimate import Estimate, log_ratios, mean_interval
from harness.analysis.samples import IN_ORDER, Samples

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
            raise ValueError(f"RAID {self.level} over {self.disks} disks in {self.legs} legs is not a possible array")

    @property
    def disks_of_leg(self) -> int:
        return self.disks // self.legs

    @property
    def copies(self) -> int:
        """How often each block is stored: on all disks of a leg in RAID 1, twice in RAID 10, else once."""
        return self.disks_of_leg if self.level == 1 else 2 if self.level == 10 else 1

    @property
    def parity(self) -> int:
        """Parity blocks of a stripe."""
        return _PARITY.get(self.level, 0)

    @property
    def data_disks(self) -> int:
        """Data blocks of a leg's stripe for levels with parity; the disks of a leg for other levels."""
        return self.disks_of_leg - self.parity

    def written(self, *, full_stripe: bool) -> float:
        """Blocks written to disks for each block written to the array."""
        if not self.parity:
            return self.copies
        return self.disks_of_leg / self.data_disks if full_stripe else 1 + self.parity

    def read_for_write(self, *, full_stripe: bool) -> float:
        """Blocks read from disks for each block written to the array: a partial stripe's parity needs old blocks.

        md uses the cheaper method: it reads the old data and parity (read-modify-write), or the stripe's other data
        (reconstruct-write). See `handle_stripe_dirtying` in the kernel's drivers/md/raid5.c.
        """
        if not self.parity or full_stripe:
            return 0
        return min(1 + self.parity, self.data_disks - 1)


def ideal_speedup(shape: Shape, *, read_share: float, full_stripe: bool) -> float:
    """The throughput that the level can deliver, as a multiple of one disk's, if disks were the only limit.

    `read_share` is the share of reads among the I/Os. A read keeps one disk busy. A write keeps as many disks busy as
    its level writes and reads for it: one in RAID 0, the copies in RAID 1 and 10, data and parity in RAID 5 and 6. So
    reads scale with the number of disks at every level. `full_stripe` means that writes fill whole stripes, as
    sequential writes do; their parity needs no reads. ValueError for a share outside of 0 to 1.
    """
    if not 0 <= read_share <= 1:
        raise ValueError(f"the share of reads must be between 0 and 1, not {read_share}")
    per_write = shape.written(full_stripe=full_stripe) + shape.read_for_write(full_stripe=full_stripe)
    return shape.disks / (read_share + (1 - read_share) * per_write)


@dataclass(frozen=True, slots=True)
class Scaling:
    """An array against the single disk: the ratio, this divided by the number of disks, and divided by the ideal."""

    speedup: Estimate
    efficiency: Estimate
    of_ideal: Estimate


def scaling(
    single: Iterable[float],
    array: Iterable[float],
    *,
    disks: int,
    ideal: float,
    confidence: float = 0.95,
    samples: Samples = IN_ORDER,
) -> Scaling:
    """The scaling of a metric for which higher is better, from its paired samples.

    The speedup is the geometric mean of the samples' ratios with Student's t interval on their logarithms. Efficiency
    is the speedup divided by `disks`, the share of the ideal is the speedup divided by `ideal`. `samples` as for
    `estimate_overhead`. ValueError as there.
    """
    ratios = [math.exp(log) for log in log_ratios(single, array)]
    speedup = mean_interval(ratios, confidence=confidence, samples=samples)
    return Scaling(speedup, _divided(speedup, disks), _divided(speedup, ideal))


def _divided(estimate: Estimate, by: float) -> Estimate:
    low = None if estimate.low is None else estimate.low / by
    high = None if estimate.high is None else estimate.high / by
    return replace(estimate, point=estimate.point / by, low=low, high=high)
