"""Measures searches for the highest load: rounds at rates that depend on what the rounds before showed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.analysis import next_rates
from harness.events import Note
from harness.measure.measurer import Prepared
from harness.measure.pauses import Pauses
from harness.measure.phases import MEASURE, Phases
from harness.measure.recorder import Recorder
from harness.measure.resume import Earlier
from harness.measure.rounds import Round, Rounds, planned_round
from harness.measure.spec import CampaignSpec
from harness.measure.write_limit import WritesSpent
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import Measurement, loads_of, search_record
from harness.scenario.plan import Group, Plan
from harness.scenario.searches import MOST_ROUNDS, USUAL_ROUNDS, PlannedSearch
from harness.scenario.timetable import Turn
from harness.units import format_duration


class Searches:
    """Measures the searches of a group after its other rounds. `earlier` has the rounds that count."""

    def __init__(
        self, spec: CampaignSpec, recorder: Recorder, rounds: Rounds, *, phases: Phases, earlier: Earlier
    ) -> None:
        self._spec = spec
        self._recorder = recorder
        self._rounds = rounds
        self._phases = phases
        self._earlier = earlier

    def measure(self, group: Group, plan: Plan, at: Prepared) -> None:
        """Measure the searches of a group that was measured. The recorder gets everything. Raises what the measurer
        raises."""
        for planned in plan.searches:
            if planned.group == group.id:
                with self._phases.step(MEASURE, f"search {planned.search.name} of {group.id}"):
                    at = self._search(planned, group, plan, at)

    def _search(self, planned: PlannedSearch, group: Group, plan: Plan, at: Prepared) -> Prepared:
        normal = self._recorder.of_group(group.id)
        ramp = planned.job.ramp + max((each.discarded_s for each in normal if each.job == planned.job.id), default=0.0)
        pauses = Pauses()
        for stored in self._earlier.rounds(planned.id):
            self._recorder.take_over(stored)
            pauses.learn(stored)
        begun = time.monotonic() - self._earlier.seconds(planned.id)
        # Rounds of a search have no boot of their own, so their samples are blocks.
        own_plan = replace(plan, rounds=MOST_ROUNDS, most_rounds=MOST_ROUNDS, reboot=False)
        while True:
            turns = self._turns(planned, at, normal, ramp=ramp)
            stopped = self._why_stopped(planned, turns, time.monotonic() - begun)
            self._record(planned, stopped)
            self._recorder.write_if_due()
            if stopped is not None:
                self._phases.events(Note(f"{planned.id}: {stopped}"))
                return at
            try:
                at = self._measure_round(_group_of(planned, group, turns), own_plan, at, turns, pauses)
            except WritesSpent as error:
                self._record(planned, error.message)
                return at

    def _turns(
        self, planned: PlannedSearch, at: Prepared, normal: Sequence[Measurement], *, ramp: float
    ) -> dict[Job, list[Turn]]:
        """The arms that need another round, by the job at their rate."""
        measured = self._recorder.of_group(planned.id)
        turns: dict[Job, list[Turn]] = {}
        for arm in planned.arms:
            speed = _speed(normal, planned.job, arm)
            if speed is None or not at.supports(arm):
                continue
            for rate in next_rates(loads_of(planned, measured, arm), planned.search.bound, planned.limits(speed)):
                turns.setdefault(planned.job_at(rate, speed, ramp=ramp), []).append(Turn(arm))
        return turns

    def _why_stopped(self, planned: PlannedSearch, turns: Mapping[Job, Sequence[Turn]], seconds: float) -> str | None:
        """Why no further round follows; None to continue."""
        rounds = len({each.round for each in self._recorder.of_group(planned.id)})
        limit = planned.search.time_limit
        if not turns:
            return "every arm has enough samples next to the bound" if rounds else "no arm was measured"
        if rounds >= MOST_ROUNDS:
            return f"the largest number of rounds, {MOST_ROUNDS}"
        if rounds and seconds * (rounds + 1) / rounds > limit:
            return f"time_limit = {format_duration(limit)}"
        return None

    def _record(self, planned: PlannedSearch, stopped: str | None) -> None:
        measured = self._recorder.of_group(planned.id)
        host, records = self._spec.host.name, self._recorder.records_of(planned.cells)
        self._recorder.search(search_record(planned, measured, records, host=host, stopped=stopped))

    def _measure_round(
        self, group: Group, plan: Plan, at: Prepared, turns: Mapping[Job, Sequence[Turn]], pauses: Pauses
    ) -> Prepared:
        def begin(at: Prepared) -> Round:
            measured = len({each.round for each in self._recorder.of_group(group.id)})
            return planned_round(
                self._recorder,
                group,
                turns,
                pauses,
                seed=self._spec.seed,
                rotational=at.rotational,
                further=max(USUAL_ROUNDS - measured - 1, 0),
            )

        return self._rounds.measure(plan, group, at, begin)


def _group_of(planned: PlannedSearch, group: Group, jobs: Mapping[Job, object]) -> Group:
    """The group of a round: the cells of the search at these rates, in the setup of their group."""
    cells = tuple(replace(cell, job=job) for job in jobs for cell in planned.cells)
    return replace(group, id=planned.id, cells=cells, blocks=planned.blocks)


def _speed(normal: Sequence[Measurement], job: Job, arm: Arm) -> float | None:
    """The arm's mean I/Os per second at full speed, as measured for its cells; None if it was not measured."""
    own = [each.metrics.get("iops", 0.0) for each in normal if each.job == job.id and each.arm == arm.id]
    found = [iops for iops in own if iops > 0]
    return fmean(found) if found else None
