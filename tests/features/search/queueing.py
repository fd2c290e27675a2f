"""A played-back campaign on a disk whose latency follows from its load, as in a queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from harness.features.search.request import Search
from harness.measure.series import RoundSegment
from harness.model.mode import Place
from harness.results import Measurement, Run, RunStore
from harness.scenario.scenario import Requested, Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import as_planned, counters
from tests.unit import killed_campaign
from tests.unit.killed_campaign import campaign, measured
from tests.unit.recorded_campaign import RecordedMeasurer

CAPACITY = {Place.HOST: 120_000.0, Place.TWIN: 110_000.0, Place.GUEST: 50_000.0}
"""I/Os per second of a server with a queue (M/M/1)."""
FULL_SPEED = 0.98
"""Utilisation at full speed, which the depth limits."""
BOUND = 500e-6
CPU = 12e-6
"""The host's CPU time for an I/O in seconds."""


def p99(capacity: float, load: float) -> float:
    """The 99th percentile of the time in an M/M/1 system, in seconds."""
    return math.log(100) / (capacity - load)


def known_answer(place: Place) -> float:
    """The load at which `p99` is the bound."""
    return CAPACITY[place] - math.log(100) / BOUND


class Queue(RecordedMeasurer):
    """A disk with a known curve of latency over load."""

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        found = []
        for number, planned in enumerate(segment.table.slices):
            began(planned)
            capacity = CAPACITY[planned.arm.place]
            load = float(min(planned.job.rate or math.inf, FULL_SPEED * capacity))
            scatter = 1 + 0.01 * math.sin(7 * number + 3 * segment.number)
            metrics = {"iops": load, "bw": load * 4096, "clat_p99": p99(capacity, load) * scatter}
            ios = round(load * planned.job.seconds)
            found.append(
                replace(
                    as_planned(group, segment, planned, metrics),
                    raw=self.store.save_raw(f"{group.id}-{segment.number}.json", "{}"),
                    counters=counters({"fio_ios": ios, "fio_user_s": 0.0, "host_busy_s": CPU * ios}),
                )
            )
            self.store.append(found[-1])
        return found


def searching(**changes: object) -> Scenario:
    plain = killed_campaign.scenario()
    search = replace(Search(plain.workloads[0], BOUND), **changes)  # type: ignore[arg-type]
    return replace(plain, budgets=(), requests=(Requested("busy", search),))


def searched_run(store: RunStore, scenario: Scenario) -> Run:
    """The run of a campaign in the working directory, after `killed_campaign.record`."""
    return measured(campaign(store, resume=False, of=scenario, measurer=Queue))
