"""Breakdowns: where the microseconds of one I/O go, part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.breakdown.parts import BreakdownRecord, PathPart
from harness.model.disk import NetworkPath
from harness.report.blocks import (
    Aside,
    Block,
    Chart,
    Column,
    Heading,
    Key,
    Listing,
    Mark,
    On,
    Part,
    Row,
    Sentence,
    Table,
    TableCell,
    microseconds_cell,
)
from harness.report.draw import HOST, LAYER, VIRTUALISATION, Bar, Figure, draw_bars, find_starts, safe
from harness.report.numbers import count, microseconds, microseconds_interval, percent_with_interval, signed_percent
from harness.report.section import Section

SUM = "sum of the parts"
MEASURED = "measured without tracing"


def breakdown_blocks(section: Section) -> Iterator[Block]:
    """The breakdowns of a disk, of a run that traced where the time goes; nothing without any."""
    records = section.own(section.run.of(BreakdownRecord))
    if not records:
        return
    yield Heading("Where the microseconds go")
    yield Aside(
        "The mean latency of one I/O, with one in flight, from the outside to the inside: as the kernels of host and "
        "guest trace it. Each part is the duration of a layer without that of the layer below it, by one clock. The "
        "kernels of host and guest are traced in different slices, and the parts add up to fio's mean latency in those "
        "of the guest's kernel. Slices between them, in which nothing was traced, show the added latency and what "
        "tracing costs."
    )
    for number, record in enumerate(records, start=1):
        yield from _describe_breakdown(f"{section.key}-parts{number}", _name_network(record, section.network))


def _name_network(record: BreakdownRecord, network: NetworkPath | None) -> BreakdownRecord:
    """The record whose device says that it is at the other end of a network."""
    if network is None:
        return record
    names: dict[str, Any] = {PathPart.DEVICE: f"network and device ({network.protocol})"}
    return replace(record, parts=tuple(replace(part, part=names.get(part.part, part.part)) for part in record.parts))


def _describe_breakdown(key: str, record: BreakdownRecord) -> Iterator[Block]:
    title = f"{record.mode}, {record.job}"
    if record.skipped is not None:
        yield Part(title, (Sentence(record.skipped, style="reason"),), key)
        yield Sentence(_summarize(record), on=On.TEXT)
        return
    rows, check = tuple(_make_rows(record)), f"{_describe_check(record)}."
    table = Table(
        (
            Column("part", "step"),
            Column(f"{record.baseline}, us"),
            Column("guest, us"),
            Column("adds us", "strong", interval="95 %"),
        ),
        rows,
        f"Parts of the latency of {title}",
        style="cells steps",
    )
    chart = Chart(
        key,
        lambda: draw_breakdown(record),
        (
            Key("parts that the host has too, ", LAYER),
            Key("parts of the guest only, ", VIRTUALISATION),
            Key("all parts; hatched: they do not add up", HOST),
        ),
        "What each part adds, as in the table",
    )
    notes = Listing(record.notes)
    yield Part(title, (chart, table, Aside(check), notes), key)
    yield Sentence(f"where the microseconds go, {title} (mean latency of one I/O in us):", on=On.TERMINAL)
    lines = (*_align_rows(record.baseline, rows), _describe_check(record), *record.notes)
    yield Listing(lines, on=On.TERMINAL, indent=2)
    yield Sentence((Mark(f"Where the microseconds go: {title}.", "strong"), f" {check}"), on=On.MARKDOWN)
    yield Table(table.columns, rows, table.caption, on=On.MARKDOWN)
    yield Listing(record.notes, on=On.MARKDOWN)
    yield Sentence(_summarize(record), on=On.BRIEF)


def _make_rows(record: BreakdownRecord) -> Iterator[Row]:
    """The parts, their sum, and the added latency without tracing. An I/O of the host may lack a part."""
    for part in record.parts:
        yield _make_row(part.part, part.host, part.guest, part.added)
    for name, added in ((SUM, record.sum), (MEASURED, record.measured)):
        if added is not None:
            yield _make_row(name, None, None, added)


def _summarize(record: BreakdownRecord) -> str:
    """The parts that add something, the largest first: "passthrough-blk adds 745 us to an I/O of randread-4k-qd1: QEMU
    318, ..."."""
    if record.skipped is not None or record.sum is None:
        return f"{record.mode}, {record.job}: no breakdown: {record.skipped}"
    adding = sorted((part for part in record.parts if part.added.point > 0), key=lambda part: -part.added.point)
    parts = ", ".join(f"{part.part} {microseconds(part.added.point)}" for part in adding)
    return f"`{record.mode}` adds {microseconds(record.sum.point)} us to an I/O of {record.job}: {parts}"


def _describe_check(record: BreakdownRecord) -> str:
    """Whether the parts add up, and what tracing costs."""
    words = []
    if record.deviation is not None:
        verdict = "add up to" if record.adds_up else "do not add up to"
        words.append(
            f"the parts {verdict} the added latency measured without tracing: {signed_percent(record.deviation)} % "
            f"in {count(record.blocks, 'block')}"
        )
    costs = (
        ("of the guest's kernel", record.guest_cost),
        ("of the host's kernel", record.below_cost),
        ("of the host's kernel, for fio on the host,", record.host_cost),
    )
    costing = [f"{what} {percent_with_interval(cost, ' %', signed=True)}" for what, cost in costs if cost is not None]
    if costing:
        words.append(f"tracing changes the latency: {', '.join(costing)}")
    return "; ".join(words)


def _make_row(name: str, host: float | None, guest: float | None, added: Estimate) -> Row:
    values = ("" if value is None else microseconds(value) for value in (host, guest))
    return Row((name, *values, microseconds_cell(added, signed=True)))


def _align_rows(baseline: str, rows: Sequence[Row]) -> Iterator[str]:
    """The table as lines whose figures are below each other."""
    table = [("", baseline, "guest", "adds", "")]
    for name, host, guest, adds in (row.cells for row in rows):
        assert isinstance(adds, TableCell)
        table.append((str(name), str(host), str(guest), str(adds.text), adds.interval))
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    for name, host, guest, added, interval in table:
        figures = f"{host:>{widths[1]}}  {guest:>{widths[2]}}  {added:>{widths[3]}} {interval}"
        yield f"{name:<{widths[0]}}  {figures}".rstrip()


def draw_breakdown(record: BreakdownRecord) -> Figure:
    """What each part adds, from the outside to the inside, then their sum, and what was measured without tracing.

    Only for a breakdown that was not skipped.
    """
    bars = [
        Bar(
            part.part,
            part.added,
            start,
            LAYER if part.host is not None else VIRTUALISATION,
            f"{safe(part.part)}<br>host {microseconds(part.host)} us, guest {microseconds(part.guest)} us",
        )
        for part, start in zip(record.parts, find_starts(part.added for part in record.parts), strict=True)
    ]
    for name, added in ((SUM, record.sum), (MEASURED, record.measured)):
        if added is not None:
            text = f"{safe(name)}<br>{microseconds(added.point, signed=True)} us {microseconds_interval(added)}"
            bars.append(Bar(name, added, 0.0, HOST, text, doubt=name == SUM and not record.adds_up))
    return draw_bars(bars, blocks=record.blocks)


REPORT = FeatureReport(records=(BreakdownRecord,), contents={ReportPlace.PARTS: breakdown_blocks})
