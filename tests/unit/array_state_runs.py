"""Measurements of one array when it is optimal, degraded and rebuilding, with known costs; nothing was measured."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.features.arrays.records import ArrayStateRecord, ScalingRecord
from harness.features.arrays.scaling import cost_of_states, scale_arrays
from harness.model.attach import Attach
from harness.model.base import ArrayState, Md
from harness.model.counters import ArrayCounts, Counters, FioCounts, Transferred
from harness.model.job import parse_workload
from harness.model.layout import Layout, Lvm
from harness.model.mode import Cell, Mode
from harness.results import CellContext, CellRecord, Measurement, assemble
from harness.results.assemble import AssembledRun
from tests.build import at_full_speed

OPTIMAL = Md(5, 6)
DEGRADED = replace(OPTIMAL, state="degraded")
REBUILDING = replace(OPTIMAL, state="rebuilding", spares=1)
LAYOUTS: Mapping[str, Layout] = {
    "raid5": OPTIMAL,
    "raid5-degraded": DEGRADED,
    "raid5-rebuilding": REBUILDING,
    "raid5-lvm": Lvm(on=OPTIMAL),
    "raid5-lvm-degraded": Lvm(on=DEGRADED),
}
RATE = 2 * 1024**2
"""Bytes per second that the recovery completes."""
COST: Mapping[ArrayState, float] = {"optimal": 0.0, "degraded": 0.4, "rebuilding": 0.5}
"""What the array loses on the host."""
IN_GUEST = 0.5
"""The share of these costs that the guest, which is slower, loses."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Cells with their records, and what was found about their arrays."""

    cells: tuple[Cell, ...]
    records: tuple[CellRecord, ...]
    states: tuple[ArrayStateRecord, ...]
    scalings: tuple[ScalingRecord, ...]

    def record(self, mode: str) -> CellRecord:
        return next(each for each in self.records if each.mode == mode)


def measured(
    modes: Sequence[str] = tuple(LAYOUTS),
    workloads: Sequence[str] = ("randread-4k",),
    *,
    found: Mapping[tuple[str, int], ArrayState | None] | None = None,
    missing: Mapping[str, int] | None = None,
    cost: Mapping[ArrayState, float] = COST,
    noise: float = 0.02,
    blocks: int = 8,
    read: float = 0,
    recovered: Mapping[int, float] | None = None,
) -> Measured:
    """These modes in these workloads. `found` has the state of a mode's array in a block if it is not as requested,
    `missing` the number of missing members of a mode if that is not as usual. Each slice reads `read` bytes, and the
    disks of a rebuilding array read as many more in a block as `recovered` says."""
    chance = random.Random(1)
    jobs = [parse_workload(workload).job(32, ramp=0, seconds=2) for workload in workloads]
    cells = tuple(Cell("array_vm", "ssd1", Mode(name, LAYOUTS[name], Attach()), job) for job in jobs for name in modes)

    def scatter() -> float:
        return math.exp(chance.gauss(0, noise))

    own = [
        slice_
        for number in range(1, blocks + 1)
        for cell in cells
        for slice_ in _slices(cell, number, cost, _array(cell, number, found or {}, missing or {}), scatter)
    ]
    if read:
        own = [_with_bytes(each, read, (recovered or {}).get(each.round, 0)) for each in own]
    context = CellContext(host="lab1", group="g", span_bytes=64 << 20)
    records = tuple(assemble(cells, own, {each.id: context for each in cells}))
    run = AssembledRun(cells, {each.id: each for each in records}, own)
    return Measured(cells, records, cost_of_states(run), scale_arrays(run))


def _array(
    cell: Cell, number: int, found: Mapping[tuple[str, int], ArrayState | None], missing: Mapping[str, int]
) -> ArrayCounts:
    base = cell.mode.layout.base
    assert isinstance(base, Md)
    state = found.get((cell.mode.name, number), base.state)
    return ArrayCounts(
        state=state,
        missing=missing.get(cell.mode.name, 0 if base.is_optimal else 1),
        rebuilt=RATE * 2 if state == "rebuilding" else 0,
        seconds=2.0,
        limit=2 * RATE if state == "rebuilding" else None,
    )


def _slices(
    cell: Cell, number: int, cost: Mapping[ArrayState, float], array: ArrayCounts, chance: Callable[[], float]
) -> list[Measurement]:
    job, name, base = cell.job, cell.mode.name, cell.mode.layout.base
    assert isinstance(base, Md)
    lost = cost[base.state]
    iops = {"host": 1000.0, f"twin:{name}": 4000 * (1 - lost), f"guest:{name}": 2000 * (1 - lost * IN_GUEST)}
    return [
        at_full_speed(
            job,
            arm,
            number,
            exact * chance(),
            Counters(fio=FioCounts(ios=100), cpu_busy=0.4, array=None if arm == "host" else array),
        )
        for arm, exact in iops.items()
    ]


def _with_bytes(slice_: Measurement, read: float, recovered: float) -> Measurement:
    more = recovered if slice_.arm.endswith(":raid5-rebuilding") else 0
    moved = Transferred(read=round(read + more))
    counters = replace(slice_.counters, fio=FioCounts(read=round(read), ios=100), disk=moved)
    return replace(slice_, counters=counters)
