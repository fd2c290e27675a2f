"""The best slice of each test of CrystalDiskMark beside the mean of all: CrystalDiskMark itself shows its best pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from harness.analysis import METRICS
from harness.model.workloads import shows_best
from harness.report.blocks import Aside, Block, Column, Heading, Mark, On, Row, Sentence, Table
from harness.report.numbers import significant
from harness.report.section import Section
from harness.results import CellRecord

_BASIS = "CrystalDiskMark shows the best of its passes: here it is beside the mean. Overheads are of means."


def best_blocks(section: Section) -> Iterator[Block]:
    """The best slices of a disk; nothing without tests of CrystalDiskMark."""
    rows = tuple(_rows(section.cells))
    if not rows:
        return
    yield Heading("CrystalDiskMark")
    yield Aside((f"{_BASIS} MB/s are 10", Mark("6", "raised"), " bytes per second."))
    yield Sentence(_BASIS, on=On.TEXT)
    figures = ("slices", "host, mean", "host, best", "guest, mean", "guest, best")
    yield Table(
        (Column("test", "head"), Column("mode", "mode"), *map(Column, figures)),
        rows,
        f"Mean and best slice of CrystalDiskMark's tests on {section.name}",
        listed=True,
    )


def _rows(cells: Sequence[CellRecord]) -> Iterator[Row]:
    """A row for each measured cell of CrystalDiskMark that is not void. The host alone has no guest."""
    for cell in cells:
        metric = cell.metrics.get("bw")
        if metric is None or not metric.host or not shows_best(cell.job) or not cell.usable:
            continue
        arms = [("host", metric.host), *([("guest", metric.guest)] if metric.guest else [])]
        figures = [figure for _, values in arms for figure in _mean_and_best(values)]
        words = ", ".join(f"{arm} {{}} (best {{}})".format(*_mean_and_best(values)) for arm, values in arms)
        yield Row(
            (cell.workload, cell.mode, str(len(metric.host)), *figures, *[""] * (4 - len(figures))),
            sentence=f"  {cell.workload}, {cell.mode}: {words} MB/s in {len(metric.host)} slices",
        )


def _mean_and_best(values: Sequence[float]) -> tuple[str, str]:
    """In MB/s of 10^6 bytes."""
    scale = METRICS["bw"].shown.scale
    return significant(fmean(values) / scale), significant(max(values) / scale)
