"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.feature import OTHER_IO, Feature, ModeKeys
from harness.features.neighbours.request import OtherIo, add_modes, find_problems

if TYPE_CHECKING:
    from harness.analysis import Samples
    from harness.model.mode import Cell
    from harness.results import Measurement, ValidityCheck
    from harness.results.contrasts import Blocks


def _counts(slice_: Measurement, _cell: Cell) -> bool:
    from harness.features.neighbours.measured import has_its_backup

    return has_its_backup(slice_)


def _find_checks(slices: Sequence[Measurement], cell: Cell) -> Iterable[ValidityCheck]:
    from harness.features.neighbours.measured import check_backup, check_together

    return *check_together(slices), *check_backup(slices, cell)


def _find_notes(slices: Sequence[Measurement], _cell: Cell) -> Iterable[str]:
    from harness.features.neighbours.measured import note_lost_backups

    return note_lost_backups(slices)


def _measure(cell: Cell, blocks: Blocks, samples: Samples, confidence: float) -> Mapping[str, Any]:
    from harness.features.neighbours.measured import measure_others

    return measure_others(cell, blocks, samples, confidence)


FEATURE = Feature(
    name="neighbours",
    subject=OTHER_IO,
    mode_keys=ModeKeys(table=OtherIo, find_problems=find_problems, adapt=add_modes),
    counts=_counts,
    find_checks=_find_checks,
    find_notes=_find_notes,
    measure=_measure,
)
