"""What an I/O of a cell costs the host, arm by arm and round by round. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from harness.analysis import Estimate, estimate_added
from harness.model.mode import Place
from harness.results.cells import CostRecord
from harness.results.io_costs import IO_COSTS, costs_per_io
from harness.results.records import Measurement

_ByArm = Mapping[Place, Mapping[int, Sequence[Measurement]]]


def accounting(by_arm: _ByArm, rounds: Sequence[int], *, confidence: float) -> dict[str, CostRecord]:
    """The costs per I/O by name. An arm has a figure if all of its measurements in these rounds have it.

    If a round has several measurements of an arm (the host, when it brackets the others), their mean counts.
    """
    costs = {
        place: [
            [costs_per_io(each.counters, in_guest=place is Place.GUEST) for each in of_round[number]]
            for number in rounds
        ]
        for place, of_round in by_arm.items()
    }

    def values(place: Place, name: str) -> tuple[float, ...]:
        by_round = costs.get(place, [])
        if not all(name in each for repeats in by_round for each in repeats):
            return ()
        return tuple(fmean(each[name] for each in repeats) for repeats in by_round)

    found = {}
    for cost in IO_COSTS.values():
        host, twin, guest = (values(place, cost.name) for place in (Place.HOST, Place.TWIN, Place.GUEST))
        if host or guest:
            found[cost.name] = CostRecord(cost.unit, host, twin, guest, _added(host, guest, confidence))
    return found


def _added(host: Sequence[float], guest: Sequence[float], confidence: float) -> Estimate | None:
    return estimate_added(host, guest, confidence=confidence) if host and guest else None
