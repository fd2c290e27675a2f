"""What a file system costs on the host and what the VM adds to it, and what a longer read-ahead brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.analysis import Estimate
from harness.feature import FeatureReport, ReportPlace, Subject
from harness.features.filesystem import describe_filesystem
from harness.model.attach import Attach
from harness.model.mode import Place
from harness.report.blocks import (
    MOST_DIFFERENCES,
    Aside,
    Block,
    Column,
    Heading,
    Mark,
    On,
    Row,
    Sentence,
    TableCell,
    make_table,
)
from harness.report.numbers import NONE, confidence_words, format_mean, percent_with_interval, significant
from harness.report.section import Section
from harness.report.verdicts import link_cell
from harness.results import CellRecord
from harness.results.contrasts import loss_over_jobs

_INSIDE = "A file system in the guest"
_ABOUT = (
    "fio in the guest uses a file on the file system, and its twin a file on the same file system on the host. The "
    "twin loses by the layout with the file system. What the guest loses against its twin is the cost of the VM."
)
_AHEAD = "Read-ahead"
_FACTOR = "The guest's throughput with each read-ahead, as a multiple of that with the first one, in the same blocks."


def list_blocks(section: Section) -> Iterator[Block]:
    """The cells on a file system, and the guests with different read-aheads; nothing without any."""
    if cells := [cell for cell in section.cells if cell.mode_detail.filesystem is not None]:
        yield from _describe_filesystems(section, cells)
    if cells := [cell for cell in section.cells if _get_first(cell) is not None and cell.job.reads_ahead]:
        yield from _compare_read_aheads(section, cells)


def _describe_filesystems(section: Section, cells: Sequence[CellRecord]) -> Iterator[Block]:
    yield Heading(_INSIDE)
    yield Aside(_ABOUT)
    yield Sentence(
        (Mark(f"{section.name}: {_INSIDE[0].lower()}{_INSIDE[1:]}.", "strong"), f" {_ABOUT}"), on=On.MARKDOWN
    )
    yield make_table(
        cells,
        f"Cells of {section.name} with a file system in the guest",
        (Column("job", "mode"), lambda cell: TableCell(cell.job.id, link=link_cell(cell))),
        (Column("mode", "name"), lambda cell: cell.mode),
        (Column("file system", "text"), _name_filesystem),
        (Column("host"), lambda cell: format_mean(cell, "host")),
        (Column("twin"), lambda cell: format_mean(cell, "twin")),
        (Column("guest"), lambda cell: format_mean(cell, "guest")),
        (Column("unit", "text"), lambda cell: cell.headline_unit),
        (
            Column("file system loses, %", interval=confidence_words(cells)),
            lambda cell: percent_with_interval(_lose(cell, Place.TWIN, Place.HOST)),
        ),
        (
            Column("VM loses against it, %", "strong", interval=confidence_words(cells)),
            lambda cell: percent_with_interval(_lose(cell, Place.GUEST, Place.TWIN)),
        ),
        (Column("verdict", "verdict"), lambda cell: TableCell(cell.outcome, tone=cell.outcome)),
        row=lambda cell: Row((), sentence=f"  {_describe_cell(cell)}", doubtful=not cell.usable),
        style="cells filesystems",
        most=MOST_DIFFERENCES,
    )


def _describe_cell(cell: CellRecord) -> str:
    """For example "own-randread-4k-qd1 on ext4: the file system loses 1.2 % [0.3, 2.1], and the VM 30.4 % [29.9,
    31.0] of what it leaves"."""
    by_filesystem, by_vm = _lose(cell, Place.TWIN, Place.HOST), _lose(cell, Place.GUEST, Place.TWIN)
    what = f"{cell.mode}-{cell.job.id} on {_name_filesystem(cell)}"
    if by_filesystem is None or by_vm is None:
        return f"{what}: {'; '.join((str(cell.outcome), *cell.remarks))}"
    return (
        f"{what}: the file system loses {percent_with_interval(by_filesystem, ' %')}, and the VM "
        f"{percent_with_interval(by_vm, ' %')} of what it leaves"
    )


