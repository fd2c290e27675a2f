"""Arrays of disks: how they scale against a single disk, what limits them, and what a missing member costs.

This module says what conflicts in the table of an array, and `building.py` makes arrays of md for layouts. A disk of
the lab file may be an array already, which the kernel measures like any disk. The rest of this package says what comes
of them. `scaling.py` divides the array on the host by the single disk of the same blocks, and by what the RAID level
can deliver. It also checks that a degraded or rebuilding array was so in each slice, and compares it with the optimal
one. `bottleneck.py` finds what limits an array from the counters of disks, CPUs and threads, and from arrays of the
same run on other controllers. `records.py` is what results.json has of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.feature import ArrayMaker, Feature, FeatureRecords, Subject, import_later
from harness.model.base import Md, RaidLevel
from harness.model.mode import Mode
from harness.model.values import format_field
from harness.scenario.legality import ShownKey, describe_conflict, list_names
from harness.scenario.scenario import Scenario
from harness.units import format_size

if TYPE_CHECKING:
    from harness.features.arrays import building, records, scaling
else:
    building, records, scaling = import_later(__name__, "building", "records", "scaling")


FEWEST_DISKS: dict[RaidLevel, int] = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}
"""The fewest disks of an array. md also accepts two for RAID 10, but that is a mirror."""


def find_array_conflicts(md: Md, option: ShownKey) -> Iterator[str]:
    """The conflicts within the table of an array, a line each. `option` names a key of it with its value."""
    per_leg, fewest = md.disks // md.legs, FEWEST_DISKS[md.level]
    if md.disks % md.legs:
        yield describe_conflict(
            option("disks"), option("legs"), "because each leg has half of the disks", "an even number of disks"
        )
    elif per_leg < fewest and md.legs == 1:
        yield describe_conflict(
            option("disks"), option("level"), f"which needs {fewest} disks", f"disks = {fewest} or more"
        )
    elif per_leg < fewest:
        needed = f"an even number of disks, disks = {md.legs * fewest} or more, or legs = 1"
        yield describe_conflict(
            option("legs"), option("disks"), f"because a leg of RAID {md.level} needs {fewest} disks", needed
        )
    if md.starts and len(md.starts) != md.legs:
        places = "one place" if md.legs == 1 else "two places"
        yield describe_conflict(
            option("starts"), option("legs"), "because each leg starts at one disk", f"{places}, or no starts"
        )
    elif len(set(md.places)) < len(md.places):
        needed = f"places that are {per_leg} or more apart"
        yield describe_conflict(
            option("starts"), option("disks"), f"because each leg needs {per_leg} disks of its own", needed
        )
    yield from _find_state_conflicts(md, option)
    if md.level == 1 and md.legs == 1 and option.is_given("chunk"):
        why = "because all disks of RAID 1 hold the same data"
        yield describe_conflict(option("chunk"), option("level"), why, "no chunk, or another level")


def _find_state_conflicts(md: Md, option: ShownKey) -> Iterator[str]:
    if md.spares and md.state != "rebuilding":
        why = "because md rebuilds a spare at once" if md.state == "degraded" else "in which a spare moves no data"
        yield describe_conflict(option("spares"), option("state"), why, 'spares = 0, or state = "rebuilding"')
    if md.is_optimal:
        return
    if md.level == 0:
        allowed = 'level 1, 5, 6 or 10, or state = "optimal"'
        yield describe_conflict(option("state"), option("level"), "which cannot lose a member", allowed)
    if md.legs == 2:
        allowed = 'legs = 1, or state = "optimal"'
        yield describe_conflict(option("state"), option("legs"), "because the member of one array is missing", allowed)
    if md.state == "rebuilding" and not md.spares:
        yield describe_conflict(option("state"), option("spares"), "because a spare is rebuilt", "spares = 1")


def _find_missing_disks(mode: Mode, scenario: Scenario) -> Iterator[str]:
    md, have = mode.layout.base, len(scenario.disks)
    if isinstance(md, Md) and (needed := max(md.places) + 1) > have:
        table, key = "layout" if mode.layout is md else "layout.on", "starts" if md.starts else "disks"
        key = "spares" if needed - md.spares <= have else key
        named = f"disks = {list_names(scenario.disks)}" if have > 1 else f'disk = "{scenario.disk}"'
        yield (
            f"mode.{mode.name}.{table}.{key} = {format_field(md, key)}: conflicts with {named}, which has only {have}; "
            f"allowed: {needed} or more names in disks, or an array of fewer disks"
        )


def _find_short_spans(mode: Mode, scenario: Scenario) -> Iterator[str]:
    """A region with fewer chunks than the array has disks uses only some of them. That would not measure the array."""
    md = mode.layout.base
    if not isinstance(md, Md) or (md.level == 1 and md.legs == 1):
        return
    profile = min(scenario.profiles, key=lambda profile: profile.span)
    if md.chunk * md.disks > profile.span:
        key = "layout.chunk" if mode.layout is md else "layout.on.chunk"
        size, span = format_size(md.chunk), format_size(profile.span)
        yield (
            f'mode.{mode.name}.{key} = "{size}": conflicts with profile.{profile.name}.span = "{span}", which has '
            f"fewer chunks than the array has disks ({md.disks}); allowed: a smaller chunk, or a larger span"
        )


def find_array_problems(mode: Mode, scenario: Scenario) -> Iterator[str]:
    """The conflicts of an array of a mode with the disks of the scenario, and with its profiles, a line each."""
    yield from _find_missing_disks(mode, scenario)
    yield from _find_short_spans(mode, scenario)


FEATURE = Feature(
    name="arrays",
    subject=Subject(
        in_scenario=lambda scenario: len(scenario.disks) > 1,
        in_cell=lambda cell, slices: (
            cell.mode.detail.on_array or any(slice_.counters.array is not None for slice_ in slices)
        ),
    ),
    brings=(
        ArrayMaker(
            find_conflicts=find_array_conflicts,
            find_problems=find_array_problems,
            compute_need=lambda md, needs: building.compute_member_need(md, needs),
            compute_alignment=lambda md: building.compute_alignment(md),
            create=lambda log, md, name, partitions, events: building.create_array(log, md, name, partitions, events),
            rebuild=lambda array, spare: building.ArrayRebuild(array, spare),
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
    list_things=lambda: (building.Array,),
)
