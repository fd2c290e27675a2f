"""Arrays of disks: how they scale against a single disk, what limits them, and what a missing member costs.

`building.py` makes arrays of md for layouts. A disk of the lab file may be an array already, which the kernel
measures like any disk. The rest of this package says what comes of them. `scaling.py` divides the array on the host
by the single disk of the same blocks, and by what the RAID level can deliver. It also checks that a degraded or
rebuilding array was so in each slice, and compares it with the optimal one. `bottleneck.py` finds what limits an
array from the counters of disks, CPUs and threads, and from arrays of the same run on other controllers. `records.py`
is what results.json has of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.feature import Feature, FeatureRecords, Subject, import_later

if TYPE_CHECKING:
    from harness.features.arrays import building, records, scaling
else:
    building, records, scaling = import_later(__name__, "building", "records", "scaling")


FEATURE = Feature(
    name="arrays",
    subject=Subject(
        in_scenario=lambda scenario: len(scenario.disks) > 1,
        in_cell=lambda cell, slices: (
            cell.mode.detail.on_array or any(slice_.counters.array is not None for slice_ in slices)
        ),
    ),
    load_records=lambda: (
        FeatureRecords(
            key="scalings",
            record=records.ScalingRecord,
            place=7,
            description="One entry per cell with a layout that is, or lies on, an array over several disks.",
            compute=scaling.scale_arrays,
        ),
        FeatureRecords(
            key="array_states",
            record=records.ArrayStateRecord,
            place=11,
            description="One entry per cell on an array with a missing member that the run also measured optimal.",
            compute=scaling.cost_of_states,
        ),
    ),
    counts=lambda slice_, cell: scaling.is_rebuilding(slice_, cell),
    find_checks=lambda slices, cell: scaling.state_checks(slices, cell),
    find_notes=lambda slices, cell: scaling.state_notes(slices, cell),
    load_array_maker=lambda: building.MAKER,
    list_things=lambda: (building.Array,),
)