def _compare_read_aheads(section: Section, cells: Sequence[CellRecord]) -> Iterator[Block]:
    yield Heading(_AHEAD)
    yield Aside(_FACTOR)
    yield Sentence((Mark(f"{section.name}: {_AHEAD.lower()}.", "strong"), f" {_FACTOR}"), on=On.MARKDOWN)
    yield make_table(
        cells,
        f"What a longer read-ahead brings on {section.name}",
        (Column("job", "mode"), lambda cell: TableCell(cell.job.id, link=link_cell(cell))),
        (Column("first, KiB"), lambda cell: str(_get_first(cell))),
        (Column("this one, KiB"), lambda cell: str(_get_size(cell))),
        (Column("host"), lambda cell: format_mean(cell, "host")),
        (Column("guest with the first"), lambda cell: format_mean(cell, "against")),
        (Column("guest with this one"), lambda cell: format_mean(cell, "guest")),
        (Column("unit", "text"), lambda cell: cell.headline_unit),
        (
            Column("times as fast", "strong", interval=confidence_words(cells)),
            lambda cell: _format_factor(cell) or NONE,
        ),
        (Column("n"), lambda cell: str(cell.n) if cell.usable else NONE),
        row=lambda cell: Row((), sentence=f"  {_describe_factor(cell)}", doubtful=not cell.usable),
        style="cells read-ahead",
        most=MOST_DIFFERENCES,
    )
    if usable := [cell for cell in cells if cell.usable]:
        yield Sentence(_describe_factor(usable[-1]), on=On.BRIEF)


def _describe_factor(cell: CellRecord) -> str:
    """For example "own-ra4096-seqread-1m-qd1-buffered: with 4096 KiB of read-ahead instead of 128 KiB, the guest is
    2.10 [1.98, 2.22] times as fast"."""
    factor = _format_factor(cell)
    what = f"{cell.mode}-{cell.job.id}"
    if factor is None:
        return f"{what}: {'; '.join((str(cell.outcome), *cell.remarks))}"
    sizes = f"with {_get_size(cell)} KiB of read-ahead instead of {_get_first(cell)} KiB"
    return f"{what}: {sizes}, the guest is {factor} times as fast"


def _get_size(cell: CellRecord) -> int | None:
    attach = cell.mode_detail.attach
    return attach.read_ahead_kb if isinstance(attach, Attach) else None


def _get_first(cell: CellRecord) -> int | None:
    """The read-ahead of the guest that a cell is compared with; None if it is not compared for that."""
    changed = [words for words in cell.differs if words.startswith("guest_read_ahead_kb ")]
    if _get_size(cell) is None or cell.against is None or not changed:
        return None
    return int(changed[0].split()[1])


def _format_factor(cell: CellRecord) -> str | None:
    metric = cell.metrics.get(cell.throughput_name)
    if not cell.usable or metric is None or not metric.samples("against"):
        return None
    loss = loss_over_jobs([cell], of=Place.GUEST, than=Place.AGAINST)
    values = [1 - value for value in (loss.high, loss.low) if value is not None]
    interval = f" [{', '.join(map(significant, values))}]" if len(values) == 2 else ""
    return f"{significant(1 - loss.point)}{interval}"


def _lose(cell: CellRecord, of: Place, than: Place) -> Estimate | None:
    has_both = all(cell.series(cell.throughput_name, place) is not None for place in (of, than))
    return loss_over_jobs([cell], of=of, than=than) if cell.usable and has_both else None


def _name_filesystem(cell: CellRecord) -> str:
    inside = cell.mode_detail.filesystem
    return NONE if inside is None else describe_filesystem(inside)


REPORT = FeatureReport(
    subject=Subject(
        in_record=lambda cell: cell.mode_detail.filesystem is not None or _get_size(cell) is not None,
    ),
    contents={ReportPlace.DIFFERENCES: list_blocks},
)
