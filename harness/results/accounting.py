"""What an I/O of a cell costs the host, arm by arm and block by block. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.analysis import Estimate, estimate_added
from harness.model.cell import Place
from harness.results.by_arm import ByArm
from harness.results.cells import CostRecord
from harness.results.io_costs import IO_COSTS, costs_per_io

_IN_GUEST = (Place.GUEST, Place.AGAINST)


def accounting(by_arm: ByArm, blocks: Sequence[tuple[int, int]], *, confidence: float) -> dict[str, CostRecord]:
    """The costs per I/O by name, in these blocks (round and number).

    Blocks in which the host's counters were read too late, for any arm, do not count here. If a block has several
    measurements of an arm (in version 0.1), their mean counts.
    """
    counted = [
        block
        for block in blocks
        if all(each.counters.host is not None for of_block in by_arm.values() for each in of_block[block])
    ]
    blocks = counted or blocks
    costs = {
        place: [
            [costs_per_io(each.counters, in_guest=place in _IN_GUEST) for each in of_block[block]] for block in blocks
        ]
        for place, of_block in by_arm.items()
    }

    def values(place: Place, name: str) -> tuple[float, ...]:
        by_block = costs.get(place, [])
        if not all(name in repeat for repeats in by_block for repeat in repeats):
            return ()
        return tuple(fmean(repeat[name] for repeat in repeats) for repeats in by_block)

    found = {}
    for cost in IO_COSTS.values():
        host, twin, guest = (values(place, cost.name) for place in (Place.HOST, Place.TWIN, Place.GUEST))
        if host or guest:
            found[cost.name] = CostRecord(cost.unit, host, twin, guest, _added(host, guest, confidence))
    return found


def _added(host: Sequence[float], guest: Sequence[float], confidence: float) -> Estimate | None:
    return estimate_added(host, guest, confidence=confidence) if host and guest else None
