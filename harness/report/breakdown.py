"""Breakdowns as the report shows them: where the microseconds of one I/O go, in tables, sentences and a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from harness.analysis import Estimate
from harness.report.labels import safe
from harness.report.numbers import (
    count,
    microseconds,
    microseconds_interval,
    percent_interval,
    signed_percent,
)
from harness.report.theme import HOST, LAYER, VIRTUALISATION
from harness.report.waterfall_chart import Bar, bars_chart, starts
from harness.results import BreakdownRecord, PartTime

SUM = "sum of the parts"
MEASURED = "measured without tracing"


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """One line of the table as text, in us: the host's value is empty if an I/O of the host has no such part."""

    name: str
    host: str
    guest: str
    added: str
    interval: str

    @property
    def values(self) -> tuple[str, ...]:
        return self.host, self.guest, self.added, self.interval


@dataclass(frozen=True, slots=True)
class BreakdownView:
    """One breakdown. `key` is unique within the page, and valid as an HTML id."""

    key: str
    record: BreakdownRecord

    @property
    def title(self) -> str:
        return f"{self.record.mode}, {self.record.job}"

    @property
    def drawn(self) -> bool:
        """Whether there is a breakdown."""
        return self.record.skipped is None

    @property
    def rows(self) -> tuple[BreakdownRow, ...]:
        """The parts, their sum, and the added latency without tracing; none if there is no breakdown."""
        return tuple(self._rows())

    def _rows(self) -> Iterator[BreakdownRow]:
        for part in self.record.parts:
            yield _row(part.part, part.host, part.guest, part.added)
        for name, found in ((SUM, self.record.sum), (MEASURED, self.record.measured)):
            if found is not None:
                yield _row(name, None, None, found)

    @property
    def largest(self) -> tuple[PartTime, ...]:
        """The parts that add something, the largest first."""
        adding = [part for part in self.record.parts if part.added.point > 0]
        return tuple(sorted(adding, key=lambda part: part.added.point, reverse=True))

    @property
    def sentence(self) -> str:
        """The largest parts, for example "passthrough-blk adds 745 us to an I/O of randread-4k-qd1: QEMU 318, ..."."""
        record = self.record
        if record.skipped is not None or record.sum is None:
            return f"{record.mode}, {record.job}: no breakdown: {record.skipped}"
        parts = ", ".join(f"{part.part} {microseconds(part.added.point)}" for part in self.largest)
        return f"`{record.mode}` adds {microseconds(record.sum.point)} us to an I/O of {record.job}: {parts}"

    @property
    def check(self) -> str:
        """Whether the parts add up, and what tracing costs."""
        record = self.record
        words = []
        if record.deviation is not None:
            verdict = "add up to" if record.adds_up else "do not add up to"
            words.append(
                f"the parts {verdict} the added latency measured without tracing: {signed_percent(record.deviation)} % "
                f"in {count(record.blocks, 'block')}"
            )
        costs = (
            ("of the guest in the guest", record.guest_cost),
            ("of the host in the guest", record.below_cost),
            ("of the host on the host", record.host_cost),
        )
        costing = [f"{what} {_cost(cost)}" for what, cost in costs if cost is not None]
        if costing:
            words.append(f"what tracing costs: {', '.join(costing)}")
        return "; ".join(words)


def _row(name: str, host: float | None, guest: float | None, added: Estimate) -> BreakdownRow:
    return BreakdownRow(
        name,
        "" if host is None else microseconds(host),
        "" if guest is None else microseconds(guest),
        microseconds(added.point, signed=True),
        microseconds_interval(added),
    )


def _cost(cost: Estimate) -> str:
    return f"{signed_percent(cost.point)} % {percent_interval(cost)}".rstrip()


def breakdown_views(key: str, records: Sequence[BreakdownRecord]) -> tuple[BreakdownView, ...]:
    """The breakdowns of one section."""
    return tuple(BreakdownView(f"{key}-parts{number}", record) for number, record in enumerate(records, start=1))


def breakdown_lines(view: BreakdownView) -> list[str]:
    """The table for a terminal. If there is no breakdown, the line has the reason."""
    if not view.drawn:
        return [view.sentence]
    table = [("", view.record.baseline, "guest", "adds", ""), *((row.name, *row.values) for row in view.rows)]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    lines = [f"where the microseconds go, {view.title} (mean latency of one I/O in us):"]
    for name, host, guest, added, interval in table:
        figures = f"{host:>{widths[1]}}  {guest:>{widths[2]}}  {added:>{widths[3]}} {interval}"
        lines.append(f"  {name:<{widths[0]}}  {figures}".rstrip())
    return [*lines, f"  {view.check}", *(f"  {note}" for note in view.record.notes)]


def breakdown_chart(view: BreakdownView) -> go.Figure:
    """What each part adds, from the outside to the inside, then their sum, and what was measured without tracing.

    Only for a breakdown that was not skipped.
    """
    record = view.record
    bars = [
        Bar(
            part.part,
            part.added,
            start,
            LAYER if part.host is not None else VIRTUALISATION,
            f"{safe(part.part)}<br>host {microseconds(part.host)} us, guest {microseconds(part.guest)} us",
        )
        for part, start in zip(record.parts, starts(part.added for part in record.parts), strict=True)
    ]
    for name, found in ((SUM, record.sum), (MEASURED, record.measured)):
        if found is not None:
            text = f"{safe(name)}<br>{microseconds(found.point, signed=True)} us {microseconds_interval(found)}"
            bars.append(Bar(name, found, 0.0, HOST, text, doubt=name == SUM and not record.adds_up))
    return bars_chart(bars, blocks=record.blocks)
