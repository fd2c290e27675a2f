"""Arrays of disks: how they scale against a single disk, what limits them, and what a missing member costs.

`building.py` makes arrays of md for layouts. A disk of the lab file may be an array already, which the kernel
measures like any disk. The rest of this package says what comes of them. `scaling.py` divides the array on the host
by the single disk of the same blocks, and by what the RAID level can deliver. It also checks that a degraded or
rebuilding array was so in each slice, and compares it with the optimal one. `bottleneck.py` finds what limits an
array from the counters of disks, CPUs and threads, and from arrays of the same run on other controllers. `records.py`
is what results.json has of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.feature import ARRAYS, ArrayMaker, Feature, FeatureRecords

if TYPE_CHECKING:
    from harness.lab.created import HostThing
    from harness.model.mode import Cell
    from harness.results import Measurement, ValidityCheck


def _load_array_maker() -> ArrayMaker:
    from harness.features.arrays.building import MAKER

    return MAKER


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.arrays.building import Array

    return (Array,)


def _counts(slice_: Measurement, cell: Cell) -> bool:
    from harness.features.arrays.scaling import is_rebuilding

    return is_rebuilding(slice_, cell)


def _find_checks(slices: Sequence[Measurement], cell: Cell) -> Iterable[ValidityCheck]:
    from harness.features.arrays.scaling import state_checks

    return state_checks(slices, cell)


def _find_notes(slices: Sequence[Measurement], cell: Cell) -> Iterable[str]:
    from harness.features.arrays.scaling import state_notes

    return state_notes(slices, cell)


def _load_records() -> tuple[FeatureRecords, ...]:
    from harness.features.arrays.records import ArrayStateRecord, ScalingRecord
    from harness.features.arrays.scaling import cost_of_states, scale_arrays

    return (
        FeatureRecords(
            key="scalings",
            record=ScalingRecord,
            place=7,
            description="One entry per cell with a layout that is, or lies on, an array over several disks.",
            compute=scale_arrays,
        ),
        FeatureRecords(
            key="array_states",
            record=ArrayStateRecord,
            place=11,
            description="One entry per cell on an array with a missing member that the run also measured optimal.",
            compute=cost_of_states,
        ),
    )


FEATURE = Feature(
    name="arrays",
    subject=ARRAYS,
    load_records=_load_records,
    counts=_counts,
    find_checks=_find_checks,
    find_notes=_find_notes,
    load_array_maker=_load_array_maker,
    list_things=_list_things,
)
