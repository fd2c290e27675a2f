"""ZFS in a report: the volumes as they were found, what the pool's disks moved for their jobs, and what stands out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.feature import FeatureReport, ReportPlace, Subject
from harness.model.counters import Transferred
from harness.model.layout import OnZfs
from harness.model.values import Amount, RecordValue
from harness.report.blocks import MOST_LISTED, Aside, Block, Column, Heading, Row, first, make_table
from harness.report.numbers import significant
from harness.report.section import Section
from harness.results import ArmName, CellRecord, Measurement
from harness.results.assemble import AssembledRun
from harness.units import format_size

_STANDS_OUT = 2.0
"""From so many times the bytes that must be moved at least, a sentence names what the disks move."""


@dataclass(frozen=True, slots=True)
class MovedBytes(RecordValue):
    """Bytes of the disks below an arm for each byte that fio read or wrote there, over all slices."""

    read: Amount
    """Bytes that the disks read."""
    written: Amount
    """Bytes that they wrote."""

    @property
    def both(self) -> float:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class ZfsRecord(RecordValue):
    """What the disks of the pool moved in the job of a cell. On a storage in use, also for others."""

    cell: str
    """The id of the cell."""
    arms: Mapping[ArmName, MovedBytes]
    """By arm; without arms whose disks were not counted."""


def account_cells(run: AssembledRun) -> tuple[ZfsRecord, ...]:
    """A record for each cell on ZFS with an arm whose disks were counted, in the order of the cells."""
    return tuple(ZfsRecord(cell, arms) for cell, arms in run.account_arms(OnZfs, _account))


def _account(slices: Iterable[Measurement]) -> MovedBytes | None:
    """What the disks moved in these slices of one arm; None if that was not counted, or fio moved nothing."""
    moved, by_fio = Transferred(), 0
    for slice_ in slices:
        counters = slice_.counters
        counted = counters.storage if counters.storage is not None else counters.disk
        if counted is not None:
            moved += counted
            by_fio += counters.fio.read + counters.fio.written
    return MovedBytes(round(moved.read / by_fio, 4), round(moved.written / by_fio, 4)) if by_fio else None


@dataclass(frozen=True, slots=True)
class ZfsCell:
    """A cell on ZFS, and what the disks of its pool moved."""

    cell: CellRecord
    record: ZfsRecord

    @property
    def layout(self) -> OnZfs:
        layout = self.cell.mode_detail.layout
        if not isinstance(layout, OnZfs):
            raise TypeError(f"{self.cell.id} is not on ZFS")
        return layout

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, as ZFS reports them."""
        effective = self.cell.effective
        return effective.host_zfs_volblocksize or effective.host_zfs_recordsize or self.layout.record_bytes

    @property
    def words(self) -> str:
        """For example "records of 16 KiB, compression lz4, sync standard, on a mirror of 2 disks"."""
        effective = self.cell.effective
        pool = f", on {effective.host_zfs_pool}" if effective.host_zfs_pool else ""
        return (
            f"records of {format_size(self.record_bytes)}, compression {effective.host_zfs_compression or 'not read'}, "
            f"sync {effective.host_zfs_sync or 'not read'}{pool}"
        )

    @property
    def moved(self) -> MovedBytes | None:
        """What the disks moved for the guest; for the twin if there is no guest."""
        return self.record.arms.get("guest") or self.record.arms.get("twin")

    @property
    def least(self) -> float:
        """The least that the disks can move for each byte: once for a read, with copies and parity for a write."""
        share = self.cell.job.share_of_reads or 0.0
        return share + (1 - share) * (self.cell.effective.host_zfs_space or 1.0)

    @property
    def stands_out(self) -> bool:
        return self.moved is not None and self.moved.both >= _STANDS_OUT * self.least

    @property
    def sentence(self) -> str:
        """For example "`zvol-128k`: in randwrite-4k-qd32, each 4 KiB moved 33 x its bytes on the pool's disks ..."."""
        moved = self.moved
        if moved is None:
            return ""
        return (
            f"{self.cell.id}: each {format_size(self.cell.job.bs)} moved {_times(moved.both)} its bytes on the pool's "
            f"disks ({_times(moved.read)} read, {_times(moved.written)} written)"
        )

    @property
    def cause(self) -> str:
        """Why the disks move more than the least; empty if the figures do not show it."""
        smallest = min(self.cell.job.block_sizes)
        if self.record_bytes > smallest:
            return (
                f"each is a part of a record of {format_size(self.record_bytes)}, and ZFS reads and writes whole "
                f"records: {self._remedy} moves less"
            )
        return "synchronous writes go to the intent log first" if self._is_synchronous else ""

    @property
    def _remedy(self) -> str:
        return "a smaller volblocksize" if self.layout.kind == "zvol" else "a smaller recordsize"

    @property
    def _is_synchronous(self) -> bool:
        job = self.cell.job
        return job.writes and (job.durable or job.flushes or self.cell.effective.host_zfs_sync == "always")


