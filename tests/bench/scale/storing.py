"""What a campaign needs to look at rounds and to store them, beside measuring: the rounds are made up."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from harness.events import Events
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.series import CampaignSpec, LabFound, PreparedGroup, RoundSegment
from harness.model.mode import Budget
from harness.model.workloads import parse_workloads
from harness.results import LabInfo, Measurement, RunStore
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.bench.scale.figures import Clock, Figures, peak_bytes, workplace
from tests.bench.scale.matrix import PROFILE, workloads
from tests.build import RUN_ID, StandIn, measure, optane
from tests.unit.killed_campaign import HOST

NOISE_SD = 0.02


def figures(cells: int) -> Figures:
    """Of a campaign of one scenario, from its start to its final results. Includes making up the rounds.

    A campaign of few cells comes first, so that imports do not count.
    """
    _measured(1)
    return _measured(cells)


def _measured(cells: int) -> Figures:
    scenario = _scenario(cells)
    plan = plan_for(scenario, PROFILE)
    spec = CampaignSpec(RUN_ID, HOST, (plan,), {scenario.name: scenario}, PROFILE, seed=7, command="pytest")
    with workplace() as reports:
        os.environ["VIRT_OVERHEAD_PACES"] = str(reports / "paces.json")
        store = RunStore.create(reports, RUN_ID)
        phases = Phases(Events())
        measurer = MadeUp(store)
        clock = Clock()
        campaign = Campaign(spec, store, measurer, phases)
        ended = [0.0]
        for group in plan.groups:
            for cell in group.cells:
                campaign.record(cell)
            ended.append(clock.cpu)
        campaign.close(interrupted=False)
        wall, cpu = clock.wall, clock.cpu
        size = store.results_path.stat().st_size
    of_groups = [after - before for before, after in pairwise(ended)]
    tenth = max(len(of_groups) // 10, 1)
    first, last = (sum(some) / tenth for some in (of_groups[:tenth], of_groups[-tenth:]))
    details = (
        f"{len(of_groups)} groups; CPU s of a group: {first:.2f} in the first tenth, {last:.2f} in the last one",
        f"CPU s of closing: {cpu - ended[-1]:.2f}, of making up the rounds: {measurer.seconds:.2f}",
        f"results.json: {size / 1024**2:.1f} MiB",
    )
    return Figures(len(plan.cells), wall, cpu, peak_bytes(), details)


def _scenario(cells: int) -> Scenario:
    named = tuple(each for name in workloads(cells) for each in parse_workloads(name))
    return replace(optane(), workloads=named, budgets=(Budget("iops", 0.1),))


class MadeUp(StandIn):
    """Makes rounds up. `seconds` is the time that this took, with the journal."""

    restarts = ()

    def __init__(self, store: RunStore) -> None:
        self.seconds = 0.0
        self._store = store
        self._chance = random.Random(7)
        self._of_group: dict[tuple[str, str], Measurement] = {}

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        examined(LabFound(LabInfo(HOST.name, "ssh", "kvm", representative=True, why="made up"), "bare-metal"))
        self._of_group = {(each.arm, each.job): each for each in measure(group, 1)}
        return super().prepare(plan, group, examined)

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:  # noqa: ARG002
        clock = Clock()
        found = []
        for planned in segment.table.slices:
            began(planned)
            like = self._of_group[planned.arm.id, planned.job.id]
            number, block = segment.place_of(planned)
            iops = like.metrics["iops"] * self._chance.lognormvariate(0.0, NOISE_SD)
            found.append(
                replace(
                    like,
                    round=number,
                    block=block,
                    boot=segment.boot,
                    started=like.started + 10_000 * segment.number + planned.start,
                    metrics={**like.metrics, "iops": iops, "bw": iops * planned.job.bs},
                )
            )
            self._store.append(found[-1])
        self.seconds += clock.cpu
        return found

    def start_again(self, error: Exception, what: str) -> None:  # noqa: ARG002
        raise error
