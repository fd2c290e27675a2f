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
