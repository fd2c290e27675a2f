"""Snapshots under load in reports: the longest wait of an I/O, how long they take, and what throughput they cost."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from harness.feature import FeatureReport, ReportPlace
from harness.features.snapshots.request import SnapshotRecord
from harness.report.blocks import Aside, Block, Column, Heading, On, Row, Sentence, TableCell, make_table
from harness.report.numbers import NONE, count, percent_with_interval, significant
from harness.report.section import Section

_MS = 1e3


def snapshot_blocks(section: Section) -> Iterator[Block]:
    """What snapshots did on a disk; nothing without any."""
    records = section.own(section.run.of(SnapshotRecord))
    if not records:
        return
    yield Heading("Snapshots under load")
    yield Aside(
        "In one of two slices of a pair, a snapshot of the volume is taken and removed again. The pause is how much "
        "longer the slowest I/O of the slice takes than that of the slice without a snapshot: the median over the "
        "pairs. The loss is that of the whole slice, with a 95 % interval."
    )
    yield make_table(
        records,
        f"Snapshots on {section.name}",
        (Column("mode", "mode"), lambda record: TableCell(record.mode, title=record.kind)),
        (Column("job", "name"), lambda record: record.job),
        (Column("pause, ms", "strong"), lambda record: _format_ms(record.pause)),
        (Column("slowest I/O, ms"), lambda record: _format_ms(record.longest)),
        (Column("without, ms"), lambda record: _format_ms(max(record.slowest_alone, default=None))),
        (Column("taking it, ms"), lambda record: _format_median(record.taking)),
        (Column("removing it, ms"), lambda record: _format_median(record.removing)),
        (Column("loss, %"), lambda record: percent_with_interval(record.loss)),
        (Column("pairs"), lambda record: str(len(record.alone))),
        (Column("ended early", "reason"), lambda record: record.problem or ""),
        row=lambda record: Row((), sentence=describe_snapshots(record), doubtful=record.problem is not None),
        style="cells",
    )
    for record in records:
        yield Sentence(describe_snapshots(record), on=On.BRIEF)


def _format_ms(seconds: float | None) -> str:
    return significant(seconds * _MS) if seconds is not None else NONE


def _format_median(values: tuple[float, ...]) -> str:
    return _format_ms(median(values)) if values else NONE


def describe_snapshots(record: SnapshotRecord) -> str:
    """For example "thin during randwrite-4k-qd1: a snapshot of a thin volume of LVM stops I/O for 42 ms (longest 80
    ms), and costs 6.1 % [5.0, 7.2] of the slice; taken in 210 ms, 10 pairs"."""
    name = f"{record.mode} during {record.job}"
    problem = f"; {record.problem}" if record.problem else ""
    if record.pause is None:
        return f"{name}: no snapshot was measured{problem}"
    return (
        f"{name}: a {record.kind} stops I/O for {_format_ms(record.pause)} ms (longest "
        f"{_format_ms(record.longest)} ms), and costs {percent_with_interval(record.loss, ' %')} of the slice; taken "
        f"in {_format_median(record.taking)} ms, {count(len(record.alone), 'pair')}{problem}"
    )


REPORT = FeatureReport(records=(SnapshotRecord,), contents={ReportPlace.FINDINGS: snapshot_blocks})
