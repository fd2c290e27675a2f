"""A plan in words, as it is shown before a run. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from harness.scenario.plan import Plan
from harness.scenario.setups import disks_in_words
from harness.units import format_size


def plan_in_words(plan: Plan) -> str:
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
    about, most = _hours(plan.minutes), _hours(plan.most_minutes)
    counts = Counter(follow_up.title for follow_up in plan.follow_ups)
    following = "".join(f", {number} x {title}" for title, number in counts.items())
    return (
        f"{_count(len(plan.cells), 'cell')} in {groups}, {_count(arms, 'arm')}, "
        f"{rounds}{following}: about {about}, {f'at most {most}, ' if most != about else ''}"
        f"at most {format_size(_most_written(plan, disks))} written to {disks_in_words(disks)}"
    )


def all_in_words(plans: Sequence[Plan]) -> str:
    """The plans of one run on a host together, for example `68 cells in 3 scenarios: about 31 min`."""
    cells, scenarios = sum(len(plan.cells) for plan in plans), _count(len(plans), "scenario")
    once = max((plan.once_minutes for plan in plans), default=0.0)
    about = _hours(once + sum(plan.minutes - plan.once_minutes for plan in plans))
    most = _hours(once + sum(plan.most_minutes - plan.once_minutes for plan in plans))
    return f"{_count(cells, 'cell')} in {scenarios}: about {about}{f', at most {most}' if most != about else ''}"


def _most_written(plan: Plan, disks: Iterable[str]) -> float:
    """The bytes written at most, within the limits of the disks."""
    return min(plan.write_bytes, sum(plan.limits.get(disk, math.inf) for disk in disks))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hours(minutes: float) -> str:
    whole = max(1, round(minutes))
    return f"{whole} min" if whole < 120 else f"{whole // 60} h {whole % 60} min"
