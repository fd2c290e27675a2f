"""Makes the plan of a scenario: its cells, and the groups in which they are measured; and the plan in words. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.feature import features
from harness.model.cell import Cell
from harness.model.job import Job, Workload
from harness.model.mode import Mode
from harness.model.profile import Profile, profile_of
from harness.scenario.plan import Group, Plan
from harness.scenario.scenario import Scenario
from harness.scenario.setups import disks_in_words, setups
from harness.scenario.timetable import takes_turns
from harness.units import format_size


def plan_for(scenario: Scenario, profile_name: str, selected: Iterable[Cell] | None = None) -> Plan:
    """The plan for the `selected` cells of this scenario, or for all its cells."""
    profile = profile_of(scenario.profiles, profile_name)
    cells = expand(scenario, profile_name) if selected is None else selected
    groups = group_cells(cells, profile.round_limit, blocks=profile.blocks)
    return Plan(
        scenario.disk,
        tuple(groups),
        profile.rounds,
        profile.span,
        scenario.write_rate,
        most_rounds=profile.most_rounds,
        target=profile.target,
        time_limit=profile.time_limit,
        conditioning=profile.conditioning,
        reboot=profile.reboot,
        disks=scenario.disks,
        follow_ups=tuple(
            follow_up for group in groups for feature in features() for follow_up in feature.follow_ups(scenario, group)
        ),
    )


def expand(scenario: Scenario, profile_name: str) -> list[Cell]:
    """All cells, sorted by setup, workload, iodepth and mode. So the modes of one job are next to each other.

    The cells of a group also follow each other, so pytest's progress shows the progress of the campaign.
    """
    profile = profile_of(scenario.profiles, profile_name)
    return [
        Cell(scenario.name, scenario.disk, mode, job, scenario.reference)
        for together in setups(scenario.modes)
        for job in _make_jobs(scenario.workloads, profile, together)
        for mode in together
    ]


def _make_jobs(workloads: Sequence[Workload], profile: Profile, together: Sequence[Mode]) -> Iterator[Job]:
    """The jobs of a setup with these modes. Arms that take turns have one long slice instead of several."""
    slices = profile.blocks if takes_turns(together) else 1
    for workload in workloads:
        seconds = (profile.own_times and workload.seconds_each) or profile.runtime
        for iodepth in workload.depths(profile.iodepth):
            yield workload.job(iodepth, ramp=profile.ramp, seconds=seconds * slices)


def group_cells(cells: Iterable[Cell], max_round_seconds: float, *, blocks: int = 1) -> list[Group]:
    """Splits the cells into groups. The modes of a group are in one setup.

    A round of a group takes at most `max_round_seconds` of fio. A group with only one job may take longer. Jobs stay in
    the order of the cells. The ids are `SCENARIO-batch1`, `SCENARIO-batch2`, ... Groups of one setup follow each other.
    """
    by_scenario: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        by_scenario.setdefault((cell.scenario, cell.disk), []).append(cell)
    return [
        Group(f"{scenario}-batch{number}", disk, scenario, tuple(batch), _count_blocks(batch, blocks), setup)
        for (scenario, disk), own in by_scenario.items()
        for number, (setup, batch) in enumerate(_split_into_batches(own, max_round_seconds, blocks), start=1)
    ]


def _split_into_batches(
    cells: Sequence[Cell], max_round_seconds: float, blocks: int
) -> Iterator[tuple[int, list[Cell]]]:
    """The cells of each group of one scenario, with the number of its setup."""
    for number, together in enumerate(setups(cell.mode for cell in cells), start=1):
        by_job: dict[Job, list[Cell]] = {}
        for cell in cells:
            if cell.mode in together:
                by_job.setdefault(cell.job, []).append(cell)
        for batch in _fit_into_rounds(list(by_job.values()), max_round_seconds, blocks):
            yield number, batch


def _fit_into_rounds(cells_by_job: Sequence[list[Cell]], max_round_seconds: float, blocks: int) -> list[list[Cell]]:
    batches: list[list[Cell]] = []
    room = 0.0
    for cells in cells_by_job:
        arms = {arm for cell in cells for arm in cell.arms}
        cost = len(arms) * _count_blocks(cells, blocks) * cells[0].job.wall
        if not batches or cost > room:
            batches.append([])
            room = max_round_seconds
        batches[-1] += cells
        room -= cost
    return batches


def _count_blocks(cells: Sequence[Cell], blocks: int) -> int:
    return 1 if takes_turns(cell.mode for cell in cells) else blocks


def describe_plan(plan: Plan) -> str:
    """For example `40 cells in 1 group, 8 arms, 3 rounds: about 5 min, at most 192 GiB written to optane`.

    If the number of rounds varies: `3 to 12 rounds: about 40 min, at most 2 h 10 min, at most ...`. With more than one
    setup: `in 5 groups and 4 setups`. With searches, for example: `3 rounds, 1 x highest load: ...`.
    """
    arms = len({arm for group in plan.groups for arm in group.arms})
    number = len(plan.setups)
    groups = _count(len(plan.groups), "group") + (f" and {number} setups" if number > 1 else "")
    disks = max((setup.disks for setup in plan.setups), key=len, default=(plan.disk,))
    several = plan.most_rounds > plan.rounds
    rounds = f"{plan.rounds} to {plan.most_rounds} rounds" if several else _count(plan.rounds, "round")
    about, most = _write_hours(plan.minutes), _write_hours(plan.most_minutes)
    counts = Counter(follow_up.title for follow_up in plan.follow_ups)
    following = "".join(f", {number} x {title}" for title, number in counts.items())
    return (
        f"{_count(len(plan.cells), 'cell')} in {groups}, {_count(arms, 'arm')}, "
        f"{rounds}{following}: about {about}, {f'at most {most}, ' if most != about else ''}"
        f"at most {format_size(_limit_written(plan, disks))} written to {disks_in_words(disks)}"
    )


def describe_plans(plans: Sequence[Plan]) -> str:
    """The plans of one run on a host together, for example `68 cells in 3 scenarios: about 31 min`."""
    cells, scenarios = sum(len(plan.cells) for plan in plans), _count(len(plans), "scenario")
    once = max((plan.once_minutes for plan in plans), default=0.0)
    about = _write_hours(once + sum(plan.minutes - plan.once_minutes for plan in plans))
    most = _write_hours(once + sum(plan.most_minutes - plan.once_minutes for plan in plans))
    return f"{_count(cells, 'cell')} in {scenarios}: about {about}{f', at most {most}' if most != about else ''}"


def _limit_written(plan: Plan, disks: Iterable[str]) -> float:
    """The bytes written at most, within the limits of the disks."""
    return min(plan.write_bytes, sum(plan.limits.get(disk, math.inf) for disk in disks))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _write_hours(minutes: float) -> str:
    whole = max(1, round(minutes))
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
