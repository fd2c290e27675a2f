"""How many bytes disks move for each byte that their layout is asked for: what its level and format need. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from harness.results.scaling import shape_of
from harness.scenario.layouts import Base, Layout, LvmThin, Md, Qcow2, RawFile, ZfsFile, Zvol, base_of
from harness.scenario.model import Job

_METADATA = 0.03
"""Of what is written: a journal, times of files, the mappings of a thin pool, tables of an image."""
_QCOW2_TABLES = 0.05
"""Of what is read, where QEMU's cache of an image's tables does not hold all of them."""
_ZFS_TWICE = 2
"""What is synced is written to the intent log first, then in its place."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """Bytes that all disks of a layout together move for each byte of a user, from fewest to most.

    `read_for_write` is the most that is read besides for each byte written.
    """

    fewest_read: float = 1.0
    most_read: float = 1.0
    fewest_written: float = 1.0
    most_written: float = 1.0
    read_for_write: float = 0.0

    def over(self, below: Amplification) -> Amplification:
        """Of a layer with this amplification on one with that `below`."""
        return Amplification(
            self.fewest_read * below.fewest_read,
            self.most_read * below.most_read,
            self.fewest_written * below.fewest_written,
            self.most_written * below.most_written,
            self.read_for_write * below.most_read + self.most_written * below.read_for_write,
        )


NONE = Amplification()
"""Each byte once: a disk, a partition, a volume."""


def amplification(layout: Layout, job: Job) -> Amplification:
    """What the disks under `layout` may move for `job`, whose blocks are allocated already: conditioning wrote them."""
    return _of_layer(layout, job).over(_of_base(base_of(layout)))


def _of_base(base: Base) -> Amplification:
    """Levels with parity write between whole stripes, which need least, and block by block, which needs most."""
    if not isinstance(base, Md):
        return NONE
    shape = shape_of(base)
    stripes, blocks = (shape.written(full_stripe=full) for full in (True, False))
    # Also where a job's writes could fill whole stripes, some are flushed before they do.
    return Amplification(
        fewest_written=stripes, most_written=blocks, read_for_write=shape.read_for_write(full_stripe=False)
    )


def _of_layer(layout: Layout, job: Job) -> Amplification:
    if isinstance(layout, RawFile | LvmThin):
        return Amplification(most_written=1 + _METADATA)
    if isinstance(layout, Qcow2):
        return Amplification(most_written=1 + _METADATA, most_read=1 + _QCOW2_TABLES, read_for_write=_QCOW2_TABLES)
    if isinstance(layout, Zvol | ZfsFile):
        return _of_records(layout.volblocksize if isinstance(layout, Zvol) else layout.recordsize, job)
    return NONE


def _of_records(size: int, job: Job) -> Amplification:
    """ZFS reads and writes whole records, whatever part of one is asked for."""
    records = max(1.0, size / job.bs)
    return Amplification(most_read=records, most_written=records * _ZFS_TWICE, read_for_write=records)
