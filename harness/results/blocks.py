"""The table of blocks: a row for each cell, arm, block and metric. Every comparison is made of two of its series. Pure.

`tabulate` makes it from the slices of a run, and `CellRecord.series` reads it again from what was stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.analysis import METRICS, Metric, first_blocks
from harness.model.cell import Cell, Place
from harness.results.journal_records import Measurement

BlockKey = tuple[int, int]
"""Round, and number of the block within it."""


@dataclass(frozen=True, slots=True)
class Series:
    """One arm of a cell in one metric: its samples in the order of time.

    `keys` identify the samples, each a block or a batch of blocks. `boots` has the guest's boot of each; empty if all
    are of one.
    """

    metric: Metric
    keys: tuple[Hashable, ...]
    values: tuple[float, ...]
    boots: tuple[int, ...] = ()

    def only(self, keys: Collection[Hashable]) -> Series:
        """The samples with these keys."""
        positions = [position for position, key in enumerate(self.keys) if key in keys]
        return Series(
            self.metric,
            tuple(self.keys[position] for position in positions),
            tuple(self.values[position] for position in positions),
            tuple(self.boots[position] for position in positions) if self.boots else (),
        )


def series_of(
    name: str,
    blocks: Sequence[BlockKey],
    values: Sequence[float],
    boots: Sequence[int] = (),
    batches: Sequence[int] = (),
) -> Series:
    """The series of a metric in these blocks. `batches` as in `MetricRecord`: then a sample is a batch of blocks."""
    if not batches:
        return Series(METRICS[name], tuple(blocks), tuple(values), tuple(boots))
    starts = first_blocks(batches)
    return Series(
        METRICS[name],
        tuple(tuple(blocks[start : start + size]) for start, size in zip(starts, batches, strict=True)),
        tuple(values),
        tuple(boots[start] for start in starts) if boots else (),
    )


@dataclass(frozen=True, slots=True)
class Blocks:
    """Blocks of a cell in the order of time, with one slice of each arm."""

    keys: tuple[BlockKey, ...]
    arms: Mapping[Place, tuple[Measurement, ...]]

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(number for number, _ in self.keys)

    @property
    def boots(self) -> tuple[int, ...]:
        """The boot of the guest in each block."""
        return tuple(slice_.boot for slice_ in self.arms[Place.HOST])

    @property
    def times(self) -> tuple[float, ...]:
        """When the first slice of each block began, to the nearest tenth of a second."""
        return tuple(
            round(min(slice_.started for slice_ in block), 1) for block in zip(*self.arms.values(), strict=True)
        )

    def without(self, arm: Place) -> Blocks:
        """The blocks without an arm."""
        return Blocks(self.keys, {place: slices for place, slices in self.arms.items() if place is not arm})

    def where(self, condition: Callable[[Measurement], bool]) -> Blocks:
        """The blocks in which the condition holds for the slice of every arm."""
        whole = [at for at in range(len(self.keys)) if all(condition(slices[at]) for slices in self.arms.values())]
        return Blocks(
            tuple(self.keys[at] for at in whole),
            {arm: tuple(slices[at] for at in whole) for arm, slices in self.arms.items()},
        )

    def has(self, metric: str) -> bool:
        """Whether every slice has the metric; False without blocks."""
        return bool(self.keys) and all(metric in slice_.metrics for arm in self.arms.values() for slice_ in arm)

    def values(self, metric: str, arm: Place) -> tuple[float, ...]:
        """An arm's value of the metric for each block, in the metric's unit; empty without the arm."""
        return tuple(slice_.metrics[metric] for slice_ in self.arms.get(arm, ()))

    def series(self, metric: str, arm: Place) -> Series:
        """An arm's rows of the table in one metric."""
        return series_of(metric, self.keys, self.values(metric, arm), self.boots)


@dataclass(frozen=True, slots=True)
class CellSlices:
    """All slices of a cell, by arm and block, in the order of time."""

    arms: Mapping[Place, Mapping[BlockKey, Measurement]] = field(default_factory=dict)

    @property
    def all(self) -> list[Measurement]:
        """Arm by arm."""
        return [slice_ for slices in self.arms.values() for slice_ in slices.values()]

    def complete_blocks(self, counts: Callable[[Measurement], bool]) -> Blocks:
        """The blocks in which each arm has a slice and every slice `counts`, in the order of their numbers."""
        whole = ({key for key, slice_ in slices.items() if counts(slice_)} for slices in self.arms.values())
        keys = tuple(sorted(set.intersection(*whole)))
        return Blocks(keys, {arm: tuple(slices[key] for key in keys) for arm, slices in self.arms.items()})


def tabulate(
    cells: Sequence[Cell], groups: Mapping[str, str], measurements: Iterable[Measurement]
) -> dict[str, CellSlices]:
    """The slices of each cell, by the cell's id. `groups` has the group of each cell by its id."""
    index: dict[tuple[str, str, str], dict[BlockKey, Measurement]] = defaultdict(dict)
    for slice_ in sorted(measurements, key=lambda slice_: slice_.started):
        index[slice_.group, slice_.job, slice_.arm][slice_.round, slice_.block] = slice_
    return {
        cell.id: CellSlices(
            {role: index.get((groups[cell.id], cell.job.id, arm.id), {}) for role, arm in cell.by_role.items()}
        )
        for cell in cells
    }
