"""The best slice of each test of CrystalDiskMark beside the mean of all: CrystalDiskMark itself shows its best pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from harness.analysis import METRICS
from harness.model.workloads import shows_best
from harness.report.cells import CellView
from harness.report.numbers import significant

BEST_HEAD = "CrystalDiskMark shows the best of its passes: here it is beside the mean. Overheads are of means."


@dataclass(frozen=True, slots=True)
class MeanAndBest:
    """The throughput of one arm in one test: mean and maximum of its slices, in MB/s of 10^6 bytes."""

    mean: float
    best: float

    def __str__(self) -> str:
        return f"{significant(self.mean)} (best {significant(self.best)})"


@dataclass(frozen=True, slots=True)
class BestRow:
    """One cell of a CrystalDiskMark test. `slices` is the number of slices of each arm. The host alone has no guest."""

    test: str
    mode: str
    slices: int
    host: MeanAndBest
    guest: MeanAndBest | None

    @property
    def sentence(self) -> str:
        guest = f", guest {self.guest}" if self.guest is not None else ""
        return f"{self.test}, {self.mode}: host {self.host}{guest} MB/s in {self.slices} slices"


def best_rows(cells: Iterable[CellView]) -> tuple[BestRow, ...]:
    """A row for each measured cell of CrystalDiskMark that is not void."""
    return tuple(_rows(cells))


def _rows(cells: Iterable[CellView]) -> Iterator[BestRow]:
    for cell in cells:
        found = cell.record.metrics.get("bw")
        if found is None or not found.host or not shows_best(cell.record.job) or not cell.usable:
            continue
        guest = _mean_and_best(found.guest) if found.guest else None
        yield BestRow(cell.workload, cell.mode, len(found.host), _mean_and_best(found.host), guest)


def _mean_and_best(values: tuple[float, ...]) -> MeanAndBest:
    scale = METRICS["bw"].shown.scale
    return MeanAndBest(fmean(values) / scale, max(values) / scale)
