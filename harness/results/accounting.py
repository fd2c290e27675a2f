"""What an I/O of a cell costs the host, arm by arm and block by block. Pure."""

from __future__ import annotations

from harness.analysis import estimate_added
from harness.model.cell import Place
from harness.results.cells import CostRecord
from harness.results.contrasts import Blocks
from harness.results.io_costs import IO_COSTS, costs_per_io

_IN_GUEST = (Place.GUEST, Place.AGAINST)


def accounting(blocks: Blocks, *, confidence: float) -> dict[str, CostRecord]:
    """The costs per I/O by name, in these blocks.

    Blocks in which the host's counters were read too late, for any arm, do not count here.
    """
    counted = blocks.where(lambda slice_: slice_.counters.host is not None)
    costs = {
        arm: [costs_per_io(slice_.counters, in_guest=arm in _IN_GUEST) for slice_ in slices]
        for arm, slices in (counted if counted.keys else blocks).arms.items()
    }

    def values(arm: Place, name: str) -> tuple[float, ...]:
        by_block = costs.get(arm, [])
        return tuple(cost[name] for cost in by_block) if all(name in cost for cost in by_block) else ()

    records = {}
    for cost in IO_COSTS.values():
        host, twin, guest = (values(arm, cost.name) for arm in (Place.HOST, Place.TWIN, Place.GUEST))
        if host or guest:
            added = estimate_added(host, guest, confidence=confidence) if host and guest else None
            records[cost.name] = CostRecord(cost.unit, host, twin, guest, added)
    return records
