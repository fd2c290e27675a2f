"""Commands of the user in reports: the figures of host and guest by command and mode."""

from __future__ import annotations

from collections.abc import Iterator

from harness.analysis import PRACTICAL, Estimate
from harness.feature import FeatureReport, ReportPlace
from harness.features.commands.request import IGNORED, CommandRecord
from harness.report.blocks import Aside, Block, Column, Heading, On, Row, Sentence, TableCell, make_table
from harness.report.numbers import count, percent, percent_with_interval, significant, with_interval
from harness.report.section import Section
from harness.units import format_size


def command_blocks(section: Section) -> Iterator[Block]:
    """What the commands gave on a disk; nothing without any."""
    records = section.own(section.run.of(CommandRecord))
    if not records:
        return
    yield Heading("Commands of yours")
    yield Aside(
        "Each run mounts the file system for itself, so the first access to a file is not cached. Host and guest use "
        "the same volume by turns, in random order. The loss is estimated from pairs of runs, with a 95 % interval. "
        "After each run, a loop without a disk shows how much slower the CPU alone is."
    )
    yield make_table(
        records,
        f"Commands on {section.name}",
        (Column("command", "head"), lambda record: TableCell(record.name, title=record.command)),
        (Column("mode", "mode"), lambda record: record.mode),
        (Column("file system", "name"), lambda record: record.filesystem),
        (Column("host"), lambda record: _format(record.host_mean)),
        (Column("guest"), lambda record: _format(record.guest_mean)),
        (Column("unit"), lambda record: record.unit),
        (Column("worse, %", "strong"), lambda record: percent_with_interval(record.loss)),
        (Column("CPU alone, %"), lambda record: percent_with_interval(record.cpu_loss)),
        (Column("runs"), lambda record: str(len(record.in_guest))),
        (Column("ended early", "reason"), lambda record: record.problem or ""),
        row=lambda record: Row((), sentence=describe_command(record), doubtful=record.problem is not None),
        style="cells",
    )
    for record in records:
        yield Sentence(describe_command(record), on=On.BRIEF)
        for sentence in (describe_side(record, section), describe_cpu(record)):
            if sentence:
                yield Sentence(f"{record.name} on {record.mode}: {sentence}.")


def _format(mean: Estimate | None) -> str:
    return with_interval(mean) if mean is not None else "-"


def describe_command(record: CommandRecord) -> str:
    """For example "pgbench on lvm: 812 tps in the guest, 1 204 on the host: 32.6 % [30.1, 35.0] lost in 10 runs"."""
    name = f"{record.name} on {record.mode}"
    host, guest = record.host_mean, record.guest_mean
    ended = f"; ended early: {record.problem}" if record.problem else ""
    if record.cached_side == "guest" and host is not None:
        return f"{name}: {significant(host.point)} {record.unit} on the host{ended}"
    if guest is None:
        return f"{name}: no figure{ended}"
    words = f"{name}: {significant(guest.point)} {record.unit} in the guest"
    if host is not None and record.loss is not None:
        worse = "lost" if record.better == "higher" else "more"
        words += f", {significant(host.point)} on the host: {percent_with_interval(record.loss, ' %')} {worse}"
    return f"{words} in {count(len(record.in_guest), 'run')}{ended}"


def describe_side(record: CommandRecord, section: Section) -> str:
    """Which side is responsible for the guest's figure, by how long it takes against the host; empty without both.

    As in the discussion of etcd's pull request 10578: a VM cannot save the time that the host takes by itself.
    """
    if ignores_flushes(record, section):
        return f"{IGNORED}, and the figure says nothing about the disk{_quote_host(record, section)}"
    if side := record.cached_side:
        return _describe_cache(record, side)
    times = record.times
    if times is None or times.low is None or times.high is None:
        return ""
    if times.high < 1 / PRACTICAL:
        return (
            f"the guest takes {percent(times.ratio)} % of the host's time on the same volume, which is impossible if "
            "both store what they sync: something between them answers before the data is on the disk"
        )
    if times.high < PRACTICAL:
        return "the guest adds less than 5 %, so there is nothing to gain"
    side = "which side is responsible for most of it is undecided"
    if times.high < 2:
        side = "its disk is responsible for most of it, not the VM"
    elif times.low > 2:
        side = "the VM is responsible for most of it, not the disk"
    return f"the host alone takes {percent(1 / times.ratio)} % of the guest's time: {side}"


def _describe_cache(record: CommandRecord, side: str) -> str:
    """Why the figure of this side is refused: its memory served what came from the disk on the other side."""
    other = {"host": "guest", "guest": "host"}[side]
    read, given = record.reads[side]
    share = 100 * min(record.reads[other][1] / record.reads[other][0], 1)
    return (
        f"the figure of the {side} is refused, because it is that of the {side}'s memory: its processes read "
        f"{format_size(read)}, of which the disk gave {format_size(given)}; of what the {other}'s processes read, the "
        f"disk gave {significant(share)} %. Use direct I/O, or more data than the memory of either side"
    )


def _quote_host(record: CommandRecord, section: Section) -> str:
    """What the host does by itself on the volume of another mode; empty if it was not measured."""
    for other in section.own(section.run.of(CommandRecord)):
        mean = other.host_mean
        if other.name == record.name and mean is not None:
            return f"; the host alone has {significant(mean.point)} {other.unit} on {other.mode}"
    return ""


def ignores_flushes(record: CommandRecord, section: Section) -> bool:
    """Whether QEMU was read back to ignore the flushes of the guest's disk."""
    return any(cell.mode == record.mode and cell.effective.qemu_cache_no_flush for cell in section.cells)


def describe_cpu(record: CommandRecord) -> str:
    """How much of the loss is not the disk's, by the loop of the CPU alone; empty without it."""
    cpu, left = record.cpu_loss, record.loss_beside_cpu
    if cpu is None or left is None:
        return ""
    words = f"the CPU alone is {percent_with_interval(cpu, ' %')} slower in the guest"
    if left.high is not None and left.high < PRACTICAL - 1:
        words += ", which can be all of the loss: it need not be the disk's"
    else:
        words += f"; if a run only computed, {percent_with_interval(left, ' %')} would remain for the path to the disk"
    host, guest = record.cpus.get("host"), record.cpus.get("guest")
    if host and guest and guest < host:
        words += f". The guest has {guest} of the host's {host} CPUs"
    return words


REPORT = FeatureReport(records=(CommandRecord,), contents={ReportPlace.FINDINGS: command_blocks})
