"""What the feature adds to the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from harness.feature import ARRAYS, ArrayMaker, Feature, FeatureRecords
from harness.features.arrays.records import ArrayStateRecord, ScalingRecord

if TYPE_CHECKING:
    from harness.lab.created import HostThing
    from harness.model.mode import Cell
    from harness.results import Measurement, ValidityCheck
    from harness.results.assemble import AssembledRun


def _scale_arrays(run: AssembledRun) -> Iterable[ScalingRecord]:
    from harness.features.arrays.scaling import scale_arrays

    return scale_arrays(run)


def _cost_of_states(run: AssembledRun) -> Iterable[ArrayStateRecord]:
    from harness.features.arrays.scaling import cost_of_states

    return cost_of_states(run)


def _counts(slice_: Measurement, cell: Cell) -> bool:
    from harness.features.arrays.scaling import is_rebuilding

    return is_rebuilding(slice_, cell)


def _find_checks(measurements: Sequence[Measurement], cell: Cell) -> Iterable[ValidityCheck]:
    from harness.features.arrays.scaling import state_checks

    return state_checks(measurements, cell)


def _find_notes(measurements: Sequence[Measurement], cell: Cell) -> Iterable[str]:
    from harness.features.arrays.scaling import state_notes

    return state_notes(measurements, cell)


def _load_array_maker() -> ArrayMaker:
    from harness.features.arrays.building import MAKER

    return MAKER


def _list_host_things() -> tuple[type[HostThing], ...]:
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
            compute=_scale_arrays,
        ),
        FeatureRecords(
            key="array_states",
            record=ArrayStateRecord,
            place=11,
            description="One entry per cell on an array with a missing member that the run also measured optimal.",
            compute=_cost_of_states,
        ),
    ),
    counts=_counts,
    find_checks=_find_checks,
    find_notes=_find_notes,
    load_array_maker=_load_array_maker,
    list_host_things=_list_host_things,
)
