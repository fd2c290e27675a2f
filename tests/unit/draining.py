"""A played-back campaign on a disk with carry-over: slices depend on the arm before, unless they are long enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from harness.measure.series import RoundSegment
from harness.model.job import parse_workload
from harness.results import CellRecord, Measurement, Run
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.unit import killed_campaign
from tests.unit.recorded_campaign import RecordedMeasurer


class Draining(RecordedMeasurer):
    """Slices of both arms are slow after one of the host, unless their first seconds are discarded."""

    drained_after = 10.0
    interrupt_after = 10**6
    """The last round before the run is interrupted."""

    def disturbed(self, iops: float, previous: str | None, discarded: float) -> float:
        noise = 1 + 0.001 * math.sin(1e5 * iops + len(self.store.read_journal().measurements))
        return iops * noise * (0.7 if previous == "host" and discarded < self.drained_after else 1.0)

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        if segment.number > self.interrupt_after:
            raise KeyboardInterrupt
        return super().measure(group, segment, began)


class NeverDrained(Draining):
    drained_after = math.inf


def draining_scenario(*workloads: str, runtime: float = 1.0) -> Scenario:
    """These jobs in one group on host and guest, with six blocks in each of two rounds."""
    of = killed_campaign.scenario(rounds=2)
    profile = replace(of.profiles[0], blocks=6, runtime=runtime, round_limit=10_000)
    return replace(of, workloads=tuple(map(parse_workload, workloads)), profiles=(profile,), budgets=())


def the_guest(run: Run, job: str = "") -> CellRecord:
    """The cell of the guest whose job's id begins so."""
    return next(cell for cell in run.cells if cell.mode == "passthrough" and cell.job.id.startswith(job))
