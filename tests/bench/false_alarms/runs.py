"""Runs by the whole path, from measurements to verdicts and answers, in which all arms of a job are equally fast.

The real campaign plans rounds, looks at them, decides when they end, and judges the cells. Only the slices are made
up: each gets what the disk gives, times an environment that changes in time and is the same for all arms, times its own
noise.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from harness.analysis import Verdict
from harness.events import Events
from harness.features.answers.decision import answer_uses
from harness.measure.campaign import Campaign
from harness.measure.phases import Phases
from harness.measure.series import CampaignSpec, LabFound, PreparedGroup, RoundSegment
from harness.model.mode import Budget
from harness.model.workloads import Profile, parse_workloads
from harness.results import LabInfo, Measurement, Run, RunStore
from harness.scenario.plan import Plan, plan_for
from harness.scenario.scenario import PRESETS, Scenario
from harness.scenario.setups import Group
from harness.scenario.timetable import Slice
from tests.build import RUN_ID, STARTED, StandIn, as_planned
from tests.unit.killed_campaign import HOST

WORKLOADS = ("randread-4k", "randwrite-4k", "seqread-256k", "seqwrite-256k")
MODES = ("lvm", "raw", "passthrough", "qcow2", "partition", "lvm-thin", "raw-xfs", "zvol")
IOPS = 10_000.0
NOISE = 0.1
"""The standard deviation of a slice, and of the environment, as logarithms."""
MEMORY_S = 1.0
"""How long the environment remembers."""
_FAST = Profile("one-boot", 0, 0.25, 2, (32,), 64 << 20, 3600, blocks=10, own_times=False)
_BOOTS = replace(_FAST, name="boots", runtime=0.5, rounds=4, blocks=2, most_rounds=9, target=0.03, reboot=True)
PROFILES = {profile.name: profile for profile in (_FAST, _BOOTS)}
"""As `smoke` and `standard`: 20 blocks of one boot at one look, or 4 to 9 boots of two blocks until decided."""


class EqualArms(StandIn):
    """Makes rounds up in which every arm of a job is as fast as the others."""

    restarts = ()

    def __init__(self, store: RunStore, seed: int) -> None:
        self._store = store
        self._chance = np.random.default_rng(seed)
        self._clock = STARTED
        self._environment = float(self._chance.normal())
        self._time = STARTED

    def prepare(self, plan: Plan, group: Group, examined: Callable[[LabFound], None]) -> PreparedGroup:
        examined(LabFound(LabInfo(HOST.name, "ssh", "kvm", representative=True, why="made up"), "bare-metal"))
        return super().prepare(plan, group, examined)

    def measure(self, group: Group, segment: RoundSegment, began: Callable[[Slice], None]) -> list[Measurement]:
        measurements = []
        for planned in segment.table.slices:
            began(planned)
            started = self._clock + planned.start
            scale = self._change_environment(started) * math.exp(NOISE * self._chance.normal())
            iops = IOPS * scale
            metrics = {"iops": iops, "bw": iops * planned.job.bs}
            slice_ = replace(as_planned(group, segment, planned, metrics), started=started)
            self._store.append(slice_)
            measurements.append(slice_)
        self._clock += segment.table.seconds + 5
        return measurements

    def _change_environment(self, time: float) -> float:
        rho = math.exp(-(time - self._time) / MEMORY_S)
        self._environment = rho * self._environment + math.sqrt(1 - rho * rho) * float(self._chance.normal())
        self._time = time
        return math.exp(NOISE * self._environment)

    def start_again(self, error: Exception, what: str) -> None:  # noqa: ARG002
        raise error


def simulate_run(profile: str, seed: int, modes: int, workloads: Sequence[str] = WORKLOADS) -> Run:
    """The results of a run of so many modes with these jobs. Raises KeyError for an unknown profile."""
    presets = {mode.name: mode for mode in PRESETS}
    scenario = Scenario(
        name="equal",
        title="Arms without a difference",
        disk="disk1",
        modes=(presets["host"], *(presets[name] for name in MODES[:modes])),
        workloads=tuple(workload for name in workloads for workload in parse_workloads(name)),
        write_rate=2 << 30,
        profiles=(PROFILES[profile],),
        budgets=(Budget("iops", 0.0),),
    )
    plan = plan_for(scenario, profile)
    spec = CampaignSpec(RUN_ID, HOST, (plan,), {scenario.name: scenario}, profile, seed=seed, command="pytest")
    with tempfile.TemporaryDirectory() as reports:
        store = RunStore.create(Path(reports), RUN_ID)
        campaign = Campaign(spec, store, EqualArms(store, seed), Phases(Events()))
        for cell in plan.cells:
            campaign.record(cell)
        campaign.close(interrupted=False)
        return store.read_results()


@dataclass(frozen=True)
class Claims:
    """How many cells of a run are called worse or better than their host, and how many are void."""

    exceeds: int
    """Of a budget of no loss at all."""
    better: int
    void: int

    @classmethod
    def of(cls, run: Run) -> Claims:
        return cls(
            sum(cell.verdict is Verdict.EXCEEDS for cell in run.cells),
            sum(cell.better_than_host for cell in run.cells if not cell.is_baseline),
            sum(cell.verdict is Verdict.VOID for cell in run.cells),
        )


def find_worse(run: Run, modes: int) -> bool:
    """Whether the answers of a run, from the first so many of its modes, call a mode worse than another."""
    cells = [cell for cell in run.cells if cell.usable and cell.mode in MODES[:modes]]
    given = [answer for answer in answer_uses(cells, 1.0) if answer.judge is not None]
    if not given:
        raise ValueError(f"the jobs of the run represent no use of a disk: {run.run.command}")
    return any(answer.worse for answer in given)
