"""The policy of searches for the highest load: rounds at rates that depend on what the rounds before showed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from harness.errors import Unsupported
from harness.events import Note
from harness.features.search.curve import next_rates
from harness.features.search.request import MOST_ROUNDS, USUAL_ROUNDS, PlannedSearch, loads_of, search_record
from harness.measure.phases import MEASURE, Pauses
from harness.measure.rounds import FollowingSeries, SeriesContext, plan_round
from harness.measure.series import LimitReached, PreparedGroup, Round
from harness.model.job import Job
from harness.model.mode import Arm
from harness.results import Measurement
from harness.scenario.setups import Group
from harness.scenario.timetable import ScheduledArm
from harness.units import format_duration


def follow(context: SeriesContext) -> Iterator[FollowingSeries]:
    """The searches of a group that was measured."""
    for planned in context.plan.follow_ups_of(PlannedSearch, context.group):
        yield SearchRounds(context, planned)


class SearchRounds(FollowingSeries):
    """Chooses the rounds of one search. The recorder gets everything."""

    def __init__(self, context: SeriesContext, planned: PlannedSearch) -> None:
        self.phase = MEASURE
        self.title = f"search {planned.name} of {context.group.id}"
        self._context = context
        self._recorder = context.recorder
        self._planned = planned
        self._normal = self._recorder.of_group(context.group.id)
        """What the group's cells measured at full speed."""
        discarded = (measurement.discarded_s for measurement in self._normal if measurement.job == planned.job.id)
        self._ramp = planned.job.ramp + max(discarded, default=0.0)
        self._pauses = Pauses()
        for stored in context.earlier.rounds(planned.id):
            self._recorder.take_over(stored)
            self._pauses.learn(stored)
        self._begun = time.monotonic() - context.earlier.seconds(planned.id)
        # Rounds of a search have no boot of their own, so their samples are blocks.
        self._plan = replace(context.plan, rounds=MOST_ROUNDS, most_rounds=MOST_ROUNDS, reboot=False)
        self._refused = False

    def next_step(self, prepared: PreparedGroup) -> Round | None:
        if self._refused:
            return None
        arms = self._choose_arms(prepared)
        stopped = self._why_stopped(arms)
        self._record(stopped)
        self._recorder.write_if_due()
        if stopped is not None:
            self._context.phases.events(Note(f"{self._planned.id}: {stopped}"))
            return None
        return plan_round(
            replace(self._context, plan=self._plan, group=_make_group(self._planned, self._context.group, arms)),
            arms,
            self._pauses,
            rotational=prepared.rotational,
            further=max(USUAL_ROUNDS - self._rounds - 1, 0),
        )

    def handle_refusal(self, refusal: Unsupported) -> None:
        if not isinstance(refusal, LimitReached):
            raise refusal
        self._record(refusal.message)
        self._refused = True

    @property
    def _rounds(self) -> int:
        """The number of rounds that count so far."""
        return len({measurement.round for measurement in self._recorder.of_group(self._planned.id)})

    def _choose_arms(self, prepared: PreparedGroup) -> dict[Job, list[ScheduledArm]]:
        """The arms that need another round, by the job at their rate."""
        planned = self._planned
        measured = self._recorder.of_group(planned.id)
        arms: dict[Job, list[ScheduledArm]] = {}
        for arm in planned.arms:
            speed = _read_speed(self._normal, planned.job, arm)
            if speed is None or not prepared.supports(arm):
                continue
            for rate in next_rates(loads_of(planned, measured, arm), planned.search.bound, planned.limits(speed)):
                arms.setdefault(planned.job_at(rate, speed, ramp=self._ramp), []).append(ScheduledArm(arm))
        return arms

    def _why_stopped(self, arms: Mapping[Job, Sequence[ScheduledArm]]) -> str | None:
        """Why no further round follows; None to continue."""
        rounds, limit = self._rounds, self._planned.search.time_limit
        if not arms:
            return "every arm has enough samples next to the bound" if rounds else "no arm was measured"
        if rounds >= MOST_ROUNDS:
            return f"the largest number of rounds, {MOST_ROUNDS}"
        if rounds and (time.monotonic() - self._begun) * (rounds + 1) / rounds > limit:
            return f"time_limit = {format_duration(limit)}"
        return None

    def _record(self, stopped: str | None) -> None:
        planned = self._planned
        measured = self._recorder.of_group(planned.id)
        host, records = self._context.spec.host.name, self._recorder.records_of(planned.cells)
        self._recorder.add_record(search_record(planned, measured, records, host=host, stopped=stopped))


def _make_group(planned: PlannedSearch, group: Group, jobs: Mapping[Job, object]) -> Group:
    """The group of a round: the cells of the search at these rates, in the setup of their group."""
    cells = tuple(replace(cell, job=job) for job in jobs for cell in planned.cells)
    return replace(group, id=planned.id, cells=cells, blocks=planned.blocks)


def _read_speed(normal: Sequence[Measurement], job: Job, arm: Arm) -> float | None:
    """The arm's mean I/Os per second at full speed, as measured for its cells; None if it was not measured."""
    own = (measurement for measurement in normal if measurement.job == job.id and measurement.arm == arm.id)
    positive = [iops for measurement in own if (iops := measurement.metrics.get("iops", 0.0)) > 0]
    return fmean(positive) if positive else None