def _times(factor: float) -> str:
    return f"{significant(factor)} \N{MULTIPLICATION SIGN}"


def list_zfs_cells(section: Section) -> list[ZfsCell]:
    """The measured cells of a section that are on ZFS, in their order."""
    records = {record.cell: record for record in section.run.of(ZfsRecord)}
    return [ZfsCell(cell, records[cell.id]) for cell in section.cells if cell.id in records and cell.measured]


def describe_zfs(section: Section) -> Iterator[str]:
    """What a user of these pools must know: what is not durable, and the largest multiples of a job's bytes."""
    yield from _name_disabled_sync(section.cells)
    notable = sorted((zfs for zfs in list_zfs_cells(section) if zfs.stands_out), key=lambda zfs: -_both(zfs))
    yield from first([f"{zfs.sentence}{': ' + zfs.cause if zfs.cause else ''}." for zfs in notable], 3)


def _both(zfs: ZfsCell) -> float:
    return zfs.moved.both if zfs.moved is not None else 0.0


def _name_disabled_sync(cells: Sequence[CellRecord]) -> Iterator[str]:
    modes = dict.fromkeys(cell.mode for cell in cells if cell.effective.host_zfs_sync == "disabled")
    if modes:
        yield (
            f"Writes of {', '.join(f'`{mode}`' for mode in modes)} are not durable: sync is disabled on the dataset, "
            "so a write or a flush completes before anything is on a disk."
        )


def zfs_blocks(section: Section) -> Iterator[Block]:
    """The cells on ZFS with what the pool's disks moved; nothing if none was counted."""
    cells = list_zfs_cells(section)
    if not cells:
        return
    yield Heading("What ZFS moves")
    yield Aside(
        "Bytes of the pool's disks for each byte that fio read or wrote, over all slices. ZFS reads and writes whole "
        "records, adds copies or parity, and writes synchronous data twice. On a storage in use, the bytes of others "
        "count as well."
    )
    yield make_table(
        cells,
        f"Bytes that the disks moved on {section.name}",
        (Column("cell", "mode"), lambda zfs: zfs.cell.id),
        (Column("guest", "strong"), lambda zfs: _show(zfs.record.arms.get("guest"))),
        (Column("of that read"), lambda zfs: significant(moved.read if (moved := zfs.moved) else None)),
        (Column("written"), lambda zfs: significant(moved.written if (moved := zfs.moved) else None)),
        (Column("twin"), lambda zfs: _show(zfs.record.arms.get("twin"))),
        (Column("at least"), lambda zfs: significant(zfs.least)),
        (Column("volume", "reason"), lambda zfs: zfs.words),
        row=lambda zfs: Row((), sentence=zfs.sentence if zfs.stands_out else ""),
        style="cells zfs",
        most=MOST_LISTED,
    )


def _show(moved: MovedBytes | None) -> str:
    return _times(moved.both) if moved is not None else ""


REPORT = FeatureReport(
    records=(ZfsRecord,),
    subject=Subject(in_record=lambda cell: isinstance(cell.mode_detail.layout, OnZfs)),
    contents={ReportPlace.PARTS: zfs_blocks},
    details=describe_zfs,
)
