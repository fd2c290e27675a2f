"""The progress of a run, from its stored files: what runs now, what is done, what remains, latest verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.report.numbers import count, percent_with_interval
from harness.report.terminal import outcome_words
from harness.results import CellRecord, Journal, Outcome, Run
from harness.results.records import Planned
from harness.units import format_duration

MOST_VERDICTS = 5
KILLED = "killed"
"""The status of a run that says it is running, but that no process measures."""
QUIET_SECONDS = 600.0
"""Without a new measurement for this time, the view says so: the process may have ended."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run. Times in seconds; `left_s` is None if it is not known."""

    run: str
    status: str
    current: str
    """The round that is being measured, in words; empty between rounds."""
    rounds: int
    """Whole rounds of all groups."""
    groups: int
    """Groups that have a whole round."""
    planned_groups: int | None
    left_s: float | None
    silent_s: float | None
    """Since the newest measurement began."""
    cells: dict[str, int]
    """The number of cells with a guest by their outcome so far."""
    verdicts: tuple[str, ...]
    """The newest cells that have a result, a sentence each."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will follow."""
        return self.status != "running"


def read_progress(run: Run, journal: Journal, now: float) -> RunProgress:
    """The state of `run` at the time `now`, in seconds since 1970-01-01 UTC."""
    plan = Planned.of(run)
    whole = {group: journal.whole(group) for group in dict.fromkeys(each.group for each in journal.rounds)}
    guests = [cell for cell in run.cells if not cell.is_baseline]
    outcomes = [cell.outcome for cell in guests]
    last = max((measurement.started + measurement.wall for measurement in journal.measurements), default=None)
    return RunProgress(
        run=run.run.id,
        status=run.run.status,
        current=_current(journal, plan, whole) if run.run.status == "running" else "",
        rounds=sum(map(len, whole.values())),
        groups=sum(map(bool, whole.values())),
        planned_groups=len(plan.groups) if plan else None,
        left_s=_left(run, journal, plan) if run.run.status == "running" else 0.0,
        silent_s=None if last is None else max(now - last, 0.0),
        cells={str(each): outcomes.count(each) for each in Outcome if each in outcomes},
        verdicts=tuple(map(_verdict, _newest(guests, journal))),
    )


def watch_lines(state: RunProgress) -> Iterator[str]:
    """The state as lines of text."""
    yield f"run {state.run}: {state.status}"
    if not state.ended:
        yield f"now: {state.current or 'preparing, or between two rounds'}"
    if state.status == KILLED:
        yield "no process measures it any more; to go on, add to the same command: --resume=RUN"
    planned = state.planned_groups
    groups = count(state.groups, "group") if planned is None else f"{state.groups} of {planned} groups"
    yield f"done: {count(state.rounds, 'round')} in {groups}"
    if not state.ended and state.left_s is not None:
        yield f"remaining: {_remaining(state.left_s)}"
    if not state.ended and state.silent_s is not None and state.silent_s > QUIET_SECONDS:
        yield (
            f"no new measurement for {format_duration(round(state.silent_s))}: the disk is being filled or an array "
            "rebuilt, or the process ended; `virt-overhead run --resume` continues a run that ended"
        )
    if state.cells:
        yield "cells: " + ", ".join(f"{number} {outcome}" for outcome, number in state.cells.items())
    yield from (f"  {verdict}" for verdict in state.verdicts)


def _remaining(seconds: float) -> str:
    if seconds <= 0:
        return "further rounds, until they decide or the time is spent"
    return f"about {format_duration(max(round(seconds, -1), 10))} of measuring"


def _current(journal: Journal, plan: Planned | None, whole: dict[str, set[int]]) -> str:
    """The round without an end: "lvm-batch1, round 2 of 2 to 6: 12 of 40 slices, now randread-4k-qd1 in guest:lvm"."""
    if not journal.unfinished:
        return ""
    group = journal.unfinished[-1].group
    begun = next(of_group for of_group in journal.unfinished if of_group.group == group)
    slices = [each for each in journal.of_group(begun.group) if each.round == begun.round]
    planned = next((group for group in plan.groups if group.id == begun.group), None) if plan else None
    number = len(whole[begun.group]) + 1
    of = ""
    if planned is not None and number <= planned.most_rounds:
        of = f" of {planned.rounds}" + (f" to {planned.most_rounds}" if planned.most_rounds > planned.rounds else "")
    newest = f", newest {slices[-1].job} in {slices[-1].arm}" if slices else ""
    return f"{begun.group}, round {number}{of}: {len(slices)} of {begun.measurements} slices{newest}"


def _left(run: Run, journal: Journal, plan: Planned | None) -> float | None:
    """The time until every group has its fewest rounds."""
    if plan is None or plan.fio_s <= 0:
        return None
    spent: dict[str, float] = {}
    for measurement in journal.measurements:
        spent[measurement.group] = spent.get(measurement.group, 0.0) + measurement.wall
    return plan.seconds_left(spent, [group.id for group in run.groups if group.stopped is not None])


def _newest(cells: list[CellRecord], journal: Journal) -> list[CellRecord]:
    """The cells with a result whose jobs were measured last, the newest at the end."""
    order = {(each.job, each.arm): number for number, each in enumerate(journal.measurements)}
    found = [cell for cell in cells if cell.measured]
    return sorted(found, key=lambda each: order.get((each.job.id, f"guest:{each.mode}"), -1))[-MOST_VERDICTS:]


def _verdict(cell: CellRecord) -> str:
    figure = f", overhead {percent_with_interval(cell.overhead)} %" if cell.usable and cell.overhead else ""
    return f"{cell.id}: {outcome_words(cell)}{figure}"
