"""Measurements of arrays on the lab's controllers, computed from the limits of disks and controllers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.features.arrays.records import ScalingRecord
from harness.features.arrays.scaling import scale_arrays
from harness.features.embedded.disks import CONTROLLERS, DISK_LIMIT, SpeedLimit
from harness.model.attach import Attach
from harness.model.base import Md
from harness.model.counters import Counters, FioCounts, MemberCounts
from harness.model.job import parse_workload
from harness.model.mode import Cell, Mode
from harness.results import CellContext, CellRecord, Measurement, ValidityCheck, assemble
from harness.results.assemble import AssembledRun
from tests.build import at_full_speed

CHUNK = 64 * 1024
ONE_8 = Md(0, 8, chunk=CHUNK)
ONE_16 = Md(0, 16, chunk=CHUNK)
TWO_16 = Md(0, 16, chunk=CHUNK, legs=2, starts=(1, 17))
ARRAYS = {"raid0-8": ONE_8, "raid0-16": ONE_16, "raid0-16-paths": TWO_16}
PATHS = [controller.pci for controller in CONTROLLERS for _ in range(controller.disks)]
"""The path of each disk of the scenario, in its order."""
NOISE = 0.02
SAMPLES = 6
QD = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """Cells with their records, and how the arrays scale."""

    records: tuple[CellRecord, ...]
    scalings: tuple[ScalingRecord, ...]

    def of(self, mode: str, job: str) -> ScalingRecord:
        """The scaling of this array in this job."""
        return next(each for each in self.scalings if each.cell == f"raid0-{mode}-{job}")


def measured(
    workloads: Sequence[str],
    *,
    shared: bool = True,
    known: bool = True,
    host_limit: SpeedLimit | None = None,
    void: str = "",
    late: bool = False,
    seed: int = 1,
) -> Measured:
    """All arrays in these workloads. Without `shared`, no controller has a limit. Without `known`, the host shows no
    paths. `host_limit` is a limit above all paths, for example of the CPUs. A check of the array `void` fails. With
    `late`, the host's counters were read too late in some slices of each array, among them the first of one."""
    chance = random.Random(seed)
    cells = [
        Cell("raid0", "raid_a_1", Mode(name, md, Attach()), parse_workload(workload).job(QD, ramp=0.5, seconds=2.0))
        for workload in workloads
        for name, md in ARRAYS.items()
    ]
    own = [
        slice_
        for number in range(1, SAMPLES + 1)
        for cell in cells
        for slice_ in _slices(cell, number, shared=shared, known=known, host_limit=host_limit, chance=chance)
    ]
    if late:
        own = [_uncounted(each) if _is_late(each) else each for each in own]
    context = CellContext(host="lab1", group="g", span_bytes=64 << 20)
    failed = ValidityCheck(f"bytes twin:{void}", ok=False, detail="")
    records = tuple(
        replace(each, validity=(failed,)) if each.mode == void else each
        for each in assemble(cells, own, {each.id: context for each in cells})
    )
    return Measured(records, scale_arrays(AssembledRun(cells, {each.id: each for each in records}, own)))


def _is_late(measurement: Measurement) -> bool:
    """Two slices of the array of 8 disks, with the first, and one of each other array."""
    return measurement.round in ((1, 5) if measurement.arm.endswith("-8") else (4,))


def _uncounted(measurement: Measurement) -> Measurement:
    return replace(measurement, counters=Counters(fio=measurement.counters.fio))


def _slices(
    cell: Cell, number: int, *, shared: bool, known: bool, host_limit: SpeedLimit | None, chance: random.Random
) -> list[Measurement]:
    job = cell.job
    single = min(DISK_LIMIT.iops, DISK_LIMIT.bytes_per_s / job.bs)
    array = _array_iops(cell, shared=shared, host_limit=host_limit)
    rates = {"host": single, f"twin:{cell.mode.name}": array, f"guest:{cell.mode.name}": 0.7 * array}
    found = []
    for arm, exact in rates.items():
        iops = exact * math.exp(chance.gauss(0, NOISE))
        total = round(iops * (job.ramp + job.seconds))
        counted = Counters(
            fio=FioCounts(read=total * job.bs, ios=total, user_s=0.1, system_s=0.2),
            cpu_busy=0.4,
            host_cpu_busy=0.4,
            members=_members(cell, total, known=known) if arm.startswith("twin") else {},
        )
        found.append(at_full_speed(job, arm, number, iops, counted))
    return found


def _array_iops(cell: Cell, *, shared: bool, host_limit: SpeedLimit | None) -> float:
    """What the slowest of disks, paths and host allows, in fio's I/Os per second."""
    job, places = cell.job, _places(cell)
    requests = _requests(cell)
    limits = [(DISK_LIMIT, 1 / len(places))]
    if shared:
        paths = [PATHS[place] for place in places]
        limits += [(each.limit, paths.count(each.pci) / len(places)) for each in CONTROLLERS if each.pci in paths]
    if host_limit is not None:
        limits.append((host_limit, 1.0))
    return min(min(limit.iops / (requests * share), limit.bytes_per_s / (job.bs * share)) for limit, share in limits)


def _members(cell: Cell, total: int, *, known: bool) -> dict[str, MemberCounts]:
    places = _places(cell)
    each = total / len(places)
    return {
        f"sd{place}": MemberCounts(
            read=round(each * cell.job.bs),
            busy_s=2.4,
            queue_s=2.4,
            ios=round(each * _requests(cell)),
            path=PATHS[place] if known else None,
        )
        for place in places
    }


def _places(cell: Cell) -> tuple[int, ...]:
    return cell.mode.layout.base.places


def _requests(cell: Cell) -> float:
    """The disks' requests for each I/O of fio: one for each disk that it spans, as neighbouring chunks are merged."""
    return max(1.0, min(len(_places(cell)), cell.job.bs / CHUNK))
