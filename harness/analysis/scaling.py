"""What a RAID level can deliver, as a multiple of a single disk."""

from __future__ import annotations

from dataclasses import dataclass

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
