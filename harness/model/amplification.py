"""How many bytes the disks move for each byte that a user reads from or writes to a layout. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Amplification:
    """Bytes that all disks of a layout together move for each byte of a user: minimum and maximum.

    `read_for_write` is the maximum of the bytes that are also read for each byte written. `rebuild_read` and
    `rebuild_written` are what the recovery of an array moves for each byte of a member that it rebuilds.
    """

    fewest_read: float = 1.0
    most_read: float = 1.0
    fewest_written: float = 1.0
    most_written: float = 1.0
    read_for_write: float = 0.0
    rebuild_read: float = 0.0
    rebuild_written: float = 0.0

    def over(self, below: Amplification) -> Amplification:
        """The amplification of a layer on a base. `below` is the amplification of the base."""
        return Amplification(
            self.fewest_read * below.fewest_read,
            self.most_read * below.most_read,
            self.fewest_written * below.fewest_written,
            self.most_written * below.most_written,
            self.read_for_write * below.most_read + self.most_written * below.read_for_write,
            below.rebuild_read,
            below.rebuild_written,
        )


NONE = Amplification()
"""Each byte once, for example a disk, a partition or a volume."""

METADATA = 0.03
"""Metadata as a share of the bytes written: a journal, file times, mappings of a thin pool, tables of an image."""
WITH_METADATA = Amplification(most_written=1 + METADATA)


def widest(several: Iterable[Amplification]) -> Amplification:
    """What the disks may move for jobs that run at the same time: the least of all minima, and the most of the rest."""
    amplifications = list(several)
    values = {field.name: [getattr(one, field.name) for one in amplifications] for field in fields(Amplification)}
    return Amplification(**{name: min(own) if name.startswith("fewest") else max(own) for name, own in values.items()})


def of_records(record_bytes: int, block_bytes: int, *, times_written: float) -> Amplification:
    """The amplification of a file system that reads and writes whole records, and writes them seconds later.

    What it writes after a slice is not counted for it, so nothing follows from too few bytes written.
    """
    records = max(1.0, record_bytes / block_bytes)
    return Amplification(
        most_read=records, fewest_written=0.0, most_written=records * times_written, read_for_write=records
    )
