"""What the feature adds to the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import ARRAYS, ArrayMaker, Feature, FeatureRecords
from harness.features.arrays.records import ArrayStateRecord, ScalingRecord
from harness.features.arrays.scaling import cost_of_states, is_rebuilding, scale_arrays, state_checks, state_notes

if TYPE_CHECKING:
    from harness.lab.created import HostThing


def _load_array_maker() -> ArrayMaker:
    from harness.features.arrays.building import MAKER

    return MAKER


def _list_things() -> tuple[type[HostThing], ...]:
    from harness.features.arrays.building import Array

    return (Array,)


FEATURE = Feature(
    name="arrays",
    subject=ARRAYS,
    records=(
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
    ),
    counts=is_rebuilding,
    find_checks=state_checks,
    find_notes=state_notes,
    load_array_maker=_load_array_maker,
    list_things=_list_things,
)
