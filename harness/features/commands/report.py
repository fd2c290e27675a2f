"""Commands of the user in reports: the figures of host and guest by command and mode."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.commands.request import CommandRecord
from harness.report.blocks import Aside, Block, Column, Heading, On, Row, Sentence, TableCell, make_table
from harness.report.numbers import count, percent_with_interval, significant, with_interval
from harness.report.section import Section


def command_blocks(section: Section) -> Iterator[Block]:
    """What the commands gave on a disk; nothing without any."""
    records = section.own(section.run.of(CommandRecord))
    if not records:
        return
    yield Heading("Commands of yours")
    yield Aside(
        "Each run has the file system mounted for it alone, so the first access to a file is not cached. Host and "
        "guest use the same volume by turns, in random order; how much worse the guest is follows from pairs of "
        "runs, with a 95 % interval."
    )
    yield make_table(
        records,
        f"Commands on {section.name}",
        (Column("command", "head"), lambda record: TableCell(record.name, title=record.command)),
        (Column("mode", "mode"), lambda record: record.mode),
        (Column("file system", "name"), lambda record: record.filesystem),
        (Column("host"), lambda record: _format(record.mean(record.on_host))),
        (Column("guest"), lambda record: _format(record.mean(record.in_guest))),
        (Column("unit"), lambda record: record.unit),
        (Column("worse, %", "strong"), lambda record: percent_with_interval(record.loss)),
        (Column("runs"), lambda record: str(len(record.in_guest))),
        (Column("ended early", "reason"), lambda record: record.problem or ""),
        row=lambda record: Row((), sentence=describe_command(record), doubtful=record.problem is not None),
        style="cells",
    )
    for record in records:
        yield Sentence(describe_command(record), on=On.BRIEF)


def _format(mean: Estimate | None) -> str:
    return with_interval(mean) if mean is not None else "-"


def describe_command(record: CommandRecord) -> str:
    """For example "pgbench on lvm: 812 tps in the guest, 1 204 on the host: 32.6 % [30.1, 35.0] lost in 10 runs"."""
    name = f"{record.name} on {record.mode}"
    host, guest = record.mean(record.on_host), record.mean(record.in_guest)
    ended = f"; ended early: {record.problem}" if record.problem else ""
    if guest is None:
        return f"{name}: no figure{ended}"
    words = f"{name}: {significant(guest.point)} {record.unit} in the guest"
    if host is not None and record.loss is not None:
        worse = "lost" if record.better == "higher" else "more"
        words += f", {significant(host.point)} on the host: {percent_with_interval(record.loss, ' %')} {worse}"
    return f"{words} in {count(len(record.in_guest), 'run')}{ended}"


REPORT = FeatureReport(records=(CommandRecord,), contents={ReportPlace.FINDINGS: command_blocks})
