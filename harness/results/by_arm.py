"""The measurements of a cell by arm and block. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from harness.model.cell import Cell, Place
from harness.results.cells import BlockKey
from harness.results.journal_records import Measurement

Blocks = Mapping[BlockKey, Sequence[Measurement]]
ByArm = Mapping[Place, Blocks]


def by_arm_of(
    cells: Sequence[Cell], groups: Mapping[str, str], measurements: Iterable[Measurement]
) -> dict[str, ByArm]:
    """The measurements of each cell by arm and block, by the cell's id, in the order of time.

    `groups` has the group of each cell by its id.
    """
    index: dict[tuple[str, str, str], dict[BlockKey, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for measurement in sorted(measurements, key=lambda measurement: measurement.started):
        index[measurement.group, measurement.job, measurement.arm][measurement.round, measurement.block].append(
            measurement
        )
    return {
        cell.id: {role: index.get((groups[cell.id], cell.job.id, arm.id), {}) for role, arm in cell.by_role.items()}
        for cell in cells
    }


def slices_of(by_arm: ByArm) -> list[Measurement]:
    """All measurements, arm by arm."""
    return [each for blocks in by_arm.values() for again in blocks.values() for each in again]


def boots_of(by_arm: ByArm, blocks: Sequence[BlockKey]) -> tuple[int, ...]:
    """The boot of the guest in each block."""
    return tuple(by_arm[Place.HOST][block][0].boot for block in blocks)


def times_of(by_arm: ByArm, blocks: Sequence[BlockKey]) -> tuple[float, ...]:
    """When the first slice of each block began, to the nearest tenth of a second."""
    starts = (min(each.started for own in by_arm.values() for each in own[block]) for block in blocks)
    return tuple(round(start, 1) for start in starts)
