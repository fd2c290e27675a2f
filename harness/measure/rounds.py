"""Measures rounds, and repeats a round that fails in a simulated lab. For campaigns and calibrations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from harness.errors import GuestError, HostError
from harness.events import BlockStarted, Events
from harness.measure.measurer import LabFound, Measurer, Piece, Prepared
from harness.measure.pauses import Pauses
from harness.measure.recorder import Recorder
from harness.measure.timing import Timing
from harness.model.cell import Arm
from harness.model.job import Job
from harness.results import Measurement
from harness.scenario.plan import Group, Plan
from harness.scenario.timetable import BACKUP_TAIL, Pause, Slice, Timetable, Turn, timetables


@dataclass(frozen=True, slots=True)
class Round:
    """A round to measure. `number` is its number in the journal, and `nth` its number among the rounds that count.

    `pause` is the time after a slice, `backup_tail` in addition that after one with a backup. `quiet` is how much of a
    pause is left when the last I/Os have usually completed; None if that is not known. All three are asked before each
    timetable, and may learn from the one before. `record` is called with the measurements of each of them.
    `recorded` is entered before the first one, and gets the error if one fails. `seconds_left` estimates the time of
    everything after this round and the rounds that surely follow it: `further`, None if their number is not known.
    """

    number: int
    nth: int
    tables: Sequence[Timetable]
    pause: Pause
    record: Callable[[Sequence[Measurement]], None]
    seconds_left: Callable[[], float]
    further: int | None = None
    recorded: AbstractContextManager[None] = field(default_factory=nullcontext)
    backup_tail: Callable[[], float] = lambda: BACKUP_TAIL
    quiet: Callable[[], float | None] = lambda: None


def planned_round(
    recorder: Recorder,
    group: Group,
    turns: Mapping[Job, Sequence[Turn]],
    pauses: Pauses,
    *,
    seed: int,
    rotational: bool,
    measured: Callable[[Sequence[Measurement]], None] = lambda _measurements: None,
    further: int | None = None,
    seconds_left: Callable[[], float] = lambda: 0.0,
) -> Round:
    """The next round of the group with these turns. It is in the journal from its beginning to its end.

    The recorder gets the measurements of each timetable, `pauses` learns from them, and `measured` is called with them.
    """
    number = recorder.next_round(group.id)
    before = recorder.of_group(group.id)

    def pause(job: Job, arm: Arm) -> float:
        return pauses.after(job, in_guest=arm.in_guest, rotational=rotational, arm=arm)

    def record(measurements: Sequence[Measurement]) -> None:
        recorder.add(measurements, fio_seconds=fio_seconds(group, measurements))
        pauses.learn(measurements)
        measured(measurements)

    chance = random.Random(f"round {seed} {group.id} {number}")
    tables = timetables(
        turns, group.blocks, chance=chance, pause=pause, backup_tail=pauses.after_backup, short_first=not before
    )
    return Round(
        number=number,
        nth=len({each.round for each in before}) + 1,
        tables=tables,
        pause=pause,
        record=record,
        seconds_left=seconds_left,
        further=further,
        recorded=recorder.round(group.id, number, sum(len(table.slices) for table in tables)),
        backup_tail=lambda: pauses.after_backup,
        quiet=lambda: pauses.jitter,
    )


class Limit(Protocol):
    """Decides before a step whether it may be measured. Each method raises Unsupported if it may not."""

    def require_setup(self, plan: Plan, group: Group) -> None:
        """Before the layouts of the group are built and filled."""

    def require_round(self, plan: Plan, group: Group, tables: Sequence[Timetable]) -> None:
        """Before a round with these timetables begins."""

    def limited(self, plan: Plan, group: Group, table: Timetable) -> Timetable:
        """Before each timetable: the timetable to measure."""


class Rounds:
    """Measures the rounds of a host's groups. `examined` gets the properties of the host before a group is prepared.

    `limit` is asked before everything that writes.
    """

    def __init__(
        self,
        measurer: Measurer,
        events: Events,
        examined: Callable[[LabFound], None] = lambda _found: None,
        limit: Limit | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._measurer = measurer
        self._events = events
        self._examined = examined
        self._limit = limit
        self._timing = timing or Timing(())
        self._boots: dict[str, int] = {}
        """The number of the current boot, by group: that of the first round in it."""

    def ready(self, plan: Plan, group: Group) -> Prepared:
        """Prepare the group. If a simulated lab fails meanwhile, it is prepared again."""

        def examined(found: LabFound) -> None:
            self._examined(found)
            if self._limit is not None and found.builds:
                self._limit.require_setup(plan, group)

        while True:
            try:
                at = self._measurer.ready(plan, group, examined)
            except (HostError, GuestError) as error:
                self._boots.clear()
                self._measurer.start_again(error, f"the lab failed before {group.id} was measured")
            else:
                self._timing.prepared(plan, group)
                return at

    def measure(self, plan: Plan, group: Group, at: Prepared, begin: Callable[[Prepared], Round]) -> Prepared:
        """Measure one round, which `begin` returns. If a simulated lab fails, measure another round instead.

        Returns the group as it is prepared at the end. Raises what the measurer raises.
        """
        while True:
            this = begin(at)
            if plan.reboots(group):
                self._boots.clear()
            boot = self._boots.setdefault(group.id, this.number)
            try:
                if self._limit is not None:
                    self._limit.require_round(plan, group, this.tables)
                with this.recorded:
                    if plan.reboots(group):
                        self._measurer.boot_again()
                    self._measure(plan, group, this, boot)
            except (HostError, GuestError) as error:
                self._boots.clear()
                what = f"the lab failed in round {this.number} of {group.id}, which does not count"
                self._measurer.start_again(error, what)
                at = self.ready(plan, group)
            else:
                self._measurer.round_measured()
                return at

    def _measure(self, plan: Plan, group: Group, this: Round, boot: int) -> None:
        blocks = len({slice_.of_block for table in this.tables for slice_ in table.slices})
        begun: dict[tuple[int, Job], None] = {}
        rounds = max(plan.rounds, this.nth + this.further) if this.further is not None else plan.rounds
        table_ends = 0.0

        def began(planned: Slice) -> None:
            begun[planned.of_block] = None
            what = f"block {len(begun)} of {blocks}: {planned.job.id}"
            left = table_ends - time.monotonic() + following
            self._events(BlockStarted(group.id, this.nth, rounds, what, max(left, 0.0)))

        for index, table in enumerate(this.tables, start=1):
            paused = table.paused(this.pause, this.backup_tail(), this.quiet())
            limited = self._limit.limited(plan, group, paused) if self._limit is not None else paused
            piece = Piece(this.number, index, boot, limited)
            following = self._left_after(plan, group, this, this.tables[index:])
            started = time.monotonic()
            table_ends = started + self._timing.seconds_of([limited])
            measurements = self._measurer.measure(group, piece, began)
            self._timing.ran(group, limited, time.monotonic() - started)
            this.record(measurements)

    def _left_after(self, plan: Plan, group: Group, this: Round, later: Sequence[Timetable]) -> float:
        """The time of the later timetables of the round, of the rounds that surely follow, and of everything else."""
        paused = [table.paused(this.pause, this.backup_tail()) for table in (this.tables if this.further else later)]
        found = self._timing.seconds_of(paused[len(paused) - len(later) :]) + this.seconds_left()
        if this.further:
            found += this.further * (self._timing.boot_seconds(plan, group) + self._timing.seconds_of(paused))
        return found


def fio_seconds(group: Group, measurements: Sequence[Measurement]) -> float:
    """Seconds in which fio ran, including ramps."""
    ramps = {job.id: job.ramp for job in group.jobs}
    return sum(ramps[measurement.job] + measurement.discarded_s + measurement.seconds for measurement in measurements)
